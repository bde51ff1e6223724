from __future__ import annotations

from typing import Any

import handwritten_loop
import pytest
from recorded_runs import First, Second, departure, recorded, without

from camshaft.hooks_core import Callback
from camshaft.hooks_core.check import check
from camshaft.hooks_core.trace import Event


def broken(hook: str) -> type:
    """A callback that raises in a hook."""

    def explode(self: object, *arguments: Any) -> None:
        raise RuntimeError("on purpose")

    return type("Broken", (Callback,), {hook: explode})


@pytest.mark.parametrize("hook", ["setup", "on_fit_start", "on_train_batch_start", "on_before_backward", "on_fit_end"])
@pytest.mark.parametrize("overridden", [(), ("optimizer_step",)])
def test_a_run_that_raised_is_right_if_everybody_is_told_and_torn_down(hook: str, overridden: tuple[str, ...]) -> None:
    trace = recorded(callbacks=(First, broken(hook), Second), hooks=overridden)
    check(trace, "fit")


@pytest.mark.parametrize("hook", ["on_exception", "teardown"])
def test_handlers_that_raise_do_not_end_the_run_for_the_others(hook: str) -> None:
    trace = recorded(callbacks=(First, broken("on_fit_start"), broken(hook), Second))
    assert sum(bool(event.raised) for event in trace) == 2
    check(trace, "fit")
    check(recorded(callbacks=(First, broken("teardown"), Second)), "fit")


def test_an_exception_outside_of_every_hook_is_right_too() -> None:
    class Failing(handwritten_loop.Trainer):
        def optimize(self, epoch: int, batch_idx: int) -> Any:
            raise OSError("the loader failed")

    with pytest.raises(OSError, match="the loader failed"):
        recorded(trainer=Failing)

    trace = recorded()
    cut = next(index for index, event in enumerate(trace.events) if event.hook == "training_step")
    tail = [
        Event(kind, hook, one.name, one.kind)  # type: ignore[arg-type]
        for hook in ("on_exception", "teardown")
        for one in trace.participants
        if hook in one.hooks
        for kind in ("enter", "exit")
    ]
    trace.events[cut:] = tail
    check(trace, "fit")


def test_a_run_that_goes_on_after_an_exception_departs() -> None:
    trace = recorded(callbacks=(First, broken("on_train_epoch_start")))
    raised = next(index for index, event in enumerate(trace.events) if event.raised)
    trace.events[raised + 1 : raised + 1] = [Event("enter", "on_train_epoch_start", "Model", "module")]  # type: ignore[arg-type]
    error = departure(trace)
    assert (error.index, error.expected) == (raised + 1, ("on_exception on callback:First",))


def test_an_exception_that_an_enclosing_hook_keeps_to_itself_departs() -> None:
    trace = recorded(callbacks=(First, broken("on_before_backward")), hooks=("optimizer_step",))
    index = next(i for i, event in enumerate(trace.events) if event.hook == "optimizer_step" and event.raised)
    trace.events[index] = Event("exit", "optimizer_step", "Model", "module")  # type: ignore[arg-type]
    assert departure(trace).expected == ("RuntimeError to leave optimizer_step on module:Model",)


def test_telling_nobody_of_an_exception_departs() -> None:
    trace = recorded(callbacks=(First, broken("on_fit_start")))
    index = without(trace, *(one.label for one in trace.participants), hook="on_exception")
    error = departure(trace)
    assert (error.index, error.expected) == (index, ("on_exception on callback:First",))


def test_tearing_down_twice_departs() -> None:
    trace = recorded(callbacks=(First, broken("on_fit_start")))
    trace.events += [event for event in trace.events if event.hook == "teardown"]
    assert departure(trace).expected == ("the end of the run",)


def test_a_receiver_that_raised_while_tearing_down_is_not_torn_down_again() -> None:
    trace = recorded(callbacks=(broken("teardown"), Second))
    check(trace, "fit")
    trace.events += [Event(kind, "teardown", "Broken", "callback") for kind in ("enter", "exit")]  # type: ignore[arg-type]
    assert departure(trace).event is not None
