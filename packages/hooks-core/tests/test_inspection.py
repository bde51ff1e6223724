from __future__ import annotations

from typing import Any

import pytest

from camshaft.hooks_core import Callback, CheckpointHooks, DataHooks, ModelHooks, Receiver, StrategyHooks
from camshaft.hooks_core.eras.inspection import inspect_class, kind_of


class Both(ModelHooks, DataHooks):
    pass


@pytest.mark.parametrize(
    ("base", "kind"),
    [
        (Callback, "callback"),
        (StrategyHooks, "strategy"),
        (DataHooks, "data"),
        (ModelHooks, "module"),
        (Both, "module"),
        (CheckpointHooks, "module"),
        (object, "module"),
    ],
)
def test_the_kind_follows_from_the_base_class(base: type, kind: str) -> None:
    assert kind_of(type("Derived", (base,), {})) is Receiver(kind)


def test_a_torch_module_with_data_hooks_is_a_module() -> None:
    torch = pytest.importorskip("torch", reason="needs a torch module")
    assert kind_of(type("Net", (DataHooks, torch.nn.Module), {})) is Receiver.MODULE


def test_a_module_of_today_fits_the_present_eras() -> None:
    class Model(ModelHooks):
        def __init__(self, size: int) -> None:
            raise AssertionError("must not be instantiated")

        def training_step(self, batch: Any, batch_idx: int) -> Any: ...

        def on_train_epoch_end(self) -> None: ...

        def forward(self, x: Any) -> Any: ...

    inspection = inspect_class(Model)
    assert [method.name for method in inspection.methods] == ["on_train_epoch_end", "training_step"]
    assert [method.era for method in inspection.methods] == ["2.x", "2.x"]
    assert inspection.eras == ("1.x", "2.0", "2.x")
    assert inspection.faults == ()
    assert inspection.kind is Receiver.MODULE
    assert inspection.era is None


def test_a_step_that_names_the_optimizer_fits_old_eras_and_runs_today() -> None:
    class Alternating(ModelHooks):
        def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> Any: ...

        def tbptt_split_batch(self, batch: Any, split_size: int) -> Any: ...

    inspection = inspect_class(Alternating)
    assert inspection.eras == ("0.7", "0.8", "1.x")
    assert inspection.faults == ()
    step = next(method for method in inspection.methods if method.name == "training_step")
    assert (step.era, step.when) == ("2.x", "for each optimizer")


def test_signatures_tell_eras_apart() -> None:
    class Batch:
        def on_batch_start(self, batch: Any) -> None: ...

        def on_after_backward(self) -> None: ...

    assert inspect_class(Batch).eras == ("0.7", "0.8")
    (method,) = [method for method in inspect_class(Batch).methods if method.name == "on_after_backward"]
    assert method.eras == ("0.5", "0.7", "0.8", "1.x", "2.0", "2.x")


def test_an_era_that_never_was_is_an_error() -> None:
    with pytest.raises(ValueError, match="`hook_era` must be a release"):
        inspect_class(type("Declared", (), {"hook_era": "7.0"}))


def test_another_kind_can_be_given() -> None:
    class Ambiguous:
        def on_fit_start(self, trainer: Any, module: Any) -> None: ...

    assert inspect_class(Ambiguous, Receiver.CALLBACK).faults == ()
    assert len(inspect_class(Ambiguous).faults) == 1
    assert inspect_class(Ambiguous).methods[0].eras == ()


def test_a_class_without_hooks_has_no_eras() -> None:
    inspection = inspect_class(type("Empty", (ModelHooks,), {}))
    assert (inspection.methods, inspection.eras, inspection.faults) == ((), (), ())


def test_a_method_with_nearly_a_hooks_name_is_a_fault() -> None:
    class Ghost(ModelHooks):
        def training_step(self, batch: Any, batch_idx: int) -> Any: ...

        def training_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None: ...

    (fault,) = inspect_class(Ghost).faults
    assert (fault.method, fault.meant) == ("training_batch_end", "on_train_batch_end")


class Old:
    def on_batch_start(self, batch: Any) -> None: ...

    def training_step(self, batch: Any, batch_nb: int, optimizer_i: int) -> Any: ...

    def on_train_start(self) -> None: ...

    def configure_apex(self, amp: Any, model: Any, optimizers: Any, amp_level: str) -> Any: ...


def test_a_class_is_inspected_as_one_of_an_era_by_the_catalogue() -> None:
    inspection = inspect_class(Old, era="0.8")
    assert inspection.era == "0.8"
    found = {method.name: (method.era, method.call, method.when) for method in inspection.methods}
    assert found == {
        "configure_apex": (
            "0.8",
            "configure_apex(amp, model, optimizers, amp_level)",
            "to prepare model and optimizers for mixed precision by apex",
        ),
        "on_batch_start": ("0.8", "on_batch_start(batch)", "just before on_train_batch_start"),
        "on_train_start": ("0.8", "on_train_start()", "when training begins"),
        "training_step": ("0.8", "training_step(batch, batch_idx, optimizer_idx)", "for each optimizer"),
    }
    assert inspection.faults == ()


def test_what_an_era_does_not_have_is_a_fault_of_a_class_of_it() -> None:
    inspection = inspect_class(Old, era="1.x")
    assert [(fault.method, fault.message.partition(". ")[0]) for fault in inspection.faults] == [
        ("configure_apex", "this hook belongs to the eras 0.7, 0.8, and era 1.x does not call it."),
        ("on_batch_start", "its signature (batch) requires `batch`, but the hook has only ()"),
    ]
    assert [method.era for method in inspection.methods] == [None, None, "1.x", "1.x"]


def test_a_class_of_an_earlier_era_is_none_of_today_and_its_faults_say_which() -> None:
    inspection = inspect_class(Old)
    assert [(method.name, method.era) for method in inspection.methods] == [
        ("configure_apex", None),
        ("on_batch_start", None),
        ("on_train_start", "2.x"),
        ("training_step", None),
    ]
    assert "Old is a module of era 0.8. To run it as it is" in inspection.faults[-1].message


def test_eras_that_know_modules_alone_describe_no_callback() -> None:
    with pytest.raises(ValueError, match=r"`era` must be an era that describes hooks of a callback, but got '0.8'"):
        inspect_class(type("Watch", (Callback,), {}), era="0.8")


def test_an_era_is_one_of_the_catalogues() -> None:
    with pytest.raises(ValueError, match=r"`era` must be one of 0\.5, "):
        inspect_class(Old, era="0.9")
