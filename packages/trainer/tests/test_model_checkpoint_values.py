"""By which value a checkpoint is ranked, and that "last" exists."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from trainer_parts import NO_VALIDATION, Regression, loader, quiet_trainer

from camshaft.callbacks import ModelCheckpoint
from camshaft.hooks_core import Callback
from camshaft.strategies import read_checkpoint

pytestmark = [pytest.mark.exhaustive, pytest.mark.filterwarnings(NO_VALIDATION)]


class LogsItsStep(Regression):
    """Logs the number of updates at each validation as `w`."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("w", float(self.trainer.global_step))


class LogsInTraining(Regression):
    """Logs it in each training batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("w", float(self.trainer.global_step + 1))
        return super().training_step(batch, batch_idx)


def fit(folder: Path, checkpoint: ModelCheckpoint, module: Regression, *, val: Any = None, **arguments: Any) -> Any:
    callbacks = [checkpoint, *arguments.pop("callbacks", [])]
    trainer = quiet_trainer(folder, callbacks=callbacks, enable_checkpointing=True, **{"max_epochs": 2, **arguments})
    trainer.fit(module, loader(6), loader(1) if val is None else val)
    return trainer


def scores(checkpoint: ModelCheckpoint) -> dict[int, float]:
    """The score of each kept file, by the step at which it was saved."""
    return {read_checkpoint(path)["global_step"]: float(score) for path, score in checkpoint.best_k_models.items()}


@pytest.mark.parametrize(
    ("every", "arguments", "expected"),
    [
        (2, {"val_check_interval": 2}, {step: step for step in range(2, 13, 2)}),
        (1, {"val_check_interval": 1, "accumulate_grad_batches": 3}, {1: 1, 2: 2, 3: 3, 4: 4}),
        (3, {}, {6: 6, 9: 6, 12: 12}),  # step 3 has no value yet, and waits for the first validation
        (6, {"val_check_interval": 4, "check_val_every_n_epoch": None}, {6: 4, 12: 12}),  # validation at 4, 8 and 12
        (6, {"check_val_every_n_epoch": 2}, {12: 12}),
    ],
)
def test_a_step_save_holds_the_value_of_the_validation_that_follows_its_batch(
    tmp_path: Path, every: int, arguments: dict[str, Any], expected: dict[int, float]
) -> None:
    checkpoint = ModelCheckpoint(tmp_path / "kept", monitor="w", save_top_k=-1, every_n_train_steps=every)
    fit(tmp_path, checkpoint, LogsItsStep(), **arguments)
    assert scores(checkpoint) == expected


def test_a_save_by_time_waits_for_the_validation_as_well(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(tmp_path / "kept", monitor="w", save_top_k=-1, train_time_interval=timedelta(0))
    fit(tmp_path, checkpoint, LogsItsStep(), val_check_interval=1)
    assert scores(checkpoint) == {step: float(step) for step in range(1, 13)}


def test_a_validation_that_a_later_callback_leads_to_counts(tmp_path: Path) -> None:
    class Stop(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop = trainer.global_step == 8

    checkpoint = ModelCheckpoint(tmp_path / "kept", monitor="w", save_top_k=-1, every_n_train_steps=2)
    fit(tmp_path, checkpoint, LogsItsStep(), callbacks=[Stop()])
    assert scores(checkpoint) == {6: 6.0, 8: 8.0}


def test_the_name_holds_the_value_of_that_validation_without_a_monitor_too(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(tmp_path / "kept", "{step}-{w:.0f}", save_top_k=-1, every_n_train_steps=2)
    fit(tmp_path, checkpoint, LogsItsStep(), val_check_interval=2, max_epochs=1)
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {f"step={step}-w={step}.ckpt" for step in (2, 4, 6)}


def test_a_value_of_training_is_that_of_the_batch(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(tmp_path / "kept", monitor="w", save_top_k=-1, every_n_train_steps=2)
    fit(tmp_path, checkpoint, LogsInTraining(), val_check_interval=3)
    assert scores(checkpoint) == {step: float(step) for step in range(2, 13, 2)}


def test_a_value_that_training_logs_and_validation_logs_by_loader_is_that_of_training(tmp_path: Path) -> None:
    class Both(LogsInTraining):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.log("w", -1.0)  # becomes w/dataloader_idx_0 and w/dataloader_idx_1

    checkpoint = ModelCheckpoint(tmp_path / "kept", monitor="w", save_top_k=-1, every_n_train_steps=2)
    fit(tmp_path, checkpoint, Both(), val=[loader(1), loader(1)], val_check_interval=2)
    assert scores(checkpoint) == {step: float(step) for step in range(2, 13, 2)}


def test_a_value_of_one_of_several_validation_loaders_is_fresh(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(tmp_path / "kept", monitor="w/dataloader_idx_1", save_top_k=-1, every_n_train_steps=2)
    fit(tmp_path, checkpoint, LogsItsStep(), val=[loader(1), loader(1)], val_check_interval=2)
    assert scores(checkpoint) == {step: float(step) for step in range(2, 13, 2)}


def test_the_step_may_be_the_monitor(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(tmp_path / "kept", monitor="step", mode="max", save_top_k=2, every_n_train_steps=2)
    fit(tmp_path, checkpoint, Regression())
    assert scores(checkpoint) == {10: 10.0, 12: 12.0}


@pytest.mark.parametrize("save_last", [True, "link"])
@pytest.mark.parametrize("save_top_k", [0, 1, -1])
@pytest.mark.parametrize(
    "rhythm",
    [{"every_n_epochs": 5}, {"every_n_train_steps": 100}, {"save_on_train_epoch_end": False}, {"every_n_epochs": 0}],
    ids=str,
)
def test_last_exists_after_a_fit_in_which_no_checkpoint_was_due(
    tmp_path: Path, rhythm: dict[str, Any], save_top_k: int, save_last: Any
) -> None:
    checkpoint = ModelCheckpoint(tmp_path / "kept", save_last=save_last, save_top_k=save_top_k, **rhythm)
    fit(tmp_path, checkpoint, Regression(), val=[], max_epochs=1)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["last.ckpt"]
    assert checkpoint.last_model_path == str(tmp_path / "kept/last.ckpt")
    last = read_checkpoint(checkpoint.last_model_path)
    assert (last["epoch"], last["global_step"]) == (1, 6)
    assert last["callbacks"][checkpoint.state_key]["last_model_path"] == checkpoint.last_model_path


def test_last_that_was_due_before_the_end_stays_as_it_was(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(tmp_path / "kept", save_last=True, every_n_epochs=2)
    fit(tmp_path, checkpoint, Regression(), max_epochs=3)
    assert read_checkpoint(tmp_path / "kept/last.ckpt")["global_step"] == 12


def test_last_of_a_trial_run_does_not_exist(tmp_path: Path) -> None:
    fit(tmp_path, ModelCheckpoint(tmp_path / "kept", save_last=True, every_n_epochs=5), Regression(), fast_dev_run=True)
    assert not (tmp_path / "kept").exists()
