"""Two processes of which one alone has a bad batch."""

from __future__ import annotations

import math
import socket
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from launching import report
from torch import Tensor, distributed
from torch.utils.data import DataLoader, default_collate
from trainer_parts import ListLogger, Regression, loader, quiet_trainer, weights

from camshaft.callbacks import (
    DataWait,
    ModelCheckpoint,
    NonFiniteError,
    NonFiniteGuard,
    PyTorchProfiler,
    SpikeDetection,
    StragglerReport,
    ThroughputMonitor,
    TrainingSpikeException,
)
from camshaft.hooks_core import Callback
from camshaft.strategies import DDPStrategy


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


SLOW = ("data", "hooks", "forward", "backward", "collective")


class Slow(Regression):
    """In every second batch another phase of another rank takes longer."""

    num_read = 0

    def pause(self, phase: str, rank: int, batch_idx: int) -> None:
        place = divmod(batch_idx, 2)
        if place[1] and SLOW[place[0] : place[0] + 1] == (phase,) and place[0] % 2 == rank:
            time.sleep(0.3)

    def collate(self, samples: list[Any]) -> Any:
        self.num_read += 1
        self.pause("data", distributed.get_rank(), self.num_read - 1)
        return default_collate(samples)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.batch_idx = batch_idx
        self.pause("hooks", self.trainer.global_rank, batch_idx)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.pause("forward", self.trainer.global_rank, batch_idx)
        loss.register_hook(lambda gradient: self.pause("backward", self.trainer.global_rank, batch_idx))
        return loss

    def reduce(self, state: Any, bucket: Any) -> Any:
        """Average gradients as torch does, and come to the end later."""
        buffer, future = bucket.buffer().div_(2), torch.futures.Future()
        work = distributed.all_reduce(buffer, async_op=True)

        def finish() -> None:
            work.wait()
            self.pause("collective", distributed.get_rank(), self.batch_idx)
            future.set_result(buffer)

        threading.Thread(target=finish).start()
        return future


class Findings(Callback):
    """Keeps what each sample found, and on which steps ranks met."""

    def __init__(self, straggling: StragglerReport) -> None:
        self.straggling, self.found, self.num_barriers = straggling, [], []

    def on_train_start(self, trainer: Any, module: Any) -> None:
        strategy = trainer.strategy
        meet, gather = strategy.barrier, strategy.all_gather
        strategy.barrier = lambda *name: (self.num_barriers.append("barrier"), meet(*name))[1]
        strategy.all_gather = lambda value: (self.num_barriers.append("gather"), gather(value))[1]

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.num_barriers.append(batch_idx)
        latest = self.straggling.latest
        if latest is not None and latest.step == batch_idx - 1:
            self.found.append((latest.step, latest.phase, latest.rank, latest.node == socket.gethostname()))


def straggling(folder: Path) -> dict[str, Any]:
    """Every second step is sampled; in each of these another phase of another rank is slow."""
    straggling, wait, module, logger = StragglerReport(every_n_steps=2), DataWait(), Slow(), ListLogger()
    findings = Findings(straggling)
    strategy = DDPStrategy(comm_hook=module.reduce)
    trainer = quiet_trainer(
        folder,
        strategy=strategy,
        accelerator="cpu",
        devices=2,
        callbacks=[findings, straggling, wait],
        max_epochs=1,
        logger=logger,
        log_every_n_steps=5,
    )
    data = DataLoader(loader(11).dataset, batch_size=2, collate_fn=module.collate)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(module, data)
    named = [str(one.message) for one in caught if str(one.message).startswith("Ranks wait for rank")]
    rows = {name: value for _, row in logger.rows for name, value in row.items()}
    return {
        "found": findings.found[: len(SLOW)],
        "collectives": findings.num_barriers,
        "warned": len(named),
        "first": named[:1],
        "rows": sorted(name for name in rows if name.startswith(("data_wait", "straggler"))),
        "waits": [rows.get(f"data_wait/rank{rank}") for rank in range(2)],
    }


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
        ("straggling", straggling),
    ):
        report(name, scene(folder))


if __name__ == "__main__":
    main()
