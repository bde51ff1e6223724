from __future__ import annotations

from typing import Any

import pytest

from camshaft.hooks_core import Callback, CheckpointHooks, DataHooks, ModelHooks, Receiver, StrategyHooks
from camshaft.hooks_core.inspection import inspect_class, kind_of


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
    assert inspection.eras == ("2.0", "2.x")
    assert inspection.faults == ()
    assert inspection.kind is Receiver.MODULE


def test_a_module_of_an_old_era_fits_that_era_and_has_faults_today() -> None:
    class Gan:
        def training_step(self, batch: Any, batch_nb: int, optimizer_i: int) -> Any: ...

        def optimizer_step(
            self, current_epoch: Any, batch_nb: int, optimizer: Any, optimizer_i: int, second_order_closure: Any = None
        ) -> None: ...

        def on_batch_start(self) -> None: ...

    inspection = inspect_class(Gan)
    assert inspection.eras == ("0.5", "0.7", "0.8")
    assert {fault.method for fault in inspection.faults} == {"on_batch_start", "optimizer_step", "training_step"}


def test_a_step_that_names_the_optimizer_fits_old_eras_and_runs_today() -> None:
    class Gan(ModelHooks):
        def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> Any: ...

        def tbptt_split_batch(self, batch: Any, split_size: int) -> Any: ...

    inspection = inspect_class(Gan)
    assert inspection.eras == ("0.7", "0.8")
    assert inspection.faults == ()


def test_signatures_tell_eras_apart() -> None:
    class Batch:
        def on_batch_start(self, batch: Any) -> None: ...

        def on_after_backward(self) -> None: ...

    assert inspect_class(Batch).eras == ("0.7", "0.8")
    (method,) = [method for method in inspect_class(Batch).methods if method.name == "on_after_backward"]
    assert method.eras == ("0.5", "0.7", "0.8", "2.0", "2.x")


def test_a_class_that_mixes_eras_fits_none() -> None:
    class Mixed(ModelHooks):
        def on_epoch_end(self) -> None: ...

        def on_train_epoch_end(self) -> None: ...

    inspection = inspect_class(Mixed)
    assert inspection.eras == ()
    assert all(method.eras for method in inspection.methods)


def test_another_kind_can_be_given() -> None:
    class Ambiguous:
        def on_fit_start(self, trainer: Any, module: Any) -> None: ...

    assert inspect_class(Ambiguous, Receiver.CALLBACK).faults == ()
    assert len(inspect_class(Ambiguous).faults) == 1
    assert inspect_class(Ambiguous).methods[0].eras == ()


def test_a_class_without_hooks_has_no_eras() -> None:
    inspection = inspect_class(type("Empty", (ModelHooks,), {}))
    assert (inspection.methods, inspection.eras, inspection.faults) == ((), (), ())
