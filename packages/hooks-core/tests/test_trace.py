from __future__ import annotations

import gc
import inspect
import weakref
from pathlib import Path
from typing import Any

import pytest

from camshaft.hooks_core import CATALOGUE, Callback, DataHooks, HookSpec, ModelHooks, Receiver, StrategyHooks, resolve
from camshaft.hooks_core.eras.hooks import catalogue_of
from camshaft.hooks_core.trace import Event, Participant, Trace


class Model(ModelHooks, DataHooks):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return batch


class Watch(Callback):
    def on_fit_start(self, trainer: Any, module: Any) -> str:
        return "seen"


def events_of(kind: Receiver) -> set[str]:
    return {spec.name for spec in CATALOGUE.received_by(kind) if spec.kind == "event"}


@pytest.mark.parametrize(
    ("receiver", "kind", "further"),
    [
        (Watch, Receiver.CALLBACK, set()),
        (Model, Receiver.MODULE, {"training_step"}),
        (DataHooks, Receiver.DATA, set()),
        (StrategyHooks, Receiver.STRATEGY, set()),
        (type("Bare", (), {}), Receiver.MODULE, set()),
    ],
)
def test_every_event_is_recorded_and_of_the_rest_what_is_implemented(
    receiver: type, kind: Receiver, further: set[str]
) -> None:
    trace = Trace()
    trace.record(receiver(), kind)
    assert trace.participants[0].hooks == events_of(kind) | further


def test_a_recorded_receiver_receives_every_event_from_dispatch() -> None:
    trace = Trace()
    module = trace.record(Model(), "module")
    hooks = resolve(module=module)
    for name in events_of(Receiver.MODULE):
        getattr(hooks, name)(*CATALOGUE[name].parameters)
    assert {event.hook for event in trace} == events_of(Receiver.MODULE)


def test_calls_go_through_and_are_recorded_in_order() -> None:
    trace = Trace()
    callback = trace.record(Watch(), "callback", name="A")
    assert callback.on_fit_start("trainer", "module") == "seen"
    assert trace.calls() == ["enter on_fit_start callback:A", "exit on_fit_start callback:A"]
    assert len(trace) == 2
    assert trace.events[1].result == "'seen'"


def test_an_event_describes_the_arguments_of_a_hook_but_not_trainer_and_module() -> None:
    trace = Trace()
    callback = trace.record(Watch(), "callback")
    callback.on_train_batch_start("trainer", "module", [1, 2], 3)
    callback.setup("trainer", "module", stage="fit")
    assert [event.arguments for event in trace if event.kind == "enter"] == ["batch=list, batch_idx=3", "stage='fit'"]


def test_an_event_names_the_optional_arguments_that_a_step_takes() -> None:
    class Recurrent(ModelHooks):
        def training_step(self, batch: Any, batch_idx: int, hiddens: Any, *, optimizer_idx: int) -> Any: ...

    trace = Trace()
    step: Any = resolve(module=trace.record(Recurrent(), "module")).training_step
    step("b", 0, 1, "h")
    assert trace.events[0].arguments == "batch='b', batch_idx=0, hiddens='h', optimizer_idx=1"


def test_splitting_along_time_is_recorded_where_it_is_overridden_or_asked_for() -> None:
    class Splitting(ModelHooks):
        def tbptt_split_batch(self, batch: Any, split_size: int) -> Any:
            return [batch]

    for module, hooks in ((Splitting(), ()), (ModelHooks(), ("tbptt_split_batch",))):
        trace = Trace()
        trace.record(module, "module", hooks=hooks)
        assert "tbptt_split_batch" in trace.participants[0].hooks
    assert "tbptt_split_batch" not in Trace(catalogue_of("2.x")).record(ModelHooks(), "module").__dict__


def test_long_text_is_shortened_and_shapes_are_shown() -> None:
    class Array:
        shape = (2, 3)

    trace = Trace()
    module = trace.record(Model(), "module")
    module.training_step("x" * 100, 0)
    module.training_step(Array(), 1)
    assert trace.events[0].arguments == f"batch='{'x' * 36}..., batch_idx=0"
    assert [event.result for event in trace][3] == "Array(2, 3)"


def test_a_trace_keeps_no_argument_and_no_result_alive() -> None:
    class Batch:
        pass

    trace = Trace()
    module = trace.record(Model(), "module")
    batch = Batch()
    module.training_step(batch, 0)
    gone = weakref.ref(batch)
    del batch
    gc.collect()
    assert gone() is None


def test_what_a_hook_raises_is_recorded_and_raised() -> None:
    class Broken(Callback):
        def on_fit_start(self, trainer: Any, module: Any) -> None:
            raise KeyError("lost")

    trace = Trace()
    callback = trace.record(Broken(), "callback")
    with pytest.raises(KeyError, match="lost"):
        callback.on_fit_start(None, None)
    assert trace.calls() == ["enter on_fit_start callback:Broken", "exit on_fit_start callback:Broken raised KeyError"]
    assert trace.events[1].result == ""


def test_signatures_stay_as_they_are_so_that_dispatch_binds_as_before() -> None:
    class Model(ModelHooks):
        def on_train_batch_end(self, batch: Any) -> None:  # type: ignore[override]
            seen.append(batch)

    seen: list[Any] = []
    before = inspect.signature(Model().on_train_batch_end)
    module = Trace().record(Model(), "module")
    assert inspect.signature(module.on_train_batch_end) == before
    resolve(module=module).on_train_batch_end("outputs", "batch", 0)
    assert seen == ["batch"]


def test_an_event_that_is_not_even_inherited_has_the_hooks_signature() -> None:
    bare = Trace().record(type("Bare", (), {})(), "module")
    assert list(inspect.signature(bare.on_train_batch_end).parameters) == ["outputs", "batch", "batch_idx"]


def test_further_hooks_are_recorded_by_name() -> None:
    trace = Trace()
    trace.record(Model(), "module", hooks=["optimizer_step"])
    assert "optimizer_step" in trace.participants[0].hooks


def test_only_limits_what_is_recorded() -> None:
    trace = Trace()
    callback = trace.record(Watch(), "callback", only=["on_fit_start", "on_fit_end"])
    assert trace.participants[0].hooks == {"on_fit_start", "on_fit_end"}
    assert "on_train_start" not in vars(callback)


@pytest.mark.parametrize("name", ["on_fit_begin", "on_train_epoch_end", "predict_step"])
def test_a_name_that_is_no_hook_of_the_receiver_is_an_error(name: str) -> None:
    with pytest.raises(
        ValueError, match=rf"`hooks` must be names of hooks that the strategy \w+ has, but got '{name}' \(str\)"
    ):
        Trace().record(StrategyHooks(), "strategy", hooks=[name])


def test_a_step_that_is_not_defined_cannot_be_recorded() -> None:
    with pytest.raises(ValueError, match=r"the module Model has, but got 'test_step' \(str\) in Trace\.record"):
        Trace().record(Model(), "module", only=["test_step"])


def test_receivers_of_one_class_are_numbered() -> None:
    trace = Trace()
    for _ in range(3):
        trace.record(Watch(), "callback")
    assert [participant.label for participant in trace.participants] == [
        "callback:Watch",
        "callback:Watch#2",
        "callback:Watch#3",
    ]


def test_a_receiver_is_recorded_once_and_under_a_free_name() -> None:
    trace = Trace()
    watch = trace.record(Watch(), "callback", name="A")
    with pytest.raises(ValueError, match="`receiver` must be recorded once"):
        trace.record(watch, "callback")
    with pytest.raises(ValueError, match="`name` must be free in the trace, but got 'A'"):
        trace.record(Watch(), "callback", name="A")


def test_a_class_of_ones_own_setattr_is_passed_by_and_slots_are_an_error() -> None:
    class Frozen(Callback):
        def __setattr__(self, name: str, value: object) -> None:
            raise AssertionError("must not be asked")

    class Slotted:
        __slots__ = ()

    assert "on_fit_start" in vars(Trace().record(Frozen(), "callback"))
    with pytest.raises(TypeError, match=r"`receiver` must allow attributes on its instance, but got a .*Slotted"):
        Trace().record(Slotted(), "callback")


def test_participants_know_when_they_run_after_the_module() -> None:
    class Late(Callback):
        monitors = True
        after_module = frozenset({"on_fit_start"})

    trace = Trace()
    trace.record(Late(), "callback")
    trace.record(Model(), "module")
    late, module = trace.participants
    assert late.after_module == {"on_fit_start", "on_train_epoch_end"}
    assert late.rank("on_fit_start") > module.rank("on_fit_start")
    assert late.rank("on_fit_end") < module.rank("on_fit_end")
    assert not module.after_module


def test_a_module_says_whether_it_optimizes_by_hand() -> None:
    trace = Trace()
    for automatic in (True, False):
        trace.record(type("Model", (Model,), {"automatic_optimization": automatic})(), "module")
    assert [participant.manual for participant in trace.participants] == [False, True]


def test_a_trace_of_an_old_era_records_that_eras_hooks() -> None:
    class Old:
        def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> None: ...

    trace = Trace(catalogue_of("0.8"))
    module = trace.record(Old(), "module")
    assert {"on_epoch_start", "on_batch_start", "training_step"} <= trace.participants[0].hooks
    assert not {"on_train_epoch_start", "training_epoch_end"} & trace.participants[0].hooks
    assert list(inspect.signature(module.on_batch_start).parameters) == ["batch"]
    with pytest.raises(ValueError, match="`era` must be one of"):
        Trace(catalogue_of("3.0"))


def test_hooks_of_an_extended_catalogue_are_recorded() -> None:
    catalogue = CATALOGUE.copy()
    catalogue.register(HookSpec("on_lunch", "At noon.", (Receiver.CALLBACK,), ("menu",)))
    trace = Trace(catalogue=catalogue)
    callback = trace.record(Watch(), "callback")
    resolve(callbacks=[callback], catalogue=catalogue).on_lunch("soup")
    assert trace.events[0].arguments == "menu='soup'"


def test_clear_forgets_events_and_keeps_participants() -> None:
    trace = Trace()
    callback = trace.record(Watch(), "callback")
    callback.on_fit_start(None, None)
    trace.clear()
    assert (len(trace), len(trace.participants)) == (0, 1)
    callback.on_fit_start(None, None)
    assert len(trace) == 2


def test_save_and_load_round_trip(tmp_path: Path) -> None:
    trace = Trace()
    late = type("Late", (Watch,), {"monitors": True})
    for receiver, kind in ((late(), "callback"), (Model(), "module")):
        trace.record(receiver, kind).on_fit_start(*[None] * (2 if kind == "callback" else 0))
    path = tmp_path / "trace.jsonl"
    trace.save(path)
    assert len(path.read_text().splitlines()) == 1 + 2 + 4
    loaded = Trace.load(path)
    assert loaded.events == trace.events
    assert loaded.participants == trace.participants
    assert loaded.protocol is None


@pytest.mark.parametrize(
    "text", ["", "no json", '{"format": "other"}', "[]", '{"format": "camshaft-trace-1", "era": null}']
)
def test_a_file_without_a_trace_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(
        ValueError, match=r"`path` must be the path of a trace in the format camshaft-trace-1 \(.*\), but got"
    ):
        Trace.load(path)


def test_events_and_participants_take_their_kind_as_a_word() -> None:
    assert Event("enter", "setup", "A", "callback").receiver_kind is Receiver.CALLBACK  # type: ignore[arg-type]
    assert Participant("A", "data", ["setup"]).label == "data:A"  # type: ignore[arg-type]


def test_a_torch_module_can_be_recorded_and_still_trains() -> None:
    torch = pytest.importorskip("torch", reason="needs a torch module")

    class Net(ModelHooks, torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch).mean()

    trace = Trace()
    net = trace.record(Net(), "module", hooks=["backward"])
    names = set(net.state_dict())
    net.backward(net.training_step(torch.ones(3, 2), 0))
    assert net.layer.weight.grad is not None
    assert set(net.state_dict()) == names == {"layer.weight", "layer.bias"}
    assert trace.events[1].result == "Tensor()"
    assert trace.events[0].arguments == "batch=Tensor(3, 2), batch_idx=0"
