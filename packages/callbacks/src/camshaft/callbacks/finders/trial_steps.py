"""Training steps that a callback makes by itself to find something out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from camshaft.callbacks.errors import InvalidArgumentError
from camshaft.hooks_core.binding import Argument, BindingError, bind
from camshaft.hooks_core.implementation import implementation
from camshaft.hooks_core.optimizer_step import needs_closure, steps_with_closure

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from camshaft.hooks_core.protocols import Strategy, TrainerProtocol

_NOTHING = {"optimizer_idx": 0, "hiddens": None}
"""What a step gets that asks for these: batches are not split, and there is one optimizer."""


class TrialSteps:
    """Makes steps of automatic optimization with one optimizer, as the strategy makes them.

    A step is `training_step`, zeroing, backward (the module's own, if it has one), clipping as the trainer is set up to
    clip (its `gradient_clip_val` and `gradient_clip_algorithm`, where it has these), and the optimizer's step. No hook
    is called beside these two, batches are not split along time, and schedulers do not step. What surrounds the steps
    is the caller's: `trainer.trial()` and `put_back`.

    Args:
        trainer: The trainer, after `configure_optimizers`.
        module: The module.
        where: Who makes the steps, for errors.

    Attributes:
        optimizer: The optimizer.

    Raises:
        InvalidArgumentError: If the module optimizes by hand, has not exactly one optimizer, or one that evaluates the
            loss itself, or a `training_step` with further arguments.
    """

    def __init__(self, trainer: TrainerProtocol, module: Any, where: str) -> None:
        check_optimization(trainer, module, where)
        self.optimizer: Optimizer = trainer.optimizers[0]
        self._strategy = trainer.strategy
        self._where = where
        self._arguments = _arguments_of(module.training_step, where)
        self._step = trainer.strategy.wrap_step(module.training_step)
        self._differentiate = implementation(module, "backward")
        self._with_closure = steps_with_closure(self.optimizer)
        self._clip_val: float | None = getattr(trainer, "gradient_clip_val", None)
        self._clip_algorithm: str = getattr(trainer, "gradient_clip_algorithm", None) or "norm"

    def run(self, batches: Sequence[Any], batch_idx: int) -> Tensor | None:
        """Make one update from the mean gradients of some batches. Collective.

        Args:
            batches: An accumulation window.
            batch_idx: Index of its first batch.

        Returns:
            The mean loss of the batches, detached, on its device; None if no step gave a loss, so that there is no
            update.
        """
        if self._with_closure:
            return self.update(partial(self.evaluate, batches, batch_idx))
        loss = self.evaluate(batches, batch_idx)
        if loss is not None:
            self.update()
        return loss

    def evaluate(self, batches: Sequence[Any], batch_idx: int) -> Tensor | None:
        """Compute the mean gradients of some batches, from zeroed ones; arguments and result are those of `run`."""
        losses: list[Tensor] = []
        for idx, batch in enumerate(batches):
            if len(batches) > 1:
                self._strategy.set_gradient_sync(idx == len(batches) - 1)
            loss = self.forward(batch, batch_idx + idx)
            if loss is None:
                continue
            self.backward(loss / len(batches), zeroes=not losses)
            losses.append(loss.detach())
        if not losses:
            return None
        return torch.stack([loss.reshape(()) for loss in losses]).mean()

    def forward(self, batch: Any, batch_idx: int) -> Tensor | None:
        """The loss of a batch, or None if the step returned none."""
        values = {"batch": batch, "batch_idx": batch_idx, **_NOTHING}
        positional = [values[one.source] for one in self._arguments if one.keyword is None]
        keywords = {one.keyword: values[one.source] for one in self._arguments if one.keyword is not None}
        outputs = self._step(*positional, **keywords)
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None and not isinstance(loss, Tensor):
            action = "Return the loss."
            rule = "a tensor, a dictionary with a tensor as 'loss', or None"
            raise InvalidArgumentError("return value of training_step", rule, outputs, self._where, action)
        return loss

    def backward(self, loss: Tensor, *, zeroes: bool = True) -> None:
        """Differentiate a loss; gradients are zeroed before if `zeroes` is true."""
        if zeroes:
            self.optimizer.zero_grad()
        if self._differentiate is None:
            self._strategy.backward(loss)
        else:
            self._strategy.backward(loss, self._differentiate)

    def update(self, evaluate: Callable[[], Tensor | None] | None = None) -> Tensor | None:
        """Clip the gradients, if that is asked for, and update the weights.

        Args:
            evaluate: Computes the gradients and returns the loss, as often as an optimizer wants that is not torch's
                own; others go by the gradients that are there.

        Returns:
            The loss of the first evaluation; None if there was none.
        """
        if evaluate is None or not self._with_closure:
            self._clip()
            self._strategy.optimizer_step(self.optimizer)
            return None
        first: Tensor | None = None

        @torch.enable_grad()
        def closure() -> Tensor:
            nonlocal first
            loss = evaluate()
            if loss is None:
                raise _NoLossError
            first = loss if first is None else first
            self._clip()
            return loss

        with suppress(_NoLossError):
            self._strategy.optimizer_step(self.optimizer, closure)
        return first

    def _clip(self) -> None:
        if self._clip_val is not None:
            self._strategy.unscale_gradients(self.optimizer)
            self._strategy.clip_gradients(self.optimizer, self._clip_val, self._clip_algorithm)


class _NoLossError(Exception):
    """Leaves an optimizer that evaluates the loss itself, when a step gave none."""


def check_optimization(trainer: TrainerProtocol, module: Any, where: str) -> None:
    """Raise unless a module is optimized automatically, with one optimizer that does not evaluate the loss itself.

    Raises:
        InvalidArgumentError: If it is not.
    """
    check_automatic(module, where)
    if len(trainer.optimizers) != 1:
        action = "Leave the callback out: with several optimizers, or none, nobody knows what a step is."
        raise InvalidArgumentError("number of optimizers", "1", len(trainer.optimizers), where, action)
    if needs_closure(trainer.optimizers[0]):
        kind = type(trainer.optimizers[0]).__name__
        action = "Leave the callback out, or use another optimizer."
        raise InvalidArgumentError("optimizer", "one that does not evaluate the loss itself", kind, where, action)


def check_automatic(module: Any, where: str) -> None:
    """Raise `InvalidArgumentError` if a module optimizes by hand."""
    if not getattr(module, "automatic_optimization", True):
        action = "Leave the callback out: under manual optimization nobody else can make the module's steps."
        raise InvalidArgumentError("automatic_optimization", "True", False, where, action)


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches, one pass after the other; it ends if a pass gives none."""
    while True:
        is_empty = True
        for batch in batches:
            is_empty = False
            yield batch
        if is_empty:
            return


def mean_of_ranks(strategy: Strategy, loss: Tensor | None) -> float | None:
    """The mean loss of the processes that have one; None if none has. Collective. Waits for the device."""
    own = None if loss is None else float(loss)
    if strategy.world_size == 1:
        return own
    losses = [each for each in strategy.all_gather(own) if each is not None]
    return sum(losses) / len(losses) if losses else None


def any_rank(strategy: Strategy, flag: bool) -> bool:
    """Whether something is so in any process. Collective."""
    return flag if strategy.world_size == 1 else any(strategy.all_gather(flag))


def _arguments_of(step: Callable[..., Any], where: str) -> tuple[Argument, ...]:
    try:
        return bind(step, ("batch", "batch_idx"), tuple(_NOTHING))
    except BindingError as error:
        action = "Leave the callback out, or give its other arguments defaults."
        rule = "one of (batch, batch_idx)"
        raise InvalidArgumentError("training_step", rule, str(error), where, action) from error
