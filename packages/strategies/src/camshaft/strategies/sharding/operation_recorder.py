"""Recording what is done with tensors that have no memory yet."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import attrs
import torch
from torch import Generator, Tensor, UntypedStorage
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from camshaft.hooks_core.messages import must_be
from camshaft.strategies.sharding.deferred_operations import (
    Entry,
    GeneratorChange,
    GeneratorStates,
    Operation,
    Plan,
    Replay,
    TensorRef,
    make_plan,
)

WHERE = "the hooks that build the model"
META = torch.device("meta")
CPU = torch.device("cpu")

_WRITES_ONLY = frozenset(
    f"aten::{name}_"
    for name in (
        *("bernoulli", "cauchy", "copy", "exponential", "fill", "geometric", "log_normal", "normal", "random"),
        *("uniform", "zero"),
    )
)
_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


class DeferredInitializationError(RuntimeError):
    """A model cannot be built without memory first."""


@attrs.frozen
class _Traits:
    """What an operation's schema says.

    Args:
        is_view: Whether it only looks at its arguments' memory in another way.
        written: Positions and names of the arguments that it writes to.
        writes_only: Whether it does so without regard to what they were.
        needs_values: Whether its result depends on values in a way that tensors without memory cannot follow.
        is_random: Whether it draws random numbers.
        takes_dtype: Whether it has an argument "dtype".
    """

    is_view: bool
    written: tuple[tuple[int, str], ...]
    writes_only: bool
    needs_values: bool
    is_random: bool
    takes_dtype: bool


@cache
def traits_of(function: OpOverload) -> _Traits:
    """What an operation's schema says."""
    schema = function._schema
    written = [
        (idx, argument.name)
        for idx, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    tags = function.tags
    is_set = schema.name in ("aten::set_", "aten::set_data")
    return _Traits(
        is_view=is_set or bool(not written and schema.returns and all(item.alias_info for item in schema.returns)),
        written=() if is_set else tuple(written),
        writes_only=schema.name in _WRITES_ONLY or torch.Tag.out in tags,
        needs_values=torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags,
        is_random=torch.Tag.nondeterministic_seeded in tags,
        takes_dtype=any(argument.name == "dtype" for argument in schema.arguments),
    )


class OperationRecorder:
    """The operations that were recorded, in their order, and the storages that they work on.

    Attributes:
        entries: The operations, and changes of random number generators in between.
        generators: What is known of the generators.
        num_bytes: Size of each storage.
        real_storages: Those that have memory: the recorded operations read or change them.
        pending: Those of them that recorded operations change.
        made_by: The operation that made a storage.
        writers: The operations that wrote to a storage after it was made.
        without_values: Storages that the hooks put on the meta device themselves: what is done with them has no effect.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.num_bytes: list[int] = []
        self.real_storages: dict[int, UntypedStorage] = {}
        self._kept: list[UntypedStorage] = []
        self._indexes: dict[int, int] = {}
        self.pending: set[int] = set()
        self.made_by: dict[int, Operation] = {}
        self.writers: dict[int, list[Operation]] = {}
        self.without_values: set[int] = set()
        self.generators = GeneratorStates(self.entries)
        self._ahead = ValuesAhead(self)

    # recording

    def dispatch(self, function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry an operation out if it has real tensors only; otherwise record it.

        Returns:
            What it returns; for what is recorded, tensors without memory.
        """
        traits = traits_of(function)
        leaves, structure = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if traits.is_view:
            return function(*args, **kwargs)
        if self.without_values and any(map(self.has_no_values, tensors)):
            if not _makes_room_elsewhere(function, kwargs):
                return self.leave_without_values(function(*args, **kwargs))
        elif not any(map(self.is_deferred, tensors)):
            if not self._is_to_be_deferred(traits, args, kwargs, tensors):
                return function(*args, **kwargs)
        elif function.namespace in _COLLECTIVES:
            rule, action = "called with tensors that have their values", "Call it after the hooks."
            message = must_be(str(function), rule, "tensors without values", WHERE, action)
            raise DeferredInitializationError(message)
        elif traits.needs_values:
            return self._with_values(function, tensors, leaves, structure)
        try:
            return self._record(function, traits, leaves, structure)
        except NotImplementedError as error:  # torch cannot foresee what it returns
            if traits.written or traits.is_random:
                action = "Do this in `__init__`, with real tensors, or after the hooks."
                rule = "an operation that torch can carry out on the meta device"
                raise DeferredInitializationError(must_be("operation", rule, function, WHERE, action)) from error
            return self._with_values(function, tensors, leaves, structure)

    def is_deferred(self, tensor: Tensor) -> bool:
        """Whether a tensor has no values, or other ones than it is going to have."""
        return tensor.is_meta or (bool(self.pending) and self._indexes.get(_key(tensor), -1) in self.pending)

    def has_no_values(self, tensor: Tensor) -> bool:
        """Whether a tensor is one that the hooks put on the meta device themselves."""
        return self._indexes.get(_key(tensor), -1) in self.without_values

    def leave_without_values(self, result: Any) -> Any:
        """Take it that nothing that is done with tensors has an effect. Returns them."""
        for item in pytree.tree_leaves(result):
            if isinstance(item, Tensor) and item.device == META:
                self.without_values.add(self.ref(item).storage_idx)
        return result

    def ref(self, tensor: Tensor) -> TensorRef:
        """A reference to a tensor, by which its storage becomes known here."""
        if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            rule, action = "dense, neither conjugated nor negated", "Build it in `__init__`."
            raise DeferredInitializationError(must_be("tensor", rule, tensor.layout, WHERE, action))
        key = _key(tensor)
        idx = self._indexes.get(key)
        if idx is None:
            idx = self._indexes[key] = len(self._kept)
            storage = tensor.untyped_storage()
            self._kept.append(storage)  # its address is not used again as long as it is kept
            self.num_bytes.append(storage.nbytes())
            if not tensor.is_meta:
                self.real_storages[idx] = storage
        return TensorRef(idx, tensor.dtype, tuple(tensor.size()), tensor.stride(), int(tensor.storage_offset()))

    def tensor(self, ref: TensorRef) -> Tensor:
        """The tensor that a reference stands for: without memory, unless its storage is real."""
        storage = self._kept[ref.storage_idx]
        return torch.empty(0, dtype=ref.dtype, device=storage.device).set_(storage, ref.offset, ref.size, ref.stride)

    def sources(self, storage_idx: int) -> list[TensorRef]:
        """The tensors from which a storage was made."""
        made_by = self.made_by.get(storage_idx)
        return [leaf for leaf in made_by.leaves if isinstance(leaf, TensorRef)] if made_by else []

    def _is_to_be_deferred(
        self, traits: _Traits, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> bool:
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "meta":
            return True
        if traits.is_random and (device is None or torch.device(device).type == "cpu"):
            return all(tensor.device.type == "cpu" for tensor in tensors)
        known = self._indexes
        return any(_key(tensor) in known for tensor in _written(traits, args, kwargs)) if traits.written else False

    def _record(self, function: OpOverload, traits: _Traits, leaves: list[Any], structure: pytree.TreeSpec) -> Any:
        originals: dict[int, Tensor] = {}
        refs, stand_ins = list[Any](), list[Any]()
        generator = torch.default_generator
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                refs.append(self.ref(leaf))
                stand_ins.append(leaf if leaf.is_meta else _without_memory(leaf))
                originals[id(stand_ins[-1])] = leaf
            elif isinstance(leaf, Generator):
                generator = leaf
                refs.append(leaf)
                stand_ins.append(None)
            else:
                refs.append(CPU if leaf == META and isinstance(leaf, torch.device) else leaf)
                stand_ins.append(leaf)
        result = self._foresee(function, stand_ins, structure)
        known = {leaf.storage_idx for leaf in refs if isinstance(leaf, TensorRef)}
        results: list[TensorRef | None] = []
        for item in pytree.tree_leaves(result):
            if isinstance(item, Tensor):
                results.append(None if id(item) in originals else self.ref(item))
        made = {item.storage_idx for item in results if item is not None} - known
        if made or traits.written:
            args, kwargs = pytree.tree_unflatten(refs, structure)
            if traits.takes_dtype and kwargs.get("dtype") is None and made:
                kwargs["dtype"] = next(item.dtype for item in results if item is not None)
            self._add(function, traits, args, kwargs, results, made, generator if traits.is_random else None)
        return pytree.tree_map(lambda item: originals.get(id(item), item), result)

    def _foresee(self, function: OpOverload, leaves: list[Any], structure: pytree.TreeSpec) -> Any:
        """What an operation returns, without memory."""
        args, kwargs = pytree.tree_unflatten(leaves, structure)
        if kwargs.get("device") is not None:
            kwargs["device"] = META
        kwargs.pop("pin_memory", None)
        return function(*args, **kwargs)

    def _with_values(
        self, function: OpOverload, tensors: list[Tensor], leaves: list[Any], structure: pytree.TreeSpec
    ) -> Any:
        """What an operation returns for the values that its arguments have at this point: real tensors, or numbers."""
        values = self.values_of(tensors)
        real = [values.pop(0) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(real, structure)
        return function(*args, **kwargs)

    def _add(
        self,
        function: OpOverload,
        traits: _Traits,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        results: list[TensorRef | None],
        made: set[int],
        generator: Generator | None,
    ) -> None:
        leaves, structure = pytree.tree_flatten((args, kwargs))
        written = [ref for ref in _written(traits, args, kwargs)]
        written_idxs = {ref.storage_idx for ref in written}
        others = [leaf for leaf in leaves if isinstance(leaf, TensorRef) and not any(leaf is ref for ref in written)]
        whole = {ref.storage_idx for ref in written if ref.covers(self.num_bytes[ref.storage_idx])}
        overwritten = (whole if traits.writes_only else set()) - {ref.storage_idx for ref in others}
        reads = ({ref.storage_idx for ref in others} | written_idxs) - overwritten
        changes, overwrites = frozenset(written_idxs | made), frozenset(overwritten | made)
        operation = Operation(function, leaves, structure, results, frozenset(reads), changes, overwrites, generator)
        if generator is not None:
            self.generators.notice(generator)
        self.entries.append(operation)
        for idx in made:
            self.made_by[idx] = operation
        for idx in written_idxs:
            self.writers.setdefault(idx, []).append(operation)
        self.pending |= written_idxs & self.real_storages.keys()
        if generator is not None:
            self.generators.move_on(generator)

    # values that are asked for early

    def values_of(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """The values that tensors have at this point, found out by carrying out ahead what they depend on.

        Returns:
            Real tensors, which change with what is found out later.
        """
        refs = [self.ref(tensor) for tensor in tensors]
        return self._ahead.values(refs)


def _written(traits: _Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that an operation writes to: tensors, or references to them."""
    found: list[Any] = []
    for idx, name in traits.written:
        value = args[idx] if idx < len(args) else kwargs.get(name)
        found.extend(item for item in pytree.tree_leaves(value) if isinstance(item, (Tensor, TensorRef)))
    return found


def _makes_room_elsewhere(function: OpOverload, kwargs: dict[str, Any]) -> bool:
    """Whether an operation makes a tensor that is like another but has values, as `to_empty` does."""
    device, name = kwargs.get("device"), function._schema.name
    return device is not None and torch.device(device) != META and (name.endswith("_like") or "::new_" in name)


def _without_memory(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=META)


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class ValuesAhead:
    """Carries recorded operations out ahead, when somebody needs to know values.

    Random numbers are drawn in their order, so everything that draws is carried out up to this point; what was found
    out is kept until next time for what depends on it, such as the next round of a rejection sampling.
    """

    def __init__(self, recorder: OperationRecorder) -> None:
        self._recorder = recorder
        self._replay = self._new_replay()
        self._position = 0
        self._states: dict[int, Tensor] = {}

    def values(self, refs: list[TensorRef]) -> list[Tensor]:
        """The values of references after everything that was recorded; the tensors change with what follows."""
        entries, wanted = self._recorder.entries, {ref.storage_idx for ref in refs}
        constant = self._recorder.real_storages.keys() - self._recorder.pending
        plan = make_plan(entries, wanted - constant, draws_all=False, constant=constant)
        if not any(entry.generator is not None for entry in _operations(entries, plan)):
            replay = self._new_replay()
            replay.run(entries, plan, keeps=frozenset(wanted))
            return [replay.tensor(ref) for ref in refs]
        generators = self._recorder.generators
        present = generators.states()
        generators.notice_all()
        try:
            self._draw(wanted, self._position) or self._draw(wanted, 0)
            return [self._replay.tensor(ref) for ref in refs]
        finally:
            generators.restore(present)

    def _draw(self, wanted: set[int], first: int) -> bool:
        """Carry everything out that is needed from a position on. Returns whether what it takes was known there."""
        recorder = self._recorder
        entries = recorder.entries[first:]
        plan = make_plan(entries, wanted, draws_all=True)
        if first == 0:
            self._replay = self._new_replay()
            self._replay.states |= recorder.generators.first_states()
            recorder.generators.rewind()
        else:
            returns = {entry.key for entry in entries if isinstance(entry, GeneratorChange) and entry.state is None}
            constant = recorder.real_storages.keys() - recorder.pending
            is_known = plan.missing <= self._replay.storages.keys() | constant
            if not is_known or any(key[1] < first and key not in self._replay.states for key in returns):
                return False
            recorder.generators.restore(self._states)
        for_values = make_plan(entries, wanted, draws_all=False)
        useful = frozenset(wanted).union(*(entry.touches for entry in _operations(entries, for_values)))
        self._replay.run(entries, plan, first=first, keeps=useful)
        self._position = len(recorder.entries)
        self._states = recorder.generators.states()
        for idx in self._replay.storages.keys() - (useful - _stale(entries, plan)):
            self._replay.drop(idx)
        return True

    def _new_replay(self) -> Replay:
        return Replay(self._recorder.real_storages, self._recorder.num_bytes, keeps_real=True)


def _operations(entries: list[Entry], plan: Plan) -> list[Operation]:
    """The operations that a plan carries out."""
    return [entry for position in plan.needed if isinstance(entry := entries[position], Operation)]


def _stale(entries: list[Entry], plan: Plan) -> set[int]:
    """Storages whose latest change a plan leaves out."""
    latest = dict[int, bool]()
    for position, entry in enumerate(entries):
        if isinstance(entry, Operation):
            latest |= dict.fromkeys(entry.changes, position in plan.needed)
    return {idx for idx, is_carried_out in latest.items() if not is_carried_out}
