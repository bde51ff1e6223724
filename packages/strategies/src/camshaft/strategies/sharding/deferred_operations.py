"""Recorded tensor operations, and their replay on real tensors in little memory."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import attrs
import torch
from torch import Generator, Tensor, UntypedStorage
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

_TRIM_BYTES = 2**25
"""Number of freed bytes after which memory is returned to the operating system."""


@attrs.frozen
class TensorRef:
    """A tensor as a view of a storage, which may have no memory yet.

    Args:
        storage_idx: Index of the storage.
        dtype: Dtype.
        size: Shape.
        stride: Stride of each dimension, in elements.
        offset: Offset of the first element, in elements.
    """

    storage_idx: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.size)

    def covers(self, num_bytes: int) -> bool:
        """Return whether every byte of a storage of this size belongs to an element."""
        if self.offset != 0 or self.numel * self.dtype.itemsize != num_bytes:
            return False
        expected = 1
        for stride, size in sorted(zip(self.stride, self.size, strict=True)):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


@attrs.frozen(eq=False)
class Operation:
    """A recorded operation.

    Args:
        function: The operation.
        leaves: Its arguments, flat, with a `TensorRef` for each tensor that is not constant.
        structure: Their nesting.
        results: For each tensor that it returns, a reference if it is new; None if it is an argument.
        reads: Storages whose values it needs.
        changes: Storages that it writes to or creates.
        overwrites: Those of them whose previous values do not matter.
        generator: The generator that it draws random numbers from, if any.
    """

    function: OpOverload
    leaves: list[Any]
    structure: pytree.TreeSpec
    results: list[TensorRef | None]
    reads: frozenset[int]
    changes: frozenset[int]
    overwrites: frozenset[int]
    generator: Generator | None

    @property
    def touches(self) -> frozenset[int]:
        """All storages of its arguments and results."""
        return self.reads | self.changes


@attrs.frozen(eq=False)
class GeneratorChange:
    """A recorded change of a random number generator's state.

    Args:
        generator: The generator.
        state: Its new state; None if it is a previous one.
        position: Position of the operation after which it had the previous state; -1 for the beginning.
    """

    generator: Generator
    state: Tensor | None
    position: int

    @property
    def key(self) -> tuple[int, int]:
        """The key of the previous state in `Replay.states`."""
        return id(self.generator), self.position


Entry = Operation | GeneratorChange


@attrs.frozen(eq=False)
class Plan:
    """The entries to replay, and the lifetimes of their storages.

    Args:
        needed: The positions of the entries.
        frees: By position, the storages whose values are not needed after it.
        completes: By position, the wanted storages that are final after it and not read later.
        missing: Storages whose values are needed from before the first entry.
    """

    needed: set[int]
    frees: dict[int, frozenset[int]]
    completes: dict[int, frozenset[int]]
    missing: frozenset[int]


def make_plan(
    entries: Sequence[Entry], wanted: Iterable[int], *, draws_all: bool, constant: Collection[int] = frozenset()
) -> Plan:
    """Plan the replay that gives some storages their final values.

    Args:
        entries: The entries in recorded order.
        wanted: The storages.
        draws_all: Whether to draw all random numbers, also those that are not needed.
        constant: Storages that no entry changes.
    """
    wanted = frozenset(wanted)
    live, complete = set(wanted), set[int]()
    needed = set[int]()
    frees: dict[int, frozenset[int]] = {}
    completes: dict[int, frozenset[int]] = {}
    for position in reversed(range(len(entries))):
        if not live and not draws_all:
            break
        entry = entries[position]
        if isinstance(entry, GeneratorChange):
            if draws_all:
                needed.add(position)
            continue
        if not (entry.changes & live or (draws_all and entry.generator is not None)):
            continue
        needed.add(position)
        touches = entry.touches
        completes[position] = (touches & wanted) - complete
        complete |= completes[position]
        frees[position] = touches - live
        live -= entry.overwrites
        live |= entry.reads.difference(constant)
    return Plan(needed, frees, completes, frozenset(live))


def trim_memory() -> None:
    """Return free memory to the operating system, if the C library has `malloc_trim`.

    Large temporary tensors between small ones that stay leave gaps in the heap, which glibc keeps and rarely reuses.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if malloc_trim is not None:
        malloc_trim(0)


class Replay:
    """A replay of entries on real tensors.

    Args:
        real_storages: Storages that have memory already. They are changed in place.
        num_bytes: Size of each storage.
        keeps_real: Whether to change copies of real storages instead.

    Attributes:
        storages: Real storages by index.
        states: States of generators by `GeneratorChange.key`.
    """

    def __init__(
        self, real_storages: Mapping[int, UntypedStorage], num_bytes: Sequence[int], *, keeps_real: bool = False
    ) -> None:
        self._real = real_storages
        self._num_bytes = num_bytes
        self._keeps_real = keeps_real
        self.storages: dict[int, UntypedStorage] = {}
        self.states: dict[tuple[int, int], Tensor] = {}
        self._freed_bytes = 0

    @torch.no_grad()
    def run(
        self,
        entries: Sequence[Entry],
        plan: Plan,
        *,
        first: int = 0,
        keeps: frozenset[int] = frozenset(),
        on_complete: Callable[[int], None] | None = None,
    ) -> None:
        """Replay the entries of a plan.

        Args:
            entries: The entries that the plan was made for.
            plan: The plan.
            first: Position of the first entry among all that were recorded.
            keeps: Storages to keep, although they are not needed any more.
            on_complete: Called with each wanted storage once it is final; the storage is dropped then.

        Raises:
            KeyError: If a generator returns to a state that it did not have in this replay.
        """
        returns_to = {entry.key for entry in entries if isinstance(entry, GeneratorChange) and entry.state is None}
        for idx in sorted(plan.needed):
            entry = entries[idx]
            if isinstance(entry, GeneratorChange):
                entry.generator.set_state(self.states[entry.key] if entry.state is None else entry.state)
                continue
            self._execute(entry)
            if entry.generator is not None and (id(entry.generator), first + idx) in returns_to:
                self.states[id(entry.generator), first + idx] = entry.generator.get_state()
            done = plan.frees[idx] - keeps
            if on_complete is not None:
                for storage_idx in plan.completes[idx]:
                    on_complete(storage_idx)
                done |= plan.completes[idx]
            for storage_idx in done:
                self.drop(storage_idx)

    def drop(self, storage_idx: int) -> None:
        """Free the memory of a storage, if this replay has allocated it."""
        storage = self.storages.pop(storage_idx, None)
        if storage is not None and storage_idx not in self._real:
            self._freed_bytes += storage.nbytes()
            if self._freed_bytes > _TRIM_BYTES:
                self._freed_bytes = 0
                del storage
                trim_memory()

    def tensor(self, ref: TensorRef) -> Tensor:
        """Return the real tensor of a reference; allocate its memory if there is none."""
        storage = self.storages.get(ref.storage_idx)
        if storage is None:
            storage = self._real.get(ref.storage_idx)
            if storage is None:
                storage = UntypedStorage(self._num_bytes[ref.storage_idx])  # type: ignore[no-untyped-call]
            elif self._keeps_real:
                storage = storage.clone()  # type: ignore[no-untyped-call]
            self.storages[ref.storage_idx] = storage
        return torch.empty(0, dtype=ref.dtype, device=storage.device).set_(storage, ref.offset, ref.size, ref.stride)

    def _execute(self, operation: Operation) -> None:
        leaves = [self.tensor(leaf) if isinstance(leaf, TensorRef) else leaf for leaf in operation.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, operation.structure)
        results = pytree.tree_leaves(operation.function(*args, **kwargs))
        made = [result for result in results if isinstance(result, Tensor)]
        for ref, result in zip(operation.results, made, strict=True):
            if ref is not None and ref.storage_idx not in self.storages:
                layout = (tuple(result.size()), result.stride(), result.storage_offset())
                if layout == (ref.size, ref.stride, ref.offset):
                    self.storages[ref.storage_idx] = result.untyped_storage()
                else:  # later operations rely on the recorded layout
                    self.tensor(ref).copy_(result)


@attrs.define(eq=False)
class _Track:
    """The recorded states of one generator.

    Args:
        generator: The generator.
        first_state: Its state when it became known.
        last_state: Its state after the latest recorded operation.
        positions: The position of the operation after which it had each state.
    """

    generator: Generator
    first_state: Tensor
    last_state: bytes
    positions: dict[bytes, int]


class GeneratorStates:
    """The generators that recorded operations draw from.

    Each recorded operation advances its generator a little. So each state identifies the operation after which it was
    read, and a state that user code sets is recognized as a previous or a new one.

    Args:
        entries: The list of entries, to which changes of states are added.
    """

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries
        self._tracks: dict[int, _Track] = {}
        self._track(torch.default_generator)

    def record_change(self, generator: Generator) -> None:
        """Record that a generator was seeded or set to a previous state, if it was."""
        track = self._track(generator)
        state = generator.get_state()
        key = _to_bytes(state)
        if key != track.last_state:
            position = track.positions.get(key)
            is_new = position is None
            self._entries.append(
                GeneratorChange(generator, state if is_new else None, -1 if position is None else position)
            )
            track.last_state = key

    def record_changes(self) -> None:
        """Record the changes of all generators."""
        for track in list(self._tracks.values()):
            self.record_change(track.generator)

    def advance(self, generator: Generator) -> None:
        """Advance a generator, after an operation that draws from it was recorded."""
        track = self._track(generator)
        torch.rand((), generator=generator, device="cpu")
        track.last_state = _to_bytes(generator.get_state())
        track.positions[track.last_state] = len(self._entries) - 1

    def rewind(self) -> None:
        """Set all generators to their first states."""
        self.restore({})

    def first_states(self) -> dict[tuple[int, int], Tensor]:
        """Return the states of generators before the first entry, for `Replay.states`."""
        return {(key, -1): track.first_state for key, track in self._tracks.items()}

    def states(self) -> dict[int, Tensor]:
        """Return the current states."""
        return {key: track.generator.get_state() for key, track in self._tracks.items()}

    def restore(self, states: dict[int, Tensor]) -> None:
        """Set all generators to the result of `states`; generators that it lacks to their first states."""
        for key, track in self._tracks.items():
            track.generator.set_state(states.get(key, track.first_state))

    def _track(self, generator: Generator) -> _Track:
        found = self._tracks.get(id(generator))
        if found is None:
            state = generator.get_state()
            key = _to_bytes(state)
            found = self._tracks[id(generator)] = _Track(generator, state, key, {key: -1})
        return found


def _to_bytes(state: Tensor) -> bytes:
    return state.numpy().tobytes()
