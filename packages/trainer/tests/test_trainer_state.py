"""What a trainer says of itself: its state, checkpoint, devices and precision, and the limits that time sets."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_parts import NO_VALIDATION, ListLogger, Regression, assert_same, loader, quiet_trainer, weights

from camshaft.hooks_core import Callback
from camshaft.trainer.states import RunningStage, TrainerFn, TrainerStatus

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)

Seen = list[tuple[str, str, str, str, bool]]


class Noting(Callback):
    """Notes the trainer's state in its hooks."""

    def __init__(self) -> None:
        self.seen: Seen = []

    def note(self, hook: str, trainer: Any) -> None:
        state = trainer.state
        flags = [name for name in ("training", "validating", "testing", "predicting") if getattr(trainer, name)]
        flags += ["sanity_checking"] if trainer.sanity_checking else []
        assert len(flags) == 1
        self.seen.append((hook, state.status.value, state.fn.value, state.stage.value, trainer.evaluating))

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        self.note("setup", trainer)

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        self.note("on_validation_start", trainer)

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self.note("on_train_epoch_start", trainer)

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        self.note("on_fit_end", trainer)

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        self.note("teardown", trainer)


def test_the_state_follows_a_fit_and_a_test(tmp_path: Path) -> None:
    noting = Noting()
    trainer = quiet_trainer(tmp_path, callbacks=[noting], max_epochs=1, num_sanity_val_steps=1)
    assert (trainer.state.status, trainer.state.fn, trainer.state.stage) == ("initializing", None, None)
    module = Regression()
    trainer.fit(module, loader(2), loader(2))
    assert noting.seen == [
        ("setup", "running", "fit", "train", False),
        ("on_validation_start", "running", "fit", "sanity_check", True),
        ("on_train_epoch_start", "running", "fit", "train", False),
        ("on_validation_start", "running", "fit", "validate", True),
        ("on_fit_end", "running", "fit", "train", False),
        ("teardown", "running", "fit", "train", False),
    ]
    assert trainer.state.finished and trainer.state.stopped and trainer.state.stage is None
    noting.seen.clear()
    trainer.validate(module, loader(2))
    assert {seen[1:] for seen in noting.seen} == {("running", "validate", "validate", True)}
    assert trainer.state.fn == TrainerFn.VALIDATING == "validate"


def test_an_error_leaves_the_trainer_interrupted_until_the_next_verb(tmp_path: Path) -> None:
    class Failing(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise RuntimeError("no")

    trainer = quiet_trainer(tmp_path, max_epochs=1)
    with pytest.raises(RuntimeError, match="no"):
        trainer.fit(Failing(), loader(2))
    assert trainer.interrupted and trainer.state.status is TrainerStatus.INTERRUPTED and trainer.state.stage is None
    trainer.fit(Regression(), loader(2))
    assert not trainer.interrupted


def test_stages_are_keys_that_equal_their_words() -> None:
    by_stage = {RunningStage.TRAINING: 1, "validate": 2}
    assert (by_stage["train"], by_stage[RunningStage.VALIDATING]) == (1, 2)
    assert RunningStage.SANITY_CHECKING.evaluating


def test_the_checkpoint_of_a_verb_is_known_and_can_be_chosen_for_all(tmp_path: Path) -> None:
    trained, path = Regression(), tmp_path / "one.ckpt"
    trainer = quiet_trainer(tmp_path, max_epochs=1)
    trainer.fit(trained, loader(2))
    assert trainer.ckpt_path is None
    trainer.save_checkpoint(filepath=path)
    trainer.validate(Regression(), loader(2), ckpt_path=path)
    assert trainer.ckpt_path == str(path)
    trainer.ckpt_path = path
    fresh = Regression()
    trainer.validate(fresh, loader(2))
    assert_same(weights(fresh), weights(trained))
    with pytest.warns(UserWarning, match="which overrides `trainer.ckpt_path"):
        trainer.validate(Regression(), loader(2), ckpt_path=str(path))
    trainer.validate(Regression(), loader(2))
    assert trainer.ckpt_path is None


def test_devices_and_precision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = quiet_trainer(tmp_path, accelerator="cpu", precision="bf16-true")
    assert trainer.precision == "bf16-true"
    assert trainer.strategy.reduce(2.5, "sum") == 2.5
    trainer.strategy.barrier("here")
    trainer.print("seen", end=".")
    assert capsys.readouterr().out == "seen."


def test_init_module_creates_weights_in_the_precision_of_the_trainer(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, accelerator="cpu", precision="64-true")
    with trainer.init_module():
        layer = torch.nn.Linear(2, 2)
    assert layer.weight.dtype == torch.float64 and torch.get_default_dtype() == torch.float32
    with trainer.init_module(empty_init=True):
        assert torch.equal(torch.nn.init.uniform_(torch.zeros(2)), torch.zeros(2))


class AtBatches(Callback):
    """Notes the training batches after which validation ran."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        self.batches.append((trainer.current_epoch, trainer.fit_loop.progress.batches.ready - 1))


@pytest.mark.parametrize("interval", ["00:00:00:10", timedelta(seconds=10), {"seconds": 10}])
def test_validation_runs_when_its_time_has_come(tmp_path: Path, interval: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    class Slow(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            now[0] += 4
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            now[0] += 100

    noting = AtBatches()
    trainer = quiet_trainer(
        tmp_path, max_epochs=2, val_check_interval=interval, callbacks=[noting], num_sanity_val_steps=1
    )
    trainer.fit(Slow(), loader(4), loader(1))
    assert noting.batches == [(0, -1), (0, 2), (1, 1)]  # the sanity check comes first
    assert trainer.fit_loop.num_batches_between_validations is None and trainer.val_check_interval == interval


def test_a_time_between_validations_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`val_check_interval` must be a string"):
        quiet_trainer(tmp_path, val_check_interval="10 minutes")


def test_hyperparameters_are_not_logged_if_told_so(tmp_path: Path) -> None:
    class Sized(Regression):
        def __init__(self, size: int = 3) -> None:
            super().__init__()
            self.save_hyperparameters()

    for logs in (True, False):
        logger = ListLogger()
        quiet_trainer(tmp_path, max_epochs=1, logger=logger, enable_autolog_hparams=logs).fit(Sized(), loader(1))
        assert bool(logger.hparams) is logs


def test_a_writer_at_the_end_shows_the_indices_in_the_loop(tmp_path: Path) -> None:
    from camshaft.callbacks import BasePredictionWriter

    class Writer(BasePredictionWriter):
        def write_on_epoch_end(self, trainer: Any, module: Any, predictions: Any, batch_indices: Any) -> None:
            seen.append(trainer.predict_loop.epoch_batch_indices == batch_indices != [])

    seen: list[bool] = []
    quiet_trainer(tmp_path, callbacks=[Writer("epoch")]).predict(Regression(), loader(2))
    assert seen == [True]


def test_a_trial_has_its_number_of_steps(tmp_path: Path) -> None:
    assert quiet_trainer(tmp_path, fast_dev_run=3).max_steps == 3
    assert quiet_trainer(tmp_path, fast_dev_run=1).fast_dev_run is True
