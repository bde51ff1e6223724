"""Checkpoints that hold a part of the parameters: adapters over a frozen base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trainer_parts import NormedRegression, assert_same, loader, quiet_trainer, weights

from camshaft.callbacks import ModelCheckpoint, WeightAveraging
from camshaft.trainer import Trainer


class Adapted(NormedRegression):
    """A frozen layer, beside it an adapter that is trained, and batch normalisation, whose buffers change."""

    def __init__(self) -> None:
        super().__init__()
        self.adapter = nn.Linear(3, 1, bias=False)
        self.layer.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + self.adapter(inputs)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam([one for one in self.parameters() if one.requires_grad], lr=0.1)


KEPT = {"adapter.weight", "norm.weight", "norm.bias"}
BUFFERS = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


def adapted() -> Adapted:
    torch.manual_seed(3)
    return Adapted()


def fit(root: Path, max_epochs: int, module: Any, ckpt_path: Any = None, **arguments: Any) -> Trainer:
    trainer = quiet_trainer(root, max_epochs=max_epochs, **arguments)
    torch.manual_seed(5)
    trainer.fit(module, loader(4), ckpt_path=ckpt_path)
    return trainer


@pytest.mark.parametrize("save_only", ["trainable", lambda name: "layer" not in name])
def test_a_run_goes_on_exactly_from_adapters_alone(tmp_path: Path, save_only: Any) -> None:
    whole = adapted()
    fit(tmp_path, 3, whole)
    saving = ModelCheckpoint(tmp_path, "half")
    fit(tmp_path, 2, adapted(), save_only=save_only, callbacks=saving, enable_checkpointing=None)
    saved = torch.load(tmp_path / "half.ckpt", weights_only=True)
    assert saved["state_dict"].keys() == KEPT | BUFFERS
    assert saved["weights_left_out"] == ["layer.weight", "layer.bias"]
    resumed = adapted()
    fit(tmp_path, 3, resumed, tmp_path / "half.ckpt", save_only=save_only)
    assert_same(weights(resumed), weights(whole))
    loaded = Adapted.load_from_checkpoint(tmp_path / "half.ckpt")  # strictly, and with a base of its own
    assert_same({name: weights(loaded)[name] for name in KEPT | BUFFERS}, dict(saved["state_dict"]))


def test_what_was_not_left_out_on_purpose_must_be_there(tmp_path: Path) -> None:
    fit(tmp_path, 1, adapted(), save_only="trainable").save_checkpoint(tmp_path / "one.ckpt")

    class Grown(Adapted):
        def __init__(self) -> None:
            super().__init__()
            self.more = nn.Linear(1, 1)

    with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: \"more\.weight\", \"more\.bias\"\."):
        Grown.load_from_checkpoint(tmp_path / "one.ckpt")


def test_a_parameter_that_is_frozen_while_an_optimizer_holds_it_is_saved(tmp_path: Path) -> None:
    class Freezing(Adapted):
        def on_train_end(self) -> None:
            self.adapter.requires_grad_(False)

    fit(tmp_path, 1, Freezing(), save_only="trainable").save_checkpoint(tmp_path / "one.ckpt")
    assert torch.load(tmp_path / "one.ckpt", weights_only=True)["state_dict"].keys() == KEPT | BUFFERS


def test_what_would_be_lost_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`save_only\('adapter\.weight'\)` must be true of every parameter"):
        fit(tmp_path, 1, adapted(), save_only=lambda name: "norm" in name)
    with pytest.raises(TypeError, match=r"`save_only` must be 'trainable', a function of a name, or None"):
        Trainer(save_only="frozen", logger=False)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`save_only` must be None where weights are averaged.* in WeightAveraging"):
        fit(tmp_path, 1, adapted(), save_only="trainable", callbacks=WeightAveraging())
