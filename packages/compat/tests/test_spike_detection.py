"""Detection of spikes under its name in Lightning."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from camshaft.callbacks import TrainingSpikeException
from camshaft.compat.names.trainer.spike_detection import SpikeDetection


def trainer_in(folder: Path, **strategy: Any) -> Any:
    return SimpleNamespace(
        default_root_dir=str(folder),
        is_global_zero=True,
        current_epoch=0,
        strategy=SimpleNamespace(**{"world_size": 1, **strategy}),
    )


def run(callback: SpikeDetection, trainer: Any, losses: list[float]) -> None:
    for batch_idx, loss in enumerate(losses):
        outputs = torch.tensor(loss) if batch_idx % 2 else {"loss": torch.tensor(loss)}
        callback.on_train_batch_end(trainer, None, outputs, None, batch_idx)


@pytest.mark.parametrize(
    ("arguments", "losses", "spike"),
    [
        ({}, [1.0, 0.5, 0.4, 4.0], 3),
        ({}, [1.0, 0.5, 0.4, 0.6], None),
        ({"mode": "max"}, [1.0, 2.0, -4.0], 2),
        ({"warmup": 3}, [1.0, 1.0, 9.0, 1.0], None),
        ({"atol": 5.0, "rtol": None}, [1.0, 1.0, 5.0, 9.0], 3),
        ({}, [1.0, math.nan], 1),
        ({"finite_only": False}, [1.0, math.nan, 1.0], None),
        ({"finite_only": False}, [1.0, 0.5, math.inf], 2),
    ],
)
def test_a_loss_that_jumps_ends_training(
    tmp_path: Path, arguments: dict[str, Any], losses: list[float], spike: int | None
) -> None:
    callback = SpikeDetection(**arguments)
    if spike is None:
        run(callback, trainer_in(tmp_path), losses)
        assert not (tmp_path / "skip_batches.json").exists()
        return
    with pytest.raises(TrainingSpikeException) as caught:
        run(callback, trainer_in(tmp_path), losses)
    assert caught.value.batch_idx == spike
    expected = [spike - 1, spike]
    assert json.loads((tmp_path / "skip_batches.json").read_text()) == callback.bad_batches == expected


def test_the_spike_of_another_process_ends_training_here(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, world_size=2, reduce=lambda flags, op: torch.tensor([1.0, 0.0]))
    with pytest.raises(TrainingSpikeException):
        run(SpikeDetection(exclude_batches_path=tmp_path / "bad.json"), trainer, [1.0])
    assert json.loads((tmp_path / "bad.json").read_text()) == [-1, 0]


def test_a_state_goes_on_and_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    first, second = SpikeDetection(), SpikeDetection()
    run(first, trainer_in(tmp_path), [1.0, 0.9])
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    with pytest.raises(ValueError, match="`mode` must be 'min' or 'max'"):
        SpikeDetection(mode="up")
    with pytest.raises(TypeError, match="`loss` must be a tensor"):
        first.on_train_batch_end(trainer_in(tmp_path), None, None, None, 0)
