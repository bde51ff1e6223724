"""The monitor of GPUs of releases 0.9 to 1.9."""

from __future__ import annotations

from typing import Any

from camshaft.callbacks import DeviceStatsMonitor
from camshaft.compat.names.stand_ins import StandIn
from camshaft.hooks_core.support.messages import warn_user


class GPUStatsMonitor(DeviceStatsMonitor, metaclass=StandIn):
    """`DeviceStatsMonitor`, which logs the statistics of torch's allocator in place of those of nvidia-smi.

    Args:
        args: What was to be logged; utilisation, fan speed and temperature are not.
        kwargs: The same by name.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warn_user(
            "GPUStatsMonitor logs the memory that torch allocates, as `DeviceStatsMonitor` does: not the utilisation, "
            "fan speed and temperature of nvidia-smi. Use `DeviceStatsMonitor()`."
        )
        super().__init__()
