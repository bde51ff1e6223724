from __future__ import annotations

import json
import math
import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_trainer import OneProcess, RecordingTrainer, load_callback_state
from torch import Tensor, nn

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.monitors.spike_detection import SpikeDetection, TrainingSpikeException


def trainer_with(root: Path | str, detection: SpikeDetection, **arguments: Any) -> RecordingTrainer:
    strategy = OneProcess()
    strategy.device = torch.device("cpu")
    trainer = RecordingTrainer(str(root), callbacks=[detection], strategy=strategy, **arguments)
    detection.on_train_start(trainer, None)
    return trainer


def feed(trainer: RecordingTrainer, detection: SpikeDetection, losses: list[float], start: int = 0) -> None:
    for batch_idx, loss in enumerate(losses, start=start):
        detection.on_train_batch_end(trainer, None, torch.tensor(loss), None, batch_idx)


def spikes(losses: list[float], **arguments: Any) -> list[int]:
    """Indices of the losses that are spikes."""
    detection = SpikeDetection(action="warn", exclude_batches_path="/dev/null/nowhere", **arguments)
    detection._write_bad_batches = lambda trainer: None  # type: ignore[method-assign]
    trainer = trainer_with(".", detection)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for idx, loss in enumerate(losses):
            before = len(detection.bad_batches)
            feed(trainer, detection, [loss], start=10 * idx)  # so that neighbours are told apart
            if len(detection.bad_batches) > before:
                found.append(idx)
    return found


def test_a_spike_raises_with_its_place_and_is_written_with_the_batch_before(tmp_path: Path) -> None:
    detection = SpikeDetection(rtol=2.0)
    trainer = trainer_with(tmp_path, detection, current_epoch=1, log_dir=str(tmp_path / "logs"))
    feed(trainer, detection, [1.0, 1.2, 0.8])
    with pytest.raises(TrainingSpikeException, match=r"epoch 1, batch 3: it is 5, and the mean .* is 1") as caught:
        feed(trainer, detection, [5.0], start=3)
    assert json.loads((tmp_path / "logs" / "skip_batches.json").read_text()) == [
        {"epoch": 1, "batch_idx": 2},
        {"epoch": 1, "batch_idx": 3},
    ]
    same = pickle.loads(pickle.dumps(caught.value))
    assert (same.epoch, same.batch_idx, same.value, same.reference) == (1, 3, 5.0, pytest.approx(1.0))


def test_only_what_is_worse_by_both_tolerances_is_a_spike() -> None:
    losses = [1.0, 1.0, 1.4, 1.0, 3.1]
    assert spikes(losses, rtol=0.3) == [2, 4]
    assert spikes(losses, rtol=0.3, atol=1.0) == [4]
    assert spikes(losses, rtol=None, atol=0.35) == [2, 4]
    assert spikes([5.0, 5.0, 1.0, 0.1], rtol=0.5) == []  # falling is no spike,
    assert spikes([5.0, 5.0, 1.0, 0.1], rtol=0.5, mode="max") == [2, 3]  # unless it is to rise


def test_a_spike_does_not_enter_the_mean_and_the_window_forgets() -> None:
    assert spikes([1.0, 10.0, 10.0, 1.0, 10.0]) == [1, 2, 4]
    rising = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5]
    assert spikes(rising, window=2, rtol=0.7) == []
    assert spikes(rising, window=20, rtol=0.7) != []


def test_in_the_warm_up_only_what_is_not_finite_is_a_spike() -> None:
    assert spikes([1.0, 9.0, 1.0, 99.0], warmup=3) == [3]
    assert spikes([1.0, math.nan, 1.0], warmup=3) == [1]


def test_losses_that_are_not_finite_are_spikes_or_left_out() -> None:
    losses = [1.0, math.inf, 1.0, math.nan, 9.0]
    assert spikes(losses) == [1, 3, 4]
    assert spikes(losses, finite_only=False) == [4]


@given(
    st.lists(st.floats(-5, 5, width=32) | st.sampled_from([math.nan, math.inf]), min_size=1, max_size=25),
    st.integers(1, 9),
    st.integers(0, 25),
)
def test_neither_the_interval_nor_a_resume_changes_what_is_found(losses: list[float], every: int, cut: int) -> None:
    def run(interval: int, resume_at: int | None) -> dict[str, Any]:
        detection = SpikeDetection(action="warn", rtol=0.5, window=3, check_every_n_batches=interval)
        detection._write_bad_batches = lambda trainer: None  # type: ignore[method-assign]
        trainer = trainer_with(".", detection)
        for idx, loss in enumerate(losses):
            if idx == resume_at:
                state = detection.state_dict()
                detection = SpikeDetection(action="warn", rtol=0.5, window=3, check_every_n_batches=interval)
                detection._write_bad_batches = lambda trainer: None  # type: ignore[method-assign]
                detection.load_state_dict(state)
                trainer = trainer_with(".", detection)
            feed(trainer, detection, [loss], start=idx)
        return detection.state_dict()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run(1, None) == run(every, None) == run(every, cut)


class Share(OneProcess):
    """One of several processes, each in a thread, that play four logical ranks."""

    num_logical_ranks = 4

    def __init__(self, rank: int, parts: list[Any], barrier: threading.Barrier) -> None:
        self.device, self.global_rank, self.world_size = torch.device("cpu"), rank, len(parts)
        num_own = self.num_logical_ranks // self.world_size
        self.logical_ranks = range(rank * num_own, (rank + 1) * num_own)
        self._parts, self._barrier = parts, barrier

    def reduce(self, tensor: Tensor, op: str = "mean") -> Tensor:
        assert op == "sum"
        self._parts[self.global_rank] = tensor
        self._barrier.wait()
        total = torch.stack(self._parts).sum(dim=0)
        self._barrier.wait()
        return total


class LogicalTrainer(RecordingTrainer):
    logical_rank: int | None = None


def watched(
    action: Any, losses: list[list[float | None]], world_size: int, first: int = 0, state: dict[str, Any] | None = None
) -> list[Any]:
    """From a batch on, whether each update was left out, and the state then, as each of some processes has it."""
    parts, barrier = [None] * world_size, threading.Barrier(world_size, timeout=60)

    def run(rank: int) -> list[Any]:
        detection = SpikeDetection(action=action, rtol=0.5, window=3)
        detection._write_bad_batches = lambda trainer: None  # type: ignore[method-assign]
        strategy = Share(rank, parts, barrier)
        trainer = LogicalTrainer(".", callbacks=[detection], strategy=strategy)
        if state:
            detection.load_state_dict(state)
        detection.on_train_start(trainer, None)
        found: list[Any] = []
        weight = nn.Parameter(torch.ones(()))
        for idx, of_ranks in list(enumerate(losses))[first:]:
            weight.grad = torch.ones(())
            for logical_rank in strategy.logical_ranks:
                trainer.logical_rank = logical_rank
                loss = of_ranks[logical_rank]
                outputs = None if loss is None else torch.tensor(loss)
                if action == "skip":
                    detection.on_train_batch_start(trainer, None, None, idx)
                if action == "skip" and outputs is not None:
                    detection.on_before_backward(trainer, None, outputs)
                if action != "skip":
                    detection.on_train_batch_end(trainer, None, outputs, None, idx)
            trainer.logical_rank = None
            if action == "skip" and idx % 2:  # windows of two batches
                detection.on_before_optimizer_step(trainer, None, torch.optim.SGD([weight], lr=0.1))
            found.append((weight.grad is None, detection.state_dict()))
        return found

    with ThreadPoolExecutor(world_size) as pool:
        of_processes = list(pool.map(run, range(world_size)))
    assert all(repr(one) == repr(of_processes[0]) for one in of_processes)
    return of_processes[0]


one_loss = st.none() | st.floats(-5, 5, width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 9.0])


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["skip", "warn"]),
    st.lists(st.lists(one_loss, min_size=4, max_size=4), min_size=2, max_size=9),
    st.integers(1, 8),
)
def test_logical_ranks_decide_alike_on_any_processes(action: Any, losses: list[list[float | None]], cut: int) -> None:
    cut = min(cut, len(losses) - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = watched(action, losses, 1)
        for number, other in ((2, 4), (4, 1)):
            assert repr(watched(action, losses, number)) == repr(whole)
            _, state = watched(action, losses[:cut], number)[-1]
            assert repr(watched(action, losses, other, cut, state)) == repr(whole[cut:])


def test_logical_ranks_decide_by_the_mean_of_their_losses() -> None:
    losses: list[list[float | None]] = [[1.0, 1.0, None, 1.0]] * 2 + [[1.0, 1.0, 1.0, 40.0]] * 2
    with pytest.warns(RuntimeWarning, match=r"is 21\.5, and the mean"):  # of the sums of two batches
        found = watched("skip", losses, 2)
    assert [is_left_out for is_left_out, _ in found] == [False, False, False, True]
    assert found[-1][1]["good_losses"] == [2.0]


def test_the_state_survives_a_checkpoint(tmp_path: Path) -> None:
    detection = SpikeDetection(action="stop", exclude_batches_path=tmp_path / "bad.json", check_every_n_batches=10)
    trainer = trainer_with(tmp_path, detection)
    feed(trainer, detection, [1.0, 1.0, 9.0])
    with pytest.warns(RuntimeWarning, match="Training stops"):
        trainer.write(str(tmp_path / "a.ckpt"))
    assert trainer.should_stop
    resumed = SpikeDetection(action="stop")
    resumed.load_state_dict(load_callback_state(tmp_path / "a.ckpt", detection))
    assert resumed.bad_batches == [(0, 1), (0, 2)] and resumed.state_key == detection.state_key
    trainer = trainer_with(tmp_path, resumed)
    with pytest.warns(RuntimeWarning, match="epoch 0, batch 3"):  # judged by the losses before the checkpoint
        feed(trainer, resumed, [7.0], start=3)


def test_a_skipped_update_leaves_no_gradient(tmp_path: Path) -> None:
    layer = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(layer.parameters())
    detection = SpikeDetection(action="skip")
    trainer = trainer_with(tmp_path, detection, optimizers=[optimizer])
    for batch_idx, scale in enumerate((1.0, 100.0, 1.0)):
        detection.on_train_batch_start(trainer, layer, None, batch_idx)
        loss = torch.tensor(scale)
        detection.on_before_backward(trainer, layer, loss)
        layer(torch.ones(1, 1)).sum().backward()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            detection.on_before_optimizer_step(trainer, layer, optimizer)
        detection.on_train_batch_end(trainer, layer, loss, None, batch_idx)
        assert (layer.weight.grad is None) == (batch_idx == 1) == bool(caught)
    assert detection.bad_batches == [(0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("mode", {"mode": "up"}),
        ("window", {"window": 0}),
        ("warmup", {"warmup": 0}),
        ("atol", {"atol": -1.0}),
        ("rtol", {"rtol": math.nan}),
        ("rtol", {"rtol": None}),
        ("action", {"action": "ignore"}),
        ("check_every_n_batches", {"check_every_n_batches": 0}),
    ],
)
def test_arguments_out_of_range_are_refused(field: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"`{field}` must be"):
        SpikeDetection(**arguments)
