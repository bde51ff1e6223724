"""Switches of torch that hold while a verb runs."""

from __future__ import annotations

import os
from typing import Any

import torch

from camshaft.callbacks.arguments import check_one_of
from camshaft.hooks_core import Callback

_CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


class TorchSwitches(Callback):
    """Sets switches of torch when a verb is set up, and puts the process back as it was when the verb ends.

    Args:
        deterministic: If true, operations without a deterministic algorithm raise; "warn" lets them warn. cuBLAS gets
            the workspace that it needs for it, unless the environment sets one. None leaves it as it is.
        benchmark: If true, cuDNN searches for the fastest algorithm; None leaves it as it is.
        detect_anomaly: If true, backward names the operation whose gradient is NaN; slow. None leaves it as it is.

    Raises:
        ValueError: If a value is none of these.
    """

    def __init__(
        self,
        deterministic: bool | str | None = None,
        benchmark: bool | None = None,
        detect_anomaly: bool | None = None,
    ) -> None:
        check_one_of(self, (True, False, "warn", None), deterministic=deterministic)
        check_one_of(self, (True, False, None), benchmark=benchmark, detect_anomaly=detect_anomaly)
        self.deterministic = deterministic
        self.benchmark = benchmark
        self.detect_anomaly = detect_anomaly
        self._before: dict[str, Any] | None = None

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Set the switches."""
        self._before = {
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
            "benchmark": torch.backends.cudnn.benchmark,
            "anomaly": torch.is_anomaly_enabled(),
            "check_nan": torch.is_anomaly_check_nan_enabled(),
            "workspace": os.environ.get(_CUBLAS_WORKSPACE),
        }
        if self.deterministic is not None:
            torch.use_deterministic_algorithms(bool(self.deterministic), warn_only=self.deterministic == "warn")
            if self.deterministic:
                os.environ.setdefault(_CUBLAS_WORKSPACE, ":4096:8")
        if self.benchmark is not None:
            torch.backends.cudnn.benchmark = bool(self.benchmark)
        if self.detect_anomaly is not None:
            torch.autograd.set_detect_anomaly(self.detect_anomaly)

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        """Restore the switches."""
        before, self._before = self._before, None
        if before is None:
            return
        torch.use_deterministic_algorithms(before["deterministic"], warn_only=before["warn_only"])
        torch.backends.cudnn.benchmark = before["benchmark"]
        torch.autograd.set_detect_anomaly(before["anomaly"], before["check_nan"])
        if self.deterministic and before["workspace"] is None:
            os.environ.pop(_CUBLAS_WORKSPACE, None)
