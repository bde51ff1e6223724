"""Launchers' environments under Lightning's names: they say what the variables of this process say.

None of these needs to be passed to a trainer, which recognises torchrun, SLURM and its own launcher; one of one's own
is asked for the ranks.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from camshaft.compat.names.plugins.overrides import is_overridden
from camshaft.hooks_core.support.messages import must_be

_LOCAL_HOST = "127.0.0.1"
_DEFAULT_PORT = 12910


def _of_before(today: str, earlier: str, kind: type) -> Any:
    """Return a property that subclasses define, or have as a method of another name in a class of 1.2 to 1.5."""

    def get(self: Any) -> Any:
        if not hasattr(self, earlier):
            raise NotImplementedError(must_be(today, "defined", None, type(self).__qualname__, "Define it."))
        return kind(getattr(self, earlier)())

    return property(get, doc=f"`{earlier}()`, as in classes of 1.2 to 1.5.")


class ClusterEnvironment(ABC):
    """The place of this process among those of a launcher."""

    creates_processes_externally: Any = _of_before("creates_processes_externally", "creates_children", bool)
    main_address: Any = _of_before("main_address", "master_address", str)
    main_port: Any = _of_before("main_port", "master_port", int)

    @staticmethod
    def detect() -> bool:
        """Return False; in subclasses whether this process was started by this launcher."""
        return False

    @abstractmethod
    def world_size(self) -> int:
        """Return the number of processes."""

    @abstractmethod
    def set_world_size(self, size: int) -> None:
        """Take the number of processes, where the launcher does not say it."""

    @abstractmethod
    def global_rank(self) -> int:
        """Return the index of this process among all."""

    @abstractmethod
    def set_global_rank(self, rank: int) -> None:
        """Take the index of this process, where the launcher does not say it."""

    @abstractmethod
    def local_rank(self) -> int:
        """Return the index of this process on its machine."""

    @abstractmethod
    def node_rank(self) -> int:
        """Return the index of the machine."""

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Check the trainer's numbers against the launcher's; by default nothing."""
        return

    def teardown(self) -> None:
        """Clean up; by default nothing."""
        return


def _variable(*names: str, default: str | None = None) -> Callable[[Any], int]:
    """Return a method that reads a number from the first variable that is set, or else is a default."""

    def read(self: Any) -> int:
        found = next((os.environ[name] for name in names if name in os.environ), default)
        return int(os.environ[names[0]] if found is None else found)

    read.__doc__ = f"Return `{'` or `'.join(names)}`."
    return read


class LightningEnvironment(ClusterEnvironment):
    """No launcher, or one that sets `LOCAL_RANK`."""

    def __init__(self) -> None:
        self._main_port = -1
        self._world_size, self._global_rank = 1, 0

    @property
    def creates_processes_externally(self) -> bool:
        """True if `LOCAL_RANK` is set."""
        return "LOCAL_RANK" in os.environ

    @property
    def main_address(self) -> str:
        """`MASTER_ADDR`, or this machine's own."""
        return os.environ.get("MASTER_ADDR", _LOCAL_HOST)

    @property
    def main_port(self) -> int:
        """`MASTER_PORT`, or a free one."""
        if self._main_port == -1:
            self._main_port = int(os.environ.get("MASTER_PORT") or find_free_network_port())
        return self._main_port

    @staticmethod
    def detect() -> bool:
        """Return True."""
        return True

    def world_size(self) -> int:
        """Return the number that was set; 1 before."""
        return self._world_size

    def set_world_size(self, size: int) -> None:
        """Take the number of processes."""
        self._world_size = size

    def global_rank(self) -> int:
        """Return the index that was set; 0 before."""
        return self._global_rank

    def set_global_rank(self, rank: int) -> None:
        """Take the index of this process."""
        self._global_rank = rank

    local_rank = _variable("LOCAL_RANK", default="0")
    node_rank = _variable("NODE_RANK", "GROUP_RANK", default="0")

    def teardown(self) -> None:
        """Remove `WORLD_SIZE` from the environment."""
        os.environ.pop("WORLD_SIZE", None)


class _External(ClusterEnvironment):
    """Base of environments whose launcher starts all processes and numbers them."""

    creates_processes_externally = True

    def set_world_size(self, size: int) -> None:
        """Do nothing: the launcher says the number."""

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the launcher says the index."""


class TorchElasticEnvironment(_External):
    """The variables of torchrun."""

    @property
    def main_address(self) -> str:
        """`MASTER_ADDR`, or this machine's own."""
        return os.environ.setdefault("MASTER_ADDR", _LOCAL_HOST)

    @property
    def main_port(self) -> int:
        """`MASTER_PORT`, or 12910."""
        return int(os.environ.setdefault("MASTER_PORT", str(_DEFAULT_PORT)))

    @staticmethod
    def detect() -> bool:
        """Return whether torchrun started this process."""
        return torch.distributed.is_available() and torch.distributed.is_torchelastic_launched()

    world_size = _variable("WORLD_SIZE")
    global_rank = _variable("RANK")
    local_rank = _variable("LOCAL_RANK")
    node_rank = _variable("GROUP_RANK", default="0")

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Check the trainer's numbers against torchrun's.

        Raises:
            ValueError: If their product is not the number of processes.
        """
        if num_devices * num_nodes != self.world_size():
            rule = f"such that devices * num_nodes is {self.world_size()}, the number of torchrun's processes"
            raise ValueError(must_be("devices", rule, num_devices, f"num_nodes={num_nodes}", "Leave both out."))


class SLURMEnvironment(_External):
    """The variables of SLURM.

    Args:
        auto_requeue: Whether `Trainer(plugins=...)` adds a `PreemptionCheckpoint` that requeues the job on a signal.
        requeue_signal: The signal; None is SIGUSR1.
    """

    def __init__(self, auto_requeue: bool = True, requeue_signal: Any = None) -> None:
        self.auto_requeue = auto_requeue
        self.requeue_signal = requeue_signal

    @property
    def main_address(self) -> str:
        """`MASTER_ADDR`, or the first machine of the job."""
        nodes = os.environ.get("SLURM_NODELIST", _LOCAL_HOST)
        return os.environ.setdefault("MASTER_ADDR", self.resolve_root_node_address(nodes))

    @property
    def main_port(self) -> int:
        """`MASTER_PORT`, or one made of the job's number."""
        job = os.environ.get("SLURM_JOB_ID")
        port = _DEFAULT_PORT if job is None else 15000 + int(job[-4:])
        return int(os.environ.setdefault("MASTER_PORT", str(port)))

    @staticmethod
    def detect() -> bool:
        """Return whether SLURM started this process, and not as an interactive one."""
        return "SLURM_NTASKS" in os.environ and not _is_interactive()

    @staticmethod
    def job_name() -> str | None:
        """Return the job's name."""
        return os.environ.get("SLURM_JOB_NAME")

    @staticmethod
    def job_id() -> int | None:
        """Return the job's number; None if there is none, or the job is interactive."""
        job = os.environ.get("SLURM_JOB_ID", "")
        return int(job) if job.isdecimal() and not _is_interactive() else None

    world_size = _variable("SLURM_NTASKS")
    global_rank = _variable("SLURM_PROCID")
    local_rank = _variable("SLURM_LOCALID")
    node_rank = _variable("SLURM_NODEID")

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Check the trainer's numbers against SLURM's.

        Raises:
            ValueError: If one differs.
        """
        pairs = (("devices", num_devices, "SLURM_NTASKS_PER_NODE"), ("num_nodes", num_nodes, "SLURM_NNODES"))
        for field, number, variable in pairs:
            ours = os.environ.get(variable)
            if ours is not None and int(ours) != number and not _is_interactive():
                rule, where = f"`{variable}` = {ours}", "SLURMEnvironment"
                raise ValueError(must_be(field, rule, number, where, "Pass this number."))

    @staticmethod
    def resolve_root_node_address(nodes: str) -> str:
        """Return the first machine of a list such as `node[7-9,12]`."""
        nodes = re.sub(r"\[(.*?)[,-].*\]", r"\1", nodes)
        return re.sub(r"\[(.*?)\]", r"\1", nodes).split(" ")[0].split(",")[0]


RECOGNISED = (LightningEnvironment, SLURMEnvironment, TorchElasticEnvironment)
"""Those that a trainer finds out by itself."""


def set_variables(environment: ClusterEnvironment) -> None:
    """Set the variables of torchrun as an environment says that is not recognised, if it starts the processes.

    Args:
        environment: The environment.
    """
    says_itself = any(is_overridden(environment, name) for name in ("world_size", "global_rank", "local_rank"))
    if says_itself and environment.creates_processes_externally:
        os.environ.update(
            RANK=str(environment.global_rank()),
            WORLD_SIZE=str(environment.world_size()),
            LOCAL_RANK=str(environment.local_rank()),
            MASTER_ADDR=str(environment.main_address),
            MASTER_PORT=str(environment.main_port),
        )


def _is_interactive() -> bool:
    return SLURMEnvironment.job_name() in ("bash", "interactive")


def find_free_network_port() -> int:
    """Return a free port of this machine, or `STANDALONE_PORT`."""
    from torch.distributed.elastic.utils.distributed import get_free_port  # rarely needed

    return int(os.environ.get("STANDALONE_PORT") or get_free_port())  # type: ignore[no-untyped-call]
