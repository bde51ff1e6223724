"""The accumulation window: the steps whose gradients make one update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.optimizer_step import needs_closure
from camshaft.loops.optimization.configuration import parameters_of

_COUNTS = ("position", "divisor", "num_begun", "is_complete", "extra")


class AccumulationWindow:
    """The accumulation window that is open. What it counts are batches or, where batches are split, splits.

    Args:
        length: Steps of a whole window.

    Attributes:
        length: Steps of a whole window of this epoch.
        next_length: Steps of a window in the epochs that begin later.
        position: Steps of this window so far.
        divisor: Divisor of each loss of this window: its length, as far as that was known when it began.
        num_begun: Windows of this epoch so far, with this one.
        is_complete: Whether the latest step ends this window; the next one begins another.
        extra: By how many steps of now its steps count more than they are: of a window that other processes began,
            whose steps had other numbers of samples.
    """

    def __init__(self, length: int) -> None:
        self.length = self.next_length = self._given_length = length
        self.reset()

    def reset(self) -> None:
        """Begin a new epoch, in which no window is open."""
        self.position = 0
        self.divisor: int | float = self.length
        self.num_begun = 0
        self.is_complete = True
        self.extra = 0.0

    def begin_steps(self) -> None:
        """Take `next_length` for the epoch whose steps begin."""
        self.length = self.divisor = self.next_length

    def enter(self, num_remaining: int | float) -> None:
        """Take in the next step.

        Args:
            num_remaining: Steps of the epoch from this one on; infinite if unknown.
        """
        if self.is_complete:
            self.position, self.extra = 0, 0.0
            self.divisor = min(self.length, num_remaining)
            self.num_begun += 1
        self.position += 1
        self.is_complete = self.position == self.length or num_remaining == 1

    def reweigh(self, ratio: float) -> float:
        """Let the steps so far of an open window count as they would among the steps that follow.

        Args:
            ratio: Samples of one of the steps so far, of all processes, by those of one that follows.

        Returns:
            The factor for the gradients so far; 1 if no window is open.
        """
        if self.is_complete:
            return 1.0
        self.extra = (self.position + self.extra) * ratio - self.position
        return ratio

    @property
    def real_length(self) -> float:
        """The steps of the window so far, in steps of as many samples as the latest has."""
        return self.position + self.extra

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the window, as plain values."""
        lengths = {"length": self.length, "given_length": self._given_length, "next_length": self.next_length}
        return {**lengths, **{name: getattr(self, name) for name in _COUNTS}}

    def load_next_length(self, state: dict[str, Any]) -> bool:
        """Restore a length that was set during the saved run, unless this run was given another one.

        Returns:
            Whether both runs were given the same.
        """
        is_same = bool(state.get("given_length", state["length"]) == self._given_length)
        if is_same:
            self.next_length = int(state.get("next_length", state["length"]))
        return is_same

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on inside an epoch, and inside the window that was open.

        Raises:
            ValueError: If it was open and its length was another one than this run has been given.
        """
        if self.load_next_length(state):
            self.length = int(state["length"])
        elif not state["is_complete"] and state["length"] != self.length:
            rule = f"that of the checkpoint ({state['length']}), which was saved inside an accumulation window"
            action = "Pass the same, or resume from a checkpoint that was saved at a window's end."
            raise ValueError(must_be("accumulate_grad_batches", rule, self.length, "fit", action))
        for name in _COUNTS:
            setattr(self, name, state.get(name, 0.0))  # earlier checkpoints have no `extra`
        if self.is_complete:
            self.divisor = self.length  # the next window has the length of this run


def check_accumulation(length: int, optimizers: Sequence[Optimizer], where: str) -> None:
    """Raise `ValueError` where optimizers cannot wait for the gradients of several steps.

    Args:
        length: Steps of a window.
        optimizers: The optimizers that automatic optimization steps.
        where: The module's class, for the message.
    """
    if length == 1:
        return
    for optimizer in optimizers:
        if needs_closure(optimizer):
            rule = f"1 with {type(optimizer).__name__}, which evaluates the loss several times per update"
            raise ValueError(must_be("accumulate_grad_batches", rule, length, where, "Use another optimizer, or 1."))
    parameters = [set(map(id, parameters_of(optimizer))) for optimizer in optimizers]
    if sum(map(len, parameters)) != len(set().union(*parameters)):
        rule = "1 if optimizers share parameters, whose gradients would mix while they wait for the update"
        action = "Give every parameter to one optimizer, or pass 1."
        raise ValueError(must_be("accumulate_grad_batches", rule, length, where, action))


def mean_window(of_ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state of the optimization with the mean weights of several ranks, whose gradients are a mean, too.

    Args:
        of_ranks: The states of each.
    """
    # a rank without had no loss in its window so far
    return _joined(of_ranks, lambda totals: [sum(filter(None, totals)) / len(of_ranks)] if any(totals) else [None])


def window_of_all(of_processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state of the optimization with the weights of all logical ranks.

    Args:
        of_processes: The states, each with the weights of the ranks that its process plays.
    """
    return _joined(of_processes, list)


def _joined(
    states: Sequence[Mapping[str, Any]], join: Callable[[list[float | None]], list[float | None]]
) -> dict[str, Any]:
    state = {**states[0]}
    for idx, update in enumerate(state.get("updates", ())):
        weights = [one["updates"][idx].get("weights", {}) for one in states]
        if known := next(filter(None, weights), None):
            totals = join([total for one in weights for total in one.get("totals", [None])])
            state["updates"] = [*state["updates"]]
            state["updates"][idx] = {**update, "weights": {**known, "totals": totals}}
    return state
