"""The order of the eras before 2.0, whose documents describe fit and test, and hooks of the module alone."""

from __future__ import annotations

from camshaft.hooks_core.grammar.nodes import Call, Condition, If, Maybe, Node, Repeat, Seq, Set

VERBS = ("fit", "test")


def fit(*, zero_before_backward: bool) -> Node:
    """The life cycle of fit before 2.0.

    Args:
        zero_before_backward: Whether `on_before_zero_grad` comes before backward, as the list in the document of 0.7
            has it; else it follows the update, as those of 0.5 and 0.8 say.
    """
    return Seq(
        _set_up(),
        "on_fit_start",
        "on_train_start",
        Maybe(Seq("on_sanity_check_start", _validation(is_sanity_check=True)), when="if a sanity check is asked for"),
        Repeat(_epoch(zero_before_backward), each="training epoch"),
        "on_train_end",
        "on_fit_end",
        "teardown",
    )


def test() -> Node:
    """The life cycle of test before 2.0."""
    return Seq(
        _set_up(),
        Maybe(Call("on_pre_performance_check"), when="if the trainer announces tests as well"),
        _steps("test"),
        "on_post_performance_check",
        "teardown",
    )


def _set_up() -> Node:
    return Seq(
        Maybe(Call("prepare_data"), when="on one process only"),
        "setup",
        Maybe(Call("init_ddp_connection"), when="if several processes run"),
        "configure_optimizers",
        Maybe(Call("init_optimizers"), when="if there are optimizers"),
        Maybe(Call("configure_apex"), when="if apex is used"),
        Maybe(Call("configure_ddp"), when="if several processes run"),
        "train_dataloader",
        "test_dataloader",
        "val_dataloader",
        Maybe(Call("summarize"), when="if a summary is asked for"),
        Maybe(Call("restore_weights"), when="if weights are restored"),
    )


def _epoch(zero_before_backward: bool) -> Node:
    before, after = (["on_before_zero_grad"], []) if zero_before_backward else ([], ["on_before_zero_grad"])
    stepping = Seq("optimizer_step", *after)
    split = Repeat(
        Seq(
            "training_step",
            "training_step_end",
            *before,
            "backward",
            "on_after_backward",
            Maybe(stepping, when="if the accumulation window ends"),
        ),
        each="optimizer",
        at_least=1,
    )
    batch = Seq(
        Call("on_batch_start", sets=Condition.SKIPPED, on="-1"),
        If(
            Condition.SKIPPED,
            Seq(
                "transfer_batch_to_device",
                "tbptt_split_batch",
                Repeat(split, each="split of the batch", at_least=1),
                "on_batch_end",
                Maybe(_validation(), when="if validation is due"),
            ),
            holds=False,
        ),
    )
    return Seq(
        Set(Condition.SKIPPED, False),
        "on_epoch_start",
        Repeat(batch, each="training batch", until=Condition.SKIPPED),
        "training_epoch_end",
        "on_epoch_end",
    )


def _validation(is_sanity_check: bool = False) -> Node:
    announced, closed = Call("on_pre_performance_check"), Call("on_post_performance_check")
    if not is_sanity_check:
        return Seq(announced, _steps("validation"), closed)
    when = "if the trainer announces the sanity check as validation"
    return Seq(Maybe(announced, when=when), _steps("validation"), Maybe(closed, when=when))


def _steps(word: str) -> Node:
    return Seq(
        Repeat(Seq("transfer_batch_to_device", f"{word}_step", f"{word}_step_end"), each=f"{word} batch"),
        f"{word}_epoch_end",
    )
