"""Several processes, each with a device: how they start, find and hear each other, and fail together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from math import isfinite
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import ReduceOp
from camshaft.strategies.launch import collectives
from camshaft.strategies.launch.environment import check_launchable, find_process_environment
from camshaft.strategies.launch.failures import CollectiveError
from camshaft.strategies.launch.placement import place_process
from camshaft.strategies.launch.process_group import (
    JoinedGroup,
    JoinProcesses,
    check_backend,
    default_backend,
    join_process_group,
)
from camshaft.strategies.launch.rank_zero import rank_zero_only_code
from camshaft.strategies.precision import Precision
from camshaft.strategies.torch_strategy import TorchStrategy

T = TypeVar("T")


class ParallelStrategy(TorchStrategy):
    """Several processes of one job. Subclasses say how a model computes on them.

    Whoever starts the processes is found out by itself: a process group that is initialised already, torchrun (or
    anybody who sets `RANK` and `WORLD_SIZE`), SLURM's `srun`; or nobody. Then `connect` runs this process's command
    line once for each device, under PyTorch's elastic agent, and ends this process when they have ended.

    Args:
        accelerator: "cpu", "cuda" or "gpu"; "auto" is CUDA where there is some, else the CPU.
        devices: How many processes, each with a device, there are on this machine; for CUDA also a list of the
            devices' indexes. -1 means all there are. "auto" is as many as were started, and if nobody started
            several, all GPUs or one CPU.
        num_nodes: How many machines; left at 1, as many as the launcher says.
        precision: The number format; see `camshaft.strategies.precision.choose_precision`.
        backend: Of the process group; the default is gloo for the CPU, and NCCL with gloo beside it for CUDA. That of
            a group that is initialised already stays.
        timeout: How long a collective waits for the other processes, and within which one failing process ends all: a
            `timedelta`, or seconds. Collectives of a group that is initialised already keep theirs.
        max_restarts: How often the elastic agent starts all processes again after one failed. Where torchrun is the
            agent, it must say the same.
        save_asynchronously: Whether checkpoints are written while training goes on.

    Attributes:
        num_nodes: Number of machines.
        join_processes: Initialises the default process group in place of this strategy, where nobody did; called by
            `connect` with what this strategy would do. None, the default, leaves it to this strategy.

    Raises:
        ValueError: If an argument is not as said, or contradicts what was started.
        RuntimeError: If there is no such accelerator here; if this process was told of others but not where they are;
            or if it is to start several and runs no script or module (a notebook, a shell, a test).
    """

    __hook_base__: ClassVar[bool] = True

    def __init__(
        self,
        *,
        accelerator: str = "auto",
        devices: int | str | Sequence[int] = "auto",
        num_nodes: int = 1,
        precision: str | int | Precision = "32-true",
        backend: str | None = None,
        timeout: timedelta | float = timedelta(minutes=10),
        max_restarts: int = 0,
        save_asynchronously: bool = False,
    ) -> None:
        where = type(self).__qualname__
        self._environment = find_process_environment()
        self._placement = place_process(self._environment, accelerator, devices, num_nodes, where)
        self._max_restarts = max_restarts
        self._is_launcher = check_launchable(self._environment, self._placement.world_size, max_restarts, where)
        self.global_rank, self.world_size = self._environment.global_rank, self._placement.world_size
        self.local_rank, self.num_nodes = self._placement.local_rank, self._placement.num_nodes
        super().__init__(self._placement.device, precision=precision, save_asynchronously=save_asynchronously)
        self._timeout = _to_timedelta(timeout, where)
        self._backend = default_backend(self.device) if backend is None else check_backend(backend, self.device, where)
        self._group: JoinedGroup | None = None
        self.join_processes: JoinProcesses | None = None

    @property
    def timeout(self) -> timedelta:
        """How long a collective waits for the other processes."""
        return self._timeout

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the first of all processes."""
        return self.global_rank == 0

    def connect(self) -> None:
        """Join the other processes' group, which stays until the interpreter ends. Collective.

        Where nobody has started the other processes, this one starts them all, waits for them, and ends. After an error
        that all processes had, they join a new group.

        Raises:
            CollectiveError: If a process failed before, and others did not.
            SystemExit: In a process that started the others, when they have ended; see `elastic_launch.launch`.
            RuntimeError: If the group was initialised for other ranks, meanwhile or by `join_processes`, or by
                that not at all; or the others do not come in time.
            Exception: Whatever that raised.
        """
        if self._is_launcher:
            from camshaft.strategies.launch.elastic_launch import (
                launch,  # its imports take long, and nobody else needs them
            )

            launch(self.world_size, self._max_restarts, type(self).__qualname__)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self._group = join_process_group(
            self._environment, self.device, self._backend, self._timeout, self.join_processes
        )

    def broadcast(self, value: T, src: int = 0) -> T:
        """The value of the process `src` on every process; see `collectives.broadcast`. Collective."""
        group = self._enter("broadcast")
        return value if self.world_size == 1 else collectives.broadcast(value, src, group.cpu_group)

    def all_gather(self, value: T) -> list[T]:
        """The values of all processes, in their order; see `collectives.all_gather`. Collective."""
        group = self._enter("all_gather")
        return [value] if self.world_size == 1 else collectives.all_gather(value, group.cpu_group)

    def reduce(self, tensor: Tensor, op: ReduceOp = "mean") -> Tensor:
        """A new tensor of all processes' tensors, element by element; see `collectives.reduce`. Collective."""
        group = self._enter("reduce")
        backend = None if self.world_size == 1 else group.group_for(tensor.device)
        return collectives.reduce(tensor, op, backend, self.world_size)

    def barrier(self) -> None:
        """Return when every process is here. Collective. Work that waits on a GPU is not waited for."""
        group = self._enter("barrier")
        if self.world_size > 1:
            collectives.wait_for_all(group.cpu_group)

    def note_failure(self, error: BaseException) -> None:
        """Tell the other processes that this one failed: they end within the timeout, as does this one.

        From now on this process's collectives raise. If another failed before, a note on the error says so.
        """
        if self._group is not None and self._group.watch is not None:
            self._group.watch.note(error)

    def _enter(self, collective: str) -> JoinedGroup:
        """The group for a collective, if every process can be expected to come. Subclasses ask it for theirs, too.

        Raises:
            CollectiveError: Within rank-zero-only code, before `connect`, or after a process failed.
        """
        code = rank_zero_only_code()
        if code is not None:
            raise CollectiveError(
                f"`{collective}` must be called by every process, but got a call within {code}, on rank "
                f"{self.global_rank}. Call it outside: the other processes do not come by there."
            )
        if self._group is None:
            raise CollectiveError(
                f"`{collective}` must be called after `connect`, but got a call before it in "
                f"{type(self).__qualname__}. Call `connect` first, as the loops do."
            )
        if self._group.watch is not None:
            self._group.watch.check(collective)
        return self._group


def _to_timedelta(timeout: timedelta | float, where: str) -> timedelta:
    value = timeout if isinstance(timeout, timedelta) else None
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and isfinite(timeout):
        value = timedelta(seconds=timeout)
    if value is None or value <= timedelta(0):
        raise ValueError(must_be("timeout", "a positive timedelta or number of seconds", timeout, where, "Pass one."))
    return value


_WHERE = "setup_module"


def check_same_structure(module: nn.Module, all_gather: Callable[[Any], list[Any]]) -> None:
    """Raise, on every process, unless all have the same parameters and buffers in the same order. Collective.

    Args:
        module: This process's module.
        all_gather: Returns what all processes pass to it.

    Raises:
        ValueError: If one has others than the first process, or some that have no shape yet.
    """
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    lazy = [name for name, value in tensors.items() if isinstance(value, UninitializedParameter)]
    own = [(name, None if name in lazy else tuple(value.shape), value.dtype) for name, value in tensors.items()]
    gathered = all_gather(own)
    if lazy:
        action = "Run the module once on a batch in `configure_model` or before."
        raise ValueError(must_be("parameter", "of a known shape", lazy[0], _WHERE, action))
    for rank, other in enumerate(gathered):
        if other != gathered[0]:
            pairs = zip(gathered[0], other, strict=False)
            first = next((pair for pair in pairs if pair[0] != pair[1]), (len(gathered[0]), len(other)))
            rule = f"the same on all ranks (rank 0 has {first[0]})"
            action = "Build the module without looking at the rank."
            raise ValueError(must_be("module", rule, first[1], f"{_WHERE} on rank {rank}", action))


def broadcast_tensors(tensors: Iterable[Tensor]) -> None:
    """Give tensors the values that they have on the first process, in place. Collective."""
    with torch.no_grad():
        pending = []
        for tensor in tensors:
            if tensor.numel() == 0:
                continue
            values = tensor.detach()
            sent = torch.view_as_real(values) if values.is_complex() else values
            sent = sent.contiguous()
            pending.append((values, sent, dist.broadcast(sent, src=0, async_op=True)))
        for values, sent, work in pending:
            work.wait()
            received = torch.view_as_complex(sent) if values.is_complex() else sent
            if received.data_ptr() != values.data_ptr():
                values.copy_(received)
