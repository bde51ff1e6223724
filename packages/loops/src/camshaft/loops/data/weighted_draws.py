"""Drawing one of several loaders for each batch, by weights."""

from __future__ import annotations

import hashlib
import math
from bisect import bisect
from collections.abc import Callable, Sequence
from itertools import accumulate
from numbers import Real
from typing import Any, Literal, get_args

import attrs

from camshaft.hooks_core.support.messages import must_be
from camshaft.loops.data.collection import read_tree

StopCriteria = Literal[
    "cycle_until_all_exhausted", "first_exhausted", "all_exhausted_without_replacement", "cycle_forever"
]
"""End of an iteration that draws loaders by weights; see `CombinedLoader`."""

WeightSchedule = Callable[[int, int], Any]
"""Returns the weights at a step (batches given over all epochs) of an epoch."""

_WHERE = "CombinedLoader"
_NUM_BYTES = 6  # of a draw: a fraction that a float holds exactly


@attrs.frozen(eq=False, repr=False)
class WeightedDraws:
    """Draws of loaders, each of which follows from the seed, the epoch and its index alone.

    So all processes draw the same, and a position is a number of draws.

    Args:
        paths: Places of the loaders in their collection, as `read_collection` names them.
        weights: Non-negative numbers in a collection of the same structure, or a schedule that returns one.
        stop_criteria: As in `CombinedLoader`.
        seed: Seed of the draws.

    Raises:
        ValueError: If an argument is none of its values.
    """

    _paths: Sequence[str]
    weights: Any
    stop_criteria: StopCriteria
    seed: int
    _constant: list[float] | None = attrs.field(init=False)
    _latest: dict[tuple[int, int], list[float]] = attrs.field(factory=dict, init=False)  # of a schedule

    def __attrs_post_init__(self) -> None:
        if self.stop_criteria not in get_args(StopCriteria):
            rule = f"one of {', '.join(map(repr, get_args(StopCriteria)))}"
            raise ValueError(must_be("stop_criteria", rule, self.stop_criteria, _WHERE, "Pass one of these."))
        if not isinstance(self.seed, int):
            action = "Pass the same number in every process."
            raise ValueError(must_be("seed", "an int", self.seed, _WHERE, action))
        constant = None if callable(self.weights) else self._checked(self.weights, _WHERE)
        object.__setattr__(self, "_constant", constant)

    @property
    def identity(self) -> tuple[Any, ...]:
        """All that must be equal in all processes; of a schedule, nothing can be told."""
        return self.stop_criteria, self.seed, self._constant

    @property
    def cycles(self) -> bool:
        """True if a loader that has ended begins anew."""
        return self.stop_criteria in ("cycle_until_all_exhausted", "cycle_forever")

    def at(self, step: int, epoch: int) -> list[float]:
        """Return the weight of each loader. A schedule is asked once for a step.

        Raises:
            ValueError: If the schedule returns no valid weights.
        """
        if self._constant is not None:
            return self._constant
        if (step, epoch) not in self._latest:
            where = f"{_WHERE}, returned for step {step} of epoch {epoch}"
            weights = self._checked(self.weights(step, epoch), where)
            self._latest.clear()
            self._latest[step, epoch] = weights
        return self._latest[step, epoch]

    def length(self, lengths: Sequence[int | float]) -> int | float | None:
        """Return the number of batches that are left in all loaders together; None if draws or a schedule decide it."""
        if self.stop_criteria != "all_exhausted_without_replacement" or self._constant is None:
            return None
        return sum(length for length, weight in zip(lengths, self._constant, strict=True) if weight)

    def is_over(self, weights: Sequence[float], exhausted: Sequence[bool]) -> bool:
        """Return whether the iteration ends.

        Args:
            weights: Weights of now; a loader with none is not waited for.
            exhausted: Whether each loader has come to its end at least once.
        """
        if self.stop_criteria == "cycle_forever":
            return False
        if self.stop_criteria == "first_exhausted":
            return any(exhausted)
        return all(is_over or not weight for weight, is_over in zip(weights, exhausted, strict=True))

    def draw(self, weights: Sequence[float], exhausted: Sequence[bool], epoch: int, draw_idx: int) -> int:
        """Return the index of a loader that can give a batch.

        Args:
            weights: As for `is_over`, which is false.
            exhausted: As for `is_over`.
            epoch: The epoch.
            draw_idx: Number of draws before in the epoch.
        """
        pairs = zip(weights, exhausted, strict=True)
        sums = list(accumulate(weight if self.cycles or not is_over else 0.0 for weight, is_over in pairs))
        digest = hashlib.blake2b(f"{self.seed} {epoch} {draw_idx}".encode(), digest_size=_NUM_BYTES).digest()
        return bisect(sums, int.from_bytes(digest, "big") / 2 ** (8 * _NUM_BYTES) * sums[-1])

    def _checked(self, weights: Any, where: str) -> list[float]:
        by_path, _ = read_tree(weights, "loaders")
        if by_path.keys() != set(self._paths):
            rule = f"a collection like that of the loaders, with a number for each of {', '.join(self._paths)}"
            raise ValueError(must_be("weights", rule, weights, where, "Name each loader as in `loaders`."))
        values = [by_path[path] for path in self._paths]
        are_numbers = all(isinstance(value, Real) and 0 <= float(value) < math.inf for value in values)
        if not are_numbers or not 0 < math.fsum(values) < math.inf:
            rule = "finite numbers of at least 0, of which one is more"
            raise ValueError(must_be("weights", rule, weights, where, "Pass shares such as 0.7 and 0.3."))
        return [float(value) for value in values]
