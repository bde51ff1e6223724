"""Recording operations on tensors that have no memory yet, and their execution on real tensors."""

from __future__ import annotations

import ctypes
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from math import prod
from typing import Any, TypeVar

import attrs
import torch
from torch import Generator, Tensor, UntypedStorage
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from camshaft.hooks_core.support.messages import must_be

T = TypeVar("T")

WHERE = "the hooks that build the model"
META = torch.device("meta")
CPU = torch.device("cpu")

_WRITES_ONLY = (
    *("bernoulli_", "cauchy_", "copy_", "exponential_", "fill_", "geometric_", "log_normal_", "normal_", "random_"),
    *("uniform_", "zero_"),
)
_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")

_KEPT_BYTES = 2**26
"""Size of the values that are kept, so that reading or changing them does not compute them again."""

_NUM_KEPT = 4
"""Number of storages of the largest size that are kept whatever their size, as many as rejection sampling uses."""

_TRIM_BYTES = 2**25
"""Number of freed bytes after which memory is returned to the operating system."""


class DeferredInitializationError(RuntimeError):
    """A model that cannot be built on the meta device."""


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

    def of(self, storage: UntypedStorage) -> Tensor:
        """Return the tensor in a storage."""
        return torch.empty(0, dtype=self.dtype, device=storage.device).set_(
            storage, self.offset, self.size, self.stride
        )

    def covers(self, storage: UntypedStorage) -> bool:
        """Return whether every byte of a storage belongs to an element."""
        if self.offset != 0 or self.numel * self.dtype.itemsize != storage.nbytes():
            return False
        outer_first = sorted(range(len(self.size)), key=lambda dim: -self.stride[dim])
        return self.of(storage).permute(outer_first).is_contiguous()


@attrs.frozen(eq=False)
class Operation:
    """A recorded operation.

    Args:
        args, kwargs: Its arguments, with a `TensorRef` for each tensor.
        results: For each tensor that it returns, a reference if it is new; None if it is an argument.
        reads: Storages whose values it needs.
        changes: Storages that it writes to or creates.
        overwrites: Those of them whose previous values do not matter.
        generator: The generator that it draws random numbers from, if any.
        state: The state of the generator before it.
    """

    function: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[TensorRef | None]
    reads: frozenset[int]
    changes: frozenset[int]
    overwrites: frozenset[int]
    generator: Generator | None
    state: Tensor | None


class _Traits:
    """The properties of an operation, from its schema.

    Attributes:
        is_view: Whether it returns views of its arguments.
        written: Positions and names of the arguments that it writes to.
        writes_only: Whether it does not depend on their earlier values.
        needs_values: Whether the shape or value of its result depends on values, so that it cannot run on meta tensors.
        is_random: Whether it draws random numbers.
        takes_dtype: Whether it has an argument "dtype".
    """

    def __init__(self, function: OpOverload) -> None:
        schema, tags = function._schema, function.tags
        aliases = [(idx, argument.name, argument.alias_info) for idx, argument in enumerate(schema.arguments)]
        written = [(idx, name) for idx, name, alias in aliases if alias is not None and alias.is_write]
        is_set = aten_name(function) in ("set_", "set_data")
        returns_views = not written and bool(schema.returns) and all(item.alias_info for item in schema.returns)
        self.is_view = is_set or returns_views
        self.written = [] if is_set else written
        self.writes_only = aten_name(function) in _WRITES_ONLY or torch.Tag.out in tags
        self.needs_values = torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags
        self.is_random = torch.Tag.nondeterministic_seeded in tags
        self.takes_dtype = any(argument.name == "dtype" for argument in schema.arguments)


traits_of: Callable[[OpOverload], _Traits] = cache(_Traits)
"""Return the properties of an operation."""


class OperationRecorder:
    """The recorded operations, in their order, and the storages of their tensors.

    An operation that draws random numbers is executed at once, so that generators always have the state that user code
    expects; it can be executed again from the recorded state. Its results are kept in memory as long as there is room.

    Attributes:
        storages: The storages by their indexes, without memory unless they are real.
        history: The operations that created a storage and then wrote to it.
    """

    def __init__(self) -> None:
        self.storages: list[UntypedStorage] = []  # kept, so that their addresses are not used again
        self.history: dict[int, list[Operation]] = defaultdict(list)
        self._operations: list[Operation] = []
        self._indexes: dict[int, int] = {}
        self._real: dict[int, UntypedStorage] = {}  # have memory, and do not change
        self._values: dict[int, UntypedStorage] = {}  # present values of others, oldest first
        self._without_values: set[int] = set()  # put on the meta device by user code; operations have no effect
        self._freed_bytes = 0

    def dispatch(self, function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Execute an operation if all its tensors are real; otherwise record it.

        Returns:
            Its result; if it is recorded, with tensors without memory.
        """
        traits = traits_of(function)
        tensors = _leaves(Tensor, (args, kwargs))
        is_deferred = any(tensor.is_meta for tensor in tensors)
        written = _written(traits, args, kwargs)
        if traits.is_view:
            return function(*args, **kwargs)
        if self._without_values and any(map(self.has_no_values, tensors)):
            if not _allocates_elsewhere(function, kwargs):
                return self.mark_without_values(function(*args, **kwargs))
        elif not is_deferred:
            if kwargs.get("device") != META:
                return self._execute_early(function, args, kwargs, written)
        elif function.namespace in _COLLECTIVES:
            rule, action = "called with tensors that have their values", "Call it after the hooks."
            message = must_be(str(function), rule, "tensors without values", WHERE, action)
            raise DeferredInitializationError(message)
        elif traits.needs_values or (written and not any(tensor.is_meta for tensor in written)):
            return self._execute_early(function, args, kwargs, written)
        try:
            return self._record(function, traits, args, kwargs)
        except NotImplementedError as error:  # torch has no meta kernel
            if traits.written or traits.is_random:
                action = "Do this in `__init__`, with real tensors, or after the hooks."
                rule = "an operation that torch can carry out on the meta device"
                raise DeferredInitializationError(must_be("operation", rule, function, WHERE, action)) from error
            return self._execute_early(function, args, kwargs, written)

    def has_no_values(self, tensor: Tensor) -> bool:
        """Return whether a tensor was put on the meta device by the user's code."""
        return self._indexes.get(storage_key(tensor), -1) in self._without_values

    def mark_without_values(self, result: Any) -> Any:
        """Mark the tensors of a result as put on the meta device by the user's code, and return it."""
        for item in _leaves(Tensor, result):
            if item.device == META:
                self._without_values.add(self.ref(item).storage_idx)
        return result

    def ref(self, tensor: Tensor) -> TensorRef:
        """Return a reference to a tensor, and register its storage."""
        if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            rule, action = "dense, neither conjugated nor negated", "Build it in `__init__`."
            raise DeferredInitializationError(must_be("tensor", rule, tensor.layout, WHERE, action))
        idx = self._indexes.setdefault(storage_key(tensor), len(self.storages))
        if idx == len(self.storages):
            self.storages.append(tensor.untyped_storage())
            if not tensor.is_meta:
                self._real[idx] = self.storages[idx]
        return TensorRef(idx, tensor.dtype, tuple(tensor.size()), tensor.stride(), int(tensor.storage_offset()))

    def _record(self, function: OpOverload, traits: _Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        originals: dict[int, tuple[Tensor, Tensor]] = {}

        def reference(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return self.ref(leaf)
            return CPU if isinstance(leaf, torch.device) and leaf == META else leaf

        def stand_in(leaf: Any) -> Any:
            if isinstance(leaf, Generator):
                return None
            if not isinstance(leaf, Tensor):
                return leaf
            size, stride = leaf.size(), leaf.stride()
            like = leaf if leaf.is_meta else torch.empty_strided(size, stride, dtype=leaf.dtype, device=META)
            originals[id(like)] = like, leaf
            return like

        stored_args, stored_kwargs = pytree.tree_map(reference, (args, kwargs))
        result = execute_on_meta(function, *pytree.tree_map(stand_in, (args, kwargs)))
        results = [None if id(item) in originals else self.ref(item) for item in _leaves(Tensor, result)]
        refs = _leaves(TensorRef, (stored_args, stored_kwargs))
        new = [ref for ref in results if ref is not None]
        made = {ref.storage_idx for ref in new} - {ref.storage_idx for ref in refs}
        if made or traits.written:
            if traits.takes_dtype and kwargs.get("dtype") is None and made:
                stored_kwargs["dtype"] = new[0].dtype
            written = _written(traits, stored_args, stored_kwargs)
            others = {ref.storage_idx for ref in refs if not any(ref is one for one in written)}
            changes = {ref.storage_idx for ref in written}
            whole = {ref.storage_idx for ref in written if ref.covers(self.storages[ref.storage_idx])}
            overwritten = whole - others if traits.writes_only else set[int]()
            reads, overwrites = frozenset((others | changes) - overwritten), frozenset(overwritten | made)
            generator = next(iter(_leaves(Generator, kwargs)), torch.default_generator) if traits.is_random else None
            state = None if generator is None else generator.get_state()
            stored = (function, stored_args, stored_kwargs, results)
            self._add(Operation(*stored, reads, frozenset(changes | made), overwrites, generator, state))
        return pytree.tree_map(lambda item: originals[id(item)][1] if id(item) in originals else item, result)

    def _execute_early(
        self, function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], written: list[Tensor]
    ) -> Any:
        """Execute an operation on the present values of its arguments. Return real tensors, or numbers."""
        leaves, structure = pytree.tree_flatten((args, kwargs))
        values = self.values_of(leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_meta)
        for key in [storage_key(tensor) for tensor in written if not tensor.is_meta]:
            if key in self._indexes:  # recorded operations read its former values
                idx = self._indexes.pop(key)
                self._real[idx] = self._real[idx].clone()  # type: ignore[no-untyped-call]
        real = [values.pop(0) if isinstance(leaf, Tensor) and leaf.is_meta else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(real, structure)
        return function(*args, **kwargs)

    def _add(self, operation: Operation) -> None:
        """Add an operation, and execute it if it draws random numbers or if all that it reads is in memory."""
        is_known = operation.reads <= self._real.keys() | self._values.keys()
        if operation.generator is not None and not is_known:
            self._compute(operation.reads)
        is_executed = operation.generator is not None or (is_known and bool(operation.reads))
        for idx in operation.overwrites if is_executed else operation.changes:
            self._values.pop(idx, None)
        if is_executed:
            self._execute(operation, self._values)
            self._forget_oldest()
        self._operations.append(operation)
        for idx in operation.changes:
            self.history[idx].append(operation)

    def values_of(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Return the present values of tensors, by executing the recorded operations that they depend on.

        Returns:
            Real tensors, which later operations change in place.
        """
        refs = [self.ref(tensor) for tensor in tensors]
        self._compute({ref.storage_idx for ref in refs})
        known = self._real | self._values
        self._forget_oldest()
        return [ref.of(known[ref.storage_idx]) for ref in refs]

    def missing(self, wanted: Iterable[int]) -> set[int]:
        """Return the storages among these that have no values."""
        return self._plan(frozenset(wanted))[1].intersection(wanted)

    @torch.no_grad()
    def replay(self, wanted: Iterable[int], on_complete: Callable[[int, UntypedStorage], None]) -> None:
        """Compute the present values of storages in little memory: each is dropped as soon as it is not needed.

        Args:
            on_complete: Called with each of them and its values.
        """
        known = self._real | self._values
        for idx in known.keys() & set(wanted):
            on_complete(idx, known[idx])
        steps, _ = self._plan(frozenset(wanted))
        generators = {operation.generator for operation, _, _ in steps} - {None}
        states = [(generator, generator.get_state()) for generator in generators if generator is not None]
        storages: dict[int, UntypedStorage] = {}
        try:
            for operation, completes, frees in steps:
                self._execute(operation, storages)
                for idx in completes:
                    on_complete(idx, storages[idx])
                for idx in completes | frees:
                    self._free(storages.pop(idx, None))
        finally:
            for generator, state in states:
                generator.set_state(state)

    def _plan(self, wanted: frozenset[int]) -> tuple[list[tuple[Operation, frozenset[int], frozenset[int]]], set[int]]:
        """Return the operations that give storages their present values, and the storages that lack values before.

        With each operation come the wanted storages that are final after it, and those that are not needed after it.
        """
        known = self._real.keys() | self._values.keys()
        live, complete, changed = set(wanted - known), set(known), set[int]()
        steps = []
        for operation in reversed(self._operations):
            if not live:
                break
            changed |= operation.changes
            if operation.changes.isdisjoint(live):
                continue
            touches = operation.reads | operation.changes
            completes = (touches & wanted) - complete
            complete |= completes
            frees = touches - live
            live -= operation.overwrites
            # the kept value of a storage is that after its last change
            live |= operation.reads - self._real.keys() - (self._values.keys() - changed)
            steps.append((operation, completes, frees))
        return steps[::-1], live

    def _compute(self, wanted: Iterable[int]) -> None:
        """Add the present values of storages to those that are kept."""
        computed: dict[int, UntypedStorage] = {}
        self.replay(set(wanted) - self._real.keys() - self._values.keys(), computed.__setitem__)
        self._values |= computed

    def _execute(self, operation: Operation, storages: dict[int, UntypedStorage]) -> None:
        """Execute an operation, with its values in `storages`."""

        def real(ref: TensorRef) -> Tensor:
            idx = ref.storage_idx
            for known in (storages, self._real, {} if idx in operation.changes else self._values):
                if idx in known:
                    return ref.of(known[idx])
            storages[idx] = UntypedStorage(self.storages[idx].nbytes())  # type: ignore[no-untyped-call]
            return ref.of(storages[idx])

        args, kwargs = pytree.tree_map_only(TensorRef, real, (operation.args, operation.kwargs))
        if operation.generator is not None and operation.state is not None:
            operation.generator.set_state(operation.state)
        with torch.no_grad():
            results = _leaves(Tensor, operation.function(*args, **kwargs))
            for ref, result in zip(operation.results, results, strict=True):
                if ref is not None and ref.storage_idx not in storages:
                    layout = (tuple(result.size()), result.stride(), result.storage_offset())
                    if layout == (ref.size, ref.stride, ref.offset):
                        storages[ref.storage_idx] = result.untyped_storage()
                    else:  # later operations rely on the recorded layout
                        real(ref).copy_(result)

    def _forget_oldest(self) -> None:
        """Drop kept values that were computed first, if they take too much memory."""
        sizes = [storage.nbytes() for storage in self._values.values()]
        excess = sum(sizes) - max(_KEPT_BYTES, _NUM_KEPT * max(sizes, default=0))
        while excess > 0:
            idx = next(iter(self._values))
            excess -= self._values[idx].nbytes()
            self._free(self._values.pop(idx))

    def _free(self, storage: UntypedStorage | None) -> None:
        """Count the memory of a storage that its caller drops, and return freed memory to the operating system.

        Large temporary tensors between small ones that stay leave gaps in the heap, which glibc keeps and rarely
        reuses.
        """
        self._freed_bytes += 0 if storage is None else storage.nbytes()
        if self._freed_bytes > _TRIM_BYTES:
            self._freed_bytes = 0
            del storage
            trim_memory()


def trim_memory() -> None:
    """Return free memory to the operating system, if the C library has `malloc_trim`."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if malloc_trim is not None:
        malloc_trim(0)


def _leaves(kind: type[T], nested: Any) -> list[T]:
    """Return the leaves of a class in nested values."""
    return [leaf for leaf in pytree.tree_leaves(nested) if isinstance(leaf, kind)]


def _written(traits: _Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the arguments that an operation writes to: tensors, or references to them."""
    values = [args[idx] if idx < len(args) else kwargs.get(name) for idx, name in traits.written]
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, (Tensor, TensorRef))]


def aten_name(function: OpOverload) -> str:
    """Return the name of an operation of torch, without its namespace and overload."""
    return function._schema.name.removeprefix("aten::")


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
