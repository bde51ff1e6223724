"""Building a model on the meta device, and giving its shards the values that it would have had."""

from __future__ import annotations

import pickle
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from types import FrameType, TracebackType
from typing import Any, Self

import attrs
import torch
from torch import Tensor, UntypedStorage, nn
from torch._ops import OpOverload
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from camshaft.hooks_core.support.messages import must_be
from camshaft.strategies.sharding.operation_recorder import (
    CPU,
    META,
    WHERE,
    DeferredInitializationError,
    Operation,
    OperationRecorder,
    TensorRef,
    aten_name,
    execute_on_meta,
    storage_key,
    traits_of,
    trim_memory,
)
from camshaft.strategies.sharding.state import distribute

# What makes a tensor of given values, or of another layout, is carried out.
_REAL = (torch.tensor, torch.as_tensor, torch.asarray, torch.nested.nested_tensor, torch.empty_quantized)
_FACTORIES = {make for make in _device_constructors() if make not in _REAL and "sparse" not in make.__name__}
_OF_MODULES = frozenset(vars(nn.Module()))
_IS_META = vars(torch._C.TensorBase)["is_meta"].__get__
_READERS = (Tensor.tolist, Tensor.numpy)


class DeferredInitialization:
    """A context in which new tensors have no memory, and operations on them are recorded.

    Afterwards `materialize` executes the operations again, one by one on the CPU. So the parameters get bit for bit
    the values that the same code would have given them without this context, by `reset_parameters`, `apply`, functions
    of `nn.init`, or tensor operations. Parameters are cut to this rank's shards as soon as they are final, and values
    that are overwritten later are not computed, so hardly more memory is needed than for the shards and one whole
    parameter.

    Random numbers are drawn when the code draws them, so torch's random state is always what it would have been, and
    again when a parameter gets its values, unless these are still in memory. Values that the code reads (`item`,
    `tolist`, `if tensor.any():`, rejection sampling) are computed early. Tensors of `torch.tensor(...)` and
    `torch.from_numpy(...)` are real at once, and so are tensors with an explicit `device=`.

    Limits:

    - In-place operations that torch cannot run on the meta device raise `DeferredInitializationError`.
    - A tensor gets memory only as a parameter, buffer or other attribute of the module and its submodules, or in
      lists, tuples and dictionaries of these.
    - Changes through an array of `torch.Tensor.numpy()` are not recorded.
    - `tensor.device` is the meta device; new tensors on the device of another one count as on the CPU. Tensors of
      `with torch.device("meta")` or `device="meta"` have no values until `to_empty`, as usual.
    - Random values for tensors on a GPU are drawn from the CPU's generator unless they are real at once.
    """

    def __init__(self) -> None:
        self._recorder = OperationRecorder()
        self._full_values = FullValues(self._recorder)
        self._entered = ExitStack()

    def __enter__(self) -> Self:
        self._first_state = torch.get_rng_state()
        self._entered.callback(self._full_values.watch_parameters())
        self._entered.enter_context(_FunctionMode(self._recorder))
        self._entered.enter_context(_DispatchMode(self._recorder, self._full_values))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered.close()
        if error is not None:
            torch.set_rng_state(self._first_state)
        if isinstance(error, (RuntimeError, TypeError)) and ("meta" in str(error) or "set_data" in str(error)):
            error.add_note(
                f"In {WHERE}, new tensors have no values yet (they are on the meta device). Code that needs values, or "
                "assigns to `.data` of a parameter from `__init__`, belongs into `__init__`."
            )

    def materialize(
        self, module: nn.Module, device: torch.device = CPU, sharded_device: torch.device | None = None
    ) -> None:
        """Give all tensors of a module their values.

        Args:
            module: The module. Real tensors replace its parameters, buffers and tensors in other attributes.
            device: The device of parameters and buffers. Tensors in other attributes are on the CPU.
            sharded_device: The device of the shards of parameters; the default is `device`.

        Raises:
            DeferredInitializationError: If a tensor has no values.
        """
        recorder = self._recorder
        targets: dict[int, list[_Target]] = defaultdict(list)
        for target in self._targets(module, device, sharded_device or device):
            targets[target.ref.storage_idx].append(target)
        without_values = recorder.missing(targets)
        if without_values:
            torch.set_rng_state(self._first_state)
            name = targets[min(without_values)][0].name
            action = "Initialise it in the hook, or build it on another device than meta."
            raise DeferredInitializationError(must_be(name, "given values", "none", WHERE, action))
        real: dict[int, Tensor] = {}

        def complete(storage_idx: int, storage: UntypedStorage) -> None:
            for target in targets[storage_idx]:
                real[id(target.tensor)] = target.part_of(target.ref.of(storage))

        recorder.replay(targets, complete)
        _replace(module, real)
        del recorder, self._recorder, self._full_values
        trim_memory()

    def has_deferred(self, module: nn.Module) -> bool:
        """Return whether any of a module's tensors has no values yet."""
        return any(tensor.device == META for _, tensor, _ in _named_tensors(module))

    def _targets(self, module: nn.Module, device: torch.device, sharded_device: torch.device) -> Iterator[_Target]:
        seen: set[int] = set()
        for name, tensor, is_attribute in _named_tensors(module):
            if id(tensor) in seen or tensor.device != META:
                continue
            seen.add(id(tensor))
            if isinstance(tensor, DTensor):
                yield _Target(name, tensor, self._recorder.ref(self._full_values.of(tensor)), sharded_device)
            else:
                yield _Target(name, tensor, self._recorder.ref(tensor), CPU if is_attribute else device)


@attrs.frozen(eq=False)
class _Target:
    """A tensor to materialize.

    Args:
        name: Its name.
        tensor: The tensor, without memory.
        ref: The whole tensor, of which a sharded one is a part.
        device: The device of its values.
    """

    name: str
    tensor: Tensor
    ref: TensorRef
    device: torch.device

    def part_of(self, full: Tensor) -> Tensor:
        """Return a real tensor in place of this one, with its part of the whole tensor's values."""
        if isinstance(self.tensor, DTensor):
            real: Tensor = distribute(full, self.tensor, self.device)
        else:
            real = full.detach().clone().to(self.device)
        is_trained, is_parameter = self.tensor.requires_grad, isinstance(self.tensor, nn.Parameter)
        real = nn.Parameter(real, is_trained) if is_parameter else real.requires_grad_(is_trained)
        vars(real).update(vars(self.tensor))
        return real


class _DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that records every operation."""

    def __init__(self, recorder: OperationRecorder, full_values: FullValues) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self._full_values = full_values

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        has_sharded = any(isinstance(leaf, DTensor) for leaf in pytree.tree_leaves((args, kwargs)))
        return (self._full_values if has_sharded else self._recorder).dispatch(func, args, kwargs)


class _FunctionMode(TorchFunctionMode):
    """A mode that creates new tensors without memory, and reports `is_meta` as false where torch would skip them."""

    def __init__(self, recorder: OperationRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORIES and kwargs.get("out") is None:
            device = kwargs.get("device")
            default = torch.get_default_device() if device is None else _device_of_context(sys._getframe(1))
            if device == "meta" or default == META:
                with no_dispatch():
                    return self._recorder.mark_without_values(func(*args, **kwargs))
            if default == CPU:
                kwargs = {**kwargs, "device": META}
        elif func == _IS_META:
            # torch's initializers (`nn.init.orthogonal_`) skip meta tensors
            caller = str(sys._getframe(1).f_globals.get("__name__"))
            if caller == "torch.nn.init" or caller.partition(".")[0] not in ("torch", "camshaft"):
                is_plain = isinstance(args[0], Tensor) and not isinstance(args[0], DTensor)
                return is_plain and self._recorder.has_no_values(args[0])
        elif func in _READERS and args[0].is_meta:
            with no_dispatch():
                values = self._recorder.values_of([args[0].detach()])[0].clone()
            return func(values, *args[1:], **kwargs)
        return func(*args, **kwargs)


def _device_of_context(caller: FrameType) -> torch.device | None:
    """Return the device of `with torch.device(...)`, if its mode made the call."""
    context = caller.f_locals.get("self")
    return context.device if isinstance(context, DeviceContext) else None


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Yield each tensor of a module and its submodules, its name, and whether it is neither parameter nor buffer."""
    for prefix, part in module.named_modules():
        dot = f"{prefix}." if prefix else ""
        for name, tensor in [*part._parameters.items(), *part._buffers.items()]:
            if tensor is not None:
                yield dot + name, tensor, False
        for name, value in _attributes(part):
            yield from ((dot + name, leaf, True) for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor))


def _attributes(part: nn.Module) -> list[tuple[str, Any]]:
    """Return the attributes of a module that may hold tensors, by name."""
    kinds = (Tensor, list, tuple, dict)
    own = vars(part).items()
    return [(name, value) for name, value in own if name not in _OF_MODULES and isinstance(value, kinds)]


def _replace(module: nn.Module, real: dict[int, Tensor]) -> None:
    """Replace tensors of a module by real ones."""
    for part in module.modules():
        for name, tensor in [*part._parameters.items(), *part._buffers.items()]:
            if id(tensor) in real:
                setattr(part, name, real[id(tensor)])
        for name, value in _attributes(part):
            if any(id(leaf) in real for leaf in pytree.tree_leaves(value)):
                vars(part)[name] = pytree.tree_map(lambda leaf: real.get(id(leaf), leaf), value)


_KEEPS_LAYOUT = ("_to_copy", "alias", "clone", "detach", "empty_like", "full_like", "ones_like", "zeros_like")
_HAS_NO_VALUES = ("empty_like", "new_empty", "new_empty_strided", "new_zeros")


class FullValues:
    """The whole tensors of sharded ones. Operations on sharded tensors are recorded for the whole ones.

    So a parameter can be initialized before or after it is sharded, with the same values on any number of ranks.

    Args:
        recorder: The recorder of operations on whole tensors.
    """

    def __init__(self, recorder: OperationRecorder) -> None:
        self._recorder = recorder
        self._known: dict[int, tuple[Tensor, Tensor]] = {}
        self._of_parameters: set[int] = set()

    def watch_parameters(self) -> Callable[[], None]:
        """Record the parameters that modules register. Return a function that ends it."""

        def record(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
            if isinstance(parameter, Tensor) and not isinstance(parameter, DTensor) and parameter.device == META:
                self._of_parameters.add(self._recorder.ref(parameter).storage_idx)

        handle = register_module_parameter_registration_hook(record)
        return handle.remove

    def dispatch(self, function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an operation with sharded tensors among its arguments for the whole ones.

        Returns:
            Its result, as whole tensors, or sharded ones if it is an argument or keeps the layout of one.
        """
        leaves, structure = pytree.tree_flatten((args, kwargs))
        traits = traits_of(function)
        sharded = [leaf for leaf in leaves if isinstance(leaf, DTensor)]
        if all(leaf.device != META for leaf in sharded):
            if traits.is_random:
                rule, action = "given random values before it is sharded", "Shard it after that."
                raise DeferredInitializationError(must_be("parameter with values", rule, str(function), WHERE, action))
            return function(*args, **kwargs)
        whole = [self.of(leaf) if isinstance(leaf, DTensor) else leaf for leaf in leaves]
        originals = {id(full): leaf for full, leaf in zip(whole, leaves, strict=True) if isinstance(leaf, DTensor)}
        whole_args, whole_kwargs = pytree.tree_unflatten(whole, structure)
        if traits.is_view:
            result = function(*whole_args, **whole_kwargs)
        else:
            result = self._recorder.dispatch(function, whole_args, whole_kwargs)
        if aten_name(function) in _KEEPS_LAYOUT and isinstance(args[0], DTensor):
            like = execute_on_meta(function, args, kwargs)
            local = _local(like)
            self._known[storage_key(local)] = (local, result)
            return like
        return pytree.tree_map(lambda item: originals.get(id(item), item), result)

    def of(self, sharded: DTensor) -> Tensor:
        """Return the whole tensor, without memory, of a sharded one.

        Raises:
            DeferredInitializationError: If it is unknown.
        """
        local = _local(sharded)
        known = self._known.get(storage_key(local))
        if known is None or known[1].size() != sharded.size():
            if self._recorder.has_no_values(local):
                full = torch.empty(sharded.size(), dtype=sharded.dtype, device=META)
                self._recorder.mark_without_values(full)
            else:
                full = self._find(local, sharded)
            known = (local, full)
            self._known[storage_key(local)] = known
        return known[1]

    def _find(self, local: Tensor, sharded: DTensor) -> Tensor:
        """Trace a local part back to the tensor that has as many elements as the whole one.

        Tensors on the way that are empty, or copies of earlier ones, were created by sharding.
        """
        recorder = self._recorder
        refs = [recorder.ref(local)]
        found: TensorRef | None = None
        while refs:
            ref = max(refs, key=lambda ref: ref.numel)
            history = recorder.history[ref.storage_idx]
            whole = self._as_whole(ref, sharded)
            if whole is not None:
                found = whole
                if ref.storage_idx in self._of_parameters or _have_own_values(history):
                    break
            refs = (
                [leaf for leaf in pytree.tree_leaves(history[0].args) if isinstance(leaf, TensorRef)] if history else []
            )
        if found is None:
            rule = "made of a whole one in these hooks"
            action = "Use `fully_shard`, `parallelize_module` or `distribute_tensor`."
            raise DeferredInitializationError(must_be("sharded tensor", rule, tuple(sharded.size()), WHERE, action))
        return found.of(recorder.storages[found.storage_idx])

    def _as_whole(self, ref: TensorRef, sharded: DTensor) -> TensorRef | None:
        """Return a reference to a whole tensor in a reference's storage, if that has exactly its size."""
        size = tuple(sharded.size())
        if ref.size == size:
            return ref
        if self._recorder.storages[ref.storage_idx].nbytes() != prod(size) * ref.dtype.itemsize:
            return None
        stride = tuple(prod(size[dim + 1 :]) for dim in range(len(size)))
        return TensorRef(ref.storage_idx, ref.dtype, size, stride, 0)


def _have_own_values(history: list[Operation]) -> bool:
    """Return whether operations on a storage gave it other values than copies of its sources."""
    names = [aten_name(operation.function) for operation in history]
    return bool(names) and (names[0] not in _HAS_NO_VALUES or any(name != "copy_" for name in names[1:]))


def _local(sharded: DTensor) -> Tensor:
    with torch.no_grad():
        return sharded.to_local()


@contextmanager
def shared_randomness(broadcast: Callable[[Any], Any]) -> Iterator[None]:
    """Set Python's, NumPy's (if imported) and torch's CPU generators to the states of rank 0 within the context.

    Collective. Afterwards a generator that had the same state as on rank 0 keeps its new one, as in a run of one
    process; one that was seeded differently gets its own state back.

    Args:
        broadcast: Returns the argument of rank 0 on every rank.
    """
    own = _states()
    first = broadcast(own)
    others = {name: state for name, state in own.items() if first.get(name) != state}
    _set_states({name: first[name] for name in others if name in first})
    try:
        yield
    finally:
        _set_states(others)


def _states() -> dict[str, bytes]:
    """Return the states of the generators, pickled, so that they can be compared."""
    return {name: pickle.dumps(get_state()) for name, (get_state, _) in _generators().items()}


def _set_states(states: dict[str, bytes]) -> None:
    for name, (_, set_state) in _generators().items():
        if name in states:
            set_state(pickle.loads(states[name]))


def _generators() -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    """Return for each generator how its state is read and set."""
    found: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
        "torch": (lambda: torch.get_rng_state().numpy().tobytes(), _set_torch_state),
        "python": (random.getstate, random.setstate),
    }
    numpy = sys.modules.get("numpy")
    return found if numpy is None else {**found, "numpy": (numpy.random.get_state, numpy.random.set_state)}


def _set_torch_state(state: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
