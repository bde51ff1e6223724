"""Kinds of devices as classes: asked for availability and counts, and read by libraries from a connector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, ClassVar

import torch

from camshaft.compat.names.plugins.registries import Registry
from camshaft.compat.private_parts import ConnectorView
from camshaft.compat.trainer import Trainer
from camshaft.hooks_core.support.messages import must_be

_ALL = -1


class Accelerator(ABC):
    """A kind of device: its name, or an object, is a value of `Trainer(accelerator=...)`."""

    @abstractmethod
    def setup_device(self, device: torch.device) -> None:
        """Prepare a device."""

    def setup(self, trainer: Any) -> None:
        """Prepare for a trainer, before the module is moved; by default nothing."""
        return

    @abstractmethod
    def teardown(self) -> None:
        """Free what was prepared."""

    @staticmethod
    @abstractmethod
    def parse_devices(devices: Any) -> Any:
        """Return the devices of an argument `devices`."""

    @staticmethod
    @abstractmethod
    def get_parallel_devices(devices: Any) -> Any:
        """Return the devices of what `parse_devices` returned, as torch has them."""

    @staticmethod
    @abstractmethod
    def auto_device_count() -> int:
        """Return the number of devices for "auto"."""

    @staticmethod
    @abstractmethod
    def is_available() -> bool:
        """Return whether there is such a device."""

    @staticmethod
    @abstractmethod
    def name() -> str:
        """Return the name, as in `Trainer(accelerator=...)`."""

    @classmethod
    def register_accelerators(cls, accelerator_registry: Registry) -> None:
        """Put the class under its name into a registry; by default nothing."""
        return

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """Return measurements of a device.

        Raises:
            NotImplementedError: If a subclass has not defined it.
        """
        raise NotImplementedError


class _Stock(Accelerator):
    """Base of the kinds of torch's devices."""

    kind: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        """Return the kind."""
        return cls.kind

    def setup_device(self, device: torch.device) -> None:
        """Make a GPU the current one.

        Raises:
            ValueError: If it is of another kind.
        """
        if device.type != self.kind:
            action = "Pass one of this kind."
            raise ValueError(must_be("device", f"of the kind {self.kind!r}", device, type(self).__name__, action))
        if device.type == "cuda":
            torch.cuda.set_device(device)

    def teardown(self) -> None:
        """Free cached memory of GPUs."""
        if self.kind == "cuda":
            torch.cuda.empty_cache()

    @staticmethod
    def auto_device_count() -> int:
        """Return 1."""
        return 1

    @classmethod
    def register_accelerators(cls, accelerator_registry: Registry) -> None:
        """Put the class under its name into a registry."""
        accelerator_registry.register(cls.kind, cls, cls.__name__)


class CPUAccelerator(_Stock):
    """The CPU, whose devices are processes."""

    kind = "cpu"

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        """Return the number of processes.

        Raises:
            TypeError: If it is no positive int, nor a text of one.
        """
        number = int(devices) if isinstance(devices, str) and devices.strip().isdecimal() else devices
        if isinstance(number, bool) or not isinstance(number, int) or number <= 0:
            action = "Pass the number of processes."
            raise TypeError(must_be("devices", "an int from 1 on the CPU", devices, "CPUAccelerator", action))
        return number

    @staticmethod
    def get_parallel_devices(devices: Any) -> Any:
        """Return the CPU, once for each process."""
        return [torch.device("cpu")] * CPUAccelerator.parse_devices(devices)

    @staticmethod
    def is_available() -> bool:
        """Return True."""
        return True

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """Return the load and memory of this machine; see `get_cpu_stats`."""
        return get_cpu_stats()


class CUDAAccelerator(_Stock):
    """The GPUs that torch has as CUDA devices."""

    kind = "cuda"

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        """Return the indexes of the devices; see `parse_gpu_ids`."""
        return parse_gpu_ids(devices, include_cuda=True)

    @staticmethod
    def get_parallel_devices(devices: Any) -> Any:
        """Return the devices of these indexes."""
        return [torch.device("cuda", index) for index in devices]

    @staticmethod
    def auto_device_count() -> int:
        """Return the number of visible devices."""
        return num_cuda_devices()

    @staticmethod
    def is_available() -> bool:
        """Return whether there is a visible device."""
        return num_cuda_devices() > 0

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """Return torch's statistics of the device's memory."""
        return dict(torch.cuda.memory_stats(device))


class MPSAccelerator(_Stock):
    """The GPU of an Apple processor."""

    kind = "mps"

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        """Return the indexes of the devices; see `parse_gpu_ids`."""
        return parse_gpu_ids(devices, include_mps=True)

    @staticmethod
    def get_parallel_devices(devices: Any) -> Any:
        """Return the devices of an argument `devices`."""
        return [torch.device("mps", index) for index in range(len(MPSAccelerator.parse_devices(devices) or ()))]

    @staticmethod
    def is_available() -> bool:
        """Return whether torch has such a device here."""
        return torch.backends.mps.is_available()

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """Return the load and memory of this machine."""
        return {name.replace("cpu_", "M1_", 1): value for name, value in get_cpu_stats().items()}


AcceleratorRegistry = Registry("accelerator")
for _kind in (CPUAccelerator, CUDAAccelerator, MPSAccelerator):
    _kind.register_accelerators(AcceleratorRegistry)


def num_cuda_devices() -> int:
    """Return the number of visible CUDA devices."""
    return torch.cuda.device_count()


def is_cuda_available() -> bool:
    """Return whether torch can use CUDA."""
    return torch.cuda.is_available()


def find_usable_cuda_devices(num_devices: int = -1) -> list[int]:
    """Return the indexes of CUDA devices on which a tensor can be made.

    Args:
        num_devices: The number that is wanted; -1 for all of these.

    Raises:
        ValueError: If this machine has not so many.
        RuntimeError: If so many cannot be used at the moment.
    """
    where, present = "find_usable_cuda_devices", num_cuda_devices()
    if num_devices == 0:
        return []
    if num_devices > present or not present:
        raise ValueError(must_be("num_devices", f"at most {present}", num_devices, where, "Ask for fewer devices."))
    usable: list[int] = []
    for index in range(present):
        if len(usable) == num_devices:
            break
        try:
            torch.tensor(0, device=torch.device("cuda", index))
        except RuntimeError:  # it may be used by another process alone
            continue
        usable.append(index)
    if num_devices != _ALL and len(usable) < num_devices:
        rule = f"at most {len(usable)}, as many as are free"
        raise RuntimeError(must_be("num_devices", rule, num_devices, where, "Ask for fewer devices, or wait."))
    return usable


def parse_gpu_ids(gpus: Any, include_cuda: bool = False, include_mps: bool = False) -> list[int] | None:
    """Return the indexes of GPUs: the first ones for a number, all for -1; None for none of them.

    Args:
        gpus: A number, a text of it or of indexes with commas between, or a sequence of indexes.
        include_cuda: Whether CUDA devices count.
        include_mps: Whether the GPU of an Apple processor counts.

    Raises:
        TypeError: If it is none of these.
        ValueError: If this machine has not these devices, or one is named twice.
    """
    where = "parse_gpu_ids"
    numbers = list(gpus) if isinstance(gpus, (list, tuple)) else [gpus]
    if any(type(one) is not int for one in numbers) and not isinstance(gpus, str):
        rule = "an int, a string or a sequence of ints"
        raise TypeError(must_be("devices", rule, gpus, where, "Pass a number of devices, or indexes."))
    if isinstance(gpus, str):
        numbers = [int(part) for part in gpus.split(",") if part.strip()]
    is_number = not isinstance(gpus, (list, tuple)) and not (isinstance(gpus, str) and "," in gpus)
    if numbers in ([], [0]) and (is_number or not numbers):
        return None
    present = list(range(num_cuda_devices() if include_cuda else 0))
    present += [0] if include_mps and MPSAccelerator.is_available() else []
    if is_number:
        numbers = present if numbers == [_ALL] else list(range(numbers[0]))
    if not numbers or not set(numbers) <= set(present) or len(set(numbers)) < len(numbers):
        rule = f"different ones of this machine's ({', '.join(map(str, present)) or 'it has none'})"
        raise ValueError(must_be("devices", rule, gpus, where, "Pass these, or `accelerator='cpu'`."))
    return numbers


def get_cpu_stats() -> dict[str, float]:
    """Return the load of the CPU and the use of memory in percent, by the package psutil.

    Raises:
        ModuleNotFoundError: If it is not installed.
    """
    import psutil  # type: ignore[import-untyped, unused-ignore]

    return {
        "cpu_vm_percent": psutil.virtual_memory().percent,
        "cpu_percent": psutil.cpu_percent(),
        "cpu_swap_percent": psutil.swap_memory().percent,
    }


def find_accelerator(name: str) -> Any:
    """Return the object for a kind of device, such as "cuda"."""
    return AcceleratorRegistry.get(name)


def choose_accelerator(name: str | Accelerator) -> Accelerator:
    """Return the object of a name: the best of this machine for "auto", its GPUs for "gpu".

    Raises:
        ValueError: If the name is unknown.
        RuntimeError: If this machine has no such device.
    """
    names = {"auto": ("mps", "cuda", "cpu"), "gpu": ("mps", "cuda")}.get(str(name), (name,))
    found = [one if isinstance(one, Accelerator) else AcceleratorRegistry.get(one, "") for one in names]
    found = [one for one in found if one != ""]
    if not found:
        rule = f"one of auto, gpu, {', '.join(AcceleratorRegistry)}"
        raise ValueError(must_be("accelerator", rule, name, "_AcceleratorConnector", "Pass one of these."))
    present = [accelerator for accelerator in found if accelerator.is_available()]
    if not present:
        action = "Pass 'auto' or 'cpu'."
        raise RuntimeError(must_be("accelerator", "present on this machine", name, "_AcceleratorConnector", action))
    return present[0]


class AcceleratorConnector:
    """Devices and strategy that `Trainer` would choose, for libraries that ask without a trainer.

    Args:
        devices: A number, indexes, or "auto".
        num_nodes: The number of machines.
        accelerator: A name or an `Accelerator`; "auto" is the best of this machine.
        strategy: A name or a strategy.
        others: Further arguments of the trainer.

    Attributes:
        accelerator: The kind of device.
        strategy, precision_plugin, is_distributed: As of a trainer, which is made when they are asked for.

    Raises:
        ValueError: If this machine has not these devices.
        RuntimeError: If it has none of this kind.
    """

    def __init__(
        self,
        devices: Any = "auto",
        num_nodes: int = 1,
        accelerator: Any = "auto",
        strategy: Any = "auto",
        **others: Any,
    ) -> None:
        self.use_distributed_sampler = others.get("use_distributed_sampler", True)
        self.accelerator = choose_accelerator(accelerator)
        self._accelerator_flag = accelerator if isinstance(accelerator, Accelerator) else self.accelerator.name()
        asked = self.accelerator.auto_device_count() if devices == "auto" else devices
        self._devices_flag = self.accelerator.parse_devices(asked)
        self._parallel_devices = self.accelerator.get_parallel_devices(self._devices_flag)
        self._num_nodes_flag, self._strategy_flag, self._others = num_nodes, strategy, others

    def __getattr__(self, name: str) -> Any:
        if name not in ("strategy", "precision_plugin", "is_distributed"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return getattr(self._view, name)

    @cached_property
    def _view(self) -> ConnectorView:
        off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        return ConnectorView(
            Trainer(
                accelerator=self.accelerator.name(),
                devices=self._devices_flag,
                num_nodes=self._num_nodes_flag,
                strategy=self._strategy_flag,
                **{**dict.fromkeys(off, False), **self._others},
            )
        )
