"""Callback that sets gradient accumulation by epoch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.finders.trials import check_automatic
from camshaft.hooks_core import Callback
from camshaft.hooks_core.protocols import TrainerProtocol
from camshaft.hooks_core.support.messages import must_be


class GradientAccumulationScheduler(Callback):
    """Sets the trainer's `accumulate_grad_batches` by the epoch; after the fit it is 1 again.

    Args:
        scheduling: Number of batches per update, by the zero-based epoch from which on it holds: `{0: 8, 4: 4, 8: 1}`.
            Without an entry for epoch 0 training begins with 1.

    Attributes:
        scheduling: The argument, with an entry for epoch 0.
        epochs: Its epochs, in order.

    Raises:
        TypeError: If `scheduling` is no dictionary from ints to ints.
        InvalidArgumentError: If it is empty, an epoch is negative, or a number of batches is less than 1; at the set-up
            of fit, if the module optimizes manually, or the trainer itself was given another `accumulate_grad_batches`
            than 1.
    """

    def __init__(self, scheduling: Mapping[int, int]) -> None:
        super().__init__()
        action = "Pass for instance {0: 8, 4: 1}."
        if not isinstance(scheduling, Mapping) or not all(map(_is_int, [*scheduling, *scheduling.values()])):
            rule = "a dictionary from epochs to numbers of batches"
            raise TypeError(must_be("scheduling", rule, scheduling, type(self).__name__, action))
        rules = {
            "not empty": bool(scheduling),
            "a dictionary with epochs from 0 on": all(epoch >= 0 for epoch in scheduling),
            "a dictionary with positive numbers of batches": all(number >= 1 for number in scheduling.values()),
        }
        for rule, holds in rules.items():
            if not holds:
                raise InvalidArgumentError("scheduling", rule, scheduling, self, action)
        self.scheduling: dict[int, int] = {0: 1} | dict(sorted(scheduling.items()))
        self.epochs = list(self.scheduling)

    def going_to_accumulate_grad_batches(self) -> bool:
        """Return whether any epoch accumulates more than one batch."""
        return any(num_batches > 1 for num_batches in self.scheduling.values())

    def get_accumulate_grad_batches(self, epoch: int) -> int:
        """Return the number of batches per update in an epoch."""
        return self.scheduling[self.epochs[bisect_right(self.epochs, epoch) - 1]]

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Check that the trainer has no `accumulate_grad_batches` of its own, and that the module uses it."""
        if stage != "fit":
            return
        check_automatic(module, self)
        given, rule = trainer.accumulate_grad_batches, f"left at 1 with {type(self).__name__}, which sets it"
        if given != 1:
            action = "Pass it to one of the two."
            raise InvalidArgumentError("accumulate_grad_batches", rule, given, "the trainer", action)

    def on_train_epoch_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Set the number for the epoch that begins."""
        num_batches = self.get_accumulate_grad_batches(trainer.current_epoch)
        if trainer.accumulate_grad_batches != num_batches:
            trainer.accumulate_grad_batches = num_batches

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Reset the trainer, so that it can fit again."""
        if stage == "fit" and trainer.accumulate_grad_batches in self.scheduling.values():
            trainer.accumulate_grad_batches = 1


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
