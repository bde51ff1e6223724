"""A simulated accelerator of two devices, "sim:0" and "sim:1", whose memory is the host's. Importing it registers it.

A process that has imported it sees an accelerator from then on, so its tests run in processes of their own: pytest with
`--simulated-device`, in the session `simulated`. The C++ code is compiled at the first import, into .nox.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import torch
import torch.distributed as dist

FOLDER = Path(__file__).parent
BUILDS = FOLDER.parents[1] / ".nox" / "simulated_device"
NUM_DEVICES = 2


@attrs.frozen
class Event:
    """Something that a device does, or that is asked of it.

    Attributes:
        kind: "copy" (asynchronous), "staged copy" (the same from pageable memory), "blocking copy" (to the device),
            "read" (by the host) or "wait" (of the host).
        name: The operator, or what is copied.
        stack: The frames of Python code, innermost last.
    """

    kind: str
    name: str
    stack: traceback.StackSummary

    @property
    def place(self) -> str:
        """File and line of the innermost frame outside of torch, for messages."""
        frames = [frame for frame in self.stack if "/torch/" not in frame.filename]
        return f"{self.name} in {frames[-1].filename}:{frames[-1].lineno}"


@attrs.define
class Recording:
    """The events of a time span; operators are counted only."""

    events: list[Event] = attrs.field(factory=list)
    operators: Counter[str] = attrs.field(factory=Counter)

    def host_waits(self) -> list[Event]:
        """Return the events for which the host waits for the device."""
        return [event for event in self.events if event.kind in ("read", "wait", "blocking copy")]

    def _note(self, kind: str, name: str) -> None:
        if kind == "operator":
            self.operators[name] += 1
        else:
            self.events.append(Event(kind, name, traceback.extract_stack()[:-1]))


@contextmanager
def recording() -> Iterator[Recording]:
    """Record events of both devices, of all threads."""
    kept = Recording()
    _device.listen(kept._note)
    try:
        yield kept
    finally:
        _device.listen(None)


@contextmanager
def late_copies() -> Iterator[None]:
    """Make asynchronous copies as late as a device may; until then their targets hold other values."""
    _device.set_late(True)
    try:
        yield
    finally:
        torch.accelerator.synchronize()
        _device.set_late(False)


def _compiled() -> Any:
    """Return the compiled module, which is built once for each state of the sources and version of torch."""
    sources = [FOLDER / "device.cpp", FOLDER / "process_group.cpp"]
    content = b"".join(path.read_bytes() for path in [*sources, FOLDER / "device.h"])
    folder = BUILDS / hashlib.sha256(content + f"{torch.__version__} {torch.__file__}".encode()).hexdigest()[:12]
    library = folder / "simulated_device.so"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "importing").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ranks of one test
        if not library.exists():
            from torch.utils.cpp_extension import load

            load("simulated_device", list(map(str, sources)), extra_cflags=["-O1", "-w"], build_directory=str(folder))
    spec = importlib.util.spec_from_file_location("simulated_device", library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _module() -> ModuleType:
    """Return `torch.sim`, by torch's generic parts."""
    module: Any = ModuleType("torch.sim")
    accelerator = torch.accelerator

    def index_of(device: Any = None) -> int:
        index = device if isinstance(device, int) else torch.device(device or "sim").index
        return accelerator.current_device_index() if index is None else index

    def generator(device: Any = None) -> torch.Generator:
        return _device.default_generator(index_of(device))  # type: ignore[no-any-return]

    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.init = module._lazy_init = lambda: None
    module.device_count = lambda: NUM_DEVICES
    module.get_device_name = lambda device=None: "Simulated A100"
    module.current_device = accelerator.current_device_index
    module.set_device = lambda device: accelerator.set_device_index(index_of(device))
    module.device = lambda device: accelerator.device_index(index_of(device))
    module.synchronize = lambda device=None: accelerator.synchronize(index_of(device))
    module.current_stream = lambda device=None: accelerator.current_stream(index_of(device))
    module.set_stream = accelerator.set_stream
    module.stream = lambda stream: stream
    module.Stream = lambda device=None, priority=0: torch.Stream(device if device is not None else "sim")
    module.Event = lambda **options: torch.Event("sim", **options)
    module.memory_allocated = accelerator.memory_allocated
    module.max_memory_allocated = accelerator.max_memory_allocated
    module.reset_peak_memory_stats = accelerator.reset_peak_memory_stats
    module.manual_seed = lambda seed: generator().manual_seed(seed)
    module.manual_seed_all = lambda seed: [generator(index).manual_seed(seed) for index in range(NUM_DEVICES)]
    module.get_rng_state = lambda device=None: generator(device).get_state()
    module.set_rng_state = lambda state, device=None: generator(device).set_state(state)
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    module.is_bf16_supported = lambda including_emulation=True: True
    return module


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Return the process group of the device, on gloo."""
    return _device.on_backend(dist.ProcessGroupGloo(store, rank, size, timeout))


torch.utils.rename_privateuse1_backend("sim")
_device = _compiled()
_device.register_device()
torch._register_device_module("sim", _module())
torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
dist.Backend.register_backend("simulated", _create, devices=["sim"])
