"""Memory does not grow with the number of batches in validation, test, and prediction that returns nothing."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from trainer_parts import Regression, quiet_trainer

from camshaft.callbacks import CSVLogger
from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer

pytestmark = pytest.mark.exhaustive

FEW, MANY = 256, 1280  # multiples of what is reduced, or sent to loggers, in one go
MOST_ALIVE = 8  # batches and outputs of the step that runs and of the one before
MOST_GROWTH_BYTES = 60_000  # less than the objects of a tensor for each of the batches in between

Verb = Callable[[Trainer, Regression, Any], Any]


class Fresh(Dataset[Any]):
    """Samples that are made when they are read."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.full((3,), float(index)), torch.zeros(1)


class Watched(Regression):
    """Logs in each way, and watches what becomes of its batches and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: list[weakref.ref[Tensor]] = []
        self.most_alive = 0

    def watch(self, *tensors: Tensor) -> None:
        self.watched = [reference for reference in self.watched if reference() is not None]
        self.watched += map(weakref.ref, tensors)
        self.most_alive = max(self.most_alive, len(self.watched))

    def step(self, batch: list[Tensor]) -> dict[str, Tensor]:
        loss = self.loss(batch)
        self.log("of_steps", loss, on_step=True, on_epoch=True)
        self.log("largest", loss + 1, reduce_fx="max", prog_bar=True)
        outputs = {"loss": loss, "more": loss.repeat(3)}
        self.watch(*batch, *outputs.values())
        return outputs

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        return self.step(batch)

    def test_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        return self.step(batch)

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        outputs = super().predict_step(batch, batch_idx)
        self.watch(*batch, outputs)
        return outputs


class Measuring(Callback):
    """Measures Python's memory and counts the tensors there are, after few batches and after many."""

    def __init__(self) -> None:
        self.num_bytes: list[int] = []
        self.num_tensors: list[int] = []
        self.num_batches = 0

    def measure(self, *_: Any) -> None:
        self.num_batches += 1
        if self.num_batches in (FEW, MANY):
            gc.collect()
            self.num_bytes.append(tracemalloc.get_traced_memory()[0])
            self.num_tensors.append(sum(issubclass(type(thing), Tensor) for thing in gc.get_objects()))

    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = measure

    @property
    def grown(self) -> tuple[int, int]:
        """Numbers of tensors and of bytes that were added in between."""
        return self.num_tensors[1] - self.num_tensors[0], self.num_bytes[1] - self.num_bytes[0]


def validate(trainer: Trainer, module: Regression, batches: Any) -> Any:
    return trainer.validate(module, batches, verbose=False)


def run_test(trainer: Trainer, module: Regression, batches: Any) -> Any:
    return trainer.test(module, batches, verbose=False)


def predict(trainer: Trainer, module: Regression, batches: Any) -> Any:
    return trainer.predict(module, batches, return_predictions=False)


def predict_and_return(trainer: Trainer, module: Regression, batches: Any) -> Any:
    return trainer.predict(module, batches, return_predictions=True)


def run(verb: Verb, folder: Path) -> tuple[Watched, Measuring, Any]:
    module, measuring = Watched(), Measuring()
    logger = CSVLogger(folder, flush_logs_every_n_steps=1)
    trainer = quiet_trainer(folder, callbacks=measuring, logger=logger)
    gc.collect()
    gc.freeze()  # what tests before have left is not counted, so it may be freed meanwhile
    tracemalloc.start()
    try:
        result = verb(trainer, module, DataLoader(Fresh(MANY)))
    finally:
        tracemalloc.stop()
        gc.unfreeze()
    assert measuring.num_batches == MANY
    return module, measuring, result


@pytest.mark.parametrize("verb", [validate, run_test, predict])
def test_nothing_is_kept_of_a_batch_once_the_next_one_runs(verb: Verb, tmp_path: Path) -> None:
    growths = []
    while not growths or (growths[-1][1] >= MOST_GROWTH_BYTES and len(growths) < 3):
        # what first uses and other threads allocate does not recur in the next run; what is kept of batches does
        module, measuring, _ = run(verb, tmp_path / str(len(growths)))
        assert module.most_alive <= MOST_ALIVE
        gc.collect()
        assert [tensor for reference in module.watched if (tensor := reference()) is not None] == []
        growths.append(measuring.grown)
    num_tensors, num_bytes = map(min, zip(*growths, strict=True))
    assert num_tensors == 0
    assert num_bytes < MOST_GROWTH_BYTES


def test_predictions_that_are_wanted_are_all_there(tmp_path: Path) -> None:
    """So that the test above can fail."""
    module, measuring, predictions = run(predict_and_return, tmp_path)
    assert len(predictions) == MANY <= module.most_alive
    num_tensors, num_bytes = measuring.grown
    assert num_tensors >= MANY - FEW
    assert num_bytes > 2 * MOST_GROWTH_BYTES
