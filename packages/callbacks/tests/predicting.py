"""Prediction as far as its writers see it: loaders, batches, and the trainer's hooks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from recording_trainer import OneProcess, RecordingTrainer


class PredictingTrainer(RecordingTrainer):
    """Shows its loaders, as trainers do."""

    predict_dataloaders: Any


class OneOfSeveral(OneProcess):
    """One rank of several that predict the batches in turn."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.global_rank = self.local_rank = rank
        self.world_size = num_ranks

    def all_gather(self, value: Any) -> list[Any]:
        if isinstance(value, int):  # the data ranks
            return list(range(self.world_size))
        return [value] * self.world_size

    def broadcast(self, value: Any, src: int = 0) -> Any:
        return (None, None) if self.global_rank else value  # as rank 0, which has nothing to tell, would send it


def predict(
    writer: Any, loaders: list[Any], step: Callable[[Any], Any], root: Path, strategy: Any = None, num_batches: int = -1
) -> None:
    """Predict every batch of some loaders; with a number, all is cut off after so many batches."""
    trainer = PredictingTrainer(str(root), strategy=strategy or OneProcess())
    trainer.predict_dataloaders = loaders[0] if len(loaders) == 1 else loaders  # as given
    trainer.num_predict_batches = [len(loader) for loader in loaders]
    writer.setup(trainer, None, "predict")
    writer.on_predict_epoch_start(trainer, None)
    for dataloader_idx, loader in enumerate(loaders):
        for batch_idx, batch in enumerate(loader):
            if num_batches == 0:
                return
            writer.on_predict_batch_end(trainer, None, step(batch), batch, batch_idx, dataloader_idx)
            num_batches -= 1
    writer.on_predict_epoch_end(trainer, None)
