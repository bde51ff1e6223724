"""Checkpoints under the import names hold objects where code that reads them with torch looks for them."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from trainer_parts import loader

from camshaft.compat import Trainer, TrainingModule
from camshaft.strategies import objects_left_out


class Scaler:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scaler) and self.factor == other.factor


class Regression(TrainingModule):
    def __init__(self, scaler: Any, activation: Any = nn.ReLU, width: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = nn.Linear(width, 1)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return (self.layer(batch[0]) - batch[1]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def saved(folder: Path, module: TrainingModule) -> Path:
    silent = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(default_root_dir=folder, max_epochs=1, **silent)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, loader(2))
    trainer.save_checkpoint(folder / "a.ckpt")
    return folder / "a.ckpt"


def test_a_library_reads_and_edits_objects_with_torch(tmp_path: Path) -> None:
    path = saved(tmp_path, Regression(Scaler(2.0)))
    checkpoint = torch.load(path, weights_only=False)
    hparams = checkpoint["hyper_parameters"]
    assert hparams == {"scaler": Scaler(2.0), "activation": nn.ReLU, "width": 3}

    assert "pytorch-lightning_version" in checkpoint
    hparams["scaler"] = Scaler(3.0)
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    buffer.seek(0)
    loaded = Regression.load_from_checkpoint(buffer, weights_only=False)
    assert loaded.hparams.scaler == Scaler(3.0)
    assert torch.equal(loaded.layer.weight, checkpoint["state_dict"]["layer.weight"])


def test_nothing_is_unpickled_by_default_as_in_2_6(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, Regression(Scaler(2.0)))
    with pytest.raises(TypeError, match=r"`scaler`, `activation` must be passed.*weights_only=False"):
        Regression.load_from_checkpoint(path)
    read = torch.load(path, weights_only=True)
    assert read["hyper_parameters"] == {"width": 3}
    assert ("hyper_parameters", "scaler") in objects_left_out(read)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    assert Regression.load_from_checkpoint(path).hparams.scaler == Scaler(2.0)


def test_a_file_without_objects_is_read_by_anyone(tmp_path: Path) -> None:
    class Numbers(Regression):
        def __init__(self, width: int = 3) -> None:
            TrainingModule.__init__(self)
            self.save_hyperparameters()
            self.layer = nn.Linear(width, 1)

    path = saved(tmp_path, Numbers())
    torch.serialization.clear_safe_globals()
    assert torch.load(path, weights_only=True)["hyper_parameters"] == {"width": 3}
