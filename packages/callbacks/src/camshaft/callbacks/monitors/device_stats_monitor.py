"""Callback that logs the device's memory and the machine's load."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

import torch

from camshaft.callbacks.arguments import check_installed
from camshaft.callbacks.monitors.logging_schedule import LoggingSchedule, check_has_logger, log_to_all
from camshaft.hooks_core import Callback
from camshaft.hooks_core.protocols import TrainerProtocol
from camshaft.hooks_core.support.messages import warn_user


class DeviceStatsMonitor(Callback):
    """Logs the accelerator's memory and the machine's load before and after batches.

    In training that is every `trainer.log_every_n_steps` updates, elsewhere as often in batches.

    For an accelerator: the statistics of its allocator, under torch's names such as "allocated_bytes.all.peak", in
    bytes. For the machine: "cpu_percent" since the last time, "cpu_vm_percent" and "cpu_swap_percent" of its memory,
    and "process_rss_bytes" of this process. Names begin with the hook, as in
    "DeviceStatsMonitor.on_train_batch_start/". Rank 0 measures its own device. The step is that of the values which the
    module logs in the same update.

    Args:
        cpu_stats: Whether to log the machine's load, which needs psutil (the extra `camshaft-callbacks[device-stats]`);
            None does so if the device is a CPU. False on a CPU logs nothing, with a warning.

    Raises:
        InvalidArgumentError: At the set-up of fit, if the trainer has no logger.
        ModuleNotFoundError: Likewise, if psutil is needed and not installed.
    """

    only_observes = True

    _of_run: ClassVar[tuple[str, ...]] = ("_psutil", "_process")

    def __init__(self, cpu_stats: bool | None = None) -> None:
        self.cpu_stats = cpu_stats
        self._schedule = LoggingSchedule()
        self._psutil: Any = None
        self._process: Any = None
        self._due_step: int | None = None
        self._evaluation = "validation"

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Check that there is something to log, and a logger."""
        where, is_cpu = type(self).__name__, trainer.strategy.device.type == "cpu"
        self._evaluation = stage if stage in ("test", "predict") else "validation"
        if stage == "fit":
            check_has_logger(trainer, where)
            if is_cpu and self.cpu_stats is False:
                warn_user(f"{where} logs nothing on a CPU with cpu_stats=False. Pass True or None for the CPU's load.")
        self._psutil = self._process = None
        if trainer.loggers and (is_cpu if self.cpu_stats is None else self.cpu_stats):
            check_installed("psutil", "device-stats", where)
            self._psutil = import_module("psutil")
            self._process = self._psutil.Process()  # slower to construct than to query

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Start the schedule."""
        if trainer.is_global_zero:
            self._schedule.start(trainer)
            if self._psutil is not None:
                self._psutil.cpu_percent()  # starts the interval that the next call measures

    def on_train_batch_start(self, trainer: TrainerProtocol, module: Any, batch: Any, batch_idx: int) -> None:
        """Log, if it is due."""
        if trainer.global_step >= self._schedule.next_step:
            self._schedule.advance(trainer)
            self._due_step = trainer.global_step
            self._log(trainer, "on_train_batch_start", self._due_step)

    def on_train_batch_end(
        self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log, if it was due before the batch."""
        if self._due_step is not None:
            self._log(trainer, "on_train_batch_end", self._due_step)
            self._due_step = None

    def on_validation_batch_start(
        self, trainer: TrainerProtocol, module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Log, if it is due."""
        self._log_evaluation(trainer, batch_idx, "start")

    def on_validation_batch_end(
        self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Log, if it is due."""
        self._log_evaluation(trainer, batch_idx, "end")

    on_test_batch_start = on_predict_batch_start = on_validation_batch_start
    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    def on_train_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Stop the schedule."""
        self._schedule.stop()

    def state_dict(self) -> dict[str, Any]:
        """Return the schedule."""
        return self._schedule.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the schedule."""
        self._schedule.load_state_dict(state_dict)

    def _log_evaluation(self, trainer: TrainerProtocol, batch_idx: int, edge: str) -> None:
        every = trainer.log_every_n_steps
        if every and (batch_idx + 1) % every == 0 and trainer.is_global_zero and not trainer.sanity_checking:
            self._log(trainer, f"on_{self._evaluation}_batch_{edge}", trainer.global_step)

    def _log(self, trainer: TrainerProtocol, hook: str, step: int) -> None:
        device, psutil = trainer.strategy.device, self._psutil
        numbers: dict[str, float] = {} if device.type == "cpu" else torch.accelerator.memory_stats(device)
        if psutil is not None:
            numbers = {
                **numbers,
                "cpu_percent": psutil.cpu_percent(),
                "cpu_vm_percent": psutil.virtual_memory().percent,
                "cpu_swap_percent": psutil.swap_memory().percent,
                "process_rss_bytes": self._process.memory_info().rss,
            }
        if numbers:
            log_to_all(trainer, {f"{type(self).__name__}.{hook}/{name}": one for name, one in numbers.items()}, step)
