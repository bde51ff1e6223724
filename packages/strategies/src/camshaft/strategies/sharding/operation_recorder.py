"""Recording operations on tensors that have no memory yet."""

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
    """A model that cannot be built on the meta device."""


@attrs.frozen
class _Traits:
    """The properties of an operation, from its schema.

    Args:
        is_view: Whether it returns views of its arguments.
        written: Positions and names of the arguments that it writes to.
        writes_only: Whether it does not depend on their earlier values.
        needs_values: Whether the shape or value of its result depends on values, so that it cannot run on meta tensors.
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
    """Return the properties of an operation."""
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
    """The recorded operations, in their order, and the storages of their tensors.

    Attributes:
        entries: The operations, and changes of random number generators in between.
        generators: The states of the generators.
        num_bytes: Size of each storage.
        real_storages: Storages with memory that recorded operations read or change.
        pending: Those of them that recorded operations change.
        made_by: The operation that created a storage.
        writers: The operations that wrote to a storage after it was created.
        without_values: Storages that the user's code put on the meta device; operations on them have no effect.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.num_bytes: list[int] = []
        self.real_storages: dict[int, UntypedStorage] = {}
        self._storages: list[UntypedStorage] = []
        self._indexes: dict[int, int] = {}
        self.pending: set[int] = set()
        self.made_by: dict[int, Operation] = {}
        self.writers: dict[int, list[Operation]] = {}
        self.without_values: set[int] = set()
        self.generators = GeneratorStates(self.entries)
        self._early_values = EarlyValues(self)

    def dispatch(self, function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Execute an operation if all its tensors are real; otherwise record it.

        Returns:
            Its result; if it is recorded, with tensors without memory.
        """
        traits = traits_of(function)
        leaves, structure = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if traits.is_view:
            return function(*args, **kwargs)
        if self.without_values and any(map(self.has_no_values, tensors)):
            if not _allocates_elsewhere(function, kwargs):
                return self.mark_without_values(function(*args, **kwargs))
        elif not any(map(self.is_deferred, tensors)):
            if not self._must_defer(traits, args, kwargs, tensors):
                return function(*args, **kwargs)
        elif function.namespace in _COLLECTIVES:
            rule, action = "called with tensors that have their values", "Call it after the hooks."
            message = must_be(str(function), rule, "tensors without values", WHERE, action)
            raise DeferredInitializationError(message)
        elif traits.needs_values:
            return self._execute_early(function, leaves, structure)
        try:
            return self._record(function, traits, leaves, structure)
        except NotImplementedError as error:  # torch has no meta kernel
            if traits.written or traits.is_random:
                action = "Do this in `__init__`, with real tensors, or after the hooks."
                rule = "an operation that torch can carry out on the meta device"
                raise DeferredInitializationError(must_be("operation", rule, function, WHERE, action)) from error
            return self._execute_early(function, leaves, structure)

    def is_deferred(self, tensor: Tensor) -> bool:
        """Return whether a tensor has no values yet, or waits for recorded operations."""
        return tensor.is_meta or (bool(self.pending) and self._indexes.get(storage_key(tensor), -1) in self.pending)

    def has_no_values(self, tensor: Tensor) -> bool:
        """Return whether a tensor was put on the meta device by the user's code."""
        return self._indexes.get(storage_key(tensor), -1) in self.without_values

    def mark_without_values(self, result: Any) -> Any:
        """Mark the tensors of a result as put on the meta device by the user's code, and return it."""
        for item in pytree.tree_leaves(result):
            if isinstance(item, Tensor) and item.device == META:
                self.without_values.add(self.ref(item).storage_idx)
        return result

    def ref(self, tensor: Tensor) -> TensorRef:
        """Return a reference to a tensor, and register its storage."""
        if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            rule, action = "dense, neither conjugated nor negated", "Build it in `__init__`."
            raise DeferredInitializationError(must_be("tensor", rule, tensor.layout, WHERE, action))
        key = storage_key(tensor)
        idx = self._indexes.get(key)
        if idx is None:
            idx = self._indexes[key] = len(self._storages)
            storage = tensor.untyped_storage()
            self._storages.append(storage)  # kept, so that its address is not used again
            self.num_bytes.append(storage.nbytes())
            if not tensor.is_meta:
                self.real_storages[idx] = storage
        return TensorRef(idx, tensor.dtype, tuple(tensor.size()), tensor.stride(), int(tensor.storage_offset()))

    def tensor(self, ref: TensorRef) -> Tensor:
        """Return the tensor of a reference, without memory unless its storage is real."""
        storage = self._storages[ref.storage_idx]
        return torch.empty(0, dtype=ref.dtype, device=storage.device).set_(storage, ref.offset, ref.size, ref.stride)

    def sources(self, storage_idx: int) -> list[TensorRef]:
        """Return the tensors from which a storage was created."""
        made_by = self.made_by.get(storage_idx)
        return [leaf for leaf in made_by.leaves if isinstance(leaf, TensorRef)] if made_by else []

    def _must_defer(
        self, traits: _Traits, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> bool:
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "meta":
            return True
        if traits.is_random and (device is None or torch.device(device).type == "cpu"):
            return all(tensor.device.type == "cpu" for tensor in tensors)
        return any(storage_key(tensor) in self._indexes for tensor in _written(traits, args, kwargs))

    def _record(self, function: OpOverload, traits: _Traits, leaves: list[Any], structure: pytree.TreeSpec) -> Any:
        originals: dict[int, Tensor] = {}
        refs, stand_ins = list[Any](), list[Any]()
        generator = torch.default_generator
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                refs.append(self.ref(leaf))
                size, stride = leaf.size(), leaf.stride()
                like = leaf if leaf.is_meta else torch.empty_strided(size, stride, dtype=leaf.dtype, device=META)
                stand_ins.append(like)
                originals[id(stand_ins[-1])] = leaf
            elif isinstance(leaf, Generator):
                generator = leaf
                refs.append(leaf)
                stand_ins.append(None)
            else:
                refs.append(CPU if leaf == META and isinstance(leaf, torch.device) else leaf)
                stand_ins.append(leaf)
        args, kwargs = pytree.tree_unflatten(stand_ins, structure)
        result = execute_on_meta(function, args, kwargs)
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
            written = _written(traits, args, kwargs)
            leaves, structure = pytree.tree_flatten((args, kwargs))
            read = [leaf for leaf in leaves if isinstance(leaf, TensorRef) and not any(leaf is ref for ref in written)]
            others = {ref.storage_idx for ref in read}
            written_idxs = {ref.storage_idx for ref in written}
            whole = {ref.storage_idx for ref in written if ref.covers(self.num_bytes[ref.storage_idx])}
            overwritten = whole - others if traits.writes_only else set[int]()
            reads = frozenset((others | written_idxs) - overwritten)
            changes, overwrites = frozenset(written_idxs | made), frozenset(overwritten | made)
            drawn_from = generator if traits.is_random else None
            operation = Operation(function, leaves, structure, results, reads, changes, overwrites, drawn_from)
            self._add(operation, made, written_idxs)
        return pytree.tree_map(lambda item: originals.get(id(item), item), result)

    def _execute_early(self, function: OpOverload, leaves: list[Any], structure: pytree.TreeSpec) -> Any:
        """Execute an operation on the present values of its arguments. Return real tensors, or numbers."""
        values = self.values_of(leaf for leaf in leaves if isinstance(leaf, Tensor))
        real = [values.pop(0) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(real, structure)
        return function(*args, **kwargs)

    def _add(self, operation: Operation, made: set[int], written: set[int]) -> None:
        if operation.generator is not None:
            self.generators.record_change(operation.generator)
        self.entries.append(operation)
        self.made_by |= dict.fromkeys(made, operation)
        for idx in written:
            self.writers.setdefault(idx, []).append(operation)
        self.pending |= written & self.real_storages.keys()
        if operation.generator is not None:
            self.generators.advance(operation.generator)

    def values_of(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Return the present values of tensors, by executing the recorded operations that they depend on.

        Returns:
            Real tensors, which later calls change in place.
        """
        return self._early_values.of([self.ref(tensor) for tensor in tensors])


def _written(traits: _Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the arguments that an operation writes to: tensors, or references to them."""
    found: list[Any] = []
    for idx, name in traits.written:
        value = args[idx] if idx < len(args) else kwargs.get(name)
        found.extend(item for item in pytree.tree_leaves(value) if isinstance(item, (Tensor, TensorRef)))
    return found


def execute_on_meta(function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of an operation, without memory."""
    options = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    if options.get("device") is not None:
        options["device"] = META
    return function(*args, **options)


def _allocates_elsewhere(function: OpOverload, kwargs: dict[str, Any]) -> bool:
    """Return whether an operation allocates a tensor like a meta tensor on a real device, as `to_empty` does."""
    device, name = kwargs.get("device"), function._schema.name
    return device is not None and torch.device(device) != META and (name.endswith("_like") or "::new_" in name)


def storage_key(tensor: Tensor) -> int:
    """Return a key of a tensor's storage, valid as long as the storage exists."""
    return int(tensor.untyped_storage()._cdata)


class EarlyValues:
    """A replay of recorded operations for values that are needed while the model is built.

    Random numbers are drawn in their order, so all operations that draw are executed up to this point. Their results
    are kept for later calls that depend on them, such as the next round of rejection sampling.
    """

    def __init__(self, recorder: OperationRecorder) -> None:
        self._recorder = recorder
        self._replay = self._new_replay()
        self._position = 0
        self._states: dict[int, Tensor] = {}

    def of(self, refs: list[TensorRef]) -> list[Tensor]:
        """Return the values of references after all recorded operations. Later calls change the tensors in place."""
        entries, wanted = self._recorder.entries, {ref.storage_idx for ref in refs}
        constant = self._recorder.real_storages.keys() - self._recorder.pending
        plan = make_plan(entries, wanted - constant, draws_all=False, constant=constant)
        if not any(entry.generator is not None for entry in _operations(entries, plan)):
            replay = self._new_replay()
            replay.run(entries, plan, keeps=frozenset(wanted))
            return [replay.tensor(ref) for ref in refs]
        generators = self._recorder.generators
        present = generators.states()
        generators.record_changes()
        try:
            self._replay_from(self._position, wanted) or self._replay_from(0, wanted)
            return [self._replay.tensor(ref) for ref in refs]
        finally:
            generators.restore(present)

    def _replay_from(self, first: int, wanted: set[int]) -> bool:
        """Replay the needed entries from a position on. Return False if values from before it are unknown."""
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
    """Return the operations of a plan."""
    return [entry for position in plan.needed if isinstance(entry := entries[position], Operation)]


def _stale(entries: list[Entry], plan: Plan) -> set[int]:
    """Return the storages whose latest change a plan leaves out."""
    latest = dict[int, bool]()
    for position, entry in enumerate(entries):
        if isinstance(entry, Operation):
            latest |= dict.fromkeys(entry.changes, position in plan.needed)
    return {idx for idx, is_replayed in latest.items() if not is_replayed}
