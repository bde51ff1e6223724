"""The seam for readers of receivers, with readers written by hand; that of camshaft-compat has its tests there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from camshaft.hooks_core import (
    CATALOGUE,
    Callback,
    Catalogue,
    Fault,
    HookFaultError,
    HookFaultWarning,
    HookSpec,
    ModelHooks,
    Receiver,
    resolve,
)
from camshaft.hooks_core.dispatch.binding import Argument
from camshaft.hooks_core.dispatch.readings import MethodReading, ReceiverReading
from camshaft.hooks_core.eras.hooks import catalogue_of
from camshaft.hooks_core.trace import Trace

Found = Sequence[tuple[Receiver, object]]


EPOCH_END = HookSpec("on_epoch_end", "After an epoch.", (Receiver.MODULE,))


class Old(ModelHooks):
    """A module of 1.x."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_epoch_end(self) -> None:
        self.calls.append("on_epoch_end")

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_idx: int) -> None:
        self.calls.append((epoch, batch_idx, optimizer, optimizer_idx))

    def on_train_epoch_end(self) -> None:
        self.calls.append("on_train_epoch_end")

    def validation_step(self, *arguments: Any) -> Any:
        return arguments

    def on_validation_batch_start(self, *arguments: Any) -> None:
        self.calls.append(arguments)


def read_old(found: Found, catalogue: Catalogue) -> list[ReceiverReading]:
    """Take modules for those of 1.x."""
    step = ("epoch", "batch_idx", "optimizer", "optimizer_idx")
    methods = {
        "on_epoch_end": MethodReading(hook=EPOCH_END, moments=("on_train_epoch_end",)),
        "optimizer_zero_grad": MethodReading(
            hook=CATALOGUE["optimizer_zero_grad"],
            arguments=tuple(map(Argument, step)),
            fixed={"optimizer_idx": 0},
        ),
    }
    return [
        ReceiverReading(type(receiver).__qualname__, kind, methods, version="1.5", hooks={"on_epoch_end": EPOCH_END})
        if kind is Receiver.MODULE
        else ReceiverReading(type(receiver).__qualname__, kind)
        for kind, receiver in found
    ]


def test_a_reader_sees_all_receivers_of_a_run_at_once_and_in_order() -> None:
    seen: list[Any] = []

    def read(found: Found, catalogue: Catalogue) -> list[ReceiverReading]:
        seen.append([kind for kind, _ in found])
        assert catalogue is CATALOGUE
        return [ReceiverReading("", kind) for kind, _ in found]

    resolve(callbacks=[Callback(), Callback()], module=ModelHooks(), data=object(), strategy=object(), read=read)
    assert seen == [["callback", "callback", "data", "module", "strategy"]]


def test_methods_are_called_as_the_reader_says() -> None:
    module = Old()
    hooks = resolve(callbacks=[Callback()], module=module, read=read_old)
    hooks.on_train_epoch_end()
    assert hooks.optimizer_zero_grad is not None
    hooks.optimizer_zero_grad(0, 1, "sgd", optimizer_idx=2)
    assert module.calls == ["on_train_epoch_end", "on_epoch_end", (0, 1, "sgd", 2)]
    assert hooks.takes("optimizer_zero_grad", "optimizer_idx")


def test_hooks_hold_the_readings_that_are_not_of_today() -> None:
    hooks = resolve(callbacks=[Callback()], module=Old(), read=read_old)
    (reading,) = hooks.readings
    assert (reading.receiver, reading.kind, reading.version, reading.is_of_today) == ("Old", "module", "1.5", False)


def test_a_receiver_that_is_not_of_today_gets_the_index_of_a_single_loader_as_it_did_and_a_step_does_not() -> None:
    module = Old()
    hooks = resolve(module=module, read=read_old).for_loaders(1)
    hooks.on_validation_batch_start("batch", 3, 0)
    assert module.calls == [("batch", 3, 0)]
    assert hooks.validation_step is not None
    assert hooks.validation_step("batch", 3, 0) == ("batch", 3)


def test_faults_that_a_reader_finds_are_faults_of_the_run() -> None:
    def read(found: Found, catalogue: Catalogue) -> list[ReceiverReading]:
        fault = Fault("Old", "on_epoch_end", "it contradicts the rest.")
        return [attrs.evolve(reading, faults=(fault,)) for reading in read_old(found, catalogue)]

    with pytest.raises(HookFaultError, match=r"Old\.on_epoch_end: it contradicts the rest\."):
        resolve(module=Old(), read=read)
    module = Old()
    with pytest.warns(match="it contradicts the rest"):
        hooks = resolve(module=module, read=read, strict=False)
    hooks.on_train_epoch_end()
    assert module.calls == ["on_train_epoch_end"]


def test_what_a_reader_does_not_mention_is_bound_and_checked_as_today() -> None:
    class Wrong(Old):
        def on_fit_start(self, stage: str) -> None: ...

    with pytest.raises(HookFaultError, match=r"Wrong\.on_fit_start: its signature \(stage\) requires") as caught:
        resolve(module=Wrong(), read=read_old)
    assert "camshaft.compat" not in str(caught.value)


def test_a_reader_may_say_more_in_a_subclass() -> None:
    @attrs.frozen
    class Detailed(ReceiverReading):
        confidence: float = 0.5

    hooks = resolve(module=ModelHooks(), read=lambda *_: [Detailed("ModelHooks", Receiver.MODULE, version="1.x")])
    assert [reading.confidence for reading in hooks.readings if isinstance(reading, Detailed)] == [0.5]


def test_a_reader_returns_a_reading_for_each_receiver() -> None:
    with pytest.raises(ValueError, match="`read` must be a function that returns a reading for each of 1 receivers"):
        resolve(module=Old(), read=lambda *_: [])


def test_a_trace_records_what_a_reader_finds_and_its_version(tmp_path: Path) -> None:
    trace = Trace(read=read_old)
    hooks = resolve(module=trace.record(Old(), "module"), read=read_old)
    hooks.on_train_epoch_end()
    assert [event.hook for event in trace if event.kind == "enter"] == ["on_train_epoch_end", "on_epoch_end"]
    assert trace.participants[0].version == "1.5"
    trace.save(tmp_path / "run.jsonl")
    assert Trace.load(tmp_path / "run.jsonl").participants == trace.participants


def test_a_trace_without_a_reader_records_hooks_of_today() -> None:
    trace = Trace()
    trace.record(Old(), "module")
    (participant,) = trace.participants
    assert participant.version is None
    assert "on_epoch_end" not in participant.hooks


def test_the_trace_of_an_era_asks_no_reader() -> None:
    trace = Trace(catalogue_of("1.x"), read=read_old)
    trace.record(Old(), "module")
    assert trace.participants[0].version is None
    assert "on_epoch_end" in trace.participants[0].hooks


def test_names_of_no_hook_are_warnings_where_the_reading_says_that_they_are_the_users_own() -> None:
    class Others(ReceiverReading):
        names_are_own = True

    class Misspelt:
        def on_fit_begin(self) -> None: ...

    class Wrong(Misspelt):
        def on_fit_start(self, a: int, b: int) -> None: ...

    def read(found: Any, catalogue: Any) -> list[ReceiverReading]:
        return [Others(type(receiver).__name__, kind) for kind, receiver in found]

    with pytest.warns(HookFaultWarning, match="Misspelt.on_fit_begin: no hook has this name. Rename it to"):
        resolve(module=Misspelt(), read=read)
    with pytest.raises(HookFaultError, match=r"Wrong\.on_fit_start: its signature") as caught:
        resolve(module=Wrong(), read=read)
    assert len(caught.value.faults) == 1
