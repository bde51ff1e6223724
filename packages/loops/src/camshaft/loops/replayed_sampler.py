"""Samplers whose order can be taken up again in the middle, whatever they draw it from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import torch

from camshaft.loops.random_state import isolated_randomness, random_state, restore_random_state


class ReplayedSampler:
    """Gives what a sampler gives, and remembers from which random numbers it began.

    A sampler without a state of its own draws its order when it begins. To go on in the middle of it, the numbers of
    its beginning are put back, and what was given already is drawn again; no data is read for that.

    Args:
        sampler: A sampler of indices, or of batches of them.
        generators: Generators that it may draw from, beside the global ones.
    """

    def __init__(self, sampler: Iterable[Any], generators: Sequence[torch.Generator]) -> None:
        self.sampler = sampler
        self.generators = generators

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
            self._start = random_state(self._owner.generators)
            self._indices = iter(self._owner.sampler)
        index = next(self._indices)
        self._num_given += 1
        return index

    def state_dict(self) -> dict[str, Any]:
        # worker processes are given their first indices right after they asked for this: it would begin here
        start = random_state(self._owner.generators) if self._start is None else self._start
        return {"start": start, "num_given": self._num_given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start, self._num_given = state["start"], state["num_given"]
        with isolated_randomness(self._owner.generators):
            restore_random_state(state["start"], self._owner.generators)
            indices = iter(self._owner.sampler)
            # at least one, as a generator draws when it is first asked; but no further: it may draw again at its end
            given = list(islice(indices, max(self._num_given, 1)))
            self._indices = chain(given[self._num_given :], indices)
