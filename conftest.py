"""Shared by the tests of all packages: `gpu` tests are skipped, with the reason, where they cannot run."""

from __future__ import annotations

import pytest


def reason_without_gpu() -> str | None:
    try:
        import torch
    except ImportError:
        return "needs a CUDA device, but torch is not installed"
    if not torch.cuda.is_available():
        return "needs a CUDA device, but torch sees none"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_tests = [item for item in items if item.get_closest_marker("gpu")]
    reason = reason_without_gpu() if gpu_tests else None
    if reason is not None:
        for item in gpu_tests:
            item.add_marker(pytest.mark.skip(reason=reason))
