"""The order since 1.x: camshaft's own, that of earlier modules in it, and those of the documents of 2.0 and 2.x."""

from __future__ import annotations

from camshaft.hooks_core.eras import TODAY, Behaviour
from camshaft.hooks_core.grammar.nodes import Call, Condition, Either, If, Maybe, Node, Repeat, Seq, Set

_TRANSFER = Seq("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_SAVE_POINT = Repeat(Call("on_save_checkpoint"), each="requested checkpoint")
_SCHEDULERS = Repeat(Call("lr_scheduler_step"), each="scheduler that is due")
_PROGRESS_BAR = Maybe(Call("get_progress_bar_dict"), when="if a progress bar is drawn")
_JOIN = Maybe(Call("init_ddp_connection"), when="if several processes run and have not joined")
_IN_PLACE_OF_DEFAULTS = Repeat(
    Either(
        "init_optimizers",
        "configure_apex",
        "configure_ddp",
        "on_post_move_to_device",
        "restore_weights",
        "summarize",
    ),
    each="part of the set-up that the module does itself",
)


def fit(optimize: Node, behaviour: Behaviour = TODAY, *, may_validate_after_epoch: bool = False) -> Node:
    """The life cycle of fit.

    Hooks of earlier eras that have no moment of today stand where they are called.

    Args:
        optimize: What happens between a training batch's start and the schedulers behind it.
        behaviour: Where the module's version departs from today's order.
        may_validate_after_epoch: Whether the validation at the end of an epoch may also follow the epoch's end hooks.
    """
    sanity_check: Node = Maybe(
        Seq("on_sanity_check_start", evaluation("validation"), "on_sanity_check_end"),
        when="if a sanity check is asked for",
    )
    start: Node = Seq("on_train_start", _SAVE_POINT)
    beginning = (start, sanity_check) if behaviour.train_start_comes_first else (sanity_check, start)
    training = Seq(
        *beginning,
        Repeat(_epoch(optimize, may_validate_after_epoch), each="training epoch"),
        "on_train_end",
        _SAVE_POINT,
    )
    return Seq(
        _set_up(loaders=("train_dataloader", "val_dataloader")),
        "configure_optimizers",
        _IN_PLACE_OF_DEFAULTS,
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
            Seq(_TRANSFER, f"on_{word}_batch_start", f"{word}_step", f"{word}_step_end", f"on_{word}_batch_end"),
            each=f"{word} batch",
        ),
        f"{word}_epoch_end",
        f"on_{word}_epoch_end",
        f"on_{word}_end",
        f"on_{word}_model_train",
    )


def _set_up(loaders: tuple[str, ...]) -> Node:
    return Seq(
        Maybe(Seq("on_init_start", "on_init_end"), when="when the trainer is made"),
        _JOIN,
        "configure_callbacks",
        _JOIN,
        Maybe(Call("prepare_data"), when="on one process only"),
        _IN_PLACE_OF_DEFAULTS,
        "setup",
        "configure_sharded_model",
        "configure_model",
        Maybe(Call("on_load_checkpoint", sets=Condition.RESUMED), when="if a checkpoint is loaded"),
        *loaders,
    )


def _epoch(optimize: Node, may_validate_after_epoch: bool) -> Node:
    free_gradients = Maybe(
        Call("on_validation_model_zero_grad"),
        when=f"unless {Condition.HELD}",
        left_out_if=Condition.HELD,
    )
    reloading = Maybe(Call("val_dataloader"), when="if loaders are reloaded")
    validation = Seq(free_gradients, reloading, evaluation("validation"))
    at_the_end = "if validation is due at the end of the epoch, up to 1.3"
    batch = Seq(
        _TRANSFER,
        Call("on_train_batch_start", sets=Condition.SKIPPED, on="-1"),
        If(
            Condition.SKIPPED,
            Seq(
                optimize,
                _SCHEDULERS,
                "on_train_batch_end",
                _PROGRESS_BAR,
                Maybe(validation, when="if validation is due"),
                _SCHEDULERS,
                _SAVE_POINT,
            ),
            holds=False,
        ),
    )
    return Seq(
        Set(Condition.SKIPPED, False),
        Maybe(
            Seq("train_dataloader", Maybe(Call("val_dataloader"), when="if not before validation")),
            when="if loaders are reloaded",
        ),
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
        Maybe(Call("training_epoch_end"), when="unless no batch was run", left_out_if=Condition.SKIPPED),
        "on_train_epoch_end",
        *([Maybe(validation, when=at_the_end)] if may_validate_after_epoch else []),
        _SCHEDULERS,
        _SAVE_POINT,
    )
