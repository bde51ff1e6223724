"""Samplers that several processes share, or that a resumed run replays."""

from __future__ import annotations

import copy
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import chain, islice, repeat
from typing import Any, Literal

import attrs
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.support.messages import must_be
from camshaft.loops.data.combined_loader import has_state, samplers_of
from camshaft.loops.data.stateful_streams import resumes_exactly
from camshaft.loops.state.random_state import (
    are_same,
    isolated_randomness,
    random_state,
    restore_random_state,
    seed_global_numbers,
)

_NUM_TRIED = 64  # indices, or batches of them, by which a sampler's state is tried

Uneven = Literal["fill", "cut", "keep"]
"""Treatment of a remainder that the processes cannot share evenly: pad, drop, or one sample for some."""


def stateful_samplers(loader: DataLoader[Any]) -> list[Any]:
    """Return the samplers of a loader whose state is known at any time and restores the rest of their order."""

    exact = []
    with isolated_randomness():
        for sampler in filter(has_state, samplers_of(loader)):
            with suppress(Exception):  # whatever methods of the user raise
                exact += [sampler] if resumes_exactly(sampler, _NUM_TRIED, loader.dataset) else []
    return exact


def shared_places(first: int, stop: int, rank: int, num_ranks: int, uneven: Uneven) -> range:
    """Return the places of an order that a process takes: each so-many-th, from its rank on.

    Args:
        first: The first place that is shared out.
        stop: The end of the order, or of its part.
        rank: Rank of the process among those that share the data.
        num_ranks: Number of these.
        uneven: As in `SharedSampler`; with "fill" some places lie behind `stop`.
    """
    num_each, num_left = divmod(stop - first, num_ranks)
    even_stop = first + (num_each + (uneven == "fill" and num_left > 0)) * num_ranks
    return range(first + rank, stop if uneven == "keep" else even_stop, num_ranks)


def in_batches(items: list[Any], size: int | None, *, drops_last: bool) -> list[Any]:
    """Return batches of some items, or the items for a size of None; a last batch of fewer may be left out."""
    if size is None:
        return items
    stop = len(items) - (len(items) % size if drops_last else 0)
    return [items[begin : begin + size] for begin in range(0, stop, size)]


@attrs.define(eq=False, repr=False)
class SharedSampler:
    """Gives process r of N its share of what a sampler gives: every N-th, beginning with the r-th.

    All processes draw the same order, under the random numbers of the first one; that one's go on as if it were alone.
    A process whose numbers were the same goes on with it, any other one with its own. So the order is drawn as a whole,
    when a pass begins, and beginning one is collective, unless the order never changes (a `SequentialSampler`, a list,
    a tuple, a range, and batches of these) or was prepared.

    Args:
        sampler: A sampler of indices, or of batches of them, that tells its length; the same in all processes.
        uneven: Treatment of the rest if the length is no multiple of the number of processes: with "fill" the first
            ones are given again and with "cut" none of them, so that all processes have equally many; with "keep" some
            have one more.
        generators: Generators that it may draw from, beside the global ones.
        parts: Samplers with a state of their own that it reads by.
    """

    sampler: Any
    _strategy: Strategy
    uneven: Uneven = attrs.field(kw_only=True)
    generators: Sequence[torch.Generator] = attrs.field(default=(), kw_only=True)
    parts: Sequence[Any] = attrs.field(default=(), kw_only=True)
    _prepared: _Draw | None = attrs.field(default=None, init=False)
    # the numbers of further passes after one that was prepared
    _later: dict[str, Any] | None = attrs.field(default=None, init=False)

    @property
    def draws(self) -> bool:
        """True if its order may differ from pass to pass."""
        return not has_fixed_order(self.sampler)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def _places(self) -> range:
        strategy = self._strategy
        return shared_places(0, len(self.sampler), strategy.data_rank, strategy.num_data_ranks, self.uneven)

    def __iter__(self) -> Iterator[Any]:
        places = self._places
        if not self.draws:
            repeated = chain.from_iterable(repeat(self.sampler, places.stop))
            yield from islice(repeated, places.start, places.stop, places.step)
            return
        draw = self._begin()
        share = [draw.order[place % len(draw.order)] for place in places]
        draw.order = []  # the rest of it is not needed any more
        yield from share
        next(draw.rest, None)  # at its end a sampler may draw once more, as `RandomSampler` does

    def prepare(self) -> None:
        """Draw the order of the next pass, now and from the numbers as they are, which must be the same everywhere."""
        before = shared_random_state(self.generators)
        order, rest = drawn_order(self.sampler, self.parts)
        self._prepared = _Draw(order, rest, before, shared_random_state(self.generators))
        self._later = self._prepared.after

    def check_prepared(self) -> None:
        """Compare what was drawn with the other processes. Collective.

        Raises:
            ValueError: If it differs, as when a sampler draws from a generator of its own.
        """
        assert self._prepared is not None
        action = "Draw from global numbers or an attribute `generator`, or pass use_distributed_sampler=False."
        check_same_order(self._prepared.order, self.sampler, self._strategy, action)

    def _begin(self) -> _Draw:
        """Return the order of a pass. Collective if it was not prepared."""
        is_further = self._prepared is None and self.uneven == "keep" and self._later is not None
        if is_further:  # without the other processes, which may have no more passes
            with _with_random_state(self._later or {}, self.generators):
                self.prepare()
        elif self._prepared is None:
            with randomness_of_first_rank(self._strategy, self.generators):
                self.prepare()
            self.check_prepared()
            self._later = None
        prepared, self._prepared = self._prepared, None
        assert prepared is not None
        if not is_further:
            _follow(prepared.before, prepared.after, self.generators)
        return prepared


@attrs.define(eq=False, repr=False)
class _Draw:
    """An order that was drawn, the iterator that it came from, and the random numbers before and after it."""

    order: list[Any]
    rest: Iterator[Any]
    before: dict[str, Any]
    after: dict[str, Any]


@contextmanager
def _with_random_state(numbers: dict[str, Any], generators: Sequence[torch.Generator]) -> Iterator[None]:
    """Use other random numbers, as a context; afterwards they are as they were."""
    own = shared_random_state(generators)
    restore_random_state({key: state for key, state in numbers.items() if key in own}, generators)
    try:
        yield
    finally:
        restore_random_state(own, generators)


def randomness_of_first_rank(strategy: Strategy, generators: Sequence[torch.Generator]) -> AbstractContextManager[None]:
    """Use the random numbers of the first process, except those of devices, as a context. Collective.

    Args:
        generators: Further generators.
    """
    return _with_random_state(strategy.broadcast(shared_random_state(generators)), generators)


@contextmanager
def common_randomness(strategy: Strategy) -> Iterator[None]:
    """Use the random numbers of the first process, as a context; who had the same goes on as it does. Collective."""
    with randomness_of_first_rank(strategy, ()):
        before = shared_random_state(())
        yield
        after = shared_random_state(())
    _follow(before, after, ())


def shared_random_state(generators: Sequence[torch.Generator]) -> dict[str, Any]:
    """Return the random numbers that orders are drawn from: not those of devices, which differ by process."""
    return {key: state for key, state in random_state(generators).items() if key != "devices"}


def _follow(before: dict[str, Any], after: dict[str, Any], generators: Sequence[torch.Generator]) -> None:
    """Let the generators that are where the first process's were go on as those did."""
    own = shared_random_state(generators)

    def followed(mine: Any, its_before: Any, its_after: Any) -> Any:
        return its_after if are_same(mine, its_before) else mine

    state = {key: followed(mine, before.get(key), after.get(key, mine)) for key, mine in own.items()}
    triples = zip(own["generators"], before["generators"], after["generators"], strict=True)
    restore_random_state(state | {"generators": [followed(*triple) for triple in triples]}, generators)


def has_fixed_order(sampler: object) -> bool:
    """Return whether a sampler gives the same in every pass and draws no random numbers."""
    if type(sampler) is BatchSampler:
        return has_fixed_order(sampler.sampler)
    return type(sampler) in (SequentialSampler, list, tuple, range)


def drawn_order(sampler: Any, parts: Sequence[Any]) -> tuple[list[Any], Iterator[Any]]:
    """Return the order of a sampler's pass, drawn now, and the iterator that it came from.

    Args:
        sampler: The sampler, which tells its length.
        parts: Samplers with a state of their own that it reads by.

    Raises:
        RuntimeError: If it gives less than it promises.
    """
    length, rest = len(sampler), iter(sampler)
    # What keeps a state is run to its end, because it would go on from there in the next pass.
    order = list(rest) if parts or has_state(sampler) else list(islice(rest, length))
    if len(order) < length:
        rule, where = f"a sampler of the {length} indices that it promises", type(sampler).__qualname__
        raise RuntimeError(must_be("sampler", rule, len(order), where, "Let `__len__` tell how many it gives."))
    return order[:length], rest


def check_same_order(order: Sequence[Any], sampler: Any, strategy: Strategy, action: str) -> None:
    """Raise `ValueError` unless all processes have drawn one order. Collective.

    Args:
        order: What was drawn.
        sampler: Of what.
        strategy: Connects the processes.
        action: What to do, for the message.
    """
    checksums = strategy.all_gather(_checksum(order))
    if any(checksum != checksums[0] for checksum in checksums):
        rule = "one that draws the same order in every process from the same random numbers, to be shared out"
        raise ValueError(must_be("sampler", rule, f"the checksums {checksums}", type(sampler).__qualname__, action))


def _checksum(order: Iterable[Any]) -> int | None:
    """Return a checksum of an order of integers, or of batches of integers; None for others."""
    items = list(order)
    for numbers in (items, chain.from_iterable((len(batch), *batch) for batch in items)):
        with suppress(TypeError, OverflowError):
            return zlib.crc32(array("q", numbers))
    return None


def _draws_each_anew(replayed: ReplayedSampler) -> bool:
    """Return whether a sampler's items follow from the numbers of their moment alone, by a trial of two passes.

    Those numbers are in a checkpoint, so it goes on exactly, whatever else drew from them before.
    """
    passes, found = [], []
    if any(isinstance(one, SharedSampler) for one in samplers_of(replayed)):
        return False  # it draws the whole order as a pass begins
    with isolated_randomness(replayed.generators):
        for num_items in (1, 2):
            passes.append(iter(replayed.sampler))
            for seed in range(num_items):
                _seed_all(7 * num_items + seed, replayed.generators)
                next(passes[-1], None)
        for seed in (1, 2, 3):
            for one in passes:
                _seed_all(seed, replayed.generators)
                found.append(as_integers(next(one, None)))
    return None not in found and found[::2] == found[1::2] and found[0] != found[2]


def _seed_all(seed: int, generators: Sequence[torch.Generator]) -> None:
    seed_global_numbers(seed)
    for generator in generators:
        generator.manual_seed(seed)


def check_ends(ends: Sequence[Any], before: Sequence[Any] | None, sampler: Any) -> None:
    """Raise `ValueError` if a sampler gives another order than the one that a checkpoint was saved in.

    Args:
        ends: Two items of the order.
        before: The same two of then; None if they are not known.
        sampler: The sampler.
    """
    if before is not None and list(ends) != list(before):
        while isinstance(sampler, SharedSampler) or type(sampler) is BatchSampler:
            sampler = sampler.sampler
        rule = "one that gives the order of the checkpoint again, which was saved inside an epoch"
        action = (
            "Give it `state_dict` and `load_state_dict`, let `set_epoch` decide its order, or draw that from global"
        )
        action += " numbers or an attribute `generator` as a pass begins; or resume from the end of an epoch."
        raise ValueError(must_be("sampler", rule, sampler, "fit", action))


def as_integers(indices: Any) -> list[int] | None:
    """Return what a sampler gives, an index or a batch of them, as integers; None for others."""
    with suppress(TypeError, OverflowError):
        return array("q", indices if isinstance(indices, (list, tuple)) else (indices,)).tolist()
    return None


@attrs.define(eq=False, repr=False)
class ReplayedSampler:
    """Replays a sampler: keeps the random numbers from which its pass began.

    A sampler without a state of its own draws its order when it begins. To go on in the middle of it, the numbers of
    its beginning are put back, and what was given already is drawn again; no data is read for that. So that is
    collective where beginning it is, as with a `SharedSampler`.

    Args:
        sampler: A sampler of indices, or of batches of them.
        generators: Generators that it may draw from, beside the global ones.
        parts: Samplers within it that have a state; it is put back as well.

    Attributes:
        recorded: What passes from now on give, by its place in the pass, until a reader takes it out; None, the
            default, records nothing.
        is_checked: Whether a pass that goes on from a state must have its order.
    """

    sampler: Any
    generators: Sequence[torch.Generator]
    parts: Sequence[Any] = ()
    recorded: dict[int, Any] | None = attrs.field(default=None, init=False)
    is_checked: bool = attrs.field(default=True, init=False)
    _newest: _ReplayedIndices | None = attrs.field(default=None, init=False)

    @property
    def given(self) -> dict[str, Any]:
        """How many items the newest pass has given, the first and the last; see `check_ends`."""
        return {} if self._newest is None else self._newest.given

    @property
    def beginning(self) -> dict[str, Any] | None:
        """The random numbers and states from which the newest pass began; None if it has given nothing yet."""
        return None if self._newest is None else self._newest.start

    def __iter__(self) -> _ReplayedIndices:
        if self.recorded is not None:
            self.recorded.clear()  # of a pass that was left
        self._newest = _ReplayedIndices(self)
        return self._newest

    def __len__(self) -> int:
        return len(self.sampler)


@attrs.define(eq=False, repr=False)
class _ReplayedIndices(Iterator[Any]):
    """One pass over a sampler. `state_dict` and `load_state_dict` are what torchdata looks for."""

    _owner: ReplayedSampler
    _indices: Iterator[Any] = attrs.field(default=iter(()), init=False)
    start: dict[str, Any] | None = attrs.field(default=None, init=False)
    _num_given: int = attrs.field(default=0, init=False)
    _first: Any = attrs.field(default=None, init=False)
    _last: Any = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        """Begin the sampler, as a plain loader does: a generator draws when it is first asked, any other one here."""
        start = self._beginning()
        self._indices = iter(self._owner.sampler)
        if not are_same(start, self._beginning()):
            self.start = start

    def __next__(self) -> Any:
        if self.start is None:
            self.start = self._beginning()
        index = next(self._indices)
        recorded = self._owner.recorded
        if recorded is not None:
            recorded[self._num_given] = as_integers(index)
        if self._num_given == 0:
            self._first = index
        self._last = index
        self._num_given += 1
        return index

    @property
    def given(self) -> dict[str, Any]:
        """The number of items that were given, and the first and the last one, by which the order is known again."""
        return {"num_given": self._num_given, "ends": [as_integers(self._first), as_integers(self._last)]}

    def state_dict(self) -> dict[str, Any]:
        # worker processes are given their first indices right after they asked for this: it would begin here
        start = self._beginning() if self.start is None else self.start
        return {**start, **self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        owner = self._owner
        parts = state.get("parts", [])
        if "start" not in state or len(parts) != len(owner.parts):
            rule, action = "that of the same sampler", "Resume with the same loaders and as many processes."
            raise ValueError(must_be("state of the sampler", rule, sorted(state), type(owner).__name__, action))
        self.start = {"start": state["start"], "parts": parts}
        self._num_given = state["num_given"]
        with isolated_randomness(owner.generators):
            restore_random_state(state["start"], owner.generators)
            for part, its_state in zip(owner.parts, parts, strict=True):
                part.load_state_dict(copy.deepcopy(its_state))
            indices = iter(owner.sampler)
            # at least one, as a generator draws when it is first asked; but no further: it may draw again at its end
            given = list(islice(indices, max(self._num_given, 1)))
            self._indices = chain(given[self._num_given :], indices)
        if self._num_given:
            self._first, self._last = given[0], given[-1]
            own, ends = self.given["ends"], state.get("ends") if owner.is_checked else None
            if ends is not None and own != ends and not _draws_each_anew(owner):
                check_ends(own, ends, owner.sampler)

    def _beginning(self) -> dict[str, Any]:
        """Return the random numbers from which a pass begins."""
        owner = self._owner
        parts = [copy.deepcopy(part.state_dict()) for part in owner.parts]
        return {"start": random_state(owner.generators), "parts": parts}
