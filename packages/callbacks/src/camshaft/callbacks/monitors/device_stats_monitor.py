"""Logging what the device and the machine are busy with."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from camshaft.callbacks.arguments import InvalidArgumentError, check_installed
from camshaft.callbacks.monitors.logging_schedule import LoggingSchedule, check_has_logger
from camshaft.hooks_core import Callback

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


class DeviceStatsMonitor(Callback):
    """Logs the accelerator's memory and the machine's load in training, every `trainer.log_every_n_steps` updates.

    Of an accelerator: what its allocator counts, by torch's own names such as "allocated_bytes.all.peak", in bytes. Of
    the machine: "cpu_percent" since the last time, "cpu_vm_percent" and "cpu_swap_percent" of its memory, and
    "process_rss_bytes" of this process. Names begin with "DeviceStatsMonitor.on_train_batch_start/". Rank 0 measures
    its own device. The update's row is that of the values which the module logs in it.

    Args:
        cpu_stats: Whether to log the machine's load, which takes psutil (the extra `camshaft-callbacks[device-stats]`);
            None does so where the device is a CPU.

    Raises:
        InvalidArgumentError: At the set-up of fit, if the trainer has no logger, or nothing would be logged.
        ModuleNotFoundError: Likewise, if psutil is needed and not installed.
    """

    _uncalled_methods: ClassVar[Mapping[str, str]] = {
        "_get_and_log_device_stats": "Override `on_train_batch_start` and `on_train_batch_end`.",
    }

    def __init__(self, cpu_stats: bool | None = None) -> None:
        self.cpu_stats = cpu_stats
        self._schedule = LoggingSchedule()
        self._psutil: Any = None
        self._process: Any = None

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Look whether there is something to log, and where to."""
        if stage != "fit":
            return
        where = type(self).__name__
        check_has_logger(trainer, where)
        is_cpu = trainer.strategy.device.type == "cpu"
        if is_cpu and self.cpu_stats is False:
            action = "Leave the callback out."
            raise InvalidArgumentError("cpu_stats", "True or None on a CPU, or nothing is logged", False, where, action)
        self._psutil = self._process = None
        if self.cpu_stats or is_cpu:
            check_installed("psutil", "device-stats", where)
            self._psutil = import_module("psutil")
            self._process = self._psutil.Process()  # finding it again takes longer than asking it

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Begin the first interval."""
        if trainer.is_global_zero:
            self._schedule.start(trainer)
            if self._psutil is not None:
                self._psutil.cpu_percent()  # the load is that since the last time

    def on_train_batch_start(self, trainer: TrainerProtocol, module: Any, batch: Any, batch_idx: int) -> None:
        """Log, if it is due."""
        if trainer.global_step >= self._schedule.next_step:
            self._schedule.advance(trainer)
            self._log(trainer)

    def on_train_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Nothing is due any more."""
        self._schedule.stop()

    def state_dict(self) -> dict[str, Any]:
        """When it logs next."""
        return self._schedule.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._schedule.load_state_dict(state_dict)

    def _log(self, trainer: TrainerProtocol) -> None:
        device = trainer.strategy.device
        numbers: dict[str, float] = {}
        if device.type != "cpu":
            numbers |= torch.accelerator.memory_stats(device)
        if self._psutil is not None:
            numbers |= _load_of_machine(self._psutil, self._process)
        named = {f"{type(self).__name__}.on_train_batch_start/{name}": value for name, value in numbers.items()}
        for logger in trainer.loggers:
            logger.log_metrics(metrics=named, step=trainer.global_step)


def _load_of_machine(psutil: Any, process: Any) -> dict[str, float]:
    return {
        "cpu_percent": psutil.cpu_percent(),
        "cpu_vm_percent": psutil.virtual_memory().percent,
        "cpu_swap_percent": psutil.swap_memory().percent,
        "process_rss_bytes": process.memory_info().rss,
    }
