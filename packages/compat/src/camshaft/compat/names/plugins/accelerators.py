"""Kinds of devices as classes: asked for availability and counts, and read by libraries from a connector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
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

    @classmethod
    def parse_devices(cls, devices: Any) -> Any:
        """Return the indexes of the devices; see `parse_gpu_ids`."""
        return parse_gpu_ids(devices, include_cuda=cls.kind == "cuda", include_mps=cls.kind == "mps")

    @classmethod
    def get_parallel_devices(cls, devices: Any) -> Any:
        """Return the devices of these indexes, or of an argument `devices`."""
        indexes = devices if isinstance(devices, (list, tuple)) else cls.parse_devices(devices) or ()
        return [torch.device(cls.kind, index) for index in indexes]

    def setup_device(self, device: torch.device) -> None:
        """Make a GPU the current one.

        Raises:
            ValueError: If it is of another kind.
        """
        if device.type != self.kind:
            rule, where = f"of the kind {self.kind!r}", type(self).__name__
            raise ValueError(must_be("device", rule, device, where, "Pass one of this kind."))
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

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """Return the load and memory of this machine; see `get_cpu_stats`."""
        return get_cpu_stats()


class CPUAccelerator(_Stock):
    """The CPU, whose devices are processes."""

    kind = "cpu"

    @classmethod
    def parse_devices(cls, devices: Any) -> Any:
        """Return the number of processes.

        Raises:
            TypeError: If it is no positive int, nor a text of one.
        """
        number = int(devices) if isinstance(devices, str) and devices.strip().isdecimal() else devices
        if isinstance(number, bool) or not isinstance(number, int) or number <= 0:
            rule = "an int from 1 on the CPU"
            raise TypeError(must_be("devices", rule, devices, "CPUAccelerator", "Pass the number of processes."))
        return number

    @classmethod
    def get_parallel_devices(cls, devices: Any) -> Any:
        """Return the CPU, once for each process."""
        return [torch.device("cpu")] * cls.parse_devices(devices)

    @staticmethod
    def is_available() -> bool:
        """Return True."""
        return True


class CUDAAccelerator(_Stock):
    """The GPUs that torch has as CUDA devices."""

    kind = "cuda"

    @staticmethod
    def auto_device_count() -> int:
        """Return the number of visible devices."""
        return torch.cuda.device_count()

    @staticmethod
    def is_available() -> bool:
        """Return whether there is a visible device."""
        return torch.cuda.device_count() > 0

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """Return torch's statistics of the device's memory."""
        return dict(torch.cuda.memory_stats(device))


class MPSAccelerator(_Stock):
    """The GPU of an Apple processor."""

    kind = "mps"

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


def find_usable_cuda_devices(num_devices: int = -1) -> list[int]:
    """Return the indexes of CUDA devices on which a tensor can be made.

    Args:
        num_devices: The number that is wanted; -1 for all of these.

    Raises:
        ValueError: If this machine has not so many.
        RuntimeError: If so many cannot be used at the moment.
    """
    where, present = "find_usable_cuda_devices", torch.cuda.device_count()
    if num_devices == 0:
        return []
    if num_devices > present or not present:
        raise ValueError(must_be("num_devices", f"at most {present}", num_devices, where, "Ask for fewer devices."))
    usable: list[int] = []
    for index in range(present):
        if len(usable) != num_devices:
            with suppress(RuntimeError):  # it may be used by another process alone
                torch.tensor(0, device=torch.device("cuda", index))
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
    where, is_text = "parse_gpu_ids", isinstance(gpus, str)
    are_indexes = isinstance(gpus, (list, tuple)) or (is_text and "," in gpus)
    numbers = gpus.split(",") if is_text else list(gpus) if are_indexes else [gpus]
    if is_text:
        numbers = [int(part) for part in numbers if part.strip()]
    elif any(type(one) is not int for one in numbers):
        rule = "an int, a string or a sequence of ints"
        raise TypeError(must_be("devices", rule, gpus, where, "Pass a number of devices, or indexes."))
    if not numbers or (numbers == [0] and not are_indexes):
        return None
    present = [*range(torch.cuda.device_count() if include_cuda else 0)]
    present += [0] if include_mps and MPSAccelerator.is_available() else []
    if not are_indexes:
        numbers = present if numbers == [_ALL] else [*range(numbers[0])]
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
    where = "_AcceleratorConnector"
    names: Any = {"auto": ("mps", "cuda", "cpu"), "gpu": ("mps", "cuda")}.get(str(name), (name,))
    found: list[Any] = [AcceleratorRegistry.get(one) if one in AcceleratorRegistry else one for one in names]
    if not isinstance(found[0], Accelerator):
        rule = f"one of auto, gpu, {', '.join(AcceleratorRegistry)}"
        raise ValueError(must_be("accelerator", rule, name, where, "Pass one of these."))
    present: Accelerator | None = next((accelerator for accelerator in found if accelerator.is_available()), None)
    if present is None:
        rule, action = "present on this machine", "Pass 'auto' or 'cpu'."
        raise RuntimeError(must_be("accelerator", rule, name, where, action))
    return present


class AcceleratorConnector:
    """Devices and strategy that `Trainer` would choose, for libraries that ask without a trainer.

    Args:
        devices: A number, indexes, or "auto".
        num_nodes: The number of machines.
        accelerator: A name or an `Accelerator`; "auto" is the best of this machine.
        strategy: A name or a strategy.
        rest: Further arguments of the trainer.

    Attributes:
        accelerator: The kind of device.
        strategy, precision_plugin, is_distributed: As of a trainer, which is made when they are asked for.

    Raises:
        ValueError: If this machine has not these devices.
        RuntimeError: If it has none of this kind.
    """

    def __init__(
        self, devices: Any = "auto", num_nodes: int = 1, accelerator: Any = "auto", strategy: Any = "auto", **rest: Any
    ) -> None:
        self.use_distributed_sampler = rest.get("use_distributed_sampler", True)
        self.accelerator = choose_accelerator(accelerator)
        self._accelerator_flag = accelerator if isinstance(accelerator, Accelerator) else self.accelerator.name()
        asked = self.accelerator.auto_device_count() if devices == "auto" else devices
        self._devices_flag = self.accelerator.parse_devices(asked)
        self._parallel_devices = self.accelerator.get_parallel_devices(self._devices_flag)
        self._num_nodes_flag, self._strategy_flag, self._others = num_nodes, strategy, rest

    def __getattr__(self, name: str) -> Any:
        if name not in ("strategy", "precision_plugin", "is_distributed"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return getattr(self._view, name)

    @cached_property
    def _view(self) -> ConnectorView:
        off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        arguments = {
            "accelerator": self.accelerator.name(),
            "devices": self._devices_flag,
            "num_nodes": self._num_nodes_flag,
            "strategy": self._strategy_flag,
        }
        return ConnectorView(Trainer(**arguments, **dict.fromkeys(off, False) | self._others))
