"""What two processes do with a trainer; the test beside it compares that with what one process does.

torchrun --nproc-per-node 2 ddp_scenes.py FOLDER mismatch|comparing
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from launching import report
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric, SumMetric
from trainer_parts import Regression, dataset, weights

from camshaft.callbacks import EarlyStopping, ModelCheckpoint
from camshaft.hooks_core import Callback
from camshaft.loops.metrics import MetricMismatchError
from camshaft.strategies import CheckpointError, DDPStrategy
from camshaft.trainer import Trainer, seed_everything

NUM_SAMPLES = 44  # of training: no multiple of any batch size
NUM_VAL_SAMPLES = 22


class Measured(Regression):
    """Logs in every way that there is."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = SumMetric()
        self.loss_metric = MeanMetric()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log("synced_loss", loss, sync_dist=True)
        self.log("largest", loss, on_step=False, on_epoch=True, reduce_fx="max")
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("late", float(self.global_rank))

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        loss = self.loss(batch)
        self.seen.update(len(batch[0]))
        self.loss_metric.update(loss, weight=len(batch[0]))
        self.log("val_loss", loss)
        self.log_dict({"seen": self.seen, "metric_loss": self.loss_metric})


class Watching(Callback):
    """Notes what a callback that monitors sees at the end of an epoch."""

    monitors = True

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        names = ("train_loss_epoch", "largest", "late")
        self.seen.append({name: float(trainer.callback_metrics[name]) for name in names})


def loaders(num_processes: int) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Batches that are as large together as those of one process."""
    generator = torch.Generator().manual_seed(11)
    train = DataLoader(dataset(NUM_SAMPLES), batch_size=8 // num_processes, shuffle=True, generator=generator)
    return train, DataLoader(dataset(NUM_VAL_SAMPLES), batch_size=4)


def measured_trainer(folder: Path, **arguments: Any) -> Trainer:
    seed_everything(3)
    defaults: dict[str, Any] = {"max_epochs": 3, "enable_progress_bar": False, "log_every_n_steps": 2}
    return Trainer(default_root_dir=folder, accelerator="cpu", **{**defaults, **arguments})


def fit(folder: Path, num_processes: int) -> dict[str, Any]:
    """Train with everything attached."""
    watching = Watching()
    callbacks = [
        watching,
        EarlyStopping("val_loss", patience=5),
        ModelCheckpoint(monitor="val_loss", filename="{epoch}", save_last=True, save_top_k=2),
        ModelCheckpoint(folder / "of_training", monitor="train_loss_epoch", filename="{epoch}-{train_loss_epoch:.4f}"),
    ]
    trainer = measured_trainer(folder, callbacks=callbacks)
    module = Measured()
    trainer.fit(module, *loaders(num_processes))
    results = trainer.validate(module, loaders(num_processes)[1], verbose=False)
    return {
        "weights": weights(module),
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "seen": watching.seen,
        "results": results,
        "best": Path(trainer.checkpoint_callback.best_model_path).name,
        "of_training": sorted(path.name for path in (folder / "of_training").glob("*.ckpt")),
        "log_dir": trainer.log_dir,
        "global_step": trainer.global_step,
    }


def loggers(folder: Path, num_processes: int) -> dict[str, Any]:
    trainer = measured_trainer(folder, max_epochs=1, logger=None if os.environ["RANK"] == "0" else False)
    module = Measured()
    trainer.fit(module, *loaders(num_processes))
    logger: Any = trainer.logger
    if trainer.global_rank:
        logger.experiment.add_image("picture", torch.zeros(1))  # as one may ask of another logger
    return {
        "kind": type(logger).__name__,
        "log_dir": trainer.log_dir,
        "facts": (logger.name, logger.version, logger.save_dir, logger.log_dir),
        "numbers": (trainer.world_size, trainer.num_devices, trainer.num_nodes, trainer.global_rank),
        "callbacks": [type(callback).__name__ for callback in trainer.callbacks],
    }


def resume(folder: Path, num_processes: int) -> dict[str, Any]:
    """Stopped inside an epoch and gone on with, against not stopped."""
    trainer = measured_trainer(folder / "whole", max_epochs=2, enable_checkpointing=False)
    whole = Measured()
    trainer.fit(whole, *loaders(num_processes))
    first = measured_trainer(folder / "stopped", max_epochs=2, max_steps=4, enable_checkpointing=False)
    first.fit(Measured(), *loaders(num_processes))
    first.save_checkpoint(folder / "middle.ckpt")
    second = measured_trainer(folder / "resumed", max_epochs=2, enable_checkpointing=False)
    resumed = Measured()
    second.fit(resumed, *loaders(num_processes), ckpt_path=folder / "middle.ckpt")
    return {
        "whole": (weights(whole), {name: float(value) for name, value in trainer.callback_metrics.items()}),
        "resumed": (weights(resumed), {name: float(value) for name, value in second.callback_metrics.items()}),
    }


class Branches(Regression):
    """Two branches, of which each batch uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.other = torch.nn.Linear(3, 1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch) if batch_idx % 2 else self.other(batch[0]).square().mean()


class SavesInsideWindow(Callback):
    """Saves after the third batch, while a window of two is open."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            trainer.save_checkpoint(self.path)


def resume_window(folder: Path, num_processes: int) -> dict[str, Any]:
    """Resumed inside an accumulation window, whose last batch leaves out a branch that an earlier one used."""
    arguments: dict[str, Any] = {"max_epochs": 1, "accumulate_grad_batches": 2, "enable_checkpointing": False}
    arguments["strategy"] = DDPStrategy(accelerator="cpu", find_unused_parameters=True)
    whole, resumed = Branches(), Branches()
    trainer = measured_trainer(folder, callbacks=[SavesInsideWindow(folder / "window.ckpt")], **arguments)
    trainer.fit(whole, loaders(num_processes)[0])
    measured_trainer(folder, **arguments).fit(resumed, loaders(num_processes)[0], ckpt_path=folder / "window.ckpt")
    return {"whole": weights(whole), "resumed": weights(resumed)}


class Naming(Regression):
    """Each process logs names of its own."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log(f"of_{self.global_rank}", loss, sync_dist=True, on_epoch=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log(f"val_of_{self.global_rank}", float(self.global_rank + 1), reduce_fx="sum")


def names(folder: Path, num_processes: int) -> list[str]:
    trainer = measured_trainer(folder, max_epochs=2, log_every_n_steps=1, enable_checkpointing=False)
    trainer.fit(Naming(), *loaders(num_processes))
    return sorted(trainer.callback_metrics)


class Gathering(Regression):
    def on_train_start(self) -> None:
        rank = self.global_rank
        self.gathered = self.all_gather({"rank": rank, "pair": torch.tensor([rank, 1.0])})
        shared = torch.tensor(float(rank), requires_grad=True)
        (self.all_gather(shared, sync_grads=True).sum() * (rank + 1)).backward()
        self.gradient = float(shared.grad)
        self.detached = not self.all_gather(shared).requires_grad


def gather(folder: Path, num_processes: int) -> dict[str, Any]:
    module = Gathering()
    measured_trainer(folder, max_epochs=1, enable_checkpointing=False).fit(module, *loaders(num_processes))
    gathered = {name: value.tolist() for name, value in module.gathered.items()}
    return {**gathered, "gradient": module.gradient, "detached": module.detached}


class Disagreeing(Regression):
    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("x", loss, on_step=False, on_epoch=True, reduce_fx=["mean", "max"][self.global_rank])
        return loss


class Tiny(Measured):
    """Needs no sample of its own."""


def tiny(folder: Path, num_processes: int) -> dict[str, Any]:
    """Fewer samples than processes."""
    module = Tiny()
    checkpoint = ModelCheckpoint(folder / "tiny", monitor="seen", mode="max", every_n_train_steps=1)
    stopping = EarlyStopping("val_loss")
    trainer = measured_trainer(folder, max_epochs=2, callbacks=[checkpoint, stopping], val_check_interval=1)
    one = DataLoader(dataset(1), batch_size=4)
    trainer.fit(module, one, one)
    predictions = trainer.predict(module, one, gather=True)
    return {
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "validated": trainer.validate(module, one, verbose=False),
        "num_predictions": [len(batch) for batch in predictions],
        "best": Path(checkpoint.best_model_path).name,
        "score": float(stopping.best_score),
        "num_val_batches": trainer.num_val_batches,
    }


def predict(folder: Path, num_processes: int) -> Any:
    seed_everything(3)
    trainer = measured_trainer(folder, logger=False, enable_checkpointing=False)
    together = trainer.predict(Regression(), DataLoader(dataset(22), batch_size=4), gather=True)
    own = trainer.predict(Regression(), DataLoader(dataset(22), batch_size=4))
    return [batch.shape[0] for batch in together], [batch.shape[0] for batch in own], torch.cat(together)


def damaged(folder: Path, num_processes: int) -> Any:
    """A checkpoint that cannot be read is the same error everywhere, and "last" goes to the one before."""
    seed_everything(3)
    module = Regression()
    checkpoint = ModelCheckpoint(folder / "kept", save_top_k=-1, filename="{epoch}", monitor="val_loss")
    trainer = measured_trainer(folder, max_epochs=2, callbacks=[checkpoint], logger=False)
    trainer.fit(module, *loaders(num_processes))
    newest = folder / "kept" / "epoch=1.ckpt"
    if trainer.is_global_zero:
        newest.write_bytes(newest.read_bytes()[:100])
    trainer.strategy.barrier()
    told: dict[str, Any] = {}
    try:
        trainer.validate(module, loaders(num_processes)[1], ckpt_path=newest, verbose=False)
    except CheckpointError as error:
        told["error"], told["notes"] = str(error), error.__notes__
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit_loop.progress.global_step = 0
        again = measured_trainer(folder, max_epochs=3, logger=False, callbacks=[ModelCheckpoint(folder / "kept")])
        again.fit(module, *loaders(num_processes), ckpt_path="last")
    told["warnings"] = [str(warning.message) for warning in caught if "cannot be read" in str(warning.message)]
    told["epoch"] = again.current_epoch
    return told


def mismatch(folder: Path, num_processes: int) -> Any:
    trainer = measured_trainer(folder, max_epochs=1, enable_checkpointing=False)
    try:
        trainer.fit(Disagreeing(), *loaders(num_processes))
    except MetricMismatchError as error:
        return str(error)
    return None


SCENES: list[Callable[[Path, int], Any]] = [
    fit,
    loggers,
    resume,
    resume_window,
    names,
    gather,
    tiny,
    predict,
    damaged,
]
"""What follows an error is not collective any more, so these are each the last of a start."""
LAST: dict[str, Callable[[Path, int], Any]] = {"mismatch": mismatch}


def main() -> None:
    warnings.filterwarnings("ignore", message="There is a `validation_step` but no")
    folder = Path(sys.argv[1])
    for scene in [*(SCENES if sys.argv[2] == "mismatch" else []), LAST[sys.argv[2]]]:
        report(scene.__name__, scene(folder / scene.__name__, 2))


if __name__ == "__main__":
    main()
