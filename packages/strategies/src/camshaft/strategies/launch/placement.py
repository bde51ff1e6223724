"""How many processes there are to be, and on which device each one computes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen

from camshaft.hooks_core.messages import must_be
from camshaft.strategies.launch.environment import ProcessEnvironment

_ALL = -1


@frozen
class Placement:
    """Where a process of several computes.

    Attributes:
        device: Its device.
        local_rank: Its index on its machine.
        world_size: Number of processes.
        num_nodes: Number of machines.
    """

    device: torch.device
    local_rank: int
    world_size: int
    num_nodes: int


def place_process(
    environment: ProcessEnvironment, accelerator: str, devices: int | str | Sequence[int], num_nodes: int, where: str
) -> Placement:
    """Settle what was asked for with what was started.

    Args:
        environment: Which process this is.
        accelerator: "auto", "cpu", "cuda" or "gpu".
        devices: How many a machine, -1, or "auto"; for CUDA also their indexes.
        num_nodes: How many machines; 1 is as many as were started.
        where: Who asks, for messages.

    Raises:
        ValueError: If an argument is none of these, or contradicts the environment.
        RuntimeError: If this machine has no such accelerator.
    """
    kind = _device_kind(accelerator, where)
    device_idxs, num_devices = _read_devices(devices, kind, where)
    if isinstance(num_nodes, bool) or not isinstance(num_nodes, int) or num_nodes < 1:
        raise ValueError(must_be("num_nodes", "a positive int", num_nodes, where, "Pass how many machines there are."))
    if environment.source == "alone":
        if num_nodes > 1:
            rule = "1 in a process that is started alone"
            action = "Start the script on every machine with torchrun or srun."
            raise ValueError(must_be("num_nodes", rule, num_nodes, where, action))
        # Nobody has started several: all GPUs are taken, but one process where there are none.
        num_local = num_devices or (_num_devices(kind) if kind == "cuda" else 1)
        local_rank, world_size, nodes = 0, num_local, 1
    else:
        local_rank, num_local, nodes = _local(environment, num_nodes, where)
        world_size = environment.world_size
        if num_devices is not None and num_devices != num_local:
            rule = f"{num_local}, as many processes as were started on this machine, or 'auto'"
            action = f"Leave it out, or start {num_devices} processes a machine."
            raise ValueError(must_be("devices", rule, devices, where, action))
    device = _device(kind, device_idxs, local_rank, num_local, where)
    return Placement(device, local_rank, world_size, nodes)


def _device_kind(accelerator: str, where: str) -> str:
    if accelerator not in ("auto", "cpu", "cuda", "gpu"):
        rule = "'auto', 'cpu', 'cuda' or 'gpu'"
        action = "Pass one of these: processes cannot reduce tensors of other devices."
        raise ValueError(must_be("accelerator", rule, accelerator, where, action))
    if accelerator == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    # Checks that it is there.
    return choose_device("cpu" if accelerator == "cpu" else "cuda").type


def _num_devices(kind: str) -> int:
    return torch.cuda.device_count() if kind == "cuda" else 1


def _read_devices(devices: int | str | Sequence[int], kind: str, where: str) -> tuple[list[int] | None, int | None]:
    """The indexes of the devices, if they were given, and how many there are a machine, if that was said."""
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
    elif isinstance(wanted, Sequence) and not isinstance(wanted, str) and kind == "cuda":
        num_present = _num_devices(kind)
        is_index = [type(idx) is int and 0 <= idx < num_present for idx in wanted]
        if wanted and all(is_index) and len(set(wanted)) == len(wanted):
            return list(wanted), len(wanted)
        rule = f"different indexes of this machine's {num_present} CUDA devices"
        raise ValueError(must_be("devices", rule, devices, where, "Pass the devices to use, or how many."))
    rule = "a positive int, -1 (all) or 'auto'" + (", or a list of indexes" if kind == "cuda" else " on the CPU")
    raise ValueError(must_be("devices", rule, devices, where, "Pass how many processes there are to be a machine."))


def _local(environment: ProcessEnvironment, num_nodes: int, where: str) -> tuple[int, int, int]:
    """Index of a started process on its machine, how many there are on it, and how many machines there are.

    Where the launcher does not say, ranks are taken to be dealt out machine by machine, as many to each.
    """
    world_size, num_local, known = environment.world_size, environment.local_world_size, environment.num_nodes
    if known is None and num_local is not None:
        known = -(-world_size // num_local)
    if num_nodes != 1 and known is not None and num_nodes != known:
        rule = f"{known}, as many machines as the processes were started on, or left out"
        raise ValueError(must_be("num_nodes", rule, num_nodes, where, "Leave it out, or start as many."))
    nodes = known if known is not None else num_nodes
    if num_local is None:
        if world_size % nodes:
            rule = f"a divisor of the {world_size} processes that were started"
            action = "Pass as many as there are, or set LOCAL_RANK and LOCAL_WORLD_SIZE."
            raise ValueError(must_be("num_nodes", rule, num_nodes, where, action))
        num_local = world_size // nodes
    local_rank = environment.local_rank
    return environment.global_rank % num_local if local_rank is None else local_rank, num_local, nodes


def _device(kind: str, device_idxs: list[int] | None, local_rank: int, num_local: int, where: str) -> torch.device:
    if kind == "cpu":
        return torch.device("cpu")
    if device_idxs is not None:
        return torch.device("cuda", device_idxs[local_rank])
    num_present = _num_devices(kind)
    if num_present == 1:
        # Each process may be shown its own device only, as `srun --gpus-per-task=1` does.
        return torch.device("cuda", 0)
    if num_local > num_present:
        rule = f"at most {num_present}, as many CUDA devices as this machine has"
        raise ValueError(
            must_be("devices", rule, num_local, where, "Start fewer processes, or pass accelerator='cpu'.")
        )
    return torch.device("cuda", local_rank)


ACCELERATORS = ("auto", "cpu", "cuda", "gpu", "mps")


def choose_device(accelerator: str = "auto", device_idx: int = 0) -> torch.device:
    """The device that a name stands for.

    Args:
        accelerator: "cpu", "cuda", "mps", "gpu" (CUDA or MPS), or "auto" (the best that there is).
        device_idx: Index among the machine's devices of this kind; the CPU has one, numbered 0.

    Returns:
        The device.

    Raises:
        ValueError: If the name is unknown, or there is no device of this index.
        RuntimeError: If this machine has no such accelerator.
    """
    if accelerator not in ACCELERATORS:
        raise ValueError(
            f"`accelerator` must be one of {', '.join(ACCELERATORS)}, but got {accelerator!r} "
            f"({type(accelerator).__name__}) in choose_device. Pass one of these."
        )
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    candidates = {"auto": ("cuda", "mps", "cpu"), "gpu": ("cuda", "mps")}.get(accelerator, (accelerator,))
    kind = next((candidate for candidate in candidates if available[candidate]), None)
    if kind is None:
        raise RuntimeError(
            f"`accelerator` must be present on this machine, but got {accelerator!r} (str), which torch "
            f"{torch.__version__} does not find, in choose_device. Pass 'cpu', or install a torch build for it."
        )
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if not 0 <= device_idx < count:
        raise ValueError(
            f"`device_idx` must be from 0 to {count - 1}, but got {device_idx} ({type(device_idx).__name__}) for "
            f"{kind!r} in choose_device. Pass one of these."
        )
    return torch.device("cpu") if kind == "cpu" else torch.device(kind, device_idx)
