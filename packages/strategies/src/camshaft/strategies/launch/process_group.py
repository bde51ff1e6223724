"""The process group of a job: joining it, and leaving it when the interpreter ends."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import cache, partial
from types import TracebackType
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

# Its functions have the default group at import as a default; imported later (by DDP), it would keep that group, and
# the group's threads, alive until interpreter shutdown.
import torch.distributed.nn.functional
from attrs import define, field
from torch.distributed import (  # type: ignore[attr-defined]
    HashStore,
    PrefixStore,
    Store,
    rendezvous,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _get_default_store  # it has no public name

from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.processes import make_forks_safe
from camshaft.strategies.launch.environment import ProcessEnvironment
from camshaft.strategies.launch.failures import FailureWatch
from camshaft.strategies.launch.starts import agree_on_start, has_agent_store, restart_count


@define(eq=False)
class JoinedGroup:
    """The default process group, with a group for the CPU and the failure watch.

    Attributes:
        cpu_group: A group of the same ranks with a backend for the CPU: `default` if that has one.
        is_own: Whether this package initialised the default group, and so destroys it.
        watch: The failure watch; None in a group of one process, and in a simulated one.
        meshes: Meshes of its ranks, by device type and shape: the threads of a mesh's groups live as long as this.
    """

    default: dist.ProcessGroup
    cpu_group: dist.ProcessGroup
    is_own: bool
    watch: FailureWatch | None
    meshes: dict[tuple[object, ...], DeviceMesh] = field(factory=dict)

    @property
    def is_simulated(self) -> bool:
        """Return whether it is one of torch's backend "fake": one process plays one of many ranks, without others.

        Each other rank is taken to have the same values as this one; sums of tensors are its own.
        """
        return dist.get_backend(self.default) == "fake"

    def group_for(self, device: torch.device) -> dist.ProcessGroup:
        """Return the group whose backend takes tensors of a device."""
        return self.default if device.type in _device_types(self.default) else self.cpu_group

    def drop_groups(self) -> None:
        """Delete the references to the groups: their threads end with them, and must end before the interpreter."""
        del self.default, self.cpu_group
        self.meshes.clear()


JoinProcesses = Callable[..., None]
"""A function that initialises torch's default process group in place of a strategy, on every rank.

It is called with the strategy's own function, and `is_started_by_slurm`: whether the processes are tasks of SLURM.
"""

_joined: JoinedGroup | None = None
# By rank and world size.
_stores: dict[tuple[int, int], Store] = {}
# The number of groups that this process has joined, the same on all ranks; part of the keys in the store.
_generation = 0


def default_backend(device: torch.device) -> str:
    """Return the backend for a device: gloo for the CPU, else torch's for it with gloo for objects and CPU tensors."""
    if device.type == "cpu":
        return "gloo"
    return f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"


def check_backend(backend: str, device: torch.device, where: str) -> str:
    """Return a backend, or raise `ValueError` if torch does not know it or it does not take the device's tensors.

    Args:
        backend: One for all devices ("gloo"), or one per device type ("cpu:gloo,cuda:nccl").
        where: The caller, for errors.
    """
    parts = [part.rpartition(":") for part in backend.lower().split(",")] if isinstance(backend, str) else []
    kinds, names = {kind for kind, _, _ in parts}, {name for _, _, name in parts}
    takes_device = kinds == {""} or device.type in kinds
    is_known = bool(parts) and names <= dist.Backend.backend_type_map.keys() - {"undefined"}
    if not is_known or not takes_device or (device.type == "cpu" and names == {"nccl"}):
        rule = f"None, or a backend of torch.distributed that takes tensors of {device.type}"
        raise ValueError(must_be("backend", rule, backend, where, "Leave it out for the default."))
    return backend


def join_process_group(
    environment: ProcessEnvironment,
    device: torch.device,
    backend: str,
    timeout: timedelta,
    join: JoinProcesses | None = None,
) -> JoinedGroup:
    """Initialise and watch the default process group, unless it is initialised. Collective.

    It stays until the interpreter ends, so that later runs use the same group. If all ranks failed in a run, and their
    script goes on, they join a new group.

    Args:
        environment: The environment of this process.
        device: The device of this process.
        backend: The group's backend, for `torch.distributed.init_process_group`.
        timeout: The time that a collective, and joining, waits for other ranks.
        join: A function that initialises the group in place of the strategy; see `custom_join`.

    Raises:
        CollectiveError: If some ranks, but not all, failed before.
        RuntimeError: If the initialised group has another rank or world size than `environment`, or `join`
            initialised none; or from torch, if other ranks do not join within the timeout.
        Exception: Any error of `join`.
    """
    global _joined, _generation
    if _joined is not None and _is_current(_joined):
        if _joined.watch is None or _joined.watch.failure is None:
            return _joined
        _abandon(_joined)
    make_forks_safe()
    is_own = not dist.is_initialized()
    expected = (environment.global_rank, environment.world_size)
    if not is_own and (found := (dist.get_rank(), dist.get_world_size())) != expected:
        rule = f"rank {expected[0]} of {expected[1]}, as it was when the strategy was made"
        action = "Initialise torch.distributed before making the strategy."
        raise RuntimeError(must_be("process group", rule, found, "connect", action))
    _generation += 1
    store = _open_store(environment, timeout) if is_own else _get_default_store()
    if environment.world_size > 1 and _generation == 1 and has_agent_store():
        starts = PrefixStore("camshaft/starts", store)
        agree_on_start(starts, environment.global_rank, environment.world_size, timeout)
    # all ranks join equally often
    store = PrefixStore(f"camshaft/{restart_count()}/{_generation}", store)
    watch = None
    if environment.world_size > 1 and not (dist.is_initialized() and dist.get_backend() == "fake"):
        watch = FailureWatch(PrefixStore("failures", store), environment.global_rank, environment.world_size, timeout)
        watch.start()
    try:
        if is_own:
            initialise = partial(
                dist.init_process_group,
                backend,
                store=store,
                rank=environment.global_rank,
                world_size=environment.world_size,
                timeout=timeout,
                # for backends that can split a group: `init_device_mesh` splits one that has a device
                device_id=device if device.type != "cpu" and "nccl" in backend else None,
            )
            initialise() if join is None else custom_join(join, initialise, environment, store)
        default = dist.group.WORLD
        assert default is not None
        has_cpu = "cpu" in _device_types(default)
        cpu_group = default if has_cpu else dist.new_group(backend="gloo", timeout=timeout)
    except BaseException as error:
        if watch is not None:
            watch.note(error)
            atexit.register(watch.leave)
        raise
    _register_exit_hooks()
    _joined = JoinedGroup(default, cpu_group, is_own, watch)
    return _joined


def _is_current(joined: JoinedGroup) -> bool:
    return dist.is_initialized() and joined.default is dist.group.WORLD


def _abandon(joined: JoinedGroup) -> None:
    """Destroy a group in which all ranks failed. Collective. Raises `CollectiveError` if some have not failed."""
    global _joined
    assert joined.watch is not None
    if not joined.is_own:
        joined.watch.check("connect")
    joined.watch.wait_until_all_failed()
    joined.watch.stop()
    _joined = None
    dist.destroy_process_group()
    joined.drop_groups()


def _open_store(environment: ProcessEnvironment, timeout: timedelta) -> Store:
    """Return the store of the job, the same for all of its groups.

    Raises:
        RuntimeError: If the group that was initialised elsewhere does not exist any more.
    """
    rank, world_size = environment.global_rank, environment.world_size
    if (rank, world_size) not in _stores:
        store: Store
        if world_size == 1:
            store = HashStore()  # needs no port
        elif environment.source == "initialised":
            rule = "initialised, as when the strategy was made"
            action = "Initialise torch.distributed again before making the strategy."
            raise RuntimeError(must_be("process group", rule, None, "connect", action))
        else:
            store, _, _ = next(rendezvous(environment.rendezvous, rank, world_size, timeout=timeout))
        store.set_timeout(timeout)
        _stores[rank, world_size] = store
    return _stores[rank, world_size]


def _device_types(group: dist.ProcessGroup) -> set[str]:
    """Return the device types for which a group has a backend, by a configuration such as `cpu:gloo,cuda:nccl`."""
    return {part.partition(":")[0] for part in dist.get_backend_config(group).split(",")}


def leave_process_group() -> None:
    """Leave the group for good, as at the end of this process."""
    global _joined
    joined, _joined = _joined, None
    if joined is None:
        return
    has_failed = False
    if joined.watch is not None:
        joined.watch.leave()
        has_failed = joined.watch.failure is not None
        if has_failed and hasattr(signal, "setitimer"):
            # Limits the time of all other exit handlers; the signal's default action needs no interpreter.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, joined.watch.timeout_seconds)
    # After a failure the group may wait for ranks that do not answer; then it ends with this process.
    if not has_failed:
        if joined.is_own and _is_current(joined):
            dist.destroy_process_group()
        joined.drop_groups()
    _stores.clear()
    # A reference cycle may still hold the group. Its threads may need the interpreter, and would abort the process
    # during interpreter shutdown.
    gc.collect()


def has_group_of_one() -> bool:
    """Return whether this package made the process group, of this process alone."""
    return _joined is not None and _joined.is_own and _is_current(_joined) and dist.get_world_size() == 1


@cache
def _register_exit_hooks() -> None:
    """Leave the group at interpreter exit, and publish errors outside of a run. Only the first call has an effect."""
    atexit.register(leave_process_group)
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _joined is not None and _joined.watch is not None:
            _joined.watch.note(error)
        previous(kind, error, trace)

    sys.excepthook = hook


def custom_join(join: JoinProcesses, default: Callable[[], None], this: ProcessEnvironment, store: Store) -> None:
    """Initialise the default process group by a custom function. Collective.

    Meanwhile the environment has `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` as under torchrun, with an
    unused port: the store at the job's port may hold the keys of a previous group, and the store of an elastic agent
    would be used despite another address.

    Args:
        join: The custom function; it is called with `default`.
        default: The strategy's own function.
        this: The environment of this process.
        store: The store of the job.

    Raises:
        RuntimeError: If there is no group afterwards, or this process has another rank in it.
        Exception: Any error of `join`.
    """
    if this.global_rank == 0:
        with socket.socket() as probe:
            probe.bind(("", 0))
            store.set("master_port", str(probe.getsockname()[1]))
    values = {
        "RANK": str(this.global_rank),
        "WORLD_SIZE": str(this.world_size),
        "MASTER_ADDR": os.environ.get("MASTER_ADDR") or urlsplit(this.rendezvous).hostname or "localhost",
        "MASTER_PORT": store.get("master_port").decode(),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        join(default, is_started_by_slurm=this.source == "slurm")
    finally:  # later strategies would take them for a launcher's
        for name in values:
            os.environ.pop(name, None)
        os.environ.update(before)
    expected = (this.global_rank, this.world_size)
    found = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else None
    if found != expected:
        if found is not None:
            dist.destroy_process_group()  # its threads must end before the interpreter
        name = getattr(join, "__qualname__", type(join).__qualname__)
        rule = f"initialised by `{name}` as rank {this.global_rank} of {this.world_size}"
        action = "Call torch.distributed.init_process_group in it, or the function that it gets, or remove it."
        raise RuntimeError(must_be("process group", rule, found, "connect", action))
