"""Training loaders that end in all processes at once, whatever each of them has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.user_warnings import warn_user
from camshaft.loops.batches import is_open_ended
from camshaft.loops.loader_length import UNKNOWN, length_of
from camshaft.loops.resumable_loader import ResumableLoader, StatelessLoaders
from camshaft.loops.shared_loader import check_same_data, whole_length

_MISSING = object()


class EvenLoader(ResumableLoader):
    """A resumable loader of one process that gives no more batches than that of any other process.

    Which way is found by `agree_on_lengths`: loaders of equal known lengths are read as they are, at no cost; of
    different known lengths, as many batches as the shortest has; of streams and unknown lengths, the processes tell
    each other before each batch whether they have one. Iterating is collective in the last case.

    Args:
        loader: The loader.
        strategy: Connects the processes.
        stateless: As in `ResumableLoader`.

    Attributes:
        length: Batches in an epoch, as agreed upon; infinite if some process does not know, None for the loader's own.
        is_asked: Whether the processes ask each other before each batch.
    """

    def __init__(self, loader: Iterable[Any], strategy: Strategy, stateless: StatelessLoaders = "refuse") -> None:
        super().__init__(loader, stateless)
        self.length: int | float | None = None
        self.is_asked = False
        self._strategy = strategy
        self._num_given = 0
        self._first = 0

    def __len__(self) -> int:
        if self.length is None:
            return super().__len__()
        if self.length == UNKNOWN:
            raise TypeError("the loader of some process does not tell its length")
        return int(self.length)

    def __iter__(self) -> Iterator[Any]:
        first, self._first = self._first, 0
        batches = super().__iter__()
        if self.is_asked:
            return self._together(batches)
        return batches if self.length is None else self._shortest(batches, first)

    @property
    def is_open_ended(self) -> bool:
        """Whether it may give another number of batches than it promises; the same in all processes."""
        return self.is_asked

    def end_iteration(self) -> None:
        """Let an iteration that was left count as over: the next one begins anew."""
        self._first = self._num_given = 0
        super().end_iteration()

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, as in `ResumableLoader`, which takes it as well."""
        return {**super().state_dict(), "num_given": self._num_given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on from a state. Raises as `ResumableLoader.load_state_dict`."""
        super().load_state_dict(state)
        self._first = self._num_given = state.get("num_given", 0) if state["is_under_way"] else 0

    def _shortest(self, batches: Iterator[Any], first: int) -> Iterator[Any]:
        assert self.length is not None
        self._num_given = first
        for batch in islice(batches, int(self.length) - first):
            self._num_given += 1
            yield batch

    def _together(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Give batches while all processes have one. Collective."""
        while True:
            batch = next(batches, _MISSING)
            everybody_has_one = self._strategy.reduce(torch.tensor(int(batch is not _MISSING)), "min")
            if not everybody_has_one.item():
                break
            yield batch
        if batch is not _MISSING:
            warn_user(
                f"The training loader ({type(self.loader).__name__}) of another process has no more batches, so the "
                "epoch ends for all, and what is left of this process's loader is left out."
            )


def agree_on_lengths(loaders: Sequence[EvenLoader], strategy: Strategy) -> None:
    """Let loaders end in all processes at once. Collective.

    Args:
        loaders: The loaders of this process, as many as every other has.
        strategy: Connects the processes.

    Raises:
        ValueError: If the processes have different numbers of loaders, or share out different data.
    """
    own = [(length_of(one.loader), is_open_ended(one.loader), whole_length(one.loader)) for one in loaders]
    of_ranks = strategy.all_gather((strategy.data_rank, own))
    numbers = [len(of_rank) for _, of_rank in of_ranks]
    if len(set(numbers)) > 1:
        rule = "as many in every process"
        raise ValueError(must_be("train loaders", rule, numbers, "fit", "Give every process the same loaders."))
    for loader_idx, loader in enumerate(loaders):
        its_own = [(data_rank, *of_rank[loader_idx]) for data_rank, of_rank in of_ranks]
        check_same_data([whole for _, _, _, whole in its_own], "train loader")
        lengths = {data_rank: length for data_rank, length, _, _ in its_own}
        loader.is_asked = any(is_open for _, _, is_open, _ in its_own)
        shortest = UNKNOWN if UNKNOWN in lengths.values() else min(lengths.values())
        is_even = set(lengths.values()) == {shortest}
        loader.length = None if is_even and shortest != UNKNOWN else shortest
        if not is_even and not loader.is_asked:
            _warn_of_rest({data_rank: int(length - shortest) for data_rank, length in lengths.items()}, int(shortest))


def _warn_of_rest(rests: dict[int, int], shortest: int) -> None:
    left_out = ", ".join(f"{rest} of rank {rank}" for rank, rest in sorted(rests.items()) if rest)
    warn_user(
        f"The training loaders of the processes have different lengths: each takes the {shortest} batches of the "
        f"shortest one, so in every epoch batches are left out: {left_out}."
    )
