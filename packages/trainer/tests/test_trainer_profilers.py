"""Profilers passed to the trainer: which actions they measure, and their reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_parts import Regression, loader, quiet_trainer

from camshaft.callbacks import (
    ActionProfiler,
    AdvancedProfiler,
    EarlyStopping,
    HookTimeline,
    PassThroughProfiler,
    ProfiledHooks,
    PyTorchProfiler,
    SimpleProfiler,
)


class Nesting(ActionProfiler):
    """Records the actions, and that each ends inside of the one that it began in."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, ...]] = []
        self.stages: list[Any] = []

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        super().setup(stage, local_rank, log_dir)
        self.stages.append((stage, local_rank))

    def start(self, action_name: str) -> None:
        self.open.append(action_name)
        self.seen.append(tuple(self.open))

    def stop(self, action_name: str) -> None:
        assert self.open.pop() == action_name

    def describe(self) -> None:
        self.stages.append("described")


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (None, PassThroughProfiler),
        (HookTimeline(), PassThroughProfiler),
        ("simple", SimpleProfiler),
        ("Simple", SimpleProfiler),
        (True, SimpleProfiler),
        ("advanced", AdvancedProfiler),
        ("pytorch", PyTorchProfiler),
        (AdvancedProfiler(), AdvancedProfiler),
    ],
)
def test_a_profiler_is_chosen_by_name_or_passed(tmp_path: Path, given: Any, kind: type) -> None:
    trainer = quiet_trainer(tmp_path, profiler=given)
    assert type(trainer.profiler) is kind
    assert isinstance(trainer.callbacks[0] if trainer.callbacks else None, ProfiledHooks) == (
        kind is not PassThroughProfiler
    )


def test_hooks_are_measured_with_lightnings_names_one_inside_the_other(tmp_path: Path) -> None:
    class Measuring(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            with self.trainer.profiler.profile("mine"):
                return super().training_step(batch, batch_idx)

    profiler = Nesting()
    trainer = quiet_trainer(tmp_path, profiler=profiler, max_epochs=1, callbacks=[EarlyStopping("val_loss")])
    trainer.fit(Measuring(), loader(2), loader(1))
    assert profiler.stages == [("fit", None), "described"]
    assert profiler.open == []
    step = "[Strategy]SingleDeviceStrategy.training_step"
    within = ("run_training_epoch", "run_training_batch")
    assert profiler.seen.count((*within, step, "mine")) == 2
    assert profiler.seen.count((*within, "[Strategy]SingleDeviceStrategy.backward")) == 2
    assert ("[LightningModule]Measuring.configure_optimizers",) in profiler.seen
    assert ("run_training_epoch", "[Strategy]SingleDeviceStrategy.validation_step") in profiler.seen
    assert any(path[-1].startswith("[Callback]EarlyStopping") for path in profiler.seen)
    trainer.test(Measuring(), loader(1), verbose=False)
    assert profiler.stages[2:] == [("test", None), "described"]


def test_an_error_ends_what_is_open(tmp_path: Path) -> None:
    class Failing(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            raise ValueError("no")

    profiler = Nesting()
    with pytest.raises(ValueError, match="no"):
        quiet_trainer(tmp_path, profiler=profiler).fit(Failing(), loader(2))
    assert profiler.open == []
    assert profiler.stages[-1] == "described"


@pytest.mark.parametrize("kind", [SimpleProfiler, AdvancedProfiler, PyTorchProfiler])
def test_reports_lie_in_the_log_folder(tmp_path: Path, kind: Any) -> None:
    trainer = quiet_trainer(tmp_path, profiler=kind(filename="times"), max_epochs=1)
    trainer.fit(Regression(), loader(6), loader(6))
    expected = "aten::" if kind is PyTorchProfiler else "[Strategy]SingleDeviceStrategy.training_step"
    assert expected in Path(trainer.log_dir, "fit-times.txt").read_text()
    if kind is PyTorchProfiler:
        names = [path.name for path in Path(trainer.log_dir).glob("*.pt.trace.json")]
        assert sorted(name.rpartition(".")[0].split("_step")[0].rpartition(".")[2] for name in names) == [
            "training",
            "validation",
        ]


def test_a_short_stage_is_recorded_as_a_whole(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, profiler="pytorch", max_epochs=1)
    with pytest.warns(UserWarning, match="not enough steps to properly record traces"):
        trainer.fit(Regression(), loader(3), loader(1))
    events = [event.name for event in trainer.profiler.function_events]
    assert events.count("[pl][profile][Strategy]SingleDeviceStrategy.validation_step") == 1
    assert events.count("[pl][profile][Strategy]SingleDeviceStrategy.training_step") >= 2


def trace_of(path: Path) -> list[str]:
    return [event["name"] for event in json.loads(path.read_text())["traceEvents"] if "dur" in event]


def test_cycles_are_recorded_as_often_as_asked_for_and_cost_nothing_between(tmp_path: Path) -> None:
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
    profiler = PyTorchProfiler(tmp_path / "traces", schedule=schedule, max_cycles=0)
    hooks: list[tuple[bool, int]] = []

    class Watching(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            hooks.append((torch.autograd.profiler._is_profiler_enabled, len(self.layer._forward_hooks)))
            return super().training_step(batch, batch_idx)

    trainer = quiet_trainer(tmp_path, max_epochs=1, profiler=profiler, limit_val_batches=0)
    trainer.fit(Watching(), loader(12))
    paths = [path for path in sorted((tmp_path / "traces").iterdir()) if "training" in path.name]
    assert len(paths) == 2
    step = "[pl][profile][Strategy]SingleDeviceStrategy.training_step"
    for path in paths:
        names = trace_of(path)
        assert names.count(step) == 2 and "Optimizer.step#SGD.step" in names
    assert hooks[0] == (False, 0) and hooks[2] == (True, 1) and hooks[-1] == (False, 0)


def test_a_step_that_fails_leaves_its_trace_and_no_profiler_behind(tmp_path: Path) -> None:
    class Failing(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            if batch_idx == 3:
                raise ValueError("no more")
            return super().training_step(batch, batch_idx)

    profiler = PyTorchProfiler(tmp_path / "traces")
    with pytest.raises(ValueError, match="no more"):
        quiet_trainer(tmp_path, profiler=profiler, limit_val_batches=0).fit(Failing(), loader(6))
    assert not torch.autograd.profiler._is_profiler_enabled
    [path] = (tmp_path / "traces").iterdir()
    assert trace_of(path).count("[pl][profile][Strategy]SingleDeviceStrategy.training_step") == 2


def test_a_trainer_without_anything_takes_no_profiler() -> None:
    from camshaft.trainer import Trainer

    with pytest.raises(ValueError, match=r"`profiler=.*` cannot be combined with barebones=True"):
        Trainer(barebones=True, profiler="simple")
