"""Callback that finds the rank, and what it does, that the others wait for."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median_low
from time import perf_counter
from typing import Any

import attrs
import torch
from torch import Tensor

from camshaft.callbacks.arguments import check_number
from camshaft.callbacks.monitors.data_wait import watch_data
from camshaft.callbacks.monitors.logging_schedule import log_to_all
from camshaft.hooks_core import Callback, Receiver
from camshaft.hooks_core.protocols import Strategy, TrainerProtocol
from camshaft.hooks_core.support.messages import warn_user

PHASES = ("data", "hooks", "forward", "backward", "collective")
"""Parts of a step whose times are compared between ranks."""

_PARTS_OF_THE_LOOP = frozenset({"backward", "optimizer_step", "lr_scheduler_step"})  # hooks that enclose other phases
_REST, _WAITING = "rest", "waiting"


@attrs.frozen
class Straggler:
    """Finding of a sampled step.

    Attributes:
        step: Index of the update.
        rank: The rank that the others wait for longest.
        node: The name of its host.
        phase: What it does then, one of `PHASES`.
        seconds: How much longer it takes for that than the median rank.
        step_seconds: The time of the step, of the slowest rank.
        times: By phase, the seconds of each rank.
    """

    step: int
    rank: int
    node: str
    phase: str
    seconds: float
    step_seconds: float
    times: dict[str, list[float]]


@attrs.define(slots=False, eq=False, repr=False)
class StragglerReport(Callback):
    """Finds the rank, its node and the phase that the other ranks wait for, on every so-many-th step.

    Gradients are averaged by all ranks together, so each rank's step takes as long as the slowest one's, and times of
    whole steps tell nothing. On a sampled step (all batches of an update) the ranks therefore meet at a barrier before
    each forward and backward pass, and each measures by itself: its wait for data, its hooks, its forward pass
    (`training_step`), its backward pass up to its last gradient, and from there, past the slowest rank's, the
    collective. The times are then exchanged. Between samples no step has a barrier, an exchange or a synchronisation.

    If a rank is slower in a phase than the median rank, by at least a share of the step, rank 0 warns with its number,
    host and phase, once while it stays so. Every sample is logged as "straggler/<phase>", the seconds by which the
    slowest rank exceeds the median there. On accelerators a sampled step waits for the device at the borders of phases.

    It is made for data parallelism: where ranks communicate inside of their forward and backward passes, as sharded
    ones do, these wait for each other there, so only data and hooks are told apart; `fit` warns of that. With a single
    process it does nothing.

    Args:
        every_n_steps: Updates between two samples.
        threshold: Least share of the step that a rank must be behind to be warned of.

    Attributes:
        latest: What the latest sample found, in every rank; None before the first.

    Raises:
        InvalidArgumentError: If an argument is out of range; or at the start of fit with several processes, if the
            trainer does not tell of its wait for data.
    """

    only_observes = True
    after_module = frozenset({"on_before_backward", "on_train_batch_end"})

    every_n_steps: int = attrs.field(default=100, kw_only=True)
    threshold: float = attrs.field(default=0.1, kw_only=True)
    latest: Straggler | None = attrs.field(default=None, init=False)
    _trainer: Any = attrs.field(default=None, init=False)  # while several processes train
    _next_step: float = attrs.field(default=math.inf, init=False)
    _sample: _Sample | None = attrs.field(default=None, init=False)
    _warned_of: tuple[int, str] | None = attrs.field(default=None, init=False)  # rank and phase

    def __attrs_post_init__(self) -> None:
        super().__init__()
        check_number(self, least=1, every_n_steps=self.every_n_steps)
        check_number(self, "Pass a share such as 0.1.", least=0, most=1, threshold=self.threshold)

    def wrap_call(
        self, hook: str, kind: Receiver, receiver: object, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return a version of a hook's function that is timed on sampled steps; called when a run resolves its hooks.

        Args:
            hook: The hook's name.
            kind: The kind of receiver.
            function: Its bound method.
        """
        if receiver is self or hook in _PARTS_OF_THE_LOOP:
            return function
        is_step = hook == "training_step"

        def timed(*arguments: Any, **keywords: Any) -> Any:
            sample = self._sample
            if sample is None:
                return function(*arguments, **keywords)
            if is_step:
                sample.meet()
            with sample.inside("forward" if is_step else "hooks"):
                return function(*arguments, **keywords)

        return timed

    def on_fit_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Watch the wait for data, if there are several processes."""
        self._trainer = self._sample = self._warned_of = None
        if trainer.strategy.world_size == 1:
            return
        watch_data(trainer, self, self._ask, self._receive)
        self._trainer = trainer
        self._next_step = trainer.global_step + self.every_n_steps - 1
        is_sharded = any(hasattr(parameter, "device_mesh") for parameter in module.parameters())
        if is_sharded:
            warn_user(
                f"{type(self).__name__} cannot tell which rank is slow in its forward or backward pass here, where "
                "sharded ranks wait for each other: it compares data and hooks. Measure compute with `DDPStrategy`."
            )

    def on_before_backward(self, trainer: TrainerProtocol, module: Any, loss: Tensor) -> None:
        """Meet the other ranks on a sampled step, and time the backward pass from there. Collective there."""
        if self._sample is not None:
            self._sample.begin_backward(loss)

    def on_after_backward(self, trainer: TrainerProtocol, module: Any) -> None:
        """End the time of the backward pass and its collective."""
        if self._sample is not None:
            self._sample.end_backward()

    def on_train_batch_end(
        self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Compare the ranks after a sampled update. Collective there."""
        sample = self._sample
        if sample is not None and trainer.global_step > sample.step:
            self._sample, self._next_step = None, sample.step + self.every_n_steps
            sample.switch(_REST)
            of_ranks = trainer.strategy.all_gather((socket.gethostname(), sample.seconds, sample.arrival))
            self.latest = _compare(sample.step, of_ranks)
            self._report(trainer, self.latest)

    def on_validation_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Drop a sample that validation interrupts."""
        self._sample = None

    def on_train_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Drop a sample without an update."""
        self._sample = None

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Release the trainer."""
        self._trainer = self._sample = None

    def _ask(self) -> None:
        if self._sample is None and self._trainer.global_step >= self._next_step:
            self._sample = _Sample(self._trainer.global_step, self._trainer.strategy)
        if self._sample is not None:
            self._sample.switch("data")

    def _receive(self) -> None:
        if self._sample is not None:
            self._sample.switch(_REST)

    def _report(self, trainer: TrainerProtocol, found: Straggler) -> None:
        if not trainer.is_global_zero:
            return
        log_to_all(trainer, {f"straggler/{phase}": _lag(found.times[phase]) for phase in PHASES}, found.step)
        slowest = (found.rank, found.phase) if found.seconds >= self.threshold * found.step_seconds else None
        is_known, self._warned_of = slowest == self._warned_of, slowest
        if slowest is not None and not is_known:
            warn_user(
                f"Ranks wait for rank {found.rank} on {found.node} in its phase {found.phase!r}: "
                f"{found.seconds * 1000:.1f} ms of the {found.step_seconds * 1000:.1f} ms of step {found.step}. "
                "Look there first: `latest.times` has the seconds of all ranks."
            )


class _Sample:
    """The clock of one process on a sampled step, which is in one phase at any moment.

    Attributes:
        step: Index of the update.
        seconds: Time in each phase so far.
        arrival: Time from barriers to the last gradients of this process.
    """

    def __init__(self, step: int, strategy: Strategy) -> None:
        self.step = step
        self.seconds = dict.fromkeys((*PHASES, _REST, _WAITING), 0.0)
        self.arrival = 0.0
        self._phase, self._since, self._met_at = _REST, perf_counter(), 0.0
        self._barrier, self._device = strategy.barrier, strategy.device

    def switch(self, phase: str) -> None:
        """End the phase that runs, once the device has done its work, and begin another."""
        if self._device.type != "cpu":
            torch.accelerator.current_stream(self._device).synchronize()
        now = perf_counter()
        self.seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now

    @contextmanager
    def inside(self, phase: str) -> Iterator[None]:
        """Return a context for a phase inside of the one that runs."""
        before = self._phase
        self.switch(phase)
        try:
            yield
        finally:
            self.switch(before)

    def meet(self) -> None:
        """Wait for the other ranks. Collective."""
        self.switch(_WAITING)
        self._barrier()
        self.switch(_REST)

    def begin_backward(self, loss: Tensor) -> None:
        """Meet the others, and time the pass from there up to the last gradient of this process. Collective."""
        self.meet()
        self.switch("backward")
        self._met_at = self._since
        if loss.requires_grad:
            loss.register_hook(self._watch_end)  # type: ignore[no-untyped-call]

    def _watch_end(self, gradient: Tensor) -> None:
        # Called as the pass begins. The engine calls what is queued when all gradients are there, in this order: this
        # comes before `DistributedDataParallel` waits for its reductions, which it queues with the last gradient.
        torch.autograd.Variable._execution_engine.queue_callback(self._end_of_compute)

    def _end_of_compute(self) -> None:
        self.switch("collective")
        self.arrival += self._since - self._met_at

    def end_backward(self) -> None:
        """End the pass."""
        self.switch(_REST)


def _compare(step: int, of_ranks: Sequence[tuple[str, dict[str, float], float]]) -> Straggler:
    """Return which rank is furthest behind, in which phase, from the host, times and arrivals of all."""
    last = max(arrival for _, _, arrival in of_ranks)
    times = {phase: [seconds[phase] for _, seconds, _ in of_ranks] for phase in PHASES}
    waits = [last - arrival for _, _, arrival in of_ranks]  # for the slowest backward pass, no part of the collective
    times["collective"] = [max(0.0, one - wait) for one, wait in zip(times["collective"], waits, strict=True)]
    phase = max(PHASES, key=lambda name: _lag(times[name]))
    rank = max(range(len(of_ranks)), key=times[phase].__getitem__)
    step_seconds = max(sum(seconds.values()) for _, seconds, _ in of_ranks)
    return Straggler(step, rank, of_ranks[rank][0], phase, _lag(times[phase]), step_seconds, times)


def _lag(seconds: Sequence[float]) -> float:
    return max(seconds) - median_low(seconds)
