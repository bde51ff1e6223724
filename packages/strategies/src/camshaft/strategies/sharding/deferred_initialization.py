"""Building a model without memory, and giving it afterwards, part by part, the values that it would have had."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from types import FrameType, TracebackType
from typing import Any, Self

import attrs
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

from camshaft.hooks_core.messages import must_be
from camshaft.strategies.sharding.deferred_operations import Replay, TensorRef, give_back_memory, make_plan
from camshaft.strategies.sharding.operation_recorder import (
    CPU,
    META,
    WHERE,
    DeferredInitializationError,
    OperationRecorder,
    traits_of,
)
from camshaft.strategies.sharding.state import distribute

_FACTORIES = frozenset(
    (
        *(torch.arange, torch.empty, torch.empty_permuted, torch.empty_strided, torch.eye, torch.full),
        *(torch.linspace, torch.logspace, torch.ones, torch.rand, torch.randint, torch.randn, torch.randperm),
        *(torch.range, torch.tril_indices, torch.triu_indices, torch.zeros, torch.scalar_tensor),
        *(torch.bartlett_window, torch.blackman_window, torch.hamming_window, torch.hann_window),
        *(torch.kaiser_window, torch.fft.fftfreq, torch.fft.rfftfreq),
    )
)
_OF_MODULES = frozenset(vars(nn.Module()))
_IS_META = vars(torch._C.TensorBase)["is_meta"].__get__
_READERS = (Tensor.tolist, Tensor.numpy)


class DeferredInitialization:
    """While it is entered, new tensors have no memory, and what is done with them is recorded.

    Afterwards `materialize` does all of it, one operation after the other on the CPU, beginning with torch's random
    state as it was on entering. So the parameters get bit for bit the values that the same code would have given them,
    whatever it is: layers' own `reset_parameters`, `apply`, functions of `nn.init`, or tensor operations. What
    parameters hold is cut as soon as their last value is known, and values are dropped that are overwritten later,
    so hardly more memory is needed than for the parts that this process holds and for one whole parameter. When that is
    done, torch's random state is what it would have been.

    Values that the code asks for (`item`, `tolist`, `if tensor.any():`, rejection sampling) are found out ahead, at
    the cost of drawing the random numbers so far twice. Real at once are tensors made by `torch.tensor(...)` or
    `torch.from_numpy(...)`, and with an explicit `device=` unless they are random ones of the CPU.

    These limits remain:

    - Operations in place that torch cannot carry out on the meta device raise `DeferredInitializationError`.
    - A tensor that only an object other than the module and its parts holds stays without memory, as does one that is
      in none of their attributes, lists, tuples and dictionaries.
    - Memory that is changed past torch, through an array of `torch.Tensor.numpy()`, is not seen.
    - `tensor.device` is the meta device; new tensors on the device of another one count as on the CPU. What is put on
      the meta device by `with torch.device("meta")` or `device="meta"` has no values until `to_empty`, as ever.
    - Random values for tensors on a GPU are drawn from the CPU's generator unless they are real at once.
    """

    def __init__(self) -> None:
        self._recorder: OperationRecorder | None = None
        self._full_values: FullValues | None = None
        self._entered = ExitStack()

    def __enter__(self) -> Self:
        self._recorder = OperationRecorder()
        self._full_values = FullValues(self._recorder)
        dispatching = _Dispatching(self._recorder, self._full_values)
        self._entered.callback(self._full_values.watch())
        self._entered.enter_context(_Functions(self._recorder, dispatching))
        self._entered.enter_context(dispatching)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered.close()
        assert self._recorder is not None
        if error is None:
            self._recorder.generators.notice_all()
            return
        self._recorder.generators.rewind()
        if isinstance(error, (RuntimeError, TypeError)) and ("meta" in str(error) or "set_data" in str(error)):
            error.add_note(
                f"In {WHERE}, new tensors have no values yet (they are on the meta device). What needs values, or "
                "assigns to `.data` of a parameter from `__init__`, belongs into `__init__`."
            )

    def materialize(
        self, module: nn.Module, device: torch.device = CPU, sharded_device: torch.device | None = None
    ) -> None:
        """Give all tensors of a module their values, and what was drawn meanwhile its place in the random state.

        Args:
            module: The module. Real tensors take the place of its parameters, buffers and other attributes.
            device: Where parameters and buffers go. Tensors that are mere attributes are made on the CPU.
            sharded_device: Where the parts of sharded parameters go; the default is `device`.

        Raises:
            DeferredInitializationError: If a tensor was given no values.
        """
        assert self._recorder is not None and self._full_values is not None
        recorder = self._recorder
        targets: dict[int, list[_Target]] = {}
        for target in self._targets(module, device, sharded_device or device):
            targets.setdefault(target.ref.storage_idx, []).append(target)
        plan = make_plan(recorder.entries, {*targets, *recorder.pending}, draws_all=True)
        recorder.generators.rewind()
        without_values = plan.missing & targets.keys()
        if without_values:
            name = targets[min(without_values)][0].name
            action = "Initialise it in the hook, or build it elsewhere than on the meta device."
            raise DeferredInitializationError(must_be(name, "given values", "none", WHERE, action))
        replay = Replay(recorder.real_storages, recorder.num_bytes)
        replay.states |= recorder.generators.first_states()
        real: dict[int, Tensor] = {}

        def complete(storage_idx: int) -> None:
            for target in targets.get(storage_idx, []):
                real[id(target.tensor)] = target.part_of(replay.tensor(target.ref))

        replay.run(recorder.entries, plan, on_complete=complete)
        _replace(module, real)
        give_back_memory()
        self._recorder = self._full_values = None

    def has_deferred(self, module: nn.Module) -> bool:
        """Whether any of a module's tensors waits for its values."""
        return any(tensor.device == META for _, tensor, _ in _tensors(module))

    def _targets(self, module: nn.Module, device: torch.device, sharded_device: torch.device) -> Iterator[_Target]:
        assert self._recorder is not None and self._full_values is not None
        seen: set[int] = set()
        for name, tensor, is_attribute in _tensors(module):
            if id(tensor) in seen or tensor.device != META:
                continue
            seen.add(id(tensor))
            if isinstance(tensor, DTensor):
                yield _Target(name, tensor, self._recorder.ref(self._full_values.of(tensor)), sharded_device)
            else:
                yield _Target(name, tensor, self._recorder.ref(tensor), CPU if is_attribute else device)


@attrs.frozen(eq=False)
class _Target:
    """A tensor that is to get values.

    Args:
        name: Its name.
        tensor: The tensor, without memory.
        ref: The whole one of which it is a part, or all.
        device: Where its memory is to be.
    """

    name: str
    tensor: Tensor
    ref: TensorRef
    device: torch.device

    def part_of(self, full: Tensor) -> Tensor:
        """A real tensor to take this one's place, with its part of the whole one's values."""
        if isinstance(self.tensor, DTensor):
            real: Tensor = distribute(full, self.tensor, self.device)
        else:
            real = full.detach().clone().to(self.device)
        if isinstance(self.tensor, nn.Parameter):
            real = nn.Parameter(real, self.tensor.requires_grad)
        else:
            real.requires_grad_(self.tensor.requires_grad)
        vars(real).update(vars(self.tensor))
        return real


class _Dispatching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands every operation to what records it."""

    def __init__(self, recorder: OperationRecorder, full_values: FullValues) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self._full_values = full_values
        self._is_paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While it is entered, operations are carried out."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._is_paused:
            return func(*args, **kwargs)
        if any(isinstance(leaf, DTensor) for leaf in pytree.tree_leaves((args, kwargs))):
            return self._full_values.dispatch(func, args, kwargs)
        return self._recorder.dispatch(func, args, kwargs)


class _Functions(TorchFunctionMode):
    """Makes new tensors without memory, and hides it from code that would leave such ones uninitialised."""

    def __init__(self, recorder: OperationRecorder, dispatching: _Dispatching) -> None:
        super().__init__()
        self._recorder = recorder
        self._dispatching = dispatching

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORIES and kwargs.get("out") is None:
            device = kwargs.get("device")
            default = torch.get_default_device() if device is None else _device_of_context(sys._getframe(1))
            if device == "meta" or default == META:
                with self._dispatching.paused():
                    return self._recorder.leave_without_values(func(*args, **kwargs))
            if default == CPU:
                kwargs = {**kwargs, "device": META}
        elif func == _IS_META:
            # torch's own functions that initialise (`nn.init.orthogonal_`) do nothing where it is true
            caller = str(sys._getframe(1).f_globals.get("__name__"))
            if caller == "torch.nn.init" or caller.partition(".")[0] not in ("torch", "camshaft"):
                return isinstance(args[0], Tensor) and self._stays_without_values(args[0])
        elif func in _READERS and self._recorder.is_deferred(args[0]):
            return func(self._values_of(args[0]), *args[1:], **kwargs)
        return func(*args, **kwargs)

    def _stays_without_values(self, tensor: Tensor) -> bool:
        return not isinstance(tensor, DTensor) and self._recorder.has_no_values(tensor)

    def _values_of(self, tensor: Tensor) -> Tensor:
        with self._dispatching.paused():
            return self._recorder.values_of([tensor.detach()])[0].clone()


def _device_of_context(caller: FrameType) -> torch.device | None:
    """The device of `with torch.device(...)`, if that passed a function on that it concerns."""
    context = caller.f_locals.get("self")
    return context.device if isinstance(context, DeviceContext) else None


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Every tensor of a module and its parts, with its name and whether it is a mere attribute."""
    for prefix, part in module.named_modules():
        dot = f"{prefix}." if prefix else ""
        for name, parameter in part.named_parameters(dot[:-1], recurse=False, remove_duplicate=False):
            yield name, parameter, False
        for name, buffer in part.named_buffers(dot[:-1], recurse=False, remove_duplicate=False):
            yield name, buffer, False
        for name, leaf in _attributes(part):
            yield f"{dot}{name}", leaf, True


def _attributes(part: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, value in vars(part).items():
        if name not in _OF_MODULES and isinstance(value, (Tensor, list, tuple, dict)):
            for leaf in pytree.tree_leaves(value):
                if isinstance(leaf, Tensor):
                    yield name, leaf


def _replace(module: nn.Module, real: dict[int, Tensor]) -> None:
    """Put real tensors in the place of those without memory."""
    for part in module.modules():
        own = [*part._parameters.items(), *part._buffers.items()]
        for name, tensor in own:
            if id(tensor) in real:
                setattr(part, name, real[id(tensor)])
        for name in {name for name, leaf in _attributes(part) if id(leaf) in real}:
            vars(part)[name] = pytree.tree_map(lambda leaf: real.get(id(leaf), leaf), vars(part)[name])


_KEEPS_LAYOUT = frozenset(
    f"aten::{name}"
    for name in (
        *("_to_copy", "alias", "clone", "detach"),
        *(f"{name}_like" for name in ("empty", "full", "ones", "zeros")),
    )
)
_HAS_NO_VALUES = frozenset(f"aten::{name}" for name in ("empty_like", "new_empty", "new_empty_strided", "new_zeros"))


class FullValues:
    """Finds the whole tensor behind a sharded one, and lets operations on sharded ones work on whole ones instead.

    So a parameter may be given its values before or after it is sharded, which are the same at any number of processes.

    Args:
        recorder: What records the operations on whole tensors.
    """

    def __init__(self, recorder: OperationRecorder) -> None:
        self._recorder = recorder
        self._known: dict[int, tuple[Tensor, Tensor]] = {}
        self._of_parameters: set[int] = set()

    def watch(self) -> Callable[[], None]:
        """Take notice of the parameters that modules get. Returns what ends that."""

        def notice(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
            if isinstance(parameter, Tensor) and not isinstance(parameter, DTensor) and parameter.device == META:
                self._of_parameters.add(self._recorder.ref(parameter).storage_idx)

        handle = register_module_parameter_registration_hook(notice)
        return handle.remove

    def dispatch(self, function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry an operation with sharded tensors among its arguments out on the whole ones.

        Returns:
            What it returns: whole tensors, unless it is an argument or laid out like one.
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
        if function._schema.name in _KEEPS_LAYOUT and isinstance(args[0], DTensor):
            if kwargs.get("device") is not None:
                kwargs = {**kwargs, "device": META}
            kwargs.pop("pin_memory", None)
            like = function(*args, **kwargs)
            self._remember(like, result)
            return like
        return pytree.tree_map(lambda item: originals.get(id(item), item), result)

    def of(self, sharded: DTensor) -> Tensor:
        """The whole tensor, without memory, that a sharded one is a part of.

        Raises:
            DeferredInitializationError: If it cannot be told.
        """
        local = _local(sharded)
        known = self._known.get(_key(local))
        if known is None or known[1].size() != sharded.size():
            if self._recorder.has_no_values(local):
                full = torch.empty(sharded.size(), dtype=sharded.dtype, device=META)
                self._recorder.leave_without_values(full)
            else:
                full = self._find(local, sharded)
            known = (local, full)
            self._known[_key(local)] = known
        return known[1]

    def _remember(self, sharded: DTensor, full: Tensor) -> None:
        local = _local(sharded)
        self._known[_key(local)] = (local, full)

    def _find(self, local: Tensor, sharded: DTensor) -> Tensor:
        """Go back through what a local part was made from, to what has as many elements as the whole tensor.

        What only has room, or copies of what comes before it, was made by sharding.
        """
        recorder = self._recorder
        num_elements, refs = prod(sharded.size()), [recorder.ref(local)]
        found: TensorRef | None = None
        while refs:
            ref = max(refs, key=lambda ref: ref.numel)
            whole = self._as_whole(ref, sharded, num_elements)
            if whole is not None:
                found = whole
                if ref.storage_idx in self._of_parameters or self._has_own_values(ref.storage_idx):
                    break
            refs = recorder.sources(ref.storage_idx)
        if found is None:
            rule = "made of a whole one in these hooks"
            action = "Use `fully_shard`, `parallelize_module` or `distribute_tensor`."
            raise DeferredInitializationError(must_be("sharded tensor", rule, tuple(sharded.size()), WHERE, action))
        return recorder.tensor(found)

    def _as_whole(self, ref: TensorRef, sharded: DTensor, num_elements: int) -> TensorRef | None:
        """A reference to a whole tensor in the storage of another reference, if there is room for just one."""
        if ref.numel == num_elements and ref.size == tuple(sharded.size()):
            return ref
        if self._recorder.num_bytes[ref.storage_idx] != num_elements * ref.dtype.itemsize:
            return None
        size = tuple(sharded.size())
        stride = tuple(prod(size[dim + 1 :]) for dim in range(len(size)))
        return TensorRef(ref.storage_idx, ref.dtype, size, stride, 0)

    def _has_own_values(self, storage_idx: int) -> bool:
        """Whether a storage has other values than copies of what it was made from."""
        recorder = self._recorder
        made_by = recorder.made_by.get(storage_idx)
        if made_by is not None and made_by.function._schema.name not in _HAS_NO_VALUES:
            return True
        return any(writer.function._schema.name != "aten::copy_" for writer in recorder.writers.get(storage_idx, []))


def _local(sharded: DTensor) -> Tensor:
    with torch.no_grad():
        return sharded.to_local()


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


@contextmanager
def shared_randomness(broadcast: Callable[[Any], Any]) -> Iterator[None]:
    """While it is entered, Python's, NumPy's (if imported) and torch's CPU generators are as on the first process.

    Collective. A generator that was in the same state goes on with the one that it is left in, as if this process had
    been alone; one that was seeded otherwise gets its own state back, so that it stays different.

    Args:
        broadcast: Returns on every process what the first passes.
    """
    own = _states()
    first = broadcast(own)
    others = {name: state for name, state in own.items() if first.get(name) != state}
    _set_states({name: first[name] for name in others if name in first})
    try:
        yield
    finally:
        _set_states(others)


def _states() -> dict[str, Any]:
    """The states as plain values, which can be compared."""
    states: dict[str, Any] = {"torch": torch.get_rng_state().numpy().tobytes(), "python": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        states["numpy"] = (name, keys.tolist(), *rest)
    return states


def _set_states(states: dict[str, Any]) -> None:
    if "torch" in states:
        torch.set_rng_state(torch.frombuffer(bytearray(states["torch"]), dtype=torch.uint8))
    if "python" in states:
        random.setstate(states["python"])
    numpy = sys.modules.get("numpy")
    if "numpy" in states and numpy is not None:
        name, keys, *rest = states["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype="uint32"), *rest))
