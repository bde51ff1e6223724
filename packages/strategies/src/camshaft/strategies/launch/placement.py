"""The number of processes, and the device of each."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
from attrs import frozen

from camshaft.hooks_core.support.messages import must_be
from camshaft.strategies.checks import require
from camshaft.strategies.launch.environment import (
    ProcessEnvironment,
    check_int,
    is_interactive,
)

_ALL = -1


@frozen
class Placement:
    """The place of a process in its job.

    Attributes:
        local_rank: The index of the process on its machine.
        world_size: The number of processes.
        num_nodes: The number of machines.
        device_ids: The index of each device that is used on this machine; on the CPU they are numbered from 0.
    """

    device: torch.device
    local_rank: int
    world_size: int
    num_nodes: int
    device_ids: tuple[int, ...]


def place_process(
    environment: ProcessEnvironment, accelerator: str, devices: int | str | Sequence[int], num_nodes: int, where: str
) -> Placement:
    """Return the place of this process, by the arguments and the launcher's environment.

    Args:
        environment: The environment of this process.
        accelerator: As for `choose_device`; "auto" is the CPU if processes cannot reduce tensors of the accelerator.
        devices: The number per machine, -1, or "auto"; for an accelerator also a list of indexes.
        num_nodes: The number of machines; 1 means the launcher's number.
        where: The caller, for errors.

    Raises:
        ValueError: If an argument is out of range, or contradicts the environment.
        RuntimeError: If this machine has no such accelerator.
    """
    kind = _device_kind(accelerator, where)
    device_idxs, num_devices = _read_devices(devices, kind, where)
    check_int("num_nodes", num_nodes, 1, where)
    if environment.source == "alone":
        rule, action = "1 in a process that is started alone", "Start it on every machine with torchrun or srun."
        require(num_nodes == 1, "num_nodes", rule, num_nodes, where, action)
        # Without a launcher: one process per device, or one on the CPU.
        num_local = num_devices or _num_devices(kind)
        local_rank, world_size, nodes = 0, num_local, 1
    else:
        local_rank, num_local, nodes = _local(environment, num_nodes, where)
        world_size = environment.world_size
        rule = f"{num_local}, as many processes as were started on this machine, or 'auto'"
        require(num_devices in (None, num_local), "devices", rule, devices, where)
    device = _device(kind, device_idxs, local_rank, num_local, where)
    sees_own_only = kind != "cpu" and device_idxs is None and _num_devices(kind) == 1
    device_ids = device_idxs or ([0] if sees_own_only else range(num_local))
    return Placement(device, local_rank, world_size, nodes, tuple(device_ids))


def _device_kind(accelerator: str, where: str) -> str:
    kind = choose_device(accelerator).type
    # torch names gloo for devices without a backend of their own, whose tensors gloo does not take
    is_reducible = kind == "cpu" or dist.Backend.default_device_backend_map.get(kind) not in (None, "gloo")
    if accelerator == "auto":
        return kind if is_reducible else "cpu"
    rule = "a device type whose tensors a backend of torch.distributed can reduce"
    require(is_reducible, "accelerator", rule, accelerator, where, "Pass 'cpu', or use one device.")
    return kind


def _num_devices(kind: str) -> int:
    return 1 if kind == "cpu" else torch.accelerator.device_count()


def _read_devices(devices: int | str | Sequence[int], kind: str, where: str) -> tuple[list[int] | None, int | None]:
    """Return the indexes of the devices, None if not given, and their number per machine, None for "auto"."""
    wanted: object = devices
    if isinstance(devices, str):
        if devices == "auto":
            return None, None
        wanted = int(devices) if devices.removeprefix("-").isdecimal() else devices
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        if wanted == _ALL:
            return None, _num_devices(kind)
        if wanted > 0:
            return None, wanted
    elif isinstance(wanted, Sequence) and not isinstance(wanted, str) and kind != "cpu":
        num_present = _num_devices(kind)
        is_index = [type(idx) is int and 0 <= idx < num_present for idx in wanted]
        if wanted and all(is_index) and len(set(wanted)) == len(wanted):
            return list(wanted), len(wanted)
        rule = f"different indexes of this machine's {num_present} {kind} devices"
        raise ValueError(must_be("devices", rule, devices, where, "Pass the devices to use, or how many."))
    rule = "a positive int, -1 (all) or 'auto'" + (" on the CPU" if kind == "cpu" else ", or a list of indexes")
    raise ValueError(must_be("devices", rule, devices, where, "Pass the number of processes per machine."))


def _local(environment: ProcessEnvironment, num_nodes: int, where: str) -> tuple[int, int, int]:
    """Return the local rank of a launched process, the number of processes on its machine, and that of machines.

    Where the launcher does not set them, each machine is assumed to have the same number of consecutive ranks.
    """
    world_size, num_local, known = environment.world_size, environment.local_world_size, environment.num_nodes
    if known is None and num_local is not None:
        known = -(-world_size // num_local)
    rule = f"{known}, as many machines as the processes were started on, or left out"
    require(known is None or num_nodes in (1, known), "num_nodes", rule, num_nodes, where)
    nodes = known if known is not None else num_nodes
    if num_local is None:
        rule = f"a divisor of the {world_size} processes that were started"
        action = "Pass the number of machines, or set LOCAL_RANK and LOCAL_WORLD_SIZE."
        require(world_size % nodes == 0, "num_nodes", rule, num_nodes, where, action)
        num_local = world_size // nodes
    local_rank = environment.local_rank
    return environment.global_rank % num_local if local_rank is None else local_rank, num_local, nodes


def _device(kind: str, device_idxs: list[int] | None, local_rank: int, num_local: int, where: str) -> torch.device:
    if kind == "cpu":
        return torch.device("cpu")
    if device_idxs is not None:
        return torch.device(kind, device_idxs[local_rank])
    num_present = _num_devices(kind)
    if num_present == 1:
        # Each process may see its own device only, as under `srun --gpus-per-task=1`.
        return torch.device(kind, 0)
    rule = f"at most {num_present}, as many {kind} devices as this machine has"
    action = "Start fewer processes, or pass accelerator='cpu'."
    require(num_local <= num_present, "devices", rule, num_local, where, action)
    return torch.device(kind, local_rank)


def avoid_cuda_in_checks() -> None:
    """Let torch look for CUDA devices by NVML: its other check initialises CUDA, which forks cannot use then."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def check_usable_in_fork(device: torch.device, where: str) -> None:
    """Raise `RuntimeError` in a fork whose parent has used the accelerator, so that torch cannot use it here."""
    module = None if device.type == "cpu" else torch.get_device_module(device)
    if getattr(module, "_is_in_bad_fork", bool)():
        name = device.type.upper()
        raise RuntimeError(
            f"{name} must be unused by the process that is forked, but torch has initialised it before {where} forks "
            f"its ranks. Restart the kernel, and move nothing to {name} before the trainer does; also "
            f"`torch.cuda.is_available()` initialises it, unless PYTORCH_NVML_BASED_CUDA_CHECK=1 is set."
        )


def choose_device(accelerator: str = "auto", device_idx: int = 0) -> torch.device:
    """Return the device of an accelerator's name.

    Args:
        accelerator: "cpu", a type of `torch.accelerator` such as "cuda", "mps" or "xpu", "gpu" (the accelerator of this
            machine), or "auto" (that, or else the CPU).
        device_idx: The index among the machine's devices of this kind; the CPU has one, with index 0.

    Raises:
        ValueError: If the name is unknown, or there is no device of this index.
        RuntimeError: If this machine has no such accelerator.
    """
    rule, where = "'auto', 'cpu', 'gpu' or a type of device that torch knows, such as 'cuda' or 'mps'", "choose_device"
    require(accelerator in ("auto", "gpu") or _is_type(accelerator), "accelerator", rule, accelerator, where)
    if is_interactive():
        avoid_cuda_in_checks()
    present = torch.accelerator.current_accelerator(check_available=True)
    best = None if present is None else present.type
    kind = {"auto": best or "cpu", "gpu": best}.get(accelerator, accelerator)
    if kind is None or kind not in ("cpu", best):
        action = f"Torch {torch.__version__} does not find it: pass 'cpu', or install a torch build for it."
        raise RuntimeError(must_be("accelerator", "present on this machine", accelerator, where, action))
    count = _num_devices(kind)
    require(0 <= device_idx < count, "device_idx", f"from 0 to {count - 1}", device_idx, f"choose_device({kind!r})")
    return torch.device("cpu") if kind == "cpu" else torch.device(kind, device_idx)


def _is_type(name: object) -> bool:
    """Return whether torch knows a type of device, and has a module for it."""
    try:
        return isinstance(name, str) and torch.device(name).type == name and hasattr(torch, name)
    except RuntimeError:
        return False
