"""The order of today's eras: camshaft's own, and those of the documents of 2.0 and 2.x."""

from __future__ import annotations

from camshaft.hooks_core.grammar.nodes import Call, Condition, If, Maybe, Node, Repeat, Seq, Set

_TRANSFER = Seq("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_SAVE_POINT = Repeat(Call("on_save_checkpoint"), each="requested checkpoint")
_SCHEDULERS = Repeat(Call("lr_scheduler_step"), each="scheduler that is due")


def fit(optimize: Node) -> Node:
    """The life cycle of fit.

    Args:
        optimize: What happens between a training batch's start and the schedulers behind it.
    """
    training = Seq(
        Maybe(
            Seq("on_sanity_check_start", evaluation("validation"), "on_sanity_check_end"),
            when="if a sanity check is asked for",
        ),
        "on_train_start",
        _SAVE_POINT,
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
        Maybe(Seq("train_dataloader", "val_dataloader"), when="if loaders are reloaded"),
        Maybe(
            Call("on_train_epoch_start"),
            when="unless the run goes on within an epoch",
            left_out_if=Condition.RESUMED,
        ),
        # What an epoch that ended early, or a checkpoint, left in the gradients may be kept or zeroed.
        Maybe(Seq(Set(Condition.HELD, False), Set(Condition.SOME_HELD, False)), when=""),
        If(
            Condition.RESUMED,
            Seq(Maybe(Set(Condition.HELD, True), when=""), Maybe(Set(Condition.SOME_HELD, True), when="")),
        ),
        Set(Condition.RESUMED, False),
        Repeat(batch, each="training batch", until=Condition.SKIPPED),
        "on_train_epoch_end",
        _SCHEDULERS,
        _SAVE_POINT,
    )
