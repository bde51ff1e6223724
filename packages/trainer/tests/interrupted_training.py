"""Trainings that are interrupted inside epochs, in processes of their own, and how they report what they do."""

from __future__ import annotations

import csv
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy
from trainer_parts import quiet_trainer

from camshaft.callbacks import CSVLogger, ModelCheckpoint
from camshaft.hooks_core import Callback
from camshaft.strategies import read_checkpoint
from camshaft.trainer import TrainingModule, seed_everything

Kind = Literal["accumulation", "tbptt", "worker"]

NUM_EPOCHS = 5
NUM_TIME_STEPS = 6
PRELOADED = ["camshaft.trainer", "torch._dynamo", "torchdata.stateful_dataloader", "torchmetrics"]
MOST_SECONDS_TO_WAIT = 120.0


class Sequences(Dataset[Any]):
    """26 sequences with their class, in part from the random numbers of the process that reads them."""

    def __init__(self, num_samples: int = 26) -> None:
        generator = torch.Generator().manual_seed(3)
        self.sequences = torch.randn(num_samples, NUM_TIME_STEPS, 3, generator=generator)
        self.labels = (self.sequences[:, :, 0].sum(1) > 0).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.sequences[index] + 0.1 * torch.randn(NUM_TIME_STEPS, 3), self.labels[index]


class Classifier(TrainingModule):
    """Dropout, two schedulers, a clipped optimizer with a state, metrics of steps and of epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.3)
        self.cell = nn.RNN(3, 4, batch_first=True)
        self.head = nn.Linear(4, 2)
        self.accuracy = MulticlassAccuracy(2)
        self.val_accuracy = MulticlassAccuracy(2)
        self.val_loss = MeanMetric()

    def outputs(self, sequences: Tensor, hiddens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        states, hiddens = self.cell(self.dropout(sequences), hiddens)
        return self.head(states[:, -1]), hiddens

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch)[0]

    def loss(self, batch: Any, hiddens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        sequences, labels = batch
        logits, hiddens = self.outputs(sequences, hiddens)
        loss = nn.functional.cross_entropy(logits, labels)
        self.accuracy(logits, labels)
        self.log("accuracy", self.accuracy, on_step=True, on_epoch=True)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss, hiddens

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        sequences, labels = batch
        logits, _ = self.outputs(sequences)
        self.val_accuracy.update(logits, labels)
        self.val_loss.update(nn.functional.cross_entropy(logits, labels))
        self.log_dict({"val_accuracy": self.val_accuracy, "val_loss": self.val_loss})

    def on_train_epoch_end(self) -> None:
        self.log("learning_rate", self.trainer.optimizers[0].param_groups[0]["lr"])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        of_steps = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=100)
        of_epochs = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        return [optimizer], [{"scheduler": of_steps, "interval": "step"}, of_epochs]


class Truncated(Classifier):
    """The same with three splits of each batch; windows of two splits cross batches."""

    truncated_bptt_steps = 2

    def training_step(self, batch: Any, batch_idx: int, hiddens: Tensor | None) -> Any:  # type: ignore[override]
        loss, hiddens = self.loss(batch, hiddens)
        return {"loss": loss, "hiddens": hiddens}

    def tbptt_split_batch(self, batch: Any, split_size: int) -> list[Any]:
        sequences, labels = batch
        return [(split, labels) for split in sequences.split(split_size, dim=1)]


class InsideWindows(Callback):
    """Asks for checkpoints inside accumulation windows, where `ModelCheckpoint` has nothing new to save."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_batches = 0
        self.last_step = 0

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.num_batches += 1
        # before the first validation `ModelCheckpoint` waits for its monitor, so that it may save after this batch too
        if trainer.global_step == self.last_step and "val_loss" in trainer.callback_metrics:
            trainer.save_checkpoint(self.path)
        self.last_step = trainer.global_step

    def state_dict(self) -> dict[str, Any]:
        return {"num_batches": self.num_batches, "last_step": self.last_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.num_batches, self.last_step = state_dict["num_batches"], state_dict["last_step"]


class Telling(Callback):
    """Tells the parent process of each batch; of the first one, where training begins."""

    def __init__(self, parent: Connection) -> None:
        self.parent = parent

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.parent.send((trainer.current_epoch, batch_idx))


def fit(
    folder: Path,
    kind: Kind,
    ckpt_path: str | Path | None = None,
    callbacks: tuple[Callback, ...] = (),
) -> None:
    """Train from a checkpoint, if there is one, and save what training ends with as "final.ckpt".

    Args:
        folder: Where everything is written.
        kind: What is trained.
        ckpt_path: As in `Trainer.fit`.
        callbacks: The callbacks.
    """
    seed_everything(0)
    module = Truncated() if kind == "tbptt" else Classifier()
    own: dict[str, Any] = {}
    if kind == "worker":
        own = {"generator": torch.Generator().manual_seed(5), "num_workers": 1, "multiprocessing_context": "fork"}
    train = DataLoader(Sequences(), batch_size=4, shuffle=True, **own)  # seven batches, the last a short one
    val = DataLoader(Sequences(10), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(6))
    trainer = quiet_trainer(
        folder,
        max_epochs=NUM_EPOCHS,
        callbacks=list(callbacks),
        enable_checkpointing=any(isinstance(callback, ModelCheckpoint) for callback in callbacks),
        logger=CSVLogger(folder, name="", version="logs", flush_logs_every_n_steps=1),
        log_every_n_steps=2,
        accumulate_grad_batches=3 if kind == "accumulation" else 2,
        gradient_clip_val=1.0,
        val_check_interval=2 if kind == "accumulation" else 3,
    )
    trainer.fit(module, train, val, ckpt_path=ckpt_path)
    trainer.save_checkpoint(folder / "final.ckpt")


def fit_keeping_checkpoints(folder: Path, kind: Kind, parent: Connection) -> None:
    """Train on from "last", saving after every batch."""
    os.setpgrp()
    torch.set_num_threads(1)
    checkpoints = folder / "checkpoints"
    keep = ModelCheckpoint(checkpoints, monitor="val_loss", save_top_k=2, save_last=True, every_n_train_steps=1)
    callbacks = (keep, InsideWindows(checkpoints / "batch.ckpt"), Telling(parent))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is no checkpoint to resume from yet")
        fit(folder, kind, "last", callbacks)


class Training:
    """A training process.

    Args:
        run: What it does, given a folder, the kind and a connection to this process.
        folder: Where it writes.
        kind: What is trained.
    """

    def __init__(self, run: Callable[[Path, Kind, Connection], None], folder: Path, kind: Kind) -> None:
        # Each is forked from one server that has imported everything and run nothing.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.connection, child = context.Pipe(duplex=False)
        self.process = context.Process(target=run, args=(folder, kind, child))
        self.process.start()
        child.close()

    def batch(self) -> tuple[int, int] | None:
        """Wait for a batch to begin. Returns its epoch and index; None if the process has ended."""
        ready = wait_for([self.connection, self.process.sentinel], MOST_SECONDS_TO_WAIT)
        assert ready, "the training process hangs"
        try:
            return self.connection.recv() if self.connection.poll() else None
        except EOFError:
            return None

    def wait(self, num_batches: int, seconds: float) -> list[tuple[int, int]]:
        """Wait until so many batches have begun, and then some. Returns them; fewer if training ended before."""
        batches = [batch for _ in range(num_batches) if (batch := self.batch()) is not None]
        time.sleep(seconds)
        return batches

    def kill(self) -> None:
        """Kill the process and its workers, as a scheduler does; nothing happens if it has ended."""
        assert self.process.pid is not None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> int | None:
        """Wait for the end. Returns the exit code."""
        while self.batch() is not None:
            pass
        self.process.join(MOST_SECONDS_TO_WAIT)
        self.connection.close()
        return self.process.exitcode


def rows_of(folder: Path) -> list[frozenset[tuple[str, str]]]:
    """What the logger wrote, whatever the order of its columns."""
    with (folder / "logs/metrics.csv").open(newline="") as file:
        return [frozenset((name, cell) for name, cell in row.items() if cell) for row in csv.DictReader(file)]


def outcome_of(folder: Path) -> dict[str, Any]:
    """What training ended with, but for the time that it took and the folder's name."""
    checkpoint = read_checkpoint(folder / "final.ckpt")
    assert checkpoint["loops"]["fit"].pop("elapsed_seconds") > 0
    outcome: dict[str, Any] = _without_folder(checkpoint, str(folder))
    return outcome


def _without_folder(value: Any, folder: str) -> Any:
    if isinstance(value, dict):
        return {_without_folder(key, folder): _without_folder(item, folder) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folder(item, folder) for item in value]
    return value.replace(folder, "FOLDER") if isinstance(value, str) else value
