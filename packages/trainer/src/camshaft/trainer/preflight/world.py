"""A world of one process: torch's fake process group, and fake tensors wherever a strategy or a hook computes."""

from __future__ import annotations

import copy
import linecache
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.processes import running_hook
from camshaft.hooks_core.support.transfer import map_nested
from camshaft.strategies import TorchStrategy

_WHERE = "preflight"
_OWN = (os.path.dirname(__file__), os.path.dirname(torch.__file__) + os.sep)
_OF_SCALERS = (os.path.join("amp", "grad_scaler.py"), os.path.join("precision", "gradient_scaling.py"))
_OF_OPTIMIZERS = os.path.join(os.path.dirname(torch.__file__), "optim") + os.sep


@contextmanager
def simulated_world(world_size: int, devices_per_node: int = 8) -> Iterator[None]:
    """Join torch's fake process group as rank 0 of many, and leave it afterwards.

    Within it strategies are made for that rank; see `camshaft.strategies.ParallelStrategy`. Other ranks get from the
    first what it alone finds out, such as names of folders, and so cannot be played.

    Args:
        world_size: The number of ranks.
        devices_per_node: The number of ranks on each machine.

    Raises:
        ValueError: If a number is out of range.
        RuntimeError: If this process has joined another group already.
    """
    import_module("torch.testing._internal.distributed.fake_pg")  # registers the backend

    for name, value in (("world_size", world_size), ("devices_per_node", devices_per_node)):
        if type(value) is not int or value < 1:
            raise ValueError(must_be(name, "a positive int", value, _WHERE, "Pass such a number."))
    if dist.is_initialized():
        found = (dist.get_backend(), dist.get_rank(), dist.get_world_size())
        if found != ("fake", 0, world_size):
            rule, action = f"none, or a fake one with rank 0 of {world_size}", "Call it in a process of its own."
            raise RuntimeError(must_be("process group", rule, found, _WHERE, action))
        yield
        return
    num_local = min(devices_per_node, world_size)
    num_nodes = -(-world_size // num_local)
    variables = {"LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": num_local, "GROUP_WORLD_SIZE": num_nodes}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: str(value) for name, value in variables.items()})
    dist.init_process_group("fake", rank=0, world_size=world_size, store=dist.HashStore())  # type: ignore[attr-defined]
    try:
        yield
    finally:
        dist.destroy_process_group()
        for name, previous in before.items():
            os.environ.pop(name, None)
            if previous is not None:
                os.environ[name] = previous


@frozen
class HostRead:
    """A place where the host reads a value of the device, and so waits for it.

    Attributes:
        hook: The running hook; empty outside of one.
        operation: The operation that reads, such as "item".
        file: The file of the innermost line outside of torch.
        line: The number of that line.
        code: What stands there.
    """

    hook: str
    operation: str
    file: str
    line: int
    code: str


class FakeDevice(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Runs operations on fake tensors, which have no memory, while it is on, and always those that get a fake one.

    A value that the host reads of a fake tensor is made up: 1 for a number, False for a condition. It is noted.

    Attributes:
        is_on: Whether new tensors are fake.
        phase: A name for what is being done; reads are counted by it.
        reads: The number of reads by phase and place.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.is_on = False
        self.phase = "set-up"
        self.reads: Counter[tuple[str, HostRead]] = Counter()

    @contextmanager
    def on(self, is_on: bool = True) -> Iterator[None]:
        """Make new tensors fake within it, or real."""
        before, self.is_on = self.is_on, is_on
        try:
            yield
        finally:
            self.is_on = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation on fake tensors, or as it is."""
        if not self.is_on and not any(isinstance(one, FakeTensor) for one in pytree.tree_leaves((args, kwargs))):
            return func(*args, **(kwargs or {}))
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except DataDependentOutputException:
            is_of_scaler = self.note_read(func.name().removeprefix("aten::"))
            if func is not torch.ops.aten._local_scalar_dense.default:
                return False
            dtype = args[0].dtype
            made_up = 0 if is_of_scaler else 1  # nothing has overflowed
            return False if dtype is torch.bool else float(made_up) if dtype.is_floating_point else made_up
        except DynamicOutputShapeException as error:
            error.add_note(
                f"The shape of what `{func.name().removeprefix('aten::')}` returns depends on values, which fake "
                "tensors do not have, and which a GPU has to be waited for. Use `torch.where`, or multiply by a mask."
            )
            raise

    def note_read(self, operation: str) -> bool:
        """Count that the host reads a value, at the innermost line outside of torch.

        Optimizers of torch read their counts of steps, which are on the host.

        Returns:
            Whether a gradient scaler asks for an overflow.
        """
        frames = []
        frame = sys._getframe(1)
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back  # type: ignore[assignment]
        outside = [one for one in frames if not one.f_code.co_filename.startswith((*_OWN, "<"))]
        is_of_scaler = any(one.f_code.co_filename.endswith(_OF_SCALERS) for one in frames)
        if not outside or any(one.f_code.co_filename.startswith(_OF_OPTIMIZERS) for one in frames):
            return is_of_scaler
        place = outside[0]
        code = linecache.getline(place.f_code.co_filename, place.f_lineno).strip()
        operation = "item" if operation == "_local_scalar_dense" else operation
        read = HostRead(running_hook(frames), operation, place.f_code.co_filename, place.f_lineno, code)
        self.reads[self.phase, read] += 1
        return is_of_scaler

    def fake(self, value: Any) -> Any:
        """Return a nested value with a fake tensor in place of each real one."""
        return map_nested(
            value,
            lambda one: isinstance(one, Tensor),
            lambda one: one if isinstance(one, FakeTensor) else self.from_tensor(one),
        )

    def module_of(self, model: nn.Module | Callable[[], nn.Module]) -> nn.Module:
        """Return a fake copy of a module, or what a function makes."""
        return self.copy_of(model) if isinstance(model, nn.Module) else model()

    def copy_of(self, module: nn.Module) -> nn.Module:
        """Return a copy of a module whose parameters and buffers are fake; the module stays as it is."""
        memo: dict[int, Any] = {}
        for tensor in (*module.parameters(), *module.buffers()):
            if not isinstance(tensor, FakeTensor) and id(tensor) not in memo:
                made: Any = self.from_tensor(tensor.detach())
                if made.device.type != "cpu":  # a GPU of this machine, or the meta device
                    made = torch.empty_like(made, device="cpu")
                if isinstance(tensor, nn.Parameter):
                    made = nn.Parameter(made, requires_grad=tensor.requires_grad)
                memo[id(tensor)] = made
        with self.on(False):  # other tensors, such as the states of metrics, are real
            return copy.deepcopy(module, memo)


class HostCopies(TorchFunctionMode):
    """Notes copies of fake tensors to the host, which are none where the fake device is the CPU.

    Args:
        device: The fake device.
    """

    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note a copy; of an array, zeros are returned."""
        if func in (Tensor.cpu, Tensor.numpy) and isinstance(args[0], FakeTensor):
            self._device.note_read(func.__name__)
            if func is Tensor.numpy:
                with self._device.on(False):
                    return torch.zeros(args[0].shape, dtype=args[0].dtype).numpy()
        return func(*args, **(kwargs or {}))


def convert(dtype: torch.dtype, module: nn.Module) -> None:
    """Bring floating-point parameters and buffers into a dtype, in place: `nn.Module.to` cannot swap fake tensors."""
    made: dict[Tensor, Any] = {}
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is None or not tensor.is_floating_point():
                    continue
                if tensor not in made:
                    values = tensor.detach().to(dtype)
                    is_parameter = isinstance(tensor, nn.Parameter)
                    made[tensor] = nn.Parameter(values, tensor.requires_grad) if is_parameter else values
                tensors[name] = made[tensor]


_COMPUTING = (
    *("setup_module", "setup_optimizers", "backward", "optimizer_step", "clip_gradients", "unscale_gradients"),
    *("set_gradient_sync", "idle_step", "place_like", "on_validation_start"),
)
"""Methods of a strategy that compute on the device."""


def on_fake_device(kind: type[TorchStrategy], device: FakeDevice) -> type[TorchStrategy]:
    """Return a subclass of a strategy's class that computes on fake tensors."""

    def computing(name: str) -> Callable[..., Any]:
        of_kind = getattr(kind, name)

        @wraps(of_kind)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            with device.on():
                return of_kind(self, *args, **kwargs)

        return method

    def wrap_step(self: Any, step: Callable[..., Any]) -> Callable[..., Any]:
        inner = kind.wrap_step(self, step)

        @wraps(step)
        def run(*args: Any, **kwargs: Any) -> Any:
            with device.on():
                return inner(*device.fake(args), **device.fake(kwargs))

        return run

    @contextmanager
    def model_context(self: Any, module: nn.Module) -> Iterator[None]:
        if hasattr(self, "device_mesh"):
            vars(module)["device_mesh"] = self.device_mesh
        with device.on():  # fake tensors have no memory, so nothing needs to be deferred
            yield

    def place_module(self: Any, module: nn.Module) -> None:
        """Do nothing: fake tensors are on the device, and cannot be swapped while they are watched."""

    methods = {name: computing(name) for name in _COMPUTING if hasattr(kind, name)}
    return type(
        kind.__name__,
        (kind,),
        {
            **methods,
            **{"wrap_step": wrap_step, "model_context": model_context, "place_module": place_module},
            "__module__": kind.__module__,
        },
    )
