from __future__ import annotations

from typing import Any

import pytest

from camshaft.compat.eras.report import inspect_class
from camshaft.hooks_core import Callback, ModelHooks


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


def test_hooks_of_two_eras_run_where_the_meaning_is_clear() -> None:
    class Mixed(ModelHooks):
        def on_pre_performance_check(self) -> None: ...

        def training_epoch_end(self, outputs: Any) -> None: ...

        def on_predict_start(self) -> None: ...

    inspection = inspect_class(Mixed)
    assert inspection.eras == ()
    assert [method.era for method in inspection.methods] == ["0.8", "2.x", "0.8"]
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


def test_a_hook_of_0_4_is_known() -> None:
    class Old:
        def training_step(self, batch: Any, batch_nb: int) -> None: ...

        def on_tng_metrics(self, metrics: Any) -> None: ...

    inspection = inspect_class(Old)
    assert (inspection.faults, inspection.reading.version) == ((), "0.5")


def test_a_step_that_names_the_optimizer_is_called_as_today_by_both() -> None:
    class Alternating(ModelHooks):
        def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> Any: ...

    inspection = inspect_class(Alternating)
    assert (inspection.faults, inspection.reading.version, inspection.era) == ((), None, None)
    (step,) = inspection.methods
    assert (step.era, step.when) == ("2.x", "for each optimizer")


def test_an_era_that_never_was_is_an_error() -> None:
    with pytest.raises(ValueError, match="`hook_era` must be a release"):
        inspect_class(type("Declared", (), {"hook_era": "7.0"}))


def test_a_callback_is_taken_for_one() -> None:
    class Watch(Callback):
        def on_epoch_end(self, trainer: Any, pl_module: Any) -> None: ...

    assert str(inspect_class(Watch).kind) == "callback"
