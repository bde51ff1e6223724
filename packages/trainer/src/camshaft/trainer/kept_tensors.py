"""Keeping a logged tensor until its value is needed, without reading it and, mostly, without copying it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from camshaft.hooks_core.user_warnings import warn_user
from camshaft.trainer.metric_values import Value, check_number, check_tensor

NUM_WATCHED = 16
"""How many tensors of one name are copied and watched before they are trusted to be new ones at each step."""


class KeptTensors:
    """Keeps the tensors that are logged under one name.

    A tensor that its owner changes later (a running total, a buffer, a parameter, a loss that is scaled in place) must
    be copied when it is logged; a fresh result of each step need not, and a copy would be one more operation on the
    device. So the first tensors are copied and watched. Tensors in memory of their own that stay as they are, are
    later kept as they are.

    Args:
        name: The name under which they are logged, for messages.
    """

    __slots__ = ("_name", "_num_watched", "_previous", "borrows")

    def __init__(self, name: str) -> None:
        self.borrows = False
        self._name = name
        self._num_watched = 0
        self._previous: Tensor | None = None

    def keep(self, value: object) -> Value:
        """Something that keeps the value: a detached tensor of shape (), or a Python number.

        Raises:
            TypeError, ValueError: If the value is not one that can be logged.
        """
        if not isinstance(value, Tensor):
            return check_number(self._name, value)
        detached = check_tensor(self._name, value)
        if detached.is_inference():
            self._copy_always()  # its changes are not counted
        elif not self.borrows and self._num_watched >= 0:
            self._watch(value)
        return detached.clone()

    def inspect(self, tensors: Iterable[Tensor]) -> None:
        """Warn if a tensor that was kept as it is has been changed since, and copy from then on."""
        if not self.borrows or not any(tensor._version for tensor in tensors):
            return
        self._copy_always()
        warn_user(
            f"`value` must stay as it is after it was logged, but got a change in place (Tensor) in "
            f"log({self._name!r}): its values of up to the last 128 steps may be wrong. Log `value.clone()`.",
            RuntimeWarning,
        )

    def state_dict(self) -> dict[str, Any]:
        """What was learnt about the tensors that are logged."""
        return {"num_watched": self._num_watched, "borrows": self.borrows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what was learnt."""
        self._num_watched, self.borrows = state["num_watched"], state["borrows"]
        self._previous = None

    def _watch(self, value: Tensor) -> None:
        """Learn from a tensor and the one before whether the next ones may be kept without a copy."""
        previous = self._previous
        if (
            type(value) is not Tensor
            or value._version
            or value.untyped_storage().nbytes() != value.element_size()  # keeping it would keep something larger alive
            or (previous is not None and (previous._version or _same_memory(previous, value)))
        ):
            self._copy_always()
            return
        self._previous = value.detach()  # keeps its memory in use, so that an equal address means the same tensor
        self._num_watched += 1
        if self._num_watched == NUM_WATCHED:
            self._previous = None
            self.borrows = True

    def _copy_always(self) -> None:
        self._previous = None
        self._num_watched = -1
        self.borrows = False


def _same_memory(first: Tensor, second: Tensor) -> bool:
    try:
        return first.data_ptr() == second.data_ptr()
    except RuntimeError:  # memory of a CUDA graph that its next replay has taken back
        return True
