"""The order of today's eras: camshaft's own, and those of the documents of 2.0 and 2.x."""

from __future__ import annotations

from typing import Literal

from camshaft.hooks_core.grammar.nodes import Call, Condition, Either, If, Maybe, Node, Repeat, Seq, Set, Within

Optimization = Literal["automatic", "manual", "none"]

_TRANSFER = Seq("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_SAVE_POINT = Repeat(Call("on_save_checkpoint"), each="requested checkpoint")
_SCHEDULERS = Repeat(Call("lr_scheduler_step"), each="scheduler that is due")
_STEP = Seq(
    Set(Condition.NO_LOSS, False),
    Call("training_step", sets=Condition.NO_LOSS, on="None"),
)
_ZERO = If(Condition.HELD, Seq("on_before_zero_grad", "optimizer_zero_grad"), holds=False)
_BACKWARD = Seq("on_before_backward", "backward", "on_after_backward")
_BEFORE_UPDATE = Seq("on_before_optimizer_step", "configure_gradient_clipping")


def fit(*, zero_before_step: bool, optimization: Optimization) -> Node:
    """The life cycle of fit.

    Args:
        zero_before_step: Whether gradients are zeroed before `training_step` and `optimizer_step` stands alone, as the
            document of 2.x has it; else zeroing follows the step, and `optimizer_step` encloses what its closure runs.
        optimization: Who differentiates and steps: the loop, the module inside of `training_step`, or nobody.
    """
    if optimization == "manual":
        optimize = _by_hand()
    elif optimization == "none":
        optimize = Call("training_step")
    else:
        optimize = _in_line() if zero_before_step else _in_closure()
    training = Seq(
        Maybe(
            Seq("on_sanity_check_start", evaluation("validation"), "on_sanity_check_end"),
            when="if a sanity check is asked for",
        ),
        "on_train_start",
        Repeat(_epoch(optimize), each="training epoch"),
        "on_train_end",
        _SAVE_POINT,
    )
    return Seq(
        _set_up(loaders=("train_dataloader", "val_dataloader")),
        "configure_optimizers",
        "on_fit_start",
        Maybe(training, when="if there is anything to train"),
        "on_fit_end",
        "teardown",
    )


def evaluate(word: str) -> Node:
    """The life cycle of the verb whose hooks are named after `word`: "validation", "test" or "predict"."""
    loader = {"validation": "val_dataloader"}.get(word, f"{word}_dataloader")
    return Seq(_set_up(loaders=(loader,)), Maybe(evaluation(word), when="if there are batches"), "teardown")


def evaluation(word: str) -> Node:
    """One pass over evaluation data, whichever verb it belongs to."""
    return Seq(
        f"on_{word}_model_eval",
        f"on_{word}_start",
        f"on_{word}_epoch_start",
        Repeat(
            Seq(_TRANSFER, f"on_{word}_batch_start", f"{word}_step", f"on_{word}_batch_end"),
            each=f"{word} batch",
        ),
        f"on_{word}_epoch_end",
        f"on_{word}_end",
        f"on_{word}_model_train",
    )


def _set_up(loaders: tuple[str, ...]) -> Node:
    return Seq(
        "configure_callbacks",
        Maybe(Call("prepare_data"), when="on one process only"),
        "setup",
        "configure_sharded_model",
        "configure_model",
        Maybe(Call("on_load_checkpoint", sets=Condition.RESUMED), when="if a checkpoint is loaded"),
        *loaders,
    )


def _epoch(optimize: Node) -> Node:
    free_gradients = Maybe(
        Call("on_validation_model_zero_grad"),
        when=f"unless {Condition.HELD}",
        left_out_if=Condition.HELD,
    )
    batch = Seq(
        _TRANSFER,
        Call("on_train_batch_start", sets=Condition.SKIPPED, on="-1"),
        If(
            Condition.SKIPPED,
            Seq(
                optimize,
                _SCHEDULERS,
                "on_train_batch_end",
                Maybe(Seq(free_gradients, evaluation("validation")), when="if validation is due"),
                _SCHEDULERS,
                _SAVE_POINT,
            ),
            holds=False,
        ),
    )
    return Seq(
        Set(Condition.SKIPPED, False),
        Maybe(
            Call("on_train_epoch_start"),
            when="unless the run goes on within an epoch",
            left_out_if=Condition.RESUMED,
        ),
        # What an epoch that ended early, or a checkpoint, left in the gradients may be kept or zeroed.
        Maybe(Set(Condition.HELD, False), when=""),
        If(Condition.RESUMED, Maybe(Set(Condition.HELD, True), when="")),
        Set(Condition.RESUMED, False),
        Repeat(batch, each="training batch", until=Condition.SKIPPED),
        "on_train_epoch_end",
        _SCHEDULERS,
        _SAVE_POINT,
    )


def _in_closure() -> Node:
    closure = Seq(
        _STEP,
        If(Condition.NO_LOSS, Seq(_ZERO, _BACKWARD, _BEFORE_UPDATE), holds=False),
        If(Condition.NO_LOSS, Seq(Maybe(_ZERO, when="if an update follows all the same"), _update_of_what_is_held())),
    )
    update = Within("optimizer_step", Repeat(closure, each="evaluation of the closure", at_least=1))
    without_update = Seq(_STEP, If(Condition.NO_LOSS, Seq(_ZERO, _BACKWARD), holds=False))
    return _by_window(update, without_update)


def _in_line() -> Node:
    update = Seq(
        _ZERO,
        _STEP,
        If(Condition.NO_LOSS, Seq(_BACKWARD, _BEFORE_UPDATE, "optimizer_step"), holds=False),
        If(Condition.NO_LOSS, _update_of_what_is_held("optimizer_step")),
    )
    return _by_window(update, Seq(_ZERO, _STEP, If(Condition.NO_LOSS, _BACKWARD, holds=False)))


def _update_of_what_is_held(*stepping: str) -> Node:
    """A window whose last batch has no loss may still apply the gradients of its other batches."""
    update = Maybe(Seq(_BEFORE_UPDATE, *stepping), when="if they are applied all the same")
    return If(Condition.HELD, update)


def _by_window(update: Node, without_update: Node) -> Node:
    return Either(
        Seq(
            Repeat(update, each="optimizer", at_least=1),
            Set(Condition.HELD, False),
            label="where the batch updates the weights",
        ),
        Seq(
            Repeat(without_update, each="optimizer", at_least=1),
            If(Condition.NO_LOSS, Set(Condition.HELD, True), holds=False),
            # A batch without loss may open a window all the same.
            If(Condition.NO_LOSS, Maybe(Set(Condition.HELD, True), when="")),
            label="where gradients are only accumulated",
        ),
    )


def _by_hand() -> Node:
    pieces = Either(
        Seq(_BACKWARD, label="backward"),
        "on_before_optimizer_step",
        "configure_gradient_clipping",
        Seq("on_before_zero_grad", "optimizer_zero_grad", label="zeroing"),
    )
    return Within("training_step", Repeat(pieces, each="piece that the module runs, in its own order"))
