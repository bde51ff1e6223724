"""Whatever the mode, its hooks come in the order of the life cycle of fit."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from bare_parts import BareStrategy, hooked, make_batches
from hypothesis import given, settings
from hypothesis import strategies as st
from overriding_parts import Data, override
from sequence_parts import Plan, Recurrent, fit, plans

from camshaft.hooks_core import Callback
from camshaft.hooks_core.check import ConformanceError, check
from camshaft.hooks_core.support.transfer import split_along_time
from camshaft.hooks_core.trace import Trace

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Validating(Recurrent):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass


def record(plan: Plan, *, own_split: bool = False, skips: bool = False) -> Trace:
    """Train with a callback, a data module and a strategy beside the module, all recorded."""
    module = override(Validating(plan), *plan.overrides)
    strategy, data, trace = BareStrategy(), Data(val=make_batches(1)), Trace()
    if own_split:
        object.__setattr__(
            module, "tbptt_split_batch", lambda batch, split_size: split_along_time(batch, split_size, "own")
        )
    callbacks = [Callback()]
    if skips:
        callbacks.append(hooked(on_train_batch_start=lambda trainer, module, batch, batch_idx: -1 if batch_idx else 0))
    for callback in callbacks:
        trace.record(callback, "callback")
    trace.record(data, "data")
    trace.record(module, "module")
    trace.record(strategy, "strategy")
    fit(
        module,
        attrs.evolve(plan, overrides=frozenset()),
        callbacks=callbacks,
        strategy=strategy,
        data=data,
        val_check_interval=1,
    )
    return trace


@settings(max_examples=60, deadline=None)
@given(plans(), st.booleans(), st.booleans())
def test_every_mode_follows_the_life_cycle(plan: Plan, own_split: bool, skips: bool) -> None:
    trace = record(plan, own_split=own_split, skips=skips)
    check(trace, "fit", zero_grad=plan.zero_grad)
    calls = [event.hook for event in trace if event.kind == "enter" and event.receiver_kind == "module"]
    if own_split and plan.split_size is not None:
        assert calls.count("tbptt_split_batch") == calls.count("on_train_batch_end")


@pytest.mark.parametrize("num_optimizers", [1, 2])
@pytest.mark.parametrize("done", ["before_training_step", "before_backward", "after_optimizer_step"])
@pytest.mark.parametrize("meant", ["before_training_step", "before_backward", "after_optimizer_step"])
def test_the_place_of_zeroing_is_the_one_that_was_asked_for(done: Any, meant: Any, num_optimizers: int) -> None:
    trace = record(Plan(num_optimizers=num_optimizers, split_size=2, zero_grad=done))
    if done == meant:
        check(trace, "fit", zero_grad=meant)
    else:
        with pytest.raises(ConformanceError):
            check(trace, "fit", zero_grad=meant)


@settings(max_examples=30, deadline=None)
@given(plans(num_optimizers=1, zero_grad="before_backward"))
def test_an_override_of_optimizer_step_encloses_its_step(plan: Plan) -> None:
    trace = record(attrs.evolve(plan, overrides=plan.overrides | {"optimizer_step"}))
    check(trace, "fit")
