"""Stopping at the end of an epoch and resuming in a new trainer gives the same bits as not stopping."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, StepLR
from trainer_parts import Regression, assert_same, loader, quiet_trainer

from camshaft.callbacks import CSVLogger, EarlyStopping, ModelCheckpoint
from camshaft.hooks_core import Callback
from camshaft.strategies import read_checkpoint
from camshaft.trainer import DataModule, Trainer, seed_everything

Configure = Callable[[Regression], Any]


def adam_with_steps(module: Regression) -> Any:
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)
    return [optimizer], [StepLR(optimizer, step_size=2, gamma=0.5)]


def sgd_with_one_cycle(module: Regression) -> Any:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    schedule = OneCycleLR(optimizer, 0.1, total_steps=100)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def sgd_with_plateau(module: Regression) -> Any:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    schedule = ReduceLROnPlateau(optimizer, patience=0, threshold=1.0)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


class Random(Regression):
    """Draws from torch's, NumPy's and Python's generators in each step."""

    def __init__(self, configure: Configure) -> None:
        super().__init__(dropout=0.3)
        self.configure = configure

    def save_hyperparameters(self, *names: str, **settings: Any) -> None:
        """Nothing: a function is no plain value."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        noise = random.gauss(0.0, 0.1) + np.random.normal(0.0, 0.1)
        self.log("noise", noise, on_epoch=True)
        return super().training_step([batch[0] + noise, batch[1]], batch_idx)

    def configure_optimizers(self) -> Any:
        return self.configure(self)


class Counting(Callback):
    """A callback with a state of its own."""

    def __init__(self) -> None:
        self.num_batches = 0

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.num_batches += 1

    def state_dict(self) -> dict[str, Any]:
        return {"num_batches": self.num_batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.num_batches = state_dict["num_batches"]


class Positioned(DataModule):
    """A data module with a state, which counts how often it was given back."""

    def __init__(self) -> None:
        self.num_loads = 0

    def train_dataloader(self) -> Any:
        return loader(5, shuffle=True)

    def val_dataloader(self) -> Any:
        return loader(2, shuffle=True)

    def state_dict(self) -> dict[str, Any]:
        return {"num_loads": self.num_loads}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.num_loads = state_dict["num_loads"] + 1


def train(
    root: Path, max_epochs: int, configure: Configure, ckpt_path: str | None = None, **arguments: Any
) -> tuple[Trainer, Random]:
    trainer = quiet_trainer(
        root,
        max_epochs=max_epochs,
        callbacks=[
            ModelCheckpoint(root, monitor="val_loss", save_top_k=2, save_last=True, save_on_train_epoch_end=True),
            EarlyStopping("val_loss", patience=50),
            Counting(),
        ],
        logger=CSVLogger(root, name="", version="logs"),
        log_every_n_steps=2,
        enable_checkpointing=True,
        **arguments,
    )
    module = Random(configure)
    trainer.fit(module, datamodule=Positioned(), ckpt_path=ckpt_path)
    return trainer, module


def without_folders(value: Any, root: Path) -> Any:
    """A checkpoint in which paths do not say where the test wrote."""
    if isinstance(value, dict):
        return {without_folders(key, root): without_folders(item, root) for key, item in value.items()}
    if isinstance(value, list):
        return [without_folders(item, root) for item in value]
    return value.replace(str(root), "ROOT") if isinstance(value, str) else value


@pytest.mark.parametrize("configure", [adam_with_steps, sgd_with_one_cycle, sgd_with_plateau])
@pytest.mark.parametrize("arguments", [{}, {"accumulate_grad_batches": 2}, {"val_check_interval": 0.5}], ids=str)
def test_a_resumed_run_equals_one_that_was_never_stopped(
    configure: Configure, arguments: dict[str, Any], tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    seed_everything(1)
    trainer, module = train(whole, 5, configure, **arguments)

    seed_everything(1)
    train(parts, 2, configure, **arguments)
    seed_everything(99)  # whatever the new process draws before must not matter
    resumed_trainer, resumed_module = train(parts, 5, configure, ckpt_path="last", **arguments)

    assert_same(resumed_module.state_dict(), module.state_dict())
    assert resumed_trainer.global_step == trainer.global_step
    last = [read_checkpoint(root / "last.ckpt") for root in (whole, parts)]
    # Only the resumed run loads the state of the data module.
    whole_loads, resumed_loads = (one.pop("data")["num_loads"] for one in last)
    assert resumed_loads == whole_loads + 1
    for checkpoint in last:
        assert checkpoint["loops"]["fit"].pop("elapsed_seconds") > 0
    assert last[0].pop("fit_idx") < last[1].pop("fit_idx")
    assert last[0]["callbacks"]["Counting"] == {"num_batches": 25}
    assert_same(without_folders(last[1], parts), without_folders(last[0], whole))
    assert (parts / "logs/metrics.csv").read_text() == (whole / "logs/metrics.csv").read_text()
    of_parts, of_whole = ({path.name for path in root.glob("*.ckpt")} for root in (parts, whole))
    assert of_whole <= of_parts and len(of_parts - of_whole) <= 1  # the one that was gone on from stays


def test_what_was_drawn_before_the_resumed_fit_does_matter_without_the_checkpoint(tmp_path: Path) -> None:
    """So that the test above can fail."""
    results = []
    for seed in (1, 2):
        torch.manual_seed(0)
        module = Random(adam_with_steps)
        seed_everything(seed)
        quiet_trainer(tmp_path).fit(module, datamodule=Positioned())
        results.append(module.layer.weight.detach())
    assert not torch.equal(*results)


def test_resuming_runs_no_sanity_check_and_only_the_missing_epochs(tmp_path: Path) -> None:
    epochs = []

    class Watching(Regression):
        def on_sanity_check_start(self) -> None:
            assert not epochs, "not when resuming"

        def on_train_epoch_start(self) -> None:
            epochs.append((self.current_epoch, self.global_step))

    trainer = quiet_trainer(tmp_path, max_epochs=2)
    trainer.fit(Watching(), loader(), loader())
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    quiet_trainer(tmp_path, max_epochs=4).fit(Watching(), loader(), loader(), ckpt_path=tmp_path / "two.ckpt")
    assert epochs == [(0, 0), (1, 4), (2, 8), (3, 12)]


def test_early_stopping_goes_on_counting(tmp_path: Path) -> None:
    class Constant(Regression):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", 1.0)

    def stopping_trainer(max_epochs: int) -> Trainer:
        return quiet_trainer(tmp_path, max_epochs=max_epochs, callbacks=EarlyStopping("val_loss", patience=3))

    first = stopping_trainer(3)  # best in epoch 0, no better in 1 and 2
    first.fit(Constant(), loader(), loader())
    first.save_checkpoint(tmp_path / "three.ckpt")
    second = stopping_trainer(100)
    second.fit(Constant(), loader(), loader(), ckpt_path=tmp_path / "three.ckpt")
    assert second.current_epoch == 4
    assert second.early_stopping_callback is not None and second.early_stopping_callback.stopped_epoch == 3
