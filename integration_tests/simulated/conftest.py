"""Tests here name the simulated device as they are imported: without `--simulated-device` they are not collected."""

from __future__ import annotations

import pytest


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Ignore all files of this folder, unless the device is there."""
    return None if config.getoption("--simulated-device") else True
