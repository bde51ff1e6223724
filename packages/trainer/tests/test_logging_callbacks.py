"""Callbacks that log by themselves."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_parts import NO_VALIDATION, ListLogger, Regression, loader, quiet_trainer

from camshaft.hooks_core import Callback

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


class Logging(Callback):
    """Logs in hooks of training and validation."""

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log("callback/batch", float(batch_idx))

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.log_dict({"callback/a": 1.0, "callback/b": torch.tensor(2)}, prog_bar=True)

    def on_validation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.log("callback/val", float(batch_idx), batch_size=batch_idx + 1)


def test_what_a_callback_logs_has_the_defaults_of_its_hook(tmp_path: Path) -> None:
    logger = ListLogger()
    trainer = quiet_trainer(tmp_path, callbacks=Logging(), logger=logger, log_every_n_steps=1)
    trainer.fit(Regression(), loader(2), loader(2))
    assert {name: float(value) for name, value in trainer.callback_metrics.items() if "callback" in name} == {
        "callback/batch": 1.0,
        "callback/a": 1.0,
        "callback/b": 2.0,
        "callback/val": pytest.approx(2 / 3),
    }
    assert trainer.progress_bar_metrics["callback/b"] == 2
    assert [row["callback/batch"] for _, row in logger.rows if "callback/batch" in row] == [0.0, 1.0]


def test_a_callback_s_own_value_can_be_monitored(tmp_path: Path) -> None:
    from camshaft.callbacks import EarlyStopping

    trainer = quiet_trainer(
        tmp_path, callbacks=[EarlyStopping("callback/a", mode="min", patience=1), Logging()], max_epochs=9
    )
    trainer.fit(Regression(), loader(1), loader(1))
    assert trainer.current_epoch == 2


def test_a_callback_that_the_module_configures_logs_as_well(tmp_path: Path) -> None:
    class Configuring(Regression):
        def configure_callbacks(self) -> Any:
            return Logging()

    trainer = quiet_trainer(tmp_path)
    trainer.fit(Configuring(), loader(1))
    assert trainer.callback_metrics["callback/a"] == 1


@pytest.mark.parametrize("hook", ["on_fit_start", "on_train_end", "on_validation_end"])
def test_logging_in_a_hook_that_belongs_to_no_epoch_is_refused_with_its_name(tmp_path: Path, hook: str) -> None:
    class Wrong(Callback):
        pass

    setattr(Wrong, hook, lambda self, trainer, module: self.log("x", 1.0))
    with pytest.raises(RuntimeError, match=f"`log` must be called in a hook .* in {hook}"):
        quiet_trainer(tmp_path, callbacks=Wrong()).fit(Regression(), loader(1), loader(1))


def test_logging_in_prediction_is_refused(tmp_path: Path) -> None:
    class Wrong(Callback):
        def on_predict_epoch_end(self, trainer: Any, module: Any) -> None:
            self.log("x", 1.0)

    with pytest.raises(RuntimeError, match="`log` must be called in a hook or step of training"):
        quiet_trainer(tmp_path, callbacks=Wrong()).predict(Regression(), loader(1))


def test_logging_outside_of_a_run_is_refused(tmp_path: Path) -> None:
    callback = Logging()
    with pytest.raises(RuntimeError, match=r"`log` must be called in a hook of a run .* in Logging\.log"):
        callback.log("x", 1.0)
    quiet_trainer(tmp_path, callbacks=callback).fit(Regression(), loader(1))
    with pytest.raises(RuntimeError, match=r"`log` must be called in a hook of a run .* in Logging\.log_dict"):
        callback.log_dict({"x": 1.0})


def test_copies_and_pickles_that_a_run_makes_of_a_callback_leave_the_module_behind(tmp_path: Path) -> None:
    class Copying(Logging):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            for made in (copy.deepcopy(self), copy.copy(self)):
                assert vars(made) == {} and vars(self)["_logging_module"] is module

    quiet_trainer(tmp_path, callbacks=Copying()).fit(Regression(), loader(1))
    assert isinstance(pickle.loads(pickle.dumps(Logging())), Logging)
