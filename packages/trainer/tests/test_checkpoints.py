"""What a trainer's checkpoints hold, and which one a verb starts from."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_parts import (
    NO_VALIDATION,
    Regression,
    RegressionData,
    assert_same,
    files_below,
    loader,
    quiet_trainer,
    weights,
)

from camshaft.callbacks import ModelCheckpoint
from camshaft.callbacks.arguments import MissingMetricError
from camshaft.hooks_core import Callback
from camshaft.strategies import read_checkpoint

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


class TestContents:
    def test_a_checkpoint_holds_all_that_resuming_needs(self, tmp_path: Path) -> None:
        class Positioned(RegressionData):
            def state_dict(self) -> dict[str, Any]:
                return {"position": 3}

        class Counting:
            num = 0

            def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
                self.num += 1

            def state_dict(self) -> dict[str, Any]:
                return {"num": self.num}

            state_key = "Counting"

        trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=[Counting()])
        module = Regression(learning_rate=0.05)
        trainer.fit(module, datamodule=Positioned())
        trainer.save_checkpoint(tmp_path / "all.ckpt")

        checkpoint = torch.load(tmp_path / "all.ckpt", weights_only=True)

        assert set(checkpoint) - {"camshaft_version"} == {
            "callbacks",
            "data",
            "epoch",
            "fit",
            "fit_idx",
            "global_step",
            "hyper_parameters",
            "job",
            "loops",
            "lr_schedulers",
            "optimizer_states",
            "rng",
            "state_dict",
        }
        assert (checkpoint["data"], checkpoint["callbacks"]) == ({"position": 3}, {"Counting": {"num": 8}})
        assert (checkpoint["epoch"], checkpoint["global_step"]) == (2, 8)
        assert checkpoint["hyper_parameters"] == {"learning_rate": 0.05, "dropout": 0.0}
        assert_same(checkpoint["state_dict"], weights(module))

    def test_one_of_weights_only_leaves_out_what_resuming_needs(self, tmp_path: Path) -> None:
        trainer = quiet_trainer(tmp_path)
        trainer.fit(Regression(), loader())
        trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)

        checkpoint = torch.load(tmp_path / "weights.ckpt", weights_only=True)

        assert {"state_dict", "hyper_parameters", "epoch", "global_step"} <= set(checkpoint)
        assert not {"callbacks", "optimizer_states", "lr_schedulers", "rng", "fit"} & set(checkpoint)
        rule = r"`checkpoint` must be a whole one to resume from \(missing: optimizer_states, lr_schedulers, rng, fit\)"
        with pytest.raises(ValueError, match=rule):
            quiet_trainer(tmp_path).fit(Regression(), loader(), ckpt_path=tmp_path / "weights.ckpt")

    def test_the_module_and_callbacks_may_add_to_it_and_read_it(self, tmp_path: Path) -> None:
        seen = []

        class Adding(Regression):
            def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
                checkpoint["mine"] = torch.arange(2)

            def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
                seen.append(checkpoint["mine"])

        trainer = quiet_trainer(tmp_path)
        trainer.fit(Adding(), loader())
        trainer.save_checkpoint(tmp_path / "a.ckpt")
        trainer.validate(Adding(), loader(), ckpt_path=tmp_path / "a.ckpt")
        assert_same(seen, [torch.arange(2)])

    def test_a_callbacks_state_that_cannot_be_saved_is_refused_with_its_place(self, tmp_path: Path) -> None:
        class Keeping(Callback):
            def state_dict(self) -> dict[str, Any]:
                return {"seen": [1, threading.Lock()]}

        trainer = quiet_trainer(tmp_path, callbacks=Keeping())
        trainer.fit(Regression(), loader())
        place = r"Keeping'\]\['seen'\]\[1\]` must be a tensor or a plain value, or .*, but got .* \(lock\)"
        with pytest.raises(TypeError, match=place):
            trainer.save_checkpoint(tmp_path / "a.ckpt")
        assert files_below(tmp_path) == []

    def test_it_has_no_optimizers_of_another_module(self, tmp_path: Path) -> None:
        trainer = quiet_trainer(tmp_path)
        trainer.fit(Regression(), loader())
        trainer.validate(Regression(), loader())
        trainer.save_checkpoint(tmp_path / "other.ckpt")
        assert "optimizer_states" not in read_checkpoint(tmp_path / "other.ckpt")


class TestWhenItIsSaved:
    def test_a_hook_during_training_asks_for_it_and_gets_it_after_the_batch(self, tmp_path: Path) -> None:
        moments: list[Any] = []
        path = tmp_path / "asked.ckpt"

        class Asking(Regression):
            def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
                if batch_idx == 1:
                    self.trainer.save_checkpoint(path, on_saved=lambda: moments.append(self.global_step))
                moments.append(path.exists())

            def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
                moments.append(path.exists())

        quiet_trainer(tmp_path, limit_train_batches=3).fit(Asking(), loader())

        assert moments == [False, False, False, False, 2, True, True]
        assert read_checkpoint(path)["global_step"] == 2

    def test_a_hook_of_the_epochs_end_gets_it_when_that_is_over(self, tmp_path: Path) -> None:
        class Asking(Regression):
            def on_train_epoch_end(self) -> None:
                self.trainer.save_checkpoint(tmp_path / "asked.ckpt")
                assert not (tmp_path / "asked.ckpt").exists()

        quiet_trainer(tmp_path, max_epochs=1).fit(Asking(), loader())
        checkpoint = read_checkpoint(tmp_path / "asked.ckpt")
        assert checkpoint["epoch"] == 0
        assert checkpoint["loops"]["fit"]["current_epoch"] == 1

    def test_outside_of_training_it_is_saved_at_once(self, tmp_path: Path) -> None:
        class Asking(Regression):
            def on_test_end(self) -> None:
                self.trainer.save_checkpoint(tmp_path / "in_test.ckpt")
                assert (tmp_path / "in_test.ckpt").exists()

        saved = []
        trainer = quiet_trainer(tmp_path)
        trainer.test(Asking(), loader())
        trainer.save_checkpoint(tmp_path / "a" / "b.ckpt", on_saved=lambda: saved.append(True))
        assert (tmp_path / "a/b.ckpt").exists() and saved == [True]


class TestModelCheckpoint:
    def test_the_best_of_a_monitored_value_are_kept(self, tmp_path: Path) -> None:
        losses = {0: 3.0, 1: 1.0, 2: 4.0, 3: 2.0}

        class Scripted(Regression):
            def validation_step(self, batch: Any, batch_idx: int) -> None:
                self.log("val_loss", losses[self.current_epoch])

        checkpoint = ModelCheckpoint(tmp_path, "{epoch}-{val_loss:.0f}", "val_loss", save_top_k=2, save_last=True)
        trainer = quiet_trainer(tmp_path, max_epochs=4, callbacks=checkpoint, enable_checkpointing=True)
        trainer.fit(Scripted(), loader(), loader())

        assert files_below(tmp_path) == ["epoch=1-val_loss=1.ckpt", "epoch=3-val_loss=2.ckpt", "last.ckpt"]
        assert checkpoint.best_model_path == str(tmp_path / "epoch=1-val_loss=1.ckpt")
        assert checkpoint.best_model_score == 1.0
        assert read_checkpoint(tmp_path / "last.ckpt")["epoch"] == 3

    def test_it_sees_what_the_module_logs_at_the_epochs_end(self, tmp_path: Path) -> None:
        class AtEnd(Regression):
            def on_train_epoch_end(self) -> None:
                self.log("score", float(self.current_epoch))

        checkpoint = ModelCheckpoint(tmp_path, monitor="score", mode="max")
        trainer = quiet_trainer(tmp_path, max_epochs=3, callbacks=checkpoint, enable_checkpointing=True)
        trainer.fit(AtEnd(), loader())
        assert checkpoint.best_model_score == 2.0

    def test_a_value_that_nobody_logs_is_an_error_that_names_those_that_are(self, tmp_path: Path) -> None:
        checkpoint = ModelCheckpoint(tmp_path, monitor="val_acc")
        trainer = quiet_trainer(tmp_path, callbacks=checkpoint, enable_checkpointing=True)
        with pytest.raises(MissingMetricError, match=r"val_acc.*(train_loss|val_loss)"):
            trainer.fit(Regression(), loader(), loader())
