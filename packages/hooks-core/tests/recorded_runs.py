"""Traces of the handwritten loop, to check as they are or to spoil first."""

from __future__ import annotations

from typing import Any

import handwritten_loop
import pytest

from camshaft.hooks_core import Callback, StrategyHooks, resolve
from camshaft.hooks_core.check import ConformanceError, check
from camshaft.hooks_core.conformance import Scenario
from camshaft.hooks_core.trace import Trace


class First(Callback):
    pass


class Second(Callback):
    monitors = True


def recorded(
    module: type = handwritten_loop.Model,
    trainer: type[handwritten_loop.Trainer] = handwritten_loop.Trainer,
    hooks: tuple[str, ...] = (),
    callbacks: tuple[type, ...] = (First, Second),
    **settings: Any,
) -> Trace:
    """The trace of a handwritten loop, whether it raises or not."""
    trace = Trace()
    scenario = Scenario(name="test", verb=settings.pop("verb", "fit"), description="", num_batches=2, **settings)
    receivers: dict[str, Any] = {
        "callbacks": [trace.record(callback(), "callback") for callback in callbacks],
        "data": trace.record(handwritten_loop.Data(), "data"),
        "module": trace.record(module(), "module", hooks=hooks),
        "strategy": trace.record(StrategyHooks(), "strategy"),
    }
    try:
        trainer(scenario, resolve(**receivers)).run()
    except RuntimeError:
        assert any(event.raised for event in trace)
    return trace


def departure(trace: Trace, verb: str = "fit", **options: Any) -> ConformanceError:
    with pytest.raises(ConformanceError) as caught:
        check(trace, verb, **options)
    return caught.value


def without(trace: Trace, *labels: str, hook: str) -> int:
    """Take the calls of a hook on some receivers out of a trace; returns where the first was."""
    first = next(index for index, event in enumerate(trace.events) if event.hook == hook and event.label in labels)
    trace.events[:] = [event for event in trace.events if event.hook != hook or event.label not in labels]
    return first
