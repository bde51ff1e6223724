"""`TrainResult` and `EvalResult` of 0.9."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from compat_parts import Regression, quiet_trainer
from trainer_parts import ListLogger, assert_same, loader, weights

from camshaft.callbacks import EarlyStopping, ModelCheckpoint
from camshaft.compat.names.finder import aliases_installed
from camshaft.compat.results import EvalResult, TrainResult, read_result


def test_a_step_may_be_the_first_to_ask_for_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Asking(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            result = pl.TrainResult(self.loss(batch))
            result.log("train_loss", result.minimize)
            return result

    monkeypatch.delitem(sys.modules, read_result.__module__)
    trainers = [quiet_trainer(tmp_path, max_epochs=1) for _ in range(2)]
    models = [Regression(), Asking()]
    models[1].load_state_dict(models[0].state_dict())
    trainers[0].fit(models[0], loader(3))
    with aliases_installed():
        import pytorch_lightning as pl

        trainers[1].fit(models[1], loader(3))
    assert_same(weights(models[1]), weights(models[0]))
    assert trainers[1].callback_metrics["train_loss"] == trainers[0].callback_metrics["train_loss"]


def test_steps_are_not_wrapped_and_results_not_imported_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, read_result.__module__)
    quiet_trainer(tmp_path, max_epochs=1).fit(Regression(), loader(1))
    assert read_result.__module__ not in sys.modules


class Plain(Regression):
    """The same by `self.log`."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("train_loss", loss)
        self.log("step_both", 2 * loss, prog_bar=True, on_step=True)
        self.log("epoch_both", 2 * loss, prog_bar=True, on_step=False, on_epoch=True)
        self.log("summed", loss, on_step=False, on_epoch=True, reduce_fx="sum")
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))


class WithResults(Regression):
    """As 0.9 had it."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        result = TrainResult(minimize=loss)
        result.log("train_loss", loss)
        result.log("both", 2 * loss, prog_bar=True, on_step=True, on_epoch=True)
        result.log_dict({"summed": loss}, reduce_fx=torch.sum)
        return result

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        result = EvalResult(checkpoint_on=loss, early_stop_on=-loss)
        result.log("val_loss", loss)
        return result


def fit(module: Regression, folder: Path, **arguments: Any) -> tuple[Any, ListLogger]:
    logger = ListLogger()
    torch.manual_seed(1)
    with torch.no_grad():
        for one in module.parameters():
            one.copy_(torch.linspace(-0.5, 0.5, one.numel()).reshape(one.shape))
    options = {"logger": logger, "log_every_n_steps": 1, "max_epochs": 2, **arguments}
    trainer = quiet_trainer(folder, **options)
    trainer.fit(module, loader(3), loader(2))
    return trainer, logger


@pytest.mark.parametrize("era", [None, "0.9"])
def test_results_train_and_log_as_calls_of_log_do(tmp_path: Path, era: str | None) -> None:
    module, plain = WithResults(), Plain()
    if era is not None:
        WithResults.hook_era = Plain.hook_era = era  # type: ignore[attr-defined]
    try:
        trainer, logger = fit(module, tmp_path)
        expected, rows = fit(plain, tmp_path)
    finally:
        for kind in (WithResults, Plain):
            vars(kind).get("hook_era") and delattr(kind, "hook_era")
    assert_same(weights(module), weights(plain))
    assert logger.rows == rows.rows
    assert {"train_loss", "step_both", "epoch_both", "summed", "val_loss"} <= {
        name for _, row in rows.rows for name in row
    }
    assert expected.progress_bar_metrics.items() <= trainer.progress_bar_metrics.items()


def test_what_they_are_on_is_monitored_by_the_names_of_then_and_not_logged(tmp_path: Path) -> None:
    trainer, logger = fit(WithResults(), tmp_path)
    metrics = trainer.callback_metrics
    assert float(metrics["val_checkpoint_on"]) == pytest.approx(float(metrics["val_loss"]))
    assert float(metrics["val_early_stop_on"]) == pytest.approx(-float(metrics["val_loss"]))
    assert float(metrics["checkpoint_on"]) == pytest.approx(float(metrics["epoch_both"]) / 2)
    assert not any(name.endswith("_on") for _, row in logger.rows for name in row)


def test_the_default_checkpoint_monitors_them(tmp_path: Path) -> None:
    trainer, _ = fit(WithResults(), tmp_path, enable_checkpointing=True)
    assert trainer.checkpoint_callback.monitor == "val_checkpoint_on"


def test_callbacks_that_monitor_these_names_stop_and_save(tmp_path: Path) -> None:
    stopping = EarlyStopping("val_early_stop_on", patience=1)  # it falls as the loss grows
    best = ModelCheckpoint(tmp_path, monitor="val_checkpoint_on")
    trainer, _ = fit(WithResults(), tmp_path, max_epochs=9, callbacks=[stopping, best], enable_checkpointing=True)
    assert trainer.current_epoch == stopping.stopped_epoch == 1  # of the last epoch, as in 0.9
    assert float(best.best_model_score) == pytest.approx(float(trainer.callback_metrics["val_loss"]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("callback", "name"),
    [(EarlyStopping("val_loss"), "val_early_stop_on"), (ModelCheckpoint(monitor="val_loss"), "val_checkpoint_on")],
)
def test_a_callback_that_monitors_something_else_is_told_what(tmp_path: Path, callback: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"`monitor` must be '{name}', since WithResults.validation_step passes"):
        fit(WithResults(), tmp_path, callbacks=[callback], enable_checkpointing=True)


def test_a_loss_alone_lets_callbacks_monitor_what_they_do(tmp_path: Path) -> None:
    class Fewer(WithResults):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            result = EvalResult()
            result.log("val_loss", self.loss(batch))
            return result

    best = ModelCheckpoint(tmp_path, monitor="val_loss")
    trainer, _ = fit(Fewer(), tmp_path, callbacks=[best], enable_checkpointing=True)
    assert float(best.best_model_score) == pytest.approx(float(trainer.callback_metrics["val_loss"]))  # type: ignore[arg-type]


def test_other_steps_and_test_log_as_well(tmp_path: Path) -> None:
    class Tested(WithResults):
        def test_step(self, batch: Any, batch_idx: int) -> Any:
            result = EvalResult()
            result.log_dict({"test_loss": self.loss(batch)}, prog_bar=True)
            return result

    [results] = quiet_trainer(tmp_path).test(Tested(), loader(2), verbose=False)
    assert results.keys() == {"test_loss"}


def test_hooks_get_a_dictionary_with_the_loss_and_with_what_was_set(tmp_path: Path) -> None:
    class Keeping(WithResults):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            result = super().training_step(batch, batch_idx)
            result.size = len(batch[0])
            assert result.size == 4 and result.nothing is None and result.train_loss is result["train_loss"]
            return result

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.seen = outputs

    module = Keeping()
    fit(module, tmp_path)
    assert module.seen.keys() == {"size", "loss"} and module.seen["size"] == 4


def test_what_cannot_be_done_is_refused(tmp_path: Path) -> None:
    class AtEnd(WithResults):
        def validation_epoch_end(self, outputs: Any) -> None:
            pass

    with pytest.raises(NotImplementedError, match="`validation_epoch_end` must be left out where `validation_step`"):
        fit(AtEnd(), tmp_path)

    class OfEvaluation(WithResults):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return EvalResult()

    with pytest.raises(TypeError, match="`return value` must be a TrainResult"):
        fit(OfEvaluation(), tmp_path)
    for write in (EvalResult().write, EvalResult().write_dict):
        with pytest.raises(NotImplementedError, match=r"trainer's `predict`.*BasePredictionWriter"):
            write("ids", [1])
    with pytest.raises(TypeError, match="`minimize` must be a tensor that can be differentiated"):
        TrainResult(minimize=torch.ones(()))
    with pytest.raises(TypeError, match="`early_stop_on` must be a tensor"):
        EvalResult(early_stop_on=0.5)  # type: ignore[arg-type]
