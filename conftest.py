"""Shared by the tests of all packages: `gpu` and `simulated` tests are skipped, with the reason, where they cannot run.

`--simulated-device` registers the device of test_support/simulated_device, on which both kinds run then.

`--examples-factor=N` gives every property test N times as many examples as it says, `--tests-factor=N` runs a share of
the tests, drawn by a seed; the gate runs tests again with a tenth of the examples, and half of the tests.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

SIMULATED = "CAMSHAFT_SIMULATED_DEVICE"  # tells the processes that tests start; see test_support/launching.py


def reason_not_to_run(test: pytest.Item) -> str | None:
    """Return why a test cannot run here, for want of a device; None if it can."""
    gpu, is_simulated = test.get_closest_marker("gpu"), SIMULATED in os.environ
    if test.get_closest_marker("simulated") and not is_simulated:
        return "needs --simulated-device"
    if gpu is None:
        return None
    try:
        import torch
    except ImportError:
        return "needs an accelerator, but torch is not installed"
    num_devices, kind = gpu.kwargs.get("devices", 1), gpu.kwargs.get("kind")
    if torch.accelerator.device_count() < num_devices:
        return f"needs {num_devices} accelerators, but torch sees {torch.accelerator.device_count()}"
    found = torch.accelerator.current_accelerator()
    return f"needs {kind}, but this is {found}" if found is not None and kind not in (None, found.type) else None


@pytest.fixture
def accelerator() -> str:
    """The type of this machine's accelerator, for tests marked `gpu`."""
    import torch

    found = torch.accelerator.current_accelerator()
    assert found is not None
    return found.type


@pytest.fixture
def without_waiting(accelerator: str) -> Callable[[], AbstractContextManager[None]]:
    """A context in which waiting for the accelerator is an error, for tests marked `gpu`."""

    @contextmanager
    def simulated() -> Iterator[None]:
        with importlib.import_module("simulated_device").recording() as recorded:
            yield
        assert not recorded.host_waits(), [event.place for event in recorded.host_waits()]

    @contextmanager
    def on_cuda() -> Iterator[None]:
        import torch

        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    if SIMULATED not in os.environ and accelerator != "cuda":
        pytest.skip(f"torch does not tell what waits for {accelerator}")
    return simulated if SIMULATED in os.environ else on_cuda


def pytest_configure(config: pytest.Config) -> None:
    """Let no property test fail for being slow: a busy machine is no fault."""
    if config.getoption("--simulated-device"):
        os.environ[SIMULATED] = "1"
        importlib.import_module("simulated_device")
    try:
        from hypothesis import settings
    except ImportError:
        return
    settings.register_profile("gate", deadline=None)
    settings.load_profile("gate")


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "Times as many examples as usual of each property test, drawn anew in every run; may be below 1."
    parser.addoption("--examples-factor", type=float, default=1.0, help=help_text)
    parser.addoption(
        "--tests-factor", type=float, default=1.0, help="The share of the tests to run, drawn by the seed."
    )
    parser.addoption(
        "--tests-seed", default=os.environ.get("CAMSHAFT_TESTS_SEED", ""), help="Any text; the gate passes the tree's."
    )
    help_text = "Run the tests marked `gpu` and `simulated` on a simulated accelerator, compiled at its first use."
    parser.addoption("--simulated-device", action="store_true", help=help_text)


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


def draw_tests(config: pytest.Config, items: list[pytest.Item], factor: float) -> None:
    seed = config.getoption("--tests-seed")
    drawn = {item: random.Random(f"{seed} {item.nodeid}").random() < factor for item in items}
    config.hook.pytest_deselected(items=[item for item in items if not drawn[item]])
    items[:] = [item for item in items if drawn[item]]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how the same tests are drawn again."""
    factor = config.getoption("--tests-factor")
    if factor != 1:
        terminalreporter.line(f"drawn by --tests-factor={factor:g} --tests-seed={config.getoption('--tests-seed')}")


def function_of(item: pytest.Item) -> Any:
    method = getattr(item, "obj", None)
    return getattr(method, "__func__", method)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    factor = config.getoption("--examples-factor")
    if factor != 1:
        multiply_examples(items, factor)
    if config.getoption("--tests-factor") != 1:
        draw_tests(config, items, config.getoption("--tests-factor"))
    for item in items:
        reason = reason_not_to_run(item)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def forked_python() -> Iterator[None]:
    """Fork the Python processes that a test starts from one that has imported torch."""
    with importlib.import_module("launching").forking_python():
        yield


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT interrupt this process, also where it was started in the background and ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_collection_finish() -> None:
    """Let full collections, which finders ask for, pass over what is imported by now: a tenth of the tests' time."""
    gc.collect()
    gc.freeze()
