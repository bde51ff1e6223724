"""Callback that logs how much of its time training waits for data."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.monitors.logging_schedule import log_to_all, next_row
from camshaft.hooks_core import Callback
from camshaft.hooks_core.protocols import DataSource, TrainerProtocol


class DataWait(Callback):
    """Logs the share of time in which training steps wait for their batches.

    A step's time is that from asking for its batch to the end of its hooks; validation, checkpoints and the like
    between steps do not count. "data_wait" is the share of the latest steps of rank 0, logged after every
    `trainer.log_every_n_steps` updates. "data_wait/rank0" and so on are the shares of all ranks, logged at the end of
    an epoch, where the processes exchange them. Nothing else is exchanged, and no device is read or waited for.

    Times are those of the host. A GPU works through its queue while the host waits, so a small share there need not
    slow it down; a share near 1 does. The wait for the first batch of an epoch includes the start of workers.

    Attributes:
        share: Share of the steps of this process since the epoch began, or of the whole epoch after its end; None
            before its first step.

    Raises:
        InvalidArgumentError: At the start of fit, if the trainer does not tell of its wait for data.
    """

    only_observes = True
    after_module = frozenset({"on_train_batch_end"})

    def __init__(self) -> None:
        self._asked_at = self._wait = 0.0  # of the batch that runs
        self._next_row: float = 0.0
        self._recent = [0.0, 0.0]  # seconds of waiting, and of whole steps, since the latest row
        self._in_epoch = [0.0, 0.0]

    @property
    def share(self) -> float | None:
        """Share of time in which the epoch's steps of this process waited for data."""
        return _share(self._in_epoch)

    def on_fit_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Watch the wait for training batches."""
        watch_data(trainer, self, self._ask, self._receive)

    def on_train_epoch_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Begin anew."""
        self._in_epoch, self._recent = [0.0, 0.0], [0.0, 0.0]
        self._schedule(trainer)

    def on_train_batch_end(
        self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add a step; write a row if one is due."""
        seconds = perf_counter() - self._asked_at
        for sums in (self._recent, self._in_epoch):
            sums[0] += self._wait
            sums[1] += seconds
        if trainer.global_step >= self._next_row:
            if trainer.is_global_zero:
                log_to_all(trainer, {"data_wait": _share(self._recent) or 0.0}, trainer.global_step - 1)
            self._recent = [0.0, 0.0]
            self._schedule(trainer)

    def on_train_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Log the shares of all ranks. Collective."""
        shares = trainer.strategy.all_gather(self.share)
        if trainer.is_global_zero and trainer.log_every_n_steps:
            rows = {f"data_wait/rank{rank}": share for rank, share in enumerate(shares) if share is not None}
            log_to_all(trainer, rows, max(trainer.global_step - 1, 0))

    def _ask(self) -> None:
        self._asked_at = perf_counter()

    def _receive(self) -> None:
        self._wait = perf_counter() - self._asked_at

    def _schedule(self, trainer: TrainerProtocol) -> None:
        self._next_row = next_row(trainer.global_step, trainer.log_every_n_steps)


def watch_data(trainer: TrainerProtocol, where: object, before: Any, after: Any) -> None:
    """Let a trainer call functions around its wait for each training batch.

    Raises:
        InvalidArgumentError: If it cannot.
    """
    if not isinstance(trainer, DataSource):
        rule, action = "one with `watch_data`, to tell of its wait for data", "Leave this callback out."
        raise InvalidArgumentError("trainer", rule, trainer, where, action)
    trainer.watch_data(before, after)


def _share(sums: list[float]) -> float | None:
    return sums[0] / sums[1] if sums[1] else None
