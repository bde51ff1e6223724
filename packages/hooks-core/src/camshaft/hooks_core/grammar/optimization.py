"""The order between a training batch's start and its end: steps, backward, zeroing and updates."""

from __future__ import annotations

from typing import Literal

from camshaft.hooks_core.grammar.nodes import Call, Condition, Either, If, Maybe, Node, Repeat, Seq, Set, Within
from camshaft.hooks_core.spec import ZeroGrad

Optimization = Literal["automatic", "manual", "none"]

_STEP = Seq(
    Set(Condition.NO_LOSS, False),
    Call("training_step", sets=Condition.NO_LOSS, on="None"),
    If(
        Condition.NO_LOSS,
        Maybe(Call("training_step_end", clears=Condition.NO_LOSS), when="if it is asked all the same"),
    ),
    If(Condition.NO_LOSS, Call("training_step_end"), holds=False),
)
_ZERO = Seq("on_before_zero_grad", "optimizer_zero_grad")
_ZERO_FIRST = If(Condition.HELD, _ZERO, holds=False)
_BACKWARD = Seq("on_before_backward", "backward", "on_after_backward")
_BEFORE_UPDATE = Seq("on_before_optimizer_step", "configure_gradient_clipping", Set(Condition.NOTHING_APPLIED, False))


def optimization(kind: Optimization, zero_grad: ZeroGrad) -> Node:
    """What a batch, or a split of one, does to the weights in camshaft's own order and in that of 2.0.

    An `optimizer_step` that is overridden encloses what its closure runs.

    Args:
        kind: Who differentiates and steps: the loop, the module inside of `training_step`, or nobody.
        zero_grad: Where the loop zeroes gradients.
    """
    if kind == "manual":
        return _by_hand()
    if kind == "none":
        return Call("training_step")
    return _in_closure(zero_grad)


def optimization_after_backward(zero_grad: ZeroGrad, *, step_zeroes: bool = False) -> Node:
    """What a batch does to the weights where forward and backward come before `optimizer_step`, as up to 0.9.

    An optimizer that asks for its closure evaluates them once more, inside of `optimizer_step`.

    Args:
        zero_grad: Where the loop zeroes gradients.
        step_zeroes: Whether `optimizer_step` zeroes them instead, after each step.
    """
    zero_before = _ZERO_FIRST if zero_grad == "before_backward" else Seq()
    by_default = Maybe(Call("optimizer_zero_grad"), when="by default")
    zero_inside = Seq("on_before_zero_grad", by_default) if step_zeroes else Seq()
    zero_after = _ZERO if zero_grad == "after_optimizer_step" and not step_zeroes else Seq()
    again = Seq(_STEP, _backward_of_loss())
    further = Repeat(again, each="further evaluation, by an optimizer that asks for it")
    by_closure = Repeat(Seq(again, _BEFORE_UPDATE), each="evaluation by the optimizer", at_least=1)
    stepping = Seq(
        Either(
            Seq(_BEFORE_UPDATE, Within("optimizer_step", _steps(further, zero_inside)), label="before the step"),
            Seq(Within("optimizer_step", _steps(by_closure, zero_inside)), label="by the step's closure"),
        ),
        zero_after,
    )
    held = If(Condition.HELD, Maybe(stepping, when="if they are applied all the same"))
    update = Seq(
        _STEP,
        If(Condition.NO_LOSS, Seq(zero_before, _BACKWARD, stepping), holds=False),
        If(Condition.NO_LOSS, held),
    )
    return _by_window(update, Seq(_STEP, _backward_of_loss(zero=zero_before)), opens_with_first_batch=False)


def _steps(evaluations: Node, zero: Node) -> Node:
    """What `optimizer_step` runs: each step of the optimizer with what follows it."""
    return Repeat(Seq(evaluations, zero), each="step of the optimizer") if zero != Seq() else evaluations


def optimization_in_line() -> Node:
    """What a batch does to the weights in the document of 2.x: zeroing first, and `optimizer_step` alone at the end."""
    update = Seq(
        _ZERO_FIRST,
        _STEP,
        If(Condition.NO_LOSS, Seq(_BACKWARD, _BEFORE_UPDATE, "optimizer_step"), holds=False),
        If(Condition.NO_LOSS, _update_of_what_is_held("optimizer_step")),
    )
    return _by_window(update, Seq(_ZERO_FIRST, _STEP, _backward_of_loss()), opens_with_first_batch=True)


def by_split(one: Node) -> Node:
    """The same for every split of a batch in turn, where batches are split for truncated backpropagation."""
    return Seq(
        Maybe(Call("tbptt_split_batch"), when="if batches are split along time"),
        Repeat(one, each="split of the batch (a whole batch is one)", at_least=1),
    )


def _in_closure(zero_grad: ZeroGrad) -> Node:
    if zero_grad == "before_training_step":
        closure = Seq(_ZERO_FIRST, _STEP, _backward_of_loss(_BEFORE_UPDATE), _without_loss())
        without_update = Seq(_ZERO_FIRST, _STEP, _backward_of_loss())
    elif zero_grad == "before_backward":
        spare = Maybe(_ZERO_FIRST, when="if an update follows all the same")
        closure = Seq(_STEP, _backward_of_loss(_BEFORE_UPDATE, zero=_ZERO_FIRST), _without_loss(spare))
        without_update = Seq(_STEP, _backward_of_loss(zero=_ZERO_FIRST))
    else:
        closure = Seq(_STEP, _backward_of_loss(_BEFORE_UPDATE), _without_loss())
        without_update = Seq(_STEP, _backward_of_loss())
    update: Node = Within("optimizer_step", Repeat(closure, each="evaluation of the closure", at_least=1))
    if zero_grad == "after_optimizer_step":
        unless = f"unless {Condition.NOTHING_APPLIED}"
        zero_last = Maybe(_ZERO, when=unless, left_out_if=Condition.NOTHING_APPLIED)
        update = Seq(Set(Condition.NOTHING_APPLIED, True), update, zero_last)
    return _by_window(update, without_update, opens_with_first_batch=zero_grad == "before_training_step")


def _backward_of_loss(*following: Node, zero: Node | None = None) -> Node:
    return If(Condition.NO_LOSS, Seq(*([zero] if zero else []), _BACKWARD, *following), holds=False)


def _without_loss(*first: Node) -> Node:
    return If(Condition.NO_LOSS, Seq(*first, _update_of_what_is_held()))


def _update_of_what_is_held(*stepping: str) -> Node:
    """A window whose last batch has no loss may still apply the gradients of its other batches."""
    update = Maybe(Seq(_BEFORE_UPDATE, *stepping), when="if they are applied all the same")
    return If(Condition.HELD, update)


def _by_window(update: Node, without_update: Node, *, opens_with_first_batch: bool) -> Node:
    """An update, or the accumulation of gradients for a later one, for every optimizer in turn.

    Args:
        update: An optimizer's part where it updates.
        without_update: An optimizer's part where it does not.
        opens_with_first_batch: Whether a window's gradients are zeroed in its first batch even if that has no loss.
    """
    return Either(
        Seq(
            Repeat(Seq(_HELD_BY_CHANCE, update), each="optimizer", at_least=1),
            Set(Condition.HELD, False),
            Set(Condition.SOME_HELD, False),
            label="where the weights are updated",
        ),
        Seq(
            Set(Condition.ANY_LOSS, False),
            Set(Condition.ANY_NO_LOSS, False),
            Repeat(Seq(_HELD_BY_CHANCE, without_update, _OUTCOME), each="optimizer", at_least=1),
            _ALL_HELD if opens_with_first_batch else _HELD_BY_OUTCOME,
            label="where gradients are only accumulated",
        ),
    )


# What holds for one optimizer need not hold for the next.
_HELD_BY_CHANCE = If(
    Condition.SOME_HELD,
    Seq(Maybe(Set(Condition.HELD, True), when=""), Maybe(Set(Condition.HELD, False), when="")),
)
_ALL_HELD = Seq(Set(Condition.HELD, True), Set(Condition.SOME_HELD, False))
_OUTCOME = Seq(
    If(Condition.NO_LOSS, Set(Condition.ANY_LOSS, True), holds=False),
    If(Condition.NO_LOSS, Set(Condition.ANY_NO_LOSS, True)),
)
_HELD_BY_OUTCOME = Seq(
    If(
        Condition.ANY_LOSS,
        Seq(
            If(Condition.ANY_NO_LOSS, _ALL_HELD, holds=False),
            If(Condition.ANY_NO_LOSS, If(Condition.HELD, Set(Condition.SOME_HELD, True), holds=False)),
        ),
    ),
    # A batch without loss may open a window all the same.
    If(Condition.ANY_LOSS, Maybe(Set(Condition.HELD, True), when=""), holds=False),
    _HELD_BY_CHANCE,
)


def _by_hand() -> Node:
    pieces = Either(
        Seq(_BACKWARD, label="backward"),
        "on_before_optimizer_step",
        "configure_gradient_clipping",
        Seq("on_before_zero_grad", "optimizer_zero_grad", label="zeroing"),
    )
    return Within("training_step", Repeat(pieces, each="piece that the module runs, in its own order"))
