"""The order of the eras before 2.0, whose documents describe fit and test, and hooks of the module alone."""

from __future__ import annotations

import attrs

from camshaft.hooks_core.eras.releases import Behaviour
from camshaft.hooks_core.grammar.conditions import Condition
from camshaft.hooks_core.grammar.nodes import Call, Either, Maybe, Node, Repeat, Seq, Set, Within, unless

VERBS = ("fit", "test")

_SAVE_POINT = Repeat(Call("on_hpc_save"), each="requested checkpoint")
_SINCE_0_9 = "since 0.9"
_PROGRESS_BAR = Maybe(Seq("get_progress_bar_dict", "get_tqdm_dict"), when="if a progress bar is drawn")


def fit(behaviour: Behaviour) -> Node:
    """Return the life cycle of fit up to 0.9.

    Args:
        behaviour: The era's: whether `on_before_zero_grad` comes before backward, as the list in the document of 0.7
            has it, or follows the update, as those of 0.5 and 0.8 say; and whether `optimizer_step` zeroes, as in 0.5.
    """
    return Seq(
        _set_up(),
        "on_fit_start",
        Maybe(Seq("on_pretrain_routine_start", "on_pretrain_routine_end"), when=_SINCE_0_9),
        "on_train_start",
        _SAVE_POINT,
        Maybe(Seq("on_sanity_check_start", _validation(is_sanity_check=True)), when="if a sanity check is asked for"),
        Repeat(_epoch(behaviour), each="training epoch"),
        "on_train_end",
        _SAVE_POINT,
        "on_fit_end",
        "teardown",
    )


def test() -> Node:
    """Return the life cycle of test before 2.0."""
    return Seq(
        _set_up(),
        Maybe("on_pre_performance_check", when="if the trainer announces tests as well"),
        _steps("test"),
        "on_post_performance_check",
        "teardown",
    )


def _set_up() -> Node:
    return Seq(
        Maybe("init_ddp_connection", when="if several processes run and have not joined"),
        Maybe("prepare_data", when="on one process only"),
        "setup",
        Maybe("on_hpc_load", when="if a checkpoint is loaded"),
        "configure_optimizers",
        Maybe("init_optimizers", when="if there are optimizers"),
        Maybe("configure_apex", when="if apex is used"),
        Maybe("configure_ddp", when="if several processes run"),
        "train_dataloader",
        Maybe("tng_dataloader", when="if the training loader still has its first name"),
        "test_dataloader",
        "val_dataloader",
        Maybe("summarize", when="if a summary is asked for"),
        Maybe("restore_weights", when="if weights are restored"),
    )


def _epoch(behaviour: Behaviour) -> Node:
    ahead = Seq("transfer_batch_to_device", Set(Condition.MOVED, True))
    started = Call("on_train_batch_start", sets=Condition.SKIPPED, on="-1")
    trained = Seq(
        unless(Condition.MOVED, "transfer_batch_to_device"),
        Maybe("tbptt_split_batch", when="if batches are split along time"),
        Repeat(_optimization(behaviour), each="split of the batch", at_least=1),
        Maybe("on_train_batch_end", when=_SINCE_0_9),
        "on_batch_end",
        Maybe("on_tng_metrics", when="if metrics are to be logged"),
        _PROGRESS_BAR,
        Maybe(_validation(), when="if validation is due"),
        _SAVE_POINT,
    )
    batch = Seq(
        Set(Condition.MOVED, False),
        Maybe(ahead, when="if batches are moved ahead"),
        attrs.evolve(started, hook="on_batch_start"),
        Maybe(started, when=_SINCE_0_9),
        unless(Condition.SKIPPED, trained),
    )
    return Seq(
        Set(Condition.SKIPPED, False),
        # What an epoch that ended early left in the gradients may be kept or zeroed.
        Maybe(Set(Condition.HELD, False), when=""),
        "on_epoch_start",
        Repeat(batch, each="training batch", until=Condition.SKIPPED),
        Maybe("training_epoch_end", when="unless no batch was run", left_out_if=Condition.SKIPPED),
        "on_epoch_end",
        _SAVE_POINT,
    )


def _optimization(behaviour: Behaviour) -> Node:
    """Return the optimization of a split of a batch: forward, backward and update, optimizer by optimizer."""
    forward = Seq("training_step", "training_step_end", "training_end")
    backward = Seq("backward", "on_after_backward")
    again = Repeat(Seq(forward, backward), each="further evaluation, by an optimizer that asks for it")
    zero = Seq("on_before_zero_grad", "optimizer_zero_grad")
    gradients: Node = Seq(forward, backward)
    stepping: Node = Within("optimizer_step", again)
    if behaviour.step_zeroes:
        steps = Repeat(Seq(again, "on_before_zero_grad"), each="step of the optimizer, which it zeroes after")
        stepping = Within("optimizer_step", steps)
    elif behaviour.zero_grad == "before_backward":
        gradients = Seq(forward, unless(Condition.HELD, zero), backward)
    else:
        stepping = Seq(stepping, zero)
    updated = Repeat(Seq(gradients, stepping), each="optimizer", at_least=1)
    accumulated = Repeat(gradients, each="optimizer", at_least=1)
    return Either(
        Seq(updated, Set(Condition.HELD, False), label="where the accumulation window ends"),
        Seq(accumulated, Set(Condition.HELD, True), label="where gradients are only accumulated"),
    )


def _validation(is_sanity_check: bool = False) -> Node:
    announced, closed = Call("on_pre_performance_check"), Call("on_post_performance_check")
    if not is_sanity_check:
        return Seq(announced, _steps("validation"), closed)
    when = "if the trainer announces the sanity check as validation"
    return Seq(Maybe(announced, when=when), _steps("validation"), Maybe(closed, when=when))


def _steps(word: str) -> Node:
    batch = Seq("transfer_batch_to_device", f"{word}_step", f"{word}_step_end")
    return Seq(Repeat(batch, each=f"{word} batch"), f"{word}_epoch_end", f"{word}_end")
