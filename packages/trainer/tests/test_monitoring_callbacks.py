"""Throughput, profiler and loss watches in the real trainer."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import run_ranks
from torch import Tensor
from trainer_parts import NO_VALIDATION, ListLogger, Regression, assert_same, loader, quiet_trainer, weights

from camshaft.callbacks import (
    ModelCheckpoint,
    NonFiniteError,
    NonFiniteGuard,
    SpikeDetection,
    ThroughputMonitor,
    TrainingSpikeException,
)

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)  # how large the first losses are must not be chance


class Spoilt(Regression):
    """Its loss is multiplied by a factor in some batches of the run."""

    def __init__(self, factors: dict[int, float]) -> None:
        super().__init__()
        self.factors = factors
        self.num_steps = 0
        self.seen: list[dict[str, Any]] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx) * self.factors.get(self.num_steps, 1.0)
        self.num_steps += 1
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.1, weight_decay=0.1)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append(weights(self))


def num_samples(batch: list[Tensor]) -> int:
    return len(batch[0])


def rows_of(logger: ListLogger, key: str) -> dict[int | None, float]:
    return {step: row[key] for step, row in logger.rows if key in row}


def test_throughput_of_all_stages_is_logged_under_accumulation_and_after_a_resume(tmp_path: Path) -> None:
    def fit(max_epochs: int, ckpt_path: str | None) -> ListLogger:
        logger = ListLogger()
        monitor = ThroughputMonitor(num_samples, flops_per_batch=100.0, available_flops=1e9)
        trainer = quiet_trainer(
            tmp_path,
            max_epochs=max_epochs,
            accumulate_grad_batches=2,
            log_every_n_steps=2,
            logger=logger,
            callbacks=[monitor, ModelCheckpoint(tmp_path / "ckpt", save_last=True)],
            enable_checkpointing=True,
        )
        trainer.fit(Regression(), loader(8), loader(3), ckpt_path=ckpt_path)
        if ckpt_path:
            trainer.test(Regression(), loader(3), verbose=False)
        return logger

    first = fit(1, None)
    assert rows_of(first, "train/samples") == {1: 16, 3: 32}
    assert rows_of(first, "validate/batches") == {3: 3}
    second = fit(2, str(tmp_path / "ckpt" / "last.ckpt"))
    assert rows_of(second, "train/samples") == {5: 48, 7: 64}
    assert rows_of(second, "validate/batches") == {7: 6}
    assert rows_of(second, "test/batches") == {2: 2, 3: 3}
    for key in ("train/device/batches_per_sec", "train/device/mfu", "validate/device/samples_per_sec"):
        assert all(value > 0 for value in rows_of(second, key).values()) and rows_of(second, key)


def test_a_loss_that_is_not_finite_ends_training_before_it_is_saved(tmp_path: Path) -> None:
    trainer = quiet_trainer(
        tmp_path,
        max_epochs=2,
        enable_checkpointing=True,
        callbacks=[
            ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=2, save_top_k=-1),
            NonFiniteGuard(check_every_n_batches=100),
        ],
    )
    with pytest.raises(NonFiniteError, match="nan in epoch 0, batch 2"):
        trainer.fit(Spoilt({2: math.nan}), loader(6))
    assert [path.name for path in tmp_path.glob("*.ckpt")] == ["step=2.ckpt"]


@pytest.mark.parametrize("watch", [NonFiniteGuard, SpikeDetection])
def test_a_skipped_update_changes_nothing_and_training_goes_on(tmp_path: Path, watch: Any) -> None:
    bad = math.nan if watch is NonFiniteGuard else 1e6
    module = Spoilt({3: bad})
    trainer = quiet_trainer(tmp_path, callbacks=[watch(action="skip")], gradient_clip_val=1.0)
    with pytest.warns(RuntimeWarning, match="batch 3.* The update is left out"):
        trainer.fit(module, loader(6))
    assert trainer.global_step == 6
    assert_same(module.seen[3], module.seen[2])
    assert not torch.equal(module.seen[4]["layer.weight"], module.seen[3]["layer.weight"])


def test_a_bad_batch_of_an_accumulation_window_costs_its_whole_update(tmp_path: Path) -> None:
    module = Spoilt({2: math.nan})
    trainer = quiet_trainer(tmp_path, callbacks=[NonFiniteGuard("skip")], accumulate_grad_batches=2)
    with pytest.warns(RuntimeWarning, match="left out"):
        trainer.fit(module, loader(6))
    assert_same(module.seen[3], module.seen[1])
    assert all(torch.isfinite(value).all() for value in module.seen[5].values())


def test_a_spike_stops_training_and_names_the_batches(tmp_path: Path) -> None:
    detection = SpikeDetection(exclude_batches_path=tmp_path, action="raise", window=3, rtol=50.0)
    with pytest.raises(TrainingSpikeException, match="epoch 1, batch 1"):
        quiet_trainer(tmp_path, max_epochs=2, callbacks=[detection]).fit(Spoilt({5: 1e6}), loader(4))
    found = json.loads((tmp_path / "skip_batches.json").read_text())
    assert found == [{"epoch": 1, "batch_idx": 0}, {"epoch": 1, "batch_idx": 1}]


@pytest.mark.parametrize("action", ["raise", "skip"])
def test_scaled_gradients_that_overflow_are_no_fault(tmp_path: Path, action: Any) -> None:
    module = Spoilt({1: 1e4})  # times the first scale, 65536, it is beyond what float16 can hold
    guard = NonFiniteGuard(action, check_gradients=True)
    trainer = quiet_trainer(tmp_path, precision="16-mixed", callbacks=[guard])
    trainer.fit(module, loader(4))
    assert trainer.global_step < 4, "no update overflowed"
    assert guard.num_bad == 0 and all(torch.isfinite(value).all() for value in module.seen[-1].values())


def test_under_a_scaler_a_loss_that_is_not_finite_is_one(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="The loss must be finite, but is nan in epoch 0, batch 1"):
        quiet_trainer(tmp_path, precision="16-mixed", callbacks=[NonFiniteGuard(check_gradients=True)]).fit(
            Spoilt({1: math.nan}), loader(4)
        )


@pytest.mark.processes
def test_two_processes_decide_alike_and_write_files_of_their_own(tmp_path: Path) -> None:
    outcome = run_ranks(Path(__file__).with_name("monitoring_scenes.py"), 2, args=[tmp_path])
    zero, one = outcome.succeeded().named
    for name in ("raise", "stop", "skip", "spike", "save"):
        assert zero[name] == one[name], (name, zero[name], one[name])
    assert zero["raise"][0] == "The loss must be finite, but is nan in epoch 0, batch 1."
    assert zero["raise"][1] == 1, "one reduction for the epoch's look"
    has_stopped, num_bad = zero["stop"]
    assert has_stopped and 1 <= num_bad < 20, "it stops before the last of five epochs"
    assert zero["skip"] == (4, True, 1)
    assert zero["spike"][0].startswith("The loss jumped in epoch 0, batch 3")
    assert zero["save"] == ["NonFiniteError", False]
    traces = [path.name for path in (tmp_path / "profile").iterdir() if path.name.endswith(".pt.trace.json")]
    assert {name.split("-")[1] for name in traces} == {"0", "1"}  # the ranks
    assert zero["throughput"]["batches_per_sec"] == 2 * zero["throughput"]["device/batches_per_sec"]
    assert one["throughput"] == {}
    slow = zero["straggling"]
    phases = ["data", "hooks", "forward", "backward", "collective"]
    assert slow["found"] == one["straggling"]["found"]
    assert slow["found"] == [(2 * idx + 1, phase, idx % 2, True) for idx, phase in enumerate(phases)]
    assert slow["warned"] >= len(phases) and one["straggling"]["warned"] == 0
    assert re.match(r"Ranks wait for rank 0 on .* in its phase 'data': \d+\.\d ms of the", slow["first"][0])
    events = slow["collectives"]
    for step in range(10):
        between = events[events.index(step) + 1 : events.index(step + 1)]
        assert between.count("barrier") == 2 * (step % 2), "ranks meet on sampled steps alone"
        assert "gather" in between or not step % 2
    assert slow["rows"][:3] == ["data_wait", "data_wait/rank0", "data_wait/rank1"]
    assert slow["rows"][3:] == sorted(f"straggler/{phase}" for phase in phases)
    assert 0 < slow["waits"][1] < slow["waits"][0] < 1, "rank 0 alone had slow data"
