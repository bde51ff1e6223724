"""Two processes of which one alone has a bad batch."""

from __future__ import annotations

import math
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from launching import report
from torch import Tensor
from trainer_parts import ListLogger, Regression, loader, quiet_trainer, weights

from camshaft.callbacks import (
    ModelCheckpoint,
    NonFiniteError,
    NonFiniteGuard,
    PyTorchProfiler,
    SpikeDetection,
    ThroughputMonitor,
    TrainingSpikeException,
)


class Spoilt(Regression):
    """The loss of a rank's batch is multiplied."""

    def __init__(self, rank: int, batch_idx: int, factor: float) -> None:
        super().__init__()
        self.place, self.factor = (rank, batch_idx), factor

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * self.factor if (self.trainer.global_rank, batch_idx) == self.place else loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.1)


def trainer_of(folder: Path, *callbacks: Any, **arguments: Any) -> Any:
    return quiet_trainer(folder, strategy="ddp", accelerator="cpu", devices=2, callbacks=list(callbacks), **arguments)


def raising(folder: Path) -> tuple[str, int]:
    guard = NonFiniteGuard(check_every_n_batches=50)
    trainer = trainer_of(folder, guard)
    num_reductions, looks = 0, guard._check

    def look(trainer: Any) -> None:
        nonlocal num_reductions
        num_reductions += 1
        looks(trainer)

    guard._check = look  # type: ignore[method-assign]
    try:
        trainer.fit(Spoilt(1, 1, math.nan), loader(8))
    except NonFiniteError as error:
        return str(error), num_reductions
    return "nothing", num_reductions


def stopping(folder: Path) -> tuple[bool, int]:
    guard = NonFiniteGuard("stop", check_every_n_batches=2)
    trainer = trainer_of(folder, guard, max_epochs=5)
    trainer.fit(Spoilt(1, 1, math.inf), loader(8))
    return trainer.should_stop, guard.num_bad


def skipping(folder: Path) -> tuple[int, bool, int]:
    guard = NonFiniteGuard("skip")
    module = Spoilt(1, 2, math.nan)
    trainer = trainer_of(folder, guard)
    trainer.fit(module, loader(8))
    return (
        trainer.global_step,
        all(bool(torch.isfinite(value).all()) for value in weights(module).values()),
        guard.num_bad,
    )


def spiking(folder: Path) -> tuple[str, list[tuple[int, int]]]:
    detection = SpikeDetection(rtol=50.0, exclude_batches_path=folder / "bad.json")
    try:
        trainer_of(folder, detection).fit(Spoilt(0, 3, 1e6), loader(8))
    except TrainingSpikeException as error:
        return str(error), detection.bad_batches
    return "nothing", []


def saving(folder: Path) -> list[Any]:
    """A checkpoint is asked for before the next look is due."""
    callbacks = ModelCheckpoint(folder / "saved", "{step}", every_n_train_steps=2), NonFiniteGuard()
    try:
        trainer_of(folder, *callbacks, enable_checkpointing=True).fit(Spoilt(1, 0, math.nan), loader(16))
    except NonFiniteError as error:
        return [type(error).__name__, any((folder / "saved").glob("*.ckpt"))]
    return ["nothing"]


def measuring(folder: Path) -> dict[str, float]:
    logger = ListLogger()
    profiler = PyTorchProfiler(folder / "profile")
    monitor = ThroughputMonitor(lambda batch: len(batch[0]))
    trainer_of(folder, monitor, logger=logger, log_every_n_steps=4, profiler=profiler).fit(Regression(), loader(16))
    rows = [row for _, row in logger.rows if "train/batches" in row]
    return {name.removeprefix("train/"): value for name, value in rows[-1].items()} if rows else {}


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name, scene in (
        ("raise", raising),
        ("stop", stopping),
        ("skip", skipping),
        ("spike", spiking),
        ("save", saving),
        ("throughput", measuring),
    ):
        report(name, scene(folder))


if __name__ == "__main__":
    main()
