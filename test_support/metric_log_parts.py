"""A logger that remembers, and metric logs for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from camshaft.loops.metrics import MetricLog


@dataclass
class Position:
    current_epoch: int = 0
    global_step: int = 0


@dataclass
class RecordingLogger:
    """Satisfies the `Logger` protocol and keeps what it gets."""

    rows: list[tuple[int | None, dict[str, float]]] = field(default_factory=list)
    num_saves: int = 0
    name: str | None = "recording"
    version: int | str | None = 0
    save_dir: str | None = None
    log_dir: str | None = None
    experiment: Any = None

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        assert all(type(value) in (float, int) for value in metrics.values())
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, params: Mapping[str, Any]) -> None: ...

    def save(self) -> None:
        self.num_saves += 1

    def finalize(self, status: str) -> None: ...


class Rig:
    """A metric log with a logger and a position, driven as the loops drive it."""

    def __init__(self, log_every_n_steps: int = 50, strategy: Any = None) -> None:
        self.logger = RecordingLogger()
        self.progress = Position()
        self.metrics = MetricLog(
            loggers=[self.logger],
            log_every_n_steps=log_every_n_steps,
            progress=self.progress,
            strategy=strategy,
        )
        self.log = self.metrics.log

    def start_training(self) -> None:
        self.metrics.start_epoch("train")
        self.metrics.moment = "batch"

    def start_evaluation(self, stage: str = "validate", num_dataloaders: int = 1) -> None:
        self.metrics.start_epoch(stage, num_dataloaders)
        self.metrics.moment = "batch"

    def batch(self, batch: Any = None, dataloader_idx: int = 0) -> None:
        self.metrics.batch = batch
        self.metrics.dataloader_idx = dataloader_idx

    def end_batch(self, is_update: bool = True) -> None:
        self.progress.global_step += is_update
        self.metrics.end_train_batch(is_update)

    def end_epoch(self) -> list[dict[str, float]]:
        self.metrics.moment = "epoch"
        return self.metrics.end_epoch()
