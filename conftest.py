"""Shared by the tests of all packages: `gpu` tests are skipped, with the reason, where they cannot run.

`--examples-factor=N` gives every property test N times as many examples as it says; the gate runs some tests again
with a tenth of them.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest


def reason_without_gpu() -> str | None:
    try:
        import torch
    except ImportError:
        return "needs a CUDA device, but torch is not installed"
    if not torch.cuda.is_available():
        return "needs a CUDA device, but torch sees none"
    return None


def pytest_configure() -> None:
    """Let no property test fail for being slow: a busy machine is no fault."""
    try:
        from hypothesis import settings
    except ImportError:
        return
    settings.register_profile("gate", deadline=None)
    settings.load_profile("gate")


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "Times as many examples as usual of each property test, drawn anew in every run; may be below 1."
    parser.addoption("--examples-factor", type=float, default=1.0, help=help_text)


def multiply_examples(items: list[pytest.Item], factor: float) -> None:
    """Let property tests draw more or fewer examples, also those that say how many; others stay as they are."""
    from hypothesis import is_hypothesis_test, settings

    functions = {id(function): function for function in map(function_of, items) if is_hypothesis_test(function)}
    for function in functions.values():
        own = getattr(function, "_hypothesis_internal_use_settings", None) or settings()
        number = max(1, round(own.max_examples * factor))
        function._hypothesis_internal_use_settings = settings(
            own, max_examples=number, derandomize=False, print_blob=True
        )


def function_of(item: pytest.Item) -> Any:
    method = getattr(item, "obj", None)
    return getattr(method, "__func__", method)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    factor = config.getoption("--examples-factor")
    if factor != 1:
        multiply_examples(items, factor)
    gpu_tests = [item for item in items if item.get_closest_marker("gpu")]
    reason = reason_without_gpu() if gpu_tests else None
    if reason is not None:
        for item in gpu_tests:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Let full collections, which finders ask for, pass over what is imported by now: a tenth of the tests' time."""
    gc.collect()
    gc.freeze()
