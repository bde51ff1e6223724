"""Joining the process group by a function of somebody else."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol
from urllib.parse import urlsplit

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from camshaft.hooks_core.messages import must_be
from camshaft.strategies.processes.process_environment import ProcessEnvironment

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
