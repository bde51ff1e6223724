"""Joining the process group of a job, and leaving it when the interpreter ends."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache, partial
from types import TracebackType
from typing import Protocol
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

# Defaults of its functions are the group that there is at its import; imported later (by DDP), it keeps that group, and
# so the group's threads, until the interpreter is taken down.
import torch.distributed.nn.functional
from attrs import define
from torch.distributed import (  # type: ignore[attr-defined]
    HashStore,
    PrefixStore,
    Store,
    rendezvous,
)

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.processes import make_forks_safe
from camshaft.strategies.launch.environment import ProcessEnvironment, restart_count
from camshaft.strategies.launch.failures import FailureWatch


@define(eq=False)
class JoinedGroup:
    """The default process group with what this package keeps beside it.

    Attributes:
        default: The group itself.
        cpu_group: The same processes, with a backend for the CPU: `default` if that has one.
        is_own: Whether this package initialised it, and so is to destroy it.
        watch: What sees other processes fail; None in a group of one process.
    """

    default: dist.ProcessGroup
    cpu_group: dist.ProcessGroup
    is_own: bool
    watch: FailureWatch | None

    def group_for(self, device: torch.device) -> dist.ProcessGroup:
        """The group whose backend takes tensors of a device."""
        return self.default if device.type in _device_types(self.default) else self.cpu_group

    def release(self) -> None:
        """Let go of the groups, whoever holds this: their threads end with them, and must before the interpreter."""
        del self.default, self.cpu_group


_joined: JoinedGroup | None = None
# By rank and world size.
_stores: dict[tuple[int, int], Store] = {}
# How many groups this process has joined; all processes join the same ones, and each group's keys are its own.
_generation = 0


def default_backend(device: torch.device) -> str:
    """The backend for a device: gloo for the CPU; NCCL for CUDA, beside gloo for objects and tensors of the CPU."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def check_backend(backend: str, device: torch.device, where: str) -> str:
    """A backend that was asked for.

    Args:
        backend: One for all devices ("gloo"), or one for each kind ("cpu:gloo,cuda:nccl").
        device: The device whose tensors it must take.
        where: Who asks, for messages.

    Raises:
        ValueError: If torch does not know it, or it is not for the device.
    """
    parts = [part.rpartition(":") for part in backend.lower().split(",")] if isinstance(backend, str) else []
    kinds, names = {kind for kind, _, _ in parts}, {name for _, _, name in parts}
    takes_device = kinds == {""} or device.type in kinds
    is_known = bool(parts) and names <= dist.Backend.backend_type_map.keys() - {"undefined"}
    if not is_known or not takes_device or (device.type == "cpu" and names == {"nccl"}):
        rule = f"None, or a backend of torch.distributed that takes tensors of {device.type}"
        raise ValueError(must_be("backend", rule, backend, where, "Leave it out to have the fitting one."))
    return backend


def join_process_group(
    environment: ProcessEnvironment,
    device: torch.device,
    backend: str,
    timeout: timedelta,
    join: JoinProcesses | None = None,
) -> JoinedGroup:
    """Initialise the default process group, unless somebody did, and watch it. Collective; later calls return the same.

    It stays until the interpreter ends, so that runs follow each other at no cost. If all processes failed in a run,
    and their script goes on, they join a new one.

    Args:
        environment: Which process this is.
        device: Where it computes.
        backend: The group's backend, as `torch.distributed.init_process_group` takes it.
        timeout: How long a collective, and joining, waits for the other processes.
        join: Initialises the group, where nobody did, in place of what it gets; see `join_by`.

    Raises:
        CollectiveError: If a process failed before, and not all did.
        RuntimeError: If somebody, or `join`, initialised a group in which this process is another one than before, or
            `join` initialised none; or from torch, if the other processes do not come within the timeout.
        Exception: Whatever `join` raises.
    """
    global _joined, _generation
    if _joined is not None and _is_current(_joined):
        if _joined.watch is None or _joined.watch.failure is None:
            return _joined
        _abandon(_joined)
    make_forks_safe()
    is_own = not dist.is_initialized()
    if not is_own:
        _check_same_rank(environment)
    _generation += 1
    store = _open_store(environment, timeout) if is_own else _store_of_default_group()
    # All processes come by here equally often, and a restarted job may have the store of before.
    store = PrefixStore(f"camshaft/{restart_count()}/{environment.world_size}/{_generation}", store)
    watch = None
    if environment.world_size > 1:
        watch = FailureWatch(PrefixStore("failures", store), environment.global_rank, environment.world_size, timeout)
        watch.start()
    try:
        if is_own:
            initialise = partial(_initialise, environment, device, backend, timeout, store)
            initialise() if join is None else join_by(join, initialise, environment, store)
        default, cpu_group = _default_groups(timeout)
    except BaseException as error:
        if watch is not None:
            watch.note(error)
            atexit.register(watch.leave)
        raise
    _prepare_end()
    _joined = JoinedGroup(default, cpu_group, is_own, watch)
    return _joined


def _is_current(joined: JoinedGroup) -> bool:
    return dist.is_initialized() and joined.default is dist.group.WORLD


def _abandon(joined: JoinedGroup) -> None:
    """Let go of a group in which a process failed, if all did. Collective."""
    global _joined
    assert joined.watch is not None
    if not joined.is_own:
        joined.watch.check("connect")
    joined.watch.wait_until_all_failed()
    joined.watch.stop()
    _joined = None
    dist.destroy_process_group()
    joined.release()


def _check_same_rank(environment: ProcessEnvironment) -> None:
    found = (dist.get_rank(), dist.get_world_size())
    if found != (environment.global_rank, environment.world_size):
        rule = f"rank {environment.global_rank} of {environment.world_size}, as it was when the strategy was made"
        action = "Initialise torch.distributed before the strategy is made."
        raise RuntimeError(must_be("process group", rule, found, "connect", action))


def _open_store(environment: ProcessEnvironment, timeout: timedelta) -> Store:
    """The store at which the processes meet; the same for all groups of a job.

    Raises:
        RuntimeError: If the group that somebody else initialised is not there any more.
    """
    rank, world_size = environment.global_rank, environment.world_size
    if (rank, world_size) not in _stores:
        store: Store
        if world_size == 1:
            store = HashStore()  # needs no port
        elif environment.source == "initialised":
            action = "Initialise torch.distributed again before the strategy is made."
            raise RuntimeError(
                must_be("process group", "initialised, as when the strategy was made", None, "connect", action)
            )
        else:
            store, _, _ = next(rendezvous(environment.rendezvous, rank, world_size, timeout=timeout))
        store.set_timeout(timeout)
        _stores[rank, world_size] = store
    return _stores[rank, world_size]


def _initialise(
    environment: ProcessEnvironment, device: torch.device, backend: str, timeout: timedelta, store: Store
) -> None:
    dist.init_process_group(
        backend,
        store=store,
        rank=environment.global_rank,
        world_size=environment.world_size,
        timeout=timeout,
        device_id=device if device.type == "cuda" and "nccl" in backend else None,
    )


def _default_groups(timeout: timedelta) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """The default group, and the group for the CPU. Collective."""
    default = dist.group.WORLD
    assert default is not None
    has_cpu = "cpu" in _device_types(default)
    return default, default if has_cpu else dist.new_group(backend="gloo", timeout=timeout)


def _store_of_default_group() -> Store:
    from torch.distributed.distributed_c10d import _get_default_store

    # There is no public name for the store of a group that somebody else initialised.
    store: Store = _get_default_store()
    return store


def _device_types(group: dist.ProcessGroup) -> set[str]:
    """For which devices a group has a backend, by a configuration such as `cpu:gloo,cuda:nccl`."""
    return {part.partition(":")[0] for part in dist.get_backend_config(group).split(",")}


def _leave() -> None:
    """At the interpreter's end."""
    global _joined
    joined, _joined = _joined, None
    if joined is None:
        return
    has_failed = False
    if joined.watch is not None:
        joined.watch.leave()
        has_failed = joined.watch.failure is not None
        if has_failed and hasattr(signal, "setitimer"):
            # Whatever else is still to be done at exit is not to take for ever; this works without the interpreter.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, joined.watch.timeout_seconds)
    # After a failure the group may wait for processes that do not answer; it ends with this one.
    if not has_failed:
        if joined.is_own and _is_current(joined):
            dist.destroy_process_group()
        joined.release()
    _stores.clear()
    # A cycle may still hold the group. Its threads, which may want the interpreter, would abort a process that is
    # being taken down.
    gc.collect()


@cache
def _prepare_end() -> None:
    """Leave at the interpreter's end, and let an error outside of a run end the other processes too. Once."""
    atexit.register(_leave)
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _joined is not None and _joined.watch is not None:
            _joined.watch.note(error)
        previous(kind, error, trace)

    sys.excepthook = hook


_ACTION = (
    "Let it call torch.distributed.init_process_group(backend, rank=..., world_size=...), or what it gets, which does "
    "so; or remove it, and the strategy joins the processes."
)


class JoinProcesses(Protocol):
    """Initialises torch's default process group, in place of a strategy."""

    def __call__(self, join: Callable[[], None], /, *, is_started_by_slurm: bool) -> None:
        """Initialise it. Collective.

        Args:
            join: Does it as the strategy would.
            is_started_by_slurm: Whether the processes are tasks of SLURM.
        """


def join_by(join: JoinProcesses, default: Callable[[], None], this: ProcessEnvironment, store: Store) -> None:
    """Let somebody else initialise the default process group. Collective.

    Meanwhile the environment has `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` as torchrun sets them, with a
    port at which nobody listens yet: that of the job may have the keys of a group that was joined before, and where an
    elastic agent listens, an address of one's own would not be heeded.

    Args:
        join: Who does; it is called with `default`.
        default: Initialises the group as it would be otherwise.
        this: Which process this is.
        store: Where the processes meet.

    Raises:
        RuntimeError: If there is no group then, or this process is another one in it.
        Exception: Whatever `join` raises.
    """
    if this.global_rank == 0:
        store.set("master_port", str(_free_port()))
    values = {
        "RANK": str(this.global_rank),
        "WORLD_SIZE": str(this.world_size),
        "MASTER_ADDR": os.environ.get("MASTER_ADDR") or urlsplit(this.rendezvous).hostname or "localhost",
        "MASTER_PORT": store.get("master_port").decode(),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    with _variables(values):
        join(default, is_started_by_slurm=this.source == "slurm")
    expected = (this.global_rank, this.world_size)
    found = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else None
    if found != expected:
        if found is not None:
            dist.destroy_process_group()  # nobody else does, and its threads must end before the interpreter
        name = getattr(join, "__qualname__", type(join).__qualname__)
        rule = f"initialised by `{name}` as rank {this.global_rank} of {this.world_size}"
        raise RuntimeError(must_be("process group", rule, found, "connect", _ACTION))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    """Sets environment variables for a while: they also tell later strategies who has started this process."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
