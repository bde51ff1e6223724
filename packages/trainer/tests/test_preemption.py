"""A trainer that is told to leave saves and stops, at whatever moment it is told."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer, TrainingModule

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Regression(TrainingModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.mse_loss(self.net(batch[0]).squeeze(1), batch[0].sum(1))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Signalled(Callback):
    """Gets SIGTERM in one of its hooks, which a handler hands on to the trainer."""

    def __init__(self, hook: str, path: Path) -> None:
        setattr(self, hook, lambda trainer, *_: self.signal(trainer))
        self.path = path

    def signal(self, trainer: Any) -> None:
        signal.signal(signal.SIGTERM, lambda *_: trainer.preempt(self.path))
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(autouse=True)
def _keeps_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def trainer_with(folder: Path, *callbacks: Any) -> Trainer:
    return Trainer(
        max_epochs=3,
        min_epochs=3,
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=folder,
    )


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(36.0).reshape(12, 3) / 36), batch_size=3)


@pytest.mark.parametrize(
    ("hook", "num_updates"), [("setup", 0), ("on_train_start", 0), ("on_train_batch_end", 1), ("on_train_epoch_end", 4)]
)
def test_a_signal_makes_it_save_and_stop_and_the_next_run_goes_on(hook: str, num_updates: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    straight = Regression()
    weights = {name: tensor.clone() for name, tensor in straight.state_dict().items()}
    trainer_with(tmp_path).fit(straight, loader())
    path = tmp_path / "left.ckpt"
    stopped, resumed = Regression(), Regression()
    stopped.load_state_dict(weights)
    trainer = trainer_with(tmp_path, Signalled(hook, path))
    trainer.fit(stopped, loader())
    assert trainer.global_step == num_updates
    trainer_with(tmp_path).fit(resumed, loader(), ckpt_path=path)
    for one, other in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_where_nothing_is_trained_it_says_so(tmp_path: Path) -> None:
    trainer = trainer_with(tmp_path)
    with pytest.warns(UserWarning, match=r"Nothing is being trained, so there is nothing to save to 'x\.ckpt'"):
        trainer.preempt("x.ckpt")
