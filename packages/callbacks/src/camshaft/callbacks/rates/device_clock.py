"""Moments in a device's work, and the time between them."""

from __future__ import annotations

import time
from typing import Any

import torch


class DeviceClock:
    """Measures how long a device's work took, without waiting for it when a moment is marked.

    On CUDA and XPU a mark is an event in the device's current stream: it is reached when the work that was queued
    before it is done. On the CPU it is a reading of `time.perf_counter`; on other devices too, after waiting for them.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module: Any = torch.get_device_module(device) if device.type in ("cuda", "xpu") else None
        self._waits = device.type not in ("cpu", "cuda", "xpu")

    def mark(self) -> Any:
        """Mark the end of the work queued so far."""
        if self._module is not None:
            event = self._module.Event(enable_timing=True)
            event.record(self._module.current_stream(self._device))
            return event
        if self._waits:
            torch.accelerator.synchronize(self._device)
        return time.perf_counter()

    def seconds_between(self, start: Any, end: Any) -> float:
        """Time from one mark to a later one; waits until the device has reached it."""
        if self._module is None:
            return float(end - start)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000.0
