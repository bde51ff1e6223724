"""Checkpoints that Lightning 2.x wrote: camshaft trains on from them as Lightning itself would have."""

from __future__ import annotations

import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.compat import Trainer, TrainingModule

lightning = pytest.importorskip("lightning.pytorch")

OPTIONS = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}


class Steps:
    """What a user's module has, whatever it derives from."""

    def __init__(self, width: int = 3, options: Any = None) -> None:
        super().__init__()
        if issubclass(type(self), lightning.LightningModule):
            self.save_hyperparameters()
        self.options = options
        self.layer = nn.Linear(width, 1)
        self.rates: list[float] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if batch_idx == 0:
            self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        return nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", nn.functional.mse_loss(self.layer(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


class Theirs(Steps, lightning.LightningModule):
    """One of Lightning."""


class Ours(Steps, TrainingModule):
    """One of camshaft."""


def loader() -> DataLoader[Any]:
    inputs = torch.randn(12, 3, generator=torch.Generator().manual_seed(5))
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4)


def fit_theirs(num_epochs: int, callbacks: list[Any], folder: Path) -> Any:
    torch.manual_seed(0)
    module = Theirs(options=Namespace(depth=2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            **OPTIONS, accelerator="cpu", max_epochs=num_epochs, callbacks=callbacks, default_root_dir=folder
        )
        trainer.fit(module, loader(), loader())
        trainer.save_checkpoint(folder / "final.ckpt")
    return module


def checkpoints(**arguments: Any) -> Any:
    return lightning.callbacks.ModelCheckpoint(save_top_k=-1, filename="{epoch}-{step}", **arguments)


@pytest.mark.parametrize("moment", ["after-validation", "at-epoch-end", "after-fit"])
def test_training_goes_on_to_the_weights_that_they_would_have_had(moment: str, tmp_path: Path) -> None:
    straight = fit_theirs(4, [], tmp_path)
    at_end = {"save_on_train_epoch_end": moment == "at-epoch-end"}
    stopping = lightning.callbacks.EarlyStopping("val_loss")
    fit_theirs(2, [checkpoints(dirpath=tmp_path, **at_end), stopping], tmp_path)
    path = tmp_path / ("final.ckpt" if moment == "after-fit" else "epoch=1-step=6.ckpt")
    module = Ours()
    trainer = Trainer(**OPTIONS, accelerator="cpu", max_epochs=4, callbacks=[], default_root_dir=tmp_path)
    with pytest.warns(UserWarning, match="goes on after 2 epochs and 6 updates"):
        trainer.fit(module, loader(), loader(), ckpt_path=path)
    assert module.rates == straight.rates[2:]
    assert trainer.global_step == 12
    for name, value in straight.state_dict().items():
        assert torch.allclose(module.state_dict()[name], value, atol=1e-6)


def test_inside_of_an_epoch_it_begins_anew(tmp_path: Path) -> None:
    fit_theirs(2, [checkpoints(dirpath=tmp_path, every_n_train_steps=2)], tmp_path)
    module = Ours()
    trainer = Trainer(**OPTIONS, accelerator="cpu", max_epochs=2, callbacks=[], default_root_dir=tmp_path)
    with pytest.warns(UserWarning, match=r"after 1 epochs and 4 updates.* inside of epoch 1"):
        trainer.fit(module, loader(), loader(), ckpt_path=tmp_path / "epoch=1-step=4.ckpt")
    assert module.rates == [0.05]
    assert trainer.global_step == 7


def test_a_module_is_built_with_what_they_saved(tmp_path: Path) -> None:
    theirs = fit_theirs(1, [], tmp_path)
    module = Ours.load_from_checkpoint(tmp_path / "final.ckpt")
    assert module.options.depth == 2
    assert torch.equal(module.layer.weight, theirs.layer.weight)
    trainer = Trainer(**OPTIONS, accelerator="cpu", callbacks=[], default_root_dir=tmp_path)
    [results] = trainer.validate(Ours(), loader(), ckpt_path=tmp_path / "final.ckpt", verbose=False)
    assert results["val_loss"] == pytest.approx(float(_loss_of(theirs)), rel=1e-5)


def _loss_of(module: Any) -> Tensor:
    inputs, targets = next(iter(DataLoader(loader().dataset, batch_size=12)))
    with torch.no_grad():
        return nn.functional.mse_loss(module.layer(inputs), targets)
