"""Verbs in forks of this process, as in a notebook: what it sees afterwards is what one process would have left."""

from __future__ import annotations

import os
import signal
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from trainer_parts import Regression, dataset

from camshaft.callbacks import EarlyStopping, ModelCheckpoint
from camshaft.hooks_core import Callback
from camshaft.strategies import ShardedStrategy, read_checkpoint
from camshaft.trainer import Trainer, Tuner

pytestmark = pytest.mark.processes


class Net(Regression):
    """Logs a loss of its own, and keeps a buffer that counts steps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("num_steps", torch.zeros(()))
        self.batches: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.num_steps += 1
        self.batches.append(batch_idx)
        loss = super().training_step(batch, batch_idx)
        self.log("seen", loss, on_epoch=True)
        return loss


def fitted(folder: Path, num_processes: int, strategy: Any) -> tuple[Net, Trainer, Any]:
    torch.manual_seed(3)
    net, loader = Net(), DataLoader(dataset(48), batch_size=8 // num_processes)
    trainer = Trainer(
        accelerator="cpu",
        devices=num_processes,
        strategy=strategy,
        max_epochs=2,
        default_root_dir=folder,
        callbacks=[ModelCheckpoint(monitor="val_loss"), EarlyStopping("val_loss", stopping_threshold=1e9)],
        enable_progress_bar=False,
    )
    trainer.fit(net, loader, loader)
    return net, trainer, loader


def learned(net: Net, trainer: Trainer) -> dict[str, Any]:
    """Return the weights and the metrics that are of all ranks."""
    of_all = ("seen_epoch", "val_loss")
    return net.state_dict() | {name: one for name, one in trainer.callback_metrics.items() if name in of_all}


def test_two_forks_leave_what_one_process_does(tmp_path: Path) -> None:
    facts: list[dict[str, Any]] = []
    values: list[dict[str, Any]] = []
    for num_processes, strategy in ((1, "auto"), (2, "ddp_notebook")):
        folder = tmp_path / str(num_processes)
        net, trainer, loader = fitted(folder, num_processes, strategy)
        checkpoint = trainer.checkpoint_callback
        assert isinstance(checkpoint, ModelCheckpoint) and isinstance(trainer.early_stopping_callback, EarlyStopping)
        first, batches = deepcopy(learned(net, trainer)), net.batches
        best = Path(checkpoint.best_model_path).relative_to(folder)
        trainer.max_epochs = 3
        trainer.fit(net, loader, loader)
        (results,) = trainer.validate(net, loader, verbose=False)
        facts.append(
            {
                "best": best,
                "batches": list(batches),
                "rows": len((Path(trainer.log_dir) / "metrics.csv").read_text().splitlines()),
                "progress": (trainer.current_epoch, trainer.global_step, str(trainer.state.status)),
                "folder": Path(trainer.log_dir).relative_to(folder),
                "files": sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file()),
            }
        )
        values.append(
            {
                "first": first,
                "second": learned(net, trainer),
                "stopping": trainer.early_stopping_callback.best_score,
                "results": results,
                "predictions": torch.cat(trainer.predict(net, loader, gather=True)),
            }
        )
        if num_processes == 2:
            with pytest.warns(UserWarning, match="holds weights and no states of optimizers"):
                trainer.save_checkpoint(folder / "kept.ckpt")
            again = Net.load_from_checkpoint(folder / "kept.ckpt")
            torch.testing.assert_close(again.state_dict(), net.state_dict())
            with pytest.raises(ValueError, match=r"`start_method` must be .*Search with one process"):
                Tuner(trainer).lr_find(net, loader)
    assert facts[1] == facts[0]
    torch.testing.assert_close(values[1], values[0])

    sharded = ShardedStrategy(accelerator="cpu", devices=2, start_method="fork")
    net, trainer, _ = fitted(tmp_path / "sharded", 2, sharded)
    torch.testing.assert_close(learned(net, trainer), values[0]["first"])


class Interrupting(Callback):
    """Interrupts the process that forked the ranks, as a notebook's button does."""

    def __init__(self, folder: Path) -> None:
        self.starter, self.folder = os.getpid(), folder

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 3 and trainer.is_global_zero:
            os.kill(self.starter, signal.SIGINT)

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        (self.folder / f"{trainer.global_rank} {type(exception).__name__}").touch()


@pytest.mark.usefixtures("interruptible")
def test_weights_come_back_from_a_fit_that_is_interrupted(tmp_path: Path) -> None:
    net, endless = Net(), DataLoader(TensorDataset(torch.randn(100_000, 3), torch.randn(100_000, 1)))
    net.frozen = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
    quiet: dict[str, Any] = {
        "save_only": "trainable",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
    }
    trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp_fork", callbacks=Interrupting(tmp_path), **quiet)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(net, endless)
    assert net.num_steps > 2 and trainer.interrupted and trainer.global_step > 2
    assert {one.name.split()[0] for one in tmp_path.iterdir()} == {"0", "1"}
    trainer.save_checkpoint(tmp_path / "kept.ckpt", weights_only=True)
    assert net.state_dict().keys() - read_checkpoint(tmp_path / "kept.ckpt")["state_dict"].keys() == {"frozen"}
