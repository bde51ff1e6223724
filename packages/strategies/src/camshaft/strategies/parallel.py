"""The base of strategies for several processes: launch, process group, collectives and failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from math import inf
from typing import Any, TypeVar, Unpack

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from camshaft.hooks_core.protocols import ReduceOp
from camshaft.hooks_core.support.messages import must_be
from camshaft.strategies.checkpoints.contents import dense_parts
from camshaft.strategies.checks import require
from camshaft.strategies.launch import collectives
from camshaft.strategies.launch.environment import (
    ProcessEnvironment,
    StartMethod,
    choose_start,
    find_process_environment,
)
from camshaft.strategies.launch.failures import CollectiveError
from camshaft.strategies.launch.placement import avoid_cuda_in_checks, check_usable_in_fork, place_process
from camshaft.strategies.launch.process_group import (
    JoinedGroup,
    JoinProcesses,
    check_backend,
    default_backend,
    has_group_of_one,
    join_process_group,
    leave_process_group,
)
from camshaft.strategies.launch.rank_zero import rank_zero_only_code
from camshaft.strategies.torch_strategy import TorchArguments, TorchStrategy

T = TypeVar("T")

_SETUP = "setup_module"
_COALESCED_BYTES = 250 * 2**20


class ParallelArguments(TorchArguments, total=False):
    """The arguments of `ParallelStrategy`, which its subclasses take too."""

    accelerator: str
    devices: int | str | Sequence[int]
    num_nodes: int
    backend: str | None
    timeout: timedelta | float
    max_restarts: int
    start_method: StartMethod | None


class ParallelStrategy(TorchStrategy):
    """The base class of strategies for several processes. Subclasses define how a model computes on them.

    The launcher is detected: a process group that is initialised already, torchrun (or any launcher that sets `RANK`
    and `WORLD_SIZE`), or SLURM's `srun`. Without a launcher, `connect` runs this process's command line once for each
    device, under PyTorch's elastic agent, and exits when these processes have ended. In a notebook and other
    interactive interpreters `run_in_forks` runs a function in as many forks instead.

    A group of torch's backend "fake" that is initialised already is a simulated world: this process plays one rank of
    many without the others; see `JoinedGroup.is_simulated`.

    Args:
        accelerator: "cpu", a type of `torch.accelerator` such as "cuda", or "gpu", that of this machine; "auto" is that
            if processes can reduce its tensors, else the CPU.
        devices: The number of processes on this machine, one per device; for an accelerator also a list of device
            indexes. -1 means all devices. "auto" is the number of processes that the launcher started; without a
            launcher, all devices of the accelerator or one CPU.
        num_nodes: The number of machines; 1 means the launcher's number.
        backend: The backend of the process group; the default is gloo for the CPU, and torch's for the accelerator
            (NCCL for CUDA) with gloo beside it. A group that is initialised already keeps its backend.
        timeout: The time that a collective waits for other ranks, and within which one failed rank ends all: a
            `timedelta`, or seconds. Collectives of a group that is initialised already keep their timeout.
        max_restarts: The maximum number of restarts of all processes by the elastic agent after a failure. Under
            torchrun, it must equal torchrun's.
        start_method: How this process starts the others where no launcher has: "script" runs its command line once for
            each, "fork" forks it, see `run_in_forks`. None forks in a notebook, an IPython shell and an interactive
            shell.
        **common: As for `TorchStrategy`: `precision`, `save_asynchronously`, `compile` and `copy_stream`.

    Attributes:
        num_nodes: The number of machines.
        start_method: How this process has to start the others; None if a launcher has, or there are none.
        join_processes: A function that initialises the default process group in place of this strategy; `connect`
            calls it with the strategy's own function. None, the default, leaves it to the strategy.

    Raises:
        ValueError: If an argument is out of range, or contradicts the launcher.
        RuntimeError: If the accelerator is not available; if the launcher did not set the address of rank 0; or if
            this process has to start others, without forks, and runs no script or module (`-c`, a test).
    """

    def __init__(
        self,
        *,
        accelerator: str = "auto",
        devices: int | str | Sequence[int] = "auto",
        num_nodes: int = 1,
        backend: str | None = None,
        timeout: timedelta | float = timedelta(minutes=10),
        max_restarts: int = 0,
        start_method: StartMethod | None = None,
        **common: Unpack[TorchArguments],
    ) -> None:
        where = type(self).__qualname__
        if start_method == "fork":
            avoid_cuda_in_checks()
        self._place = partial(place_process, accelerator=accelerator, devices=devices, num_nodes=num_nodes, where=where)
        self._take_place()
        self._max_restarts = max_restarts
        self.start_method = choose_start(self._environment, self.world_size, max_restarts, start_method, where)
        super().__init__(self._placement.device, **common)
        self._timeout = _to_timedelta(timeout, where)
        self._backend = default_backend(self.device) if backend is None else check_backend(backend, self.device, where)
        self._group: JoinedGroup | None = None
        self.join_processes: JoinProcesses | None = None

    @property
    def timeout(self) -> timedelta:
        """The time that a collective waits for other ranks."""
        return self._timeout

    @property
    def device_ids(self) -> list[int]:
        """The index of each device that is used on this machine; on the CPU they are numbered from 0."""
        return list(self._placement.device_ids)

    def connect(self) -> None:
        """Join the process group, which stays until the interpreter ends. Collective.

        Without a launcher, this process starts all ranks, waits for them, and exits. If every rank failed in the run
        before, they join a new group.

        Raises:
            CollectiveError: If some ranks, but not all, failed before.
            SystemExit: In the process that started the others, once they have ended; see `elastic_launch.launch`.
            RuntimeError: If the other ranks are to be forks, outside of `run_in_forks`; if the group was initialised
                for another rank or world size, or `join_processes` initialised none; or if other ranks do not join
                within the timeout.
            Exception: Any error of `join_processes`.
        """
        if self.start_method == "fork":
            rule, action = "called in every rank", "Pass a function that calls it to `run_in_forks` of the strategy."
            raise RuntimeError(must_be("connect", rule, "the process to be forked", type(self).__qualname__, action))
        if self.start_method == "script":
            from camshaft.strategies.launch.elastic_launch import launch  # slow to import

            launch(self.world_size, self._max_restarts, type(self).__qualname__)
        super().connect()
        self._group = join_process_group(
            self._environment, self.device, self._backend, self._timeout, self.join_processes
        )

    def run_in_forks(self, function: Callable[[], T]) -> T:
        """Call a function in a fork of this process for each rank, as in a notebook, and wait until all have ended.

        In its fork this strategy is that of the rank, not connected yet. The forks have copies of all objects: what the
        function changes stays there, and what it returns in rank 0 comes back. An interrupt interrupts every rank. The
        ranks share the cores: each has as many threads as there are cores for it.

        Args:
            function: The function. What it returns in rank 0 has to be picklable.

        Returns:
            What it returned in rank 0.

        Raises:
            RuntimeError: If the ranks are not to be forks (see `start_method`), this process has used the accelerator,
                so that forks cannot, or a rank ended without an error, as by a signal.
            KeyboardInterrupt: If this process was interrupted.
            BaseException: The error of the rank that failed first; its cause holds the traceback there.
        """
        if self.start_method != "fork":
            rule, action = "'fork' in the process that starts the ranks", "Call the function itself."
            where = f"{type(self).__qualname__}.run_in_forks"
            raise RuntimeError(must_be("start_method", rule, self.start_method, where, action))
        from camshaft.strategies.launch.forks import run_in_forks  # few runs need it

        return run_in_forks(self.world_size, partial(self._run_as_rank, function))

    def _run_as_rank(self, function: Callable[[], T]) -> T:
        """Call a function in a fork, where this strategy becomes that of the rank."""
        check_usable_in_fork(self.device, type(self).__qualname__)
        self._take_place()
        self.start_method = None
        if self._logical is not None:
            self._logical.place(self.global_rank)
        try:
            return function()
        except BaseException as error:
            self.note_failure(error)
            raise

    def _take_place(self) -> None:
        """Take the place of this process in its job, whose group it leaves if it was alone in it until now."""
        if has_group_of_one() and self._place(ProcessEnvironment("alone")).world_size > 1:
            leave_process_group()
        self._environment = find_process_environment()
        self._placement = self._place(self._environment)
        self.global_rank, self.world_size = self._environment.global_rank, self._placement.world_size
        self.local_rank, self.num_nodes = self._placement.local_rank, self._placement.num_nodes
        self.device = self._placement.device

    def broadcast(self, value: T, src: int = 0) -> T:
        """Return the value of the rank `src`; see `collectives.broadcast`. Collective."""
        group = self._enter("broadcast")
        is_own = self.world_size == 1 or group.is_simulated
        return value if is_own else collectives.broadcast(value, src, group.cpu_group)

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in their order; see `collectives.all_gather`. Collective."""
        group = self._enter("all_gather")
        is_own = self.world_size == 1 or group.is_simulated
        return [value] * self.world_size if is_own else collectives.all_gather(value, group.cpu_group)

    def reduce(self, tensor: Any, op: ReduceOp = "mean") -> Any:
        """Reduce a tensor over all ranks, element by element, or a number; see `collectives.reduce`. Collective.

        Args:
            tensor: The tensor, or a number, of which a number is returned.
            op: "mean", "sum", "max" or "min".

        Returns:
            The reduced tensor, or the number.
        """
        if not isinstance(tensor, Tensor):
            return self.reduce(torch.as_tensor(tensor), op).item()
        group = self._enter("reduce")
        backend = None if self.world_size == 1 else group.group_for(tensor.device)
        return collectives.reduce(tensor, op, backend, 1 if group.is_simulated else self.world_size)

    def start_max(self, values: Sequence[int]) -> Callable[[], list[int]]:
        """Begin to find the maxima of ints over all ranks, and return what waits for them. Collective.

        Until then this process computes on, and may call other collectives.
        """
        group = self._enter("reduce")
        is_own = self.world_size == 1 or group.is_simulated
        return (lambda: list(values)) if is_own else collectives.start_max(values, group.cpu_group)

    def logical_gradients(self) -> dict[int, dict[str, Tensor]]:
        """Return gradients of an open accumulation window by logical rank and parameter's name. Collective.

        Returns:
            Those of all logical ranks in rank 0, this process's in others; nothing between windows. Copy them before
            training goes on.
        """
        own = super().logical_gradients()
        group = self._enter("logical_gradients")
        if self.world_size == 1 or group.is_simulated:
            return own
        gathered = collectives.gather(own, group.cpu_group)
        return own if gathered is None else {index: one for each in gathered for index, one in each.items()}

    def barrier(self, name: str | None = None) -> None:
        """Wait until every rank calls this, whatever the name. Collective. Queued work of a GPU is not waited for."""
        group = self._enter("barrier")
        if self.world_size > 1 and not group.is_simulated:
            collectives.wait_for_all(group.cpu_group)

    def on_validation_start(self) -> None:
        """Prepare for evaluation, with the buffers of rank 0 in subclasses. Collective."""
        self._begin_evaluation("validate")

    def on_test_start(self) -> None:
        """Prepare for evaluation, with the buffers of rank 0 in subclasses. Collective."""
        self._begin_evaluation("test")

    def on_predict_start(self) -> None:
        """Prepare for evaluation, with the buffers of rank 0 in subclasses. Collective."""
        self._begin_evaluation("predict")

    def _begin_evaluation(self, stage: str) -> None:
        """Do nothing, unless a subclass has buffers to broadcast. Collective."""

    def _broadcast_buffers(self, buffers: Iterable[Tensor]) -> None:
        group = self._enter("enter_logical_rank")
        values = [torch.view_as_real(one) if one.is_complex() else one for one in map(Tensor.detach, buffers)]
        if values and not group.is_simulated:
            assert dist.group.WORLD is not None
            # as at a step without logical ranks
            dist._broadcast_coalesced(dist.group.WORLD, values, _COALESCED_BYTES, 0)  # type: ignore[attr-defined]

    def note_failure(self, error: BaseException) -> None:
        """Publish that this process failed: all processes end within the timeout.

        Later collectives of this process raise. If another rank failed before, a note on the error says so.
        """
        if self._group is not None and self._group.watch is not None:
            self._group.watch.note(error)

    def _check_only_module(self, module: nn.Module, known: nn.Module | None, known_name: str) -> None:
        """Raise `RuntimeError` if another module is set up already."""
        rule, name = f"the one that is set up ({known_name}) until `teardown`", type(module).__qualname__
        where, action = f"{type(self).__qualname__}.setup_module", "Set up one nn.Module that contains both."
        require(known is None or known is module, "module", rule, name, where, action, RuntimeError)

    def _enter(self, collective: str) -> JoinedGroup:
        """Return the group for a collective, also of a subclass, if every rank can be expected to call it.

        Raises:
            CollectiveError: Within rank-zero-only code, before `connect`, or after a rank failed.
        """
        code = rank_zero_only_code()
        if code is not None:
            raise CollectiveError(
                f"`{collective}` must be called by every rank, but got a call within {code}, on rank "
                f"{self.global_rank}. Call it outside: other ranks never reach this call."
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
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    is_valid = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < inf
    require(is_valid, "timeout", "a positive timedelta or number of seconds", timeout, where)
    return timedelta(seconds=seconds)


def check_same_structure(module: nn.Module, all_gather: Callable[[Any], list[Any]]) -> None:
    """Raise, on every rank, unless all have the same parameters and buffers in the same order. Collective.

    Args:
        module: This rank's module.
        all_gather: The strategy's collective.

    Raises:
        ValueError: If a rank's parameters or buffers differ from rank 0's, or a parameter has no shape yet.
    """
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    lazy = [name for name, value in tensors.items() if isinstance(value, UninitializedParameter)]
    own = [(name, None if name in lazy else tuple(value.shape), value.dtype) for name, value in tensors.items()]
    gathered = all_gather(own)
    if lazy:
        action = "Run the module once on a batch in `configure_model` or before."
        raise ValueError(must_be("parameter", "of a known shape", lazy[0], _SETUP, action))
    for rank, other in enumerate(gathered):
        if other != gathered[0]:
            pairs = zip(gathered[0], other, strict=False)
            first = next((pair for pair in pairs if pair[0] != pair[1]), (len(gathered[0]), len(other)))
            rule = f"the same on all ranks (rank 0 has {first[0]})"
            action = "Build the same module on every rank."
            raise ValueError(must_be("module", rule, first[1], f"{_SETUP} on rank {rank}", action))


def broadcast_tensors(tensors: Iterable[Tensor]) -> None:
    """Broadcast the values of rank 0 into tensors, in place. Collective."""
    with torch.no_grad():
        pending = []
        for tensor in (part for whole in tensors for part in dense_parts(whole)):
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
