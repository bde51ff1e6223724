"""Samplers whose order can be taken up again in the middle, whatever they draw it from."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import torch

from camshaft.hooks_core.messages import must_be
from camshaft.loops.random_state import isolated_randomness, random_state, restore_random_state


class ReplayedSampler:
    """Gives what a sampler gives, and remembers from which random numbers it began.

    A sampler without a state of its own draws its order when it begins. To go on in the middle of it, the numbers of
    its beginning are put back, and what was given already is drawn again; no data is read for that. So that is
    collective where beginning it is, as with a `SharedSampler`.

    Args:
        sampler: A sampler of indices, or of batches of them.
        generators: Generators that it may draw from, beside the global ones.
        parts: Samplers within it that have a state; it is put back as well.
    """

    def __init__(
        self, sampler: Iterable[Any], generators: Sequence[torch.Generator], parts: Sequence[Any] = ()
    ) -> None:
        self.sampler = sampler
        self.generators = generators
        self.parts = parts

    def __iter__(self) -> _ReplayedIndices:
        return _ReplayedIndices(self)

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]


class _ReplayedIndices(Iterator[Any]):
    """One pass over a sampler. `state_dict` and `load_state_dict` are what torchdata looks for."""

    def __init__(self, owner: ReplayedSampler) -> None:
        self._owner = owner
        self._indices: Iterator[Any] | None = None  # begun at the first call of `next`, as a plain loader does
        self._start: dict[str, Any] | None = None
        self._num_given = 0

    def __next__(self) -> Any:
        if self._indices is None:
            self._start = self._beginning()
            self._indices = iter(self._owner.sampler)
        index = next(self._indices)
        self._num_given += 1
        return index

    def state_dict(self) -> dict[str, Any]:
        # worker processes are given their first indices right after they asked for this: it would begin here
        start = self._beginning() if self._start is None else self._start
        return {**start, "num_given": self._num_given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        owner = self._owner
        parts = state.get("parts", [])
        if "start" not in state or len(parts) != len(owner.parts):
            rule = "one of a sampler that was read in the same way"
            action = "Resume with the same loaders and as many processes."
            raise ValueError(must_be("state of the sampler", rule, sorted(state), type(owner).__name__, action))
        self._start = {"start": state["start"], "parts": parts}
        self._num_given = state["num_given"]
        with isolated_randomness(owner.generators):
            restore_random_state(state["start"], owner.generators)
            for part, its_state in zip(owner.parts, parts, strict=True):
                part.load_state_dict(copy.deepcopy(its_state))
            indices = iter(owner.sampler)
            # at least one, as a generator draws when it is first asked; but no further: it may draw again at its end
            given = list(islice(indices, max(self._num_given, 1)))
            self._indices = chain(given[self._num_given :], indices)

    def _beginning(self) -> dict[str, Any]:
        """From what a pass begins."""
        owner = self._owner
        parts = [copy.deepcopy(part.state_dict()) for part in owner.parts]
        return {"start": random_state(owner.generators), "parts": parts}
