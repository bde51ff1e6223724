"""Searches outside of a fit: what they find, and what they leave behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from trainer_parts import NO_VALIDATION, ListLogger, Regression, assert_same, dataset, loader, quiet_trainer, weights

from camshaft.callbacks import BackboneFinetuning, BatchSizeFinder, LearningRateFinder, ModelCheckpoint
from camshaft.hooks_core import Callback
from camshaft.trainer import DataModule, Tuner

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


class Recording(Callback):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        self.heard.append(f"setup {stage}")

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        self.heard.append("on_fit_start")

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.heard.append("on_train_start")

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        self.heard.append(f"teardown {stage}")


class Sized(Regression):
    """Runs out of memory above a size, in any stage."""

    def __init__(self, most: int = 1000) -> None:
        super().__init__()
        self.batch_size, self.most = 2, most

    def made(self) -> Any:
        return DataLoader(dataset(64), batch_size=self.batch_size)

    train_dataloader = val_dataloader = test_dataloader = predict_dataloader = made

    def _check(self, batch: Any) -> None:
        if len(batch[0]) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. (a test)")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self._check(batch)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._check(batch)
        self.log("val_loss", self(batch[0]).mean())

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._check(batch)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        self._check(batch)
        outputs: Tensor = self(batch[0])
        return outputs


def test_a_search_for_a_rate_leaves_all_but_the_rate_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(1)
    module, recording, logger = Regression(1e-6), Recording(), ListLogger()
    checkpoint = ModelCheckpoint(save_top_k=-1)
    trainer = quiet_trainer(
        tmp_path, callbacks=[recording, checkpoint], logger=logger, max_epochs=2, enable_checkpointing=True
    )
    before, callbacks, numbers = weights(module), trainer.callbacks, torch.get_rng_state()
    curve = Tuner(trainer).lr_find(module, loader(8), num_training=30)
    assert curve is not None
    assert curve.suggestion() == module.hparams.learning_rate != 1e-6
    assert (curve.lr_min, curve.lr_max, curve.num_training) == (1e-8, 1, 30)
    assert_same(weights(module), before)
    assert recording.heard == ["setup fit", "teardown fit"]
    assert trainer.callbacks is callbacks
    assert (trainer.global_step, trainer.current_epoch, trainer.max_epochs, trainer.should_stop) == (0, 0, 2, False)
    assert logger.rows == []
    assert torch.equal(torch.get_rng_state(), numbers)
    assert list(tmp_path.rglob("*.ckpt")) == []
    trainer.fit(module, loader(8))
    assert trainer.global_step == 16
    assert trainer.optimizers[0].param_groups[0]["lr"] == curve.suggestion()


def test_a_rate_is_only_shown_on_request(tmp_path: Path) -> None:
    module = Regression(1e-3)
    curve = Tuner(quiet_trainer(tmp_path)).lr_find(module, loader(8), num_training=20, update_attr=False)
    assert curve is not None
    assert module.hparams.learning_rate == 1e-3


def test_callbacks_are_set_up_so_that_optimizers_are_those_of_the_fit(tmp_path: Path) -> None:
    class Headed(Regression):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = torch.nn.Linear(3, 3)

        def configure_optimizers(self) -> Any:
            self.num_trained = sum(parameter.requires_grad for parameter in self.parameters())
            return torch.optim.SGD([one for one in self.parameters() if one.requires_grad], lr=0.1)

    module = Headed()
    Tuner(quiet_trainer(tmp_path, callbacks=[BackboneFinetuning()])).lr_find(module, loader(4), update_attr=False)
    assert module.num_trained == 2


def test_a_second_finder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`callbacks` must be without a LearningRateFinder"):
        Tuner(quiet_trainer(tmp_path, callbacks=[LearningRateFinder()])).lr_find(Regression(), loader(4))
    with pytest.raises(ValueError, match="`callbacks` must be without a BatchSizeFinder"):
        Tuner(quiet_trainer(tmp_path, callbacks=[BatchSizeFinder()])).scale_batch_size(Sized())


def test_after_an_error_the_trainer_is_as_before(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, max_epochs=3)
    callbacks = trainer.callbacks
    with pytest.raises(ValueError, match="`attr_name` must be the name of an attribute"):
        Tuner(trainer).lr_find(Regression(), loader(4), attr_name="rate")
    assert trainer.callbacks is callbacks
    assert trainer.max_epochs == 3


@pytest.mark.exhaustive
@pytest.mark.parametrize("verb", ["fit", "validate", "test", "predict"])
def test_a_batch_size_is_found_for_each_verb(tmp_path: Path, verb: Any, caplog: pytest.LogCaptureFixture) -> None:
    module, recording = Sized(most=20), Recording()
    trainer = quiet_trainer(tmp_path, callbacks=[recording], max_epochs=1, limit_val_batches=0.5)
    before = weights(module)
    with caplog.at_level("INFO"):
        assert Tuner(trainer).scale_batch_size(module, method=verb) == module.batch_size == 16
    assert "Batch size 16 succeeded, trying batch size 32" in caplog.text
    assert Tuner(trainer).scale_batch_size(module, method=verb, mode="binsearch", margin=0.0) == module.batch_size == 20
    assert_same(weights(module), before)
    assert set(recording.heard) == {f"setup {verb}", f"teardown {verb}"}
    assert trainer.limit_val_batches == trainer.validate_loop.limit_batches == 0.5
    assert trainer.global_step == 0
    if verb != "fit":
        assert getattr(trainer, f"{verb}_loop").progress.completed == 0
    assert not any(isinstance(callback, BatchSizeFinder) for callback in trainer.callbacks)


@pytest.mark.parametrize("verb", ["fit", "validate"])
def test_a_search_ends_where_an_epoch_is_one_batch(tmp_path: Path, verb: Any) -> None:
    module = Sized()
    assert Tuner(quiet_trainer(tmp_path)).scale_batch_size(module, method=verb, steps_per_trial=1) == 64


def test_the_data_module_may_have_the_size(tmp_path: Path) -> None:
    class Data(DataModule):
        batch_size = 1

        def train_dataloader(self) -> Any:
            return DataLoader(dataset(64), batch_size=self.batch_size)

        test_dataloader = train_dataloader

    data = Data()
    assert Tuner(quiet_trainer(tmp_path)).scale_batch_size(Regression(), datamodule=data, max_val=8) == 8
    assert Tuner(quiet_trainer(tmp_path)).scale_batch_size(Regression(), data, max_val=4) == data.batch_size == 4
    assert Tuner(quiet_trainer(tmp_path)).scale_batch_size(Sized(), dataloaders=data, method="test", max_val=2) == 2


def test_arguments_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    tuner = Tuner(quiet_trainer(tmp_path))
    with pytest.raises(ValueError, match="`method` must be 'fit', but got 'test'"):
        tuner.lr_find(Regression(), method="test")
    with pytest.raises(ValueError, match="`method` must be one of 'fit', 'validate', 'test', 'predict'"):
        tuner.scale_batch_size(Sized(), method="train")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`dataloaders` must be None with method='fit'"):
        tuner.scale_batch_size(Sized(), dataloaders=loader(2))
    with pytest.raises(ValueError, match="`train_dataloaders` must be None with method='test'"):
        tuner.scale_batch_size(Sized(), loader(2), method="test")
    with pytest.raises(ValueError, match="`train loader` must be provided by `train_dataloader`"):
        tuner.scale_batch_size(Sized(), loader(2))
    with pytest.raises(ValueError, match="`dataloaders` must be None or a data module"):
        tuner.scale_batch_size(Sized(), dataloaders=loader(2), method="test")


def test_a_trial_run_does_not_search(tmp_path: Path) -> None:
    tuner = Tuner(quiet_trainer(tmp_path, fast_dev_run=True))
    with pytest.warns(UserWarning, match="does not search under `fast_dev_run`"):
        assert tuner.lr_find(Regression(), loader(4)) is None
    with pytest.warns(UserWarning, match="does not search under `fast_dev_run`"):
        assert tuner.scale_batch_size(Sized(), method="validate") is None
