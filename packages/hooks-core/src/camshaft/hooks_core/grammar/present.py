"""The order of hooks in fit and in evaluation, from which the life cycles are made."""

from __future__ import annotations

from typing import Literal

from camshaft.hooks_core.grammar.conditions import Condition, Variation
from camshaft.hooks_core.grammar.nodes import Call, Either, If, Maybe, Node, Repeat, Seq, Set, Within, unless
from camshaft.hooks_core.spec import ZeroGrad

_TRANSFER = Seq("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_SAVE_POINT = Repeat(Call("on_save_checkpoint"), each="requested checkpoint")
_RARE_SAVE_POINT = Seq(_SAVE_POINT, variation=Variation.RARE)
_SCHEDULERS = Repeat(Call("lr_scheduler_step"), each="scheduler that is due")


def fit(optimize: Node, *, train_start_first: bool = False, may_validate_after_epoch: bool = False) -> Node:
    """Return the life cycle of fit.

    Args:
        optimize: What happens between a training batch's start and the schedulers behind it.
        train_start_first: Whether `on_train_start` comes before the sanity check.
        may_validate_after_epoch: Whether the validation at the end of an epoch may also follow the epoch's end hooks.
    """
    checks = Seq("on_sanity_check_start", evaluation("validation"), "on_sanity_check_end")
    sanity_check = Maybe(checks, when="if a sanity check is asked for", variation=Variation.SANITY_CHECK)
    start = Seq("on_train_start", _RARE_SAVE_POINT)
    training = Seq(
        *((start, sanity_check) if train_start_first else (sanity_check, start)),
        Repeat(_epoch(optimize, may_validate_after_epoch), each="training epoch"),
        "on_train_end",
        _RARE_SAVE_POINT,
    )
    return Seq(
        _set_up("train_dataloader", "val_dataloader"),
        "configure_optimizers",
        "on_fit_start",
        Maybe(training, when="if there is anything to train", is_usual=True),
        "on_fit_end",
        "teardown",
    )


def evaluate(word: str) -> Node:
    """Return the life cycle of the verb whose hooks are named after `word`: "validation", "test" or "predict"."""
    loader = "val_dataloader" if word == "validation" else f"{word}_dataloader"
    return Seq(_set_up(loader), Maybe(evaluation(word), when="if there are batches", is_usual=True), "teardown")


def evaluation(word: str) -> Node:
    """Return one pass over evaluation data, in whichever verb."""
    batch = Seq(_TRANSFER, f"on_{word}_batch_start", f"{word}_step", f"on_{word}_batch_end")
    before = [f"on_{word}_{moment}" for moment in ("model_eval", "start", "epoch_start")]
    after = [f"on_{word}_{moment}" for moment in ("epoch_end", "end", "model_train")]
    return Seq(*before, Repeat(batch, each=f"{word} batch"), *after)


def _set_up(*loaders: str) -> Node:
    resume = Call("on_load_checkpoint", sets=Condition.RESUMED)
    return Seq(
        "configure_callbacks",
        Maybe("prepare_data", when="on one process only"),
        "setup",
        "configure_sharded_model",
        "configure_model",
        Maybe(resume, when="if a checkpoint is loaded", variation=Variation.RARE),
        *loaders,
    )


def _epoch(optimize: Node, may_validate_after_epoch: bool) -> Node:
    validation = Seq(
        Maybe("on_validation_model_zero_grad", when=f"unless {Condition.HELD}", left_out_if=Condition.HELD),
        Maybe("val_dataloader", when="if loaders are reloaded", variation=Variation.RARE),
        evaluation("validation"),
    )
    at_the_end = "if validation is due at the end of the epoch, up to 1.3"
    due = Maybe(validation, when="if validation is due")
    trained = Seq(optimize, _SCHEDULERS, "on_train_batch_end", due, _SCHEDULERS, _SAVE_POINT)
    start = Call("on_train_batch_start", sets=Condition.SKIPPED, on="-1")
    batch = Seq(_TRANSFER, start, unless(Condition.SKIPPED, trained))
    reloaded = Seq("train_dataloader", Maybe("val_dataloader", when="if not before validation"))
    begins = "unless the run goes on within an epoch"
    return Seq(
        Set(Condition.SKIPPED, False),
        Maybe(reloaded, when="if loaders are reloaded", variation=Variation.RARE),
        Maybe("on_train_epoch_start", when=begins, left_out_if=Condition.RESUMED),
        # What an epoch that ended early, or a checkpoint, left in the gradients may be kept or zeroed.
        Maybe(Seq(Set(Condition.HELD, False), Set(Condition.SOME_HELD, False)), when=""),
        If(Condition.RESUMED, Seq(_by_chance(Condition.HELD), _by_chance(Condition.SOME_HELD))),
        Set(Condition.RESUMED, False),
        Repeat(batch, each="training batch", until=Condition.SKIPPED),
        "on_train_epoch_end",
        *([Maybe(validation, when=at_the_end)] if may_validate_after_epoch else []),
        _SCHEDULERS,
        _SAVE_POINT,
    )


def _by_chance(condition: Condition, value: bool = True) -> Node:
    return Maybe(Set(condition, value), when="")


Optimization = Literal["automatic", "manual", "none"]

STEP = Seq(Set(Condition.NO_LOSS, False), Call("training_step", sets=Condition.NO_LOSS, on="None"))
ZERO = Seq("on_before_zero_grad", "optimizer_zero_grad")
ZERO_FIRST = unless(Condition.HELD, ZERO)
BACKWARD = Seq("on_before_backward", "backward", "on_after_backward")
BEFORE_UPDATE = Seq("on_before_optimizer_step", "configure_gradient_clipping", Set(Condition.NOTHING_APPLIED, False))


def optimization(kind: Optimization, zero_grad: ZeroGrad) -> Node:
    """Return the optimization of a batch, or of a split of one.

    An `optimizer_step` that is overridden encloses what its closure runs.

    Args:
        kind: By the loop ("automatic"), by the module inside of `training_step` ("manual"), or "none".
        zero_grad: Where the loop zeroes gradients.
    """
    if kind == "none":
        return Call("training_step")
    if kind == "manual":
        backward, zeroing = Seq(BACKWARD, label="backward"), Seq(*ZERO.items, label="zeroing")
        pieces = Either(backward, "on_before_optimizer_step", "configure_gradient_clipping", zeroing)
        return Within("training_step", Repeat(pieces, each="call by the module, in its own order"))
    is_first, is_before_backward = zero_grad == "before_training_step", zero_grad == "before_backward"
    step = Seq(ZERO_FIRST, STEP) if is_first else STEP
    zero = ZERO_FIRST if is_before_backward else None
    spare = [Maybe(ZERO_FIRST, when="if an update follows anyway")] if is_before_backward else []
    held = If(Condition.NO_LOSS, Seq(*spare, update_of_held_gradients()))
    closure = Seq(step, backward_of_loss(BEFORE_UPDATE, zero=zero), held)
    evaluations = Repeat(closure, each="evaluation of the closure", at_least=1, variation=Variation.RARE)
    update: Node = Within("optimizer_step", evaluations)
    if zero_grad == "after_optimizer_step":
        nothing = Condition.NOTHING_APPLIED
        update = Seq(Set(nothing, True), update, Maybe(ZERO, when=f"unless {nothing}", left_out_if=nothing))
    return by_window(update, Seq(step, backward_of_loss(zero=zero)), opens_with_first_batch=is_first)


def by_split(one: Node) -> Node:
    """Return an optimization for every split of a batch in turn, or for the whole batch where none is split."""
    return Seq(
        Maybe(Call("tbptt_split_batch"), when="if batches are split along time", variation=Variation.SPLITS),
        Repeat(one, each="split of the batch (a whole batch is one)", at_least=1, variation=Variation.SPLITS),
    )


def backward_of_loss(*following: Node, zero: Node | None = None) -> Node:
    return unless(Condition.NO_LOSS, Seq(*([zero] if zero else []), BACKWARD, *following))


def update_of_held_gradients(*stepping: str) -> Node:
    """Return the update of a window whose last batch has no loss: the gradients of its other batches may be applied."""
    return If(Condition.HELD, Maybe(Seq(BEFORE_UPDATE, *stepping), when="if they are applied anyway"))


def by_window(update: Node, without_update: Node, *, opens_with_first_batch: bool) -> Node:
    """Return an update, or the accumulation of gradients for a later one, for every optimizer in turn.

    Args:
        update: An optimizer's part where it updates.
        without_update: An optimizer's part where it does not.
        opens_with_first_batch: Whether a window's gradients are zeroed in its first batch even if that has no loss.
    """

    def by_optimizer(*items: Node) -> Node:
        one = Seq(_HELD_BY_CHANCE, *items)
        return Repeat(one, each="optimizer", at_least=1, variation=Variation.OPTIMIZERS)

    updated = (by_optimizer(update), Set(Condition.HELD, False), Set(Condition.SOME_HELD, False))
    accumulated = (
        Set(Condition.ANY_LOSS, False),
        Set(Condition.ANY_NO_LOSS, False),
        by_optimizer(without_update, _OUTCOME),
        _ALL_HELD if opens_with_first_batch else _HELD_BY_OUTCOME,
    )
    return Either(
        Seq(*updated, label="where the weights are updated"),
        Seq(*accumulated, label="where gradients are only accumulated", variation=Variation.ACCUMULATION),
    )


# What holds for one optimizer need not hold for the next.
_HELD_BY_CHANCE = If(
    Condition.SOME_HELD, Seq(_by_chance(Condition.HELD, value=True), _by_chance(Condition.HELD, value=False))
)
_ALL_HELD = Seq(Set(Condition.HELD, True), Set(Condition.SOME_HELD, False))
_OUTCOME = Seq(
    unless(Condition.NO_LOSS, Set(Condition.ANY_LOSS, True)),
    If(Condition.NO_LOSS, Set(Condition.ANY_NO_LOSS, True)),
)
_HELD_BY_LOSSES = Seq(
    unless(Condition.ANY_NO_LOSS, _ALL_HELD),
    If(Condition.ANY_NO_LOSS, unless(Condition.HELD, Set(Condition.SOME_HELD, True))),
)
_HELD_BY_OUTCOME = Seq(
    If(Condition.ANY_LOSS, _HELD_BY_LOSSES),
    unless(Condition.ANY_LOSS, _by_chance(Condition.HELD)),  # a batch without loss may open a window anyway
    _HELD_BY_CHANCE,
)
