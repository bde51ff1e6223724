"""Callbacks that call the hooks of their base class with the arguments of an earlier release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from compat_parts import Regression, quiet_trainer
from trainer_parts import loader

from camshaft.callbacks import EarlyStopping
from camshaft.compat import Callback
from camshaft.hooks_core import HookFaultWarning, Receiver, is_overridden, resolve
from camshaft.hooks_core.trace import Trace


class Of19(Callback):
    hook_era = "1.9"

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any, opt_idx: int) -> None:  # type: ignore[override]
        super().on_before_optimizer_step(trainer, pl_module, optimizer, opt_idx)  # type: ignore[call-arg]
        self.calls.append(f"step of {opt_idx}")

    def on_predict_epoch_end(self, trainer: Any, pl_module: Any, outputs: Any) -> None:  # type: ignore[override]
        super().on_predict_epoch_end(trainer, pl_module=pl_module, outputs=outputs)  # type: ignore[call-arg]
        self.calls.append("predicted")


def test_hooks_of_the_base_class_take_the_arguments_of_an_earlier_release(tmp_path: Path) -> None:
    class Predicting(Regression):
        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return self(batch[0])

    callback = Of19()
    trainer = quiet_trainer(tmp_path, callbacks=[callback])
    trainer.fit(Predicting(), loader(2))
    trainer.predict(Predicting(), loader(1))
    assert callback.calls == ["step of 0", "step of 0", "predicted"]


def test_hooks_that_are_gone_are_there_to_be_called_by_super_in_subclasses_of_stock_callbacks_too() -> None:
    class Own(EarlyStopping):
        def on_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            super().on_epoch_start(trainer, pl_module)  # type: ignore[misc]

    Own("loss").on_epoch_start(None, None)
    assert not is_overridden(EarlyStopping("loss"), "on_epoch_start")
    assert not is_overridden(Callback(), "on_init_start")


def test_a_plain_callback_is_recorded_and_called_with_todays_arguments() -> None:
    trace = Trace()
    callback = trace.record(type("Plain", (Callback,), {})(), Receiver.CALLBACK)
    resolve(callbacks=[callback]).on_train_batch_start("batch", 3)
    assert "batch_idx=3" in trace.events[0].arguments


@pytest.mark.new_feature("hooks-core")
def test_a_method_that_looks_like_a_hook_is_left_alone_with_a_warning(tmp_path: Path) -> None:
    class Own(Callback):
        def on_train_batch_(self, trainer: Any, pl_module: Any) -> None: ...

    trainer = quiet_trainer(tmp_path, callbacks=[Own()])
    with pytest.warns(HookFaultWarning, match="Own.on_train_batch_: no hook has this name. Rename it"):
        trainer.fit(Regression(), loader(2))
    assert trainer.global_step == 2
