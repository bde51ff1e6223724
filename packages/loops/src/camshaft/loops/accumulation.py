"""The steps whose gradients make one update."""

from __future__ import annotations

from typing import Any

from camshaft.hooks_core.messages import must_be

_COUNTS = ("position", "divisor", "num_begun", "is_complete")


class AccumulationWindow:
    """The accumulation window that is open. What it counts are batches or, where batches are split, splits.

    Args:
        length: Steps of a whole window.

    Attributes:
        length: Steps of a whole window.
        position: Steps of this window so far.
        divisor: What each loss of this window is divided by: its length, as far as that was known when it began.
        num_begun: Windows of this epoch so far, with this one.
        is_complete: Whether the latest step ends this window; the next one begins another.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.reset()

    def reset(self) -> None:
        """Begin a new epoch, in which no window is open."""
        self.position = 0
        self.divisor: int | float = self.length
        self.num_begun = 0
        self.is_complete = True

    def enter(self, num_remaining: int | float) -> None:
        """Take in the next step.

        Args:
            num_remaining: Steps of the epoch from this one on; infinite if unknown.
        """
        if self.is_complete:
            self.position = 0
            self.divisor = min(self.length, num_remaining)
            self.num_begun += 1
        self.position += 1
        self.is_complete = self.position == self.length or num_remaining == 1

    def state_dict(self) -> dict[str, Any]:
        """The window, as plain values."""
        return {"length": self.length, **{name: getattr(self, name) for name in _COUNTS}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on inside the window that was open.

        Raises:
            ValueError: If it was open and its length was another one.
        """
        if not state["is_complete"] and state["length"] != self.length:
            rule = f"that of the checkpoint ({state['length']}), which was saved inside an accumulation window"
            action = "Pass the same, or resume from a checkpoint that was saved at a window's end."
            raise ValueError(must_be("accumulate_grad_batches", rule, self.length, "fit", action))
        for name in _COUNTS:
            setattr(self, name, state[name])
        if self.is_complete:
            self.divisor = self.length  # the next window has the length of today
