"""Traces of runs in which receivers of earlier eras take part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from camshaft.compat.eras import read_receivers
from camshaft.hooks_core import Callback, ModelHooks, Receiver, resolve
from camshaft.hooks_core.check import ConformanceError, check
from camshaft.hooks_core.eras.hooks import catalogue_of
from camshaft.hooks_core.trace import Trace


class Old(ModelHooks):
    """A module of 0.8."""

    hook_era = "0.8"

    def on_epoch_start(self) -> None: ...

    def on_batch_start(self, batch: Any) -> None: ...

    def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> float:
        return 1.0

    def backward(self, trainer: Any, loss: Any, optimizer: Any, optimizer_idx: int) -> None: ...

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_idx: int, second_order_closure: Any = None
    ) -> None: ...

    def on_batch_end(self) -> None: ...

    def training_epoch_end(self, outputs: list[Any]) -> None: ...

    def on_epoch_end(self) -> None: ...


class Counting(Callback):
    """A callback of 1.x."""

    hook_era = "1.x"

    def on_epoch_end(self, trainer: Any, pl_module: Any) -> None: ...


def run(trace: Trace, *, steps_first: bool = False, ends_epoch: bool = True) -> Trace:
    """A fit of one epoch of one batch, in the order of 0.8."""
    hooks: Any = resolve(
        callbacks=[trace.record(Counting(), "callback")], module=trace.record(Old(), "module"), read=read_receivers
    )
    hooks.prepare_data()
    hooks.setup("fit")
    hooks.configure_sharded_model()
    hooks.configure_model()
    hooks.on_fit_start()
    hooks.on_train_start()
    hooks.on_train_epoch_start()
    hooks.on_train_batch_start("batch", 0)
    if steps_first:
        hooks.optimizer_step(0, 0, "sgd", "closure")
    outputs = hooks.training_step("batch", 0, optimizer_idx=0)
    hooks.on_before_backward("loss")
    hooks.backward("loss", optimizer="sgd")
    hooks.on_after_backward()
    hooks.on_before_optimizer_step("sgd")
    if not steps_first:
        hooks.optimizer_step(0, 0, "sgd", "closure")
    hooks.on_before_zero_grad("sgd")
    hooks.on_train_batch_end(outputs, "batch", 0)
    if ends_epoch:
        hooks.training_epoch_end([outputs])
    hooks.on_train_epoch_end()
    hooks.on_train_end()
    hooks.on_fit_end()
    hooks.teardown("fit")
    return trace


def test_an_old_module_among_callbacks_of_today_is_recorded_by_its_methods_and_its_run_checked_whole() -> None:
    trace = run(Trace(read=read_receivers))
    callback, module = trace.participants
    assert (callback.version, module.version) == ("1.x", "0.8")
    calls = [f"{event.hook} {event.receiver}" for event in trace if event.kind == "enter"]
    assert calls.index("on_epoch_start Old") < calls.index("on_train_epoch_start Counting")
    assert calls.index("backward Old") < calls.index("optimizer_step Old")
    assert calls[-10:] == [
        "on_train_epoch_end Counting",
        "on_train_epoch_end Old",
        "on_epoch_end Counting",
        "on_epoch_end Old",
        "on_train_end Counting",
        "on_train_end Old",
        "on_fit_end Counting",
        "on_fit_end Old",
        "teardown Counting",
        "teardown Old",
    ]
    check(trace, "fit")


@pytest.mark.parametrize(("mistake", "expected"), [("steps_first", "training_step"), ("ends_epoch", "training_epoch")])
def test_a_run_that_departs_from_the_order_of_the_modules_era_is_rejected(mistake: str, expected: str) -> None:
    trace = run(Trace(read=read_receivers), **{mistake: mistake == "steps_first"})
    with pytest.raises(ConformanceError) as caught:
        check(trace, "fit")
    assert any(expected in step for step in caught.value.expected)


def test_the_trace_of_an_era_holds_that_eras_hooks_of_the_module_and_is_checked_by_its_order() -> None:
    trace = run(Trace(catalogue_of("0.8")))
    assert {event.receiver_kind for event in trace} == {Receiver.MODULE}
    hooks = [event.hook for event in trace if event.kind == "enter"]
    assert hooks[2:] == [
        "on_fit_start",
        "on_pretrain_routine_start",
        "on_pretrain_routine_end",
        "on_train_start",
        "on_epoch_start",
        "on_batch_start",
        "on_train_batch_start",
        "training_step",
        "backward",
        "on_after_backward",
        "optimizer_step",
        "on_before_zero_grad",
        "on_train_batch_end",
        "on_batch_end",
        "training_epoch_end",
        "on_epoch_end",
        "on_train_end",
        "on_fit_end",
        "teardown",
    ]
    check(trace, "fit")
    with pytest.raises(ConformanceError):
        trace.protocol = "0.7"
        check(trace, "fit")  # which zeroes before backward


def test_an_events_arguments_have_the_names_of_the_modules_era() -> None:
    arguments = {event.hook: event.arguments for event in run(Trace(read=read_receivers)) if event.kind == "enter"}
    assert arguments["training_step"] == "batch='batch', batch_idx=0, optimizer_idx=0"
    step = "epoch=0, batch_idx=0, optimizer='sgd', optimizer_idx=0, second_order_closure='closure'"
    assert arguments["optimizer_step"] == step
    assert arguments["on_train_start"] == ""


def test_recording_does_not_change_which_era_a_receiver_is_taken_for() -> None:
    class Named:
        def optimizer_step(self, current_epoch: int, batch_nb: int, optimizer: Any, optimizer_i: int) -> None: ...

    plain = resolve(module=Named(), read=read_receivers)
    recorded = resolve(module=Trace(read=read_receivers).record(Named(), "module"), read=read_receivers)
    assert [one.version for one in recorded.readings] == [one.version for one in plain.readings] == ["0.5"]
    assert recorded.readings[0].methods == plain.readings[0].methods


def test_versions_survive_save_and_load(tmp_path: Path) -> None:
    run(Trace(read=read_receivers)).save(tmp_path / "run.jsonl")
    loaded = Trace.load(tmp_path / "run.jsonl")
    assert [one.version for one in loaded.participants] == ["1.x", "0.8"]
    check(loaded, "fit")


def test_a_keyboard_interrupt_is_announced_before_the_exception() -> None:
    class Patient(Callback):
        hook_era = "1.x"

        def on_keyboard_interrupt(self, trainer: Any, pl_module: Any) -> None: ...

    trace = Trace(read=read_receivers)
    hooks = resolve(callbacks=[trace.record(Patient(), "callback")], read=read_receivers)
    hooks.setup("fit")
    hooks.on_exception(KeyboardInterrupt())
    hooks.teardown("fit")
    check(trace, "fit")
    assert [event.hook for event in trace if event.kind == "enter"] == [
        "setup",
        "on_keyboard_interrupt",
        "on_exception",
        "teardown",
    ]
