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
    assert [method.era for method in inspection.methods] == ["2.x", "2.x"]
    assert inspection.eras == ("1.x", "2.0", "2.x")
    assert inspection.faults == ()
    assert inspection.kind is Receiver.MODULE
    assert inspection.reading.is_of_today


class Gan:
    def training_step(self, batch: Any, batch_nb: int, optimizer_i: int) -> Any:
        return {"loss": batch, "log": {}}

    def optimizer_step(
        self, current_epoch: Any, batch_nb: int, optimizer: Any, optimizer_i: int, second_order_closure: Any = None
    ) -> None: ...

    def on_batch_start(self) -> None: ...

    def on_before_zero_grad(self, optimizer: Any) -> None: ...


def test_a_module_of_an_old_era_says_how_each_hook_is_called() -> None:
    inspection = inspect_class(Gan)
    assert inspection.eras == ("0.5", "0.7", "0.8", "1.x")
    assert inspection.faults == ()
    assert inspection.reading.version == "0.5"
    found = {method.name: (method.era, method.call, method.when) for method in inspection.methods}
    assert found == {
        "on_batch_start": ("0.5", "on_batch_start()", "just before on_train_batch_start"),
        "on_before_zero_grad": (
            "0.5",
            "on_before_zero_grad(optimizer)",
            "before gradients are zeroed, after the update",
        ),
        "optimizer_step": (
            "0.5",
            "optimizer_step(epoch, batch_idx, optimizer, optimizer_idx, optimizer_closure)",
            "after backward, for each optimizer",
        ),
        "training_step": ("0.5", "training_step(batch, batch_idx, optimizer_idx)", "for each optimizer"),
    }
    returns = {method.name: method.returns for method in inspection.methods}
    assert returns["on_batch_start"] == "-1 skips the rest of the epoch"
    assert returns["training_step"].endswith("; `log` and `progress_bar` in a dictionary are logged")


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


def test_hooks_of_two_eras_run_where_the_meaning_is_clear() -> None:
    class Mixed(ModelHooks):
        def on_pre_performance_check(self) -> None: ...

        def on_train_epoch_end(self) -> None: ...

    inspection = inspect_class(Mixed)
    assert inspection.eras == ()
    assert [method.era for method in inspection.methods] == ["0.8", "2.x"]
    assert inspection.faults == ()


def test_what_contradicts_the_rest_of_a_class_is_a_fault_and_is_not_called() -> None:
    class Idle:
        def optimizer_step(
            self, epoch: int, batch_idx: int, optimizer: Any, optimizer_idx: int, optimizer_closure: Any
        ) -> None:
            optimizer.step()

    inspection = inspect_class(Idle)
    (fault,) = inspection.faults
    assert fault.method == "optimizer_step"
    assert "so nothing would be learned" in fault.message
    (method,) = inspection.methods
    assert (method.era, method.call, method.when, method.returns) == (None, "", "", "")


def test_what_prepares_for_apex_is_told_what_there_is() -> None:
    class Apex:
        def configure_apex(self, amp: Any, model: Any, optimizers: Any, amp_level: str) -> Any: ...

    inspection = inspect_class(Apex)
    (method,) = inspection.methods
    assert not inspection.faults and method.when.startswith("when fit is set up in mixed precision, with torch's own")


def test_what_only_several_processes_call_says_so() -> None:
    class Wrapping:
        def init_ddp_connection(self, global_rank: int, world_size: int) -> None: ...
        def configure_ddp(self, model: Any, device_ids: Any) -> Any: ...

    for method in inspect_class(Wrapping).methods:
        assert method.when.startswith("where several processes run, to ")
        assert method.when.endswith("; with one process it is not called")


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


def test_a_hook_of_0_4_is_known() -> None:
    class Old:
        def on_tng_metrics(self, metrics: Any) -> None: ...

    inspection = inspect_class(Old)
    assert (inspection.faults, inspection.reading.version) == ((), "0.5")
