from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_trainer import OneProcess, RecordingTrainer
from torch import nn
from torch.profiler import ProfilerActivity

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.profiling.profiler import Profiler


class Training:
    """Calls the hooks around real steps, as a loop would."""

    def __init__(self, root: Path, profiler: Profiler, rank: int = 0) -> None:
        self.strategy = OneProcess()
        self.strategy.global_rank = rank
        self.trainer = RecordingTrainer(
            str(root), callbacks=[profiler], strategy=self.strategy, is_global_zero=rank == 0
        )
        self.profiler = profiler
        self.module = nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.module.parameters(), 0.1)

    def train(self, num_batches: int, validate_after: int | None = None) -> None:
        self.trainer.begin()
        self.profiler.on_train_start(self.trainer, self.module)
        for batch_idx in range(num_batches):
            self.step(batch_idx)
            if batch_idx == validate_after:
                self.validate()
        self.profiler.on_train_end(self.trainer, self.module)
        self.trainer.end()

    def step(self, batch_idx: int) -> None:
        trainer, module, profiler = self.trainer, self.module, self.profiler
        profiler.on_train_batch_start(trainer, module, None, batch_idx)
        loss = torch.sigmoid(module(torch.ones(2, 4))).sum()
        profiler.on_before_backward(trainer, module, loss)
        loss.backward()
        profiler.on_after_backward(trainer, module)
        self.optimizer.step()
        profiler.on_train_batch_end(trainer, module, loss, None, batch_idx)

    def validate(self) -> None:
        trainer, module, profiler = self.trainer, self.module, self.profiler
        profiler.on_validation_start(trainer, module)
        for batch_idx in range(2):
            profiler.on_validation_batch_start(trainer, module, None, batch_idx)
            torch.tanh(module(torch.ones(2, 4)))
            profiler.on_validation_batch_end(trainer, module, None, None, batch_idx)
        profiler.on_validation_end(trainer, module)


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return found


def names(path: Path) -> list[str]:
    return [event["name"] for event in events(path) if event.get("cat") in ("cpu_op", "user_annotation")]


def is_profiling() -> bool:
    return bool(torch.autograd.profiler._is_profiler_enabled)


def test_the_trace_holds_the_active_batches_with_their_ranges_and_operators(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profiler = Profiler(tmp_path, wait=1, warmup=1, active=2)
    Training(tmp_path, profiler).train(6, validate_after=2)
    path = tmp_path / "train-rank0-0.json"
    assert profiler.trace_paths == [str(path)]
    found = names(path)
    assert [found.count(name) for name in ("train_batch", "backward", "validation", "validate_batch")] == [2, 2, 1, 2]
    assert {"ProfilerStep#2", "ProfilerStep#3", "aten::sigmoid", "aten::tanh", "Optimizer.step#SGD.step"} <= set(found)
    assert "ProfilerStep#4" not in found

    def spans(name: str) -> list[tuple[float, float]]:
        return sorted(
            (one["ts"], one["ts"] + one["dur"]) for one in events(path) if one["name"] == name and "dur" in one
        )

    for inner, outer in (
        ("aten::sigmoid", "train_batch"),
        ("aten::tanh", "validate_batch"),
        ("backward", "train_batch"),
    ):
        assert all(any(a <= x and y <= b for a, b in spans(outer)) for x, y in spans(inner)), (inner, outer)
    table = (tmp_path / "train-rank0-0.txt").read_text()
    assert "train_batch" in table and table in capsys.readouterr().out
    assert not is_profiling()


def test_cycles_and_ranks_have_files_of_their_own_and_a_later_run_counts_on(tmp_path: Path) -> None:
    for rank in (0, 1):
        profiler = Profiler(tmp_path, wait=0, warmup=1, active=1, repeat=2, table_rows=0)
        Training(tmp_path, profiler, rank).train(5)
    Training(tmp_path, Profiler(tmp_path, wait=0, warmup=1, active=1, table_rows=0), rank=1).train(3)
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == [f"train-rank{rank}-{number}.json" for rank, number in ((0, 0), (0, 1), (1, 0), (1, 1), (1, 2))]


def test_both_kinds_of_export_and_the_trainers_folder(tmp_path: Path) -> None:
    profiler = Profiler(wait=0, warmup=0, active=1, export="both", table_rows=0)
    training = Training(tmp_path, profiler)
    training.trainer.log_dir = str(tmp_path / "logs")
    training.train(2)
    chrome, board = profiler.trace_paths
    assert Path(chrome) == tmp_path / "logs" / "train-rank0-0.json"
    assert Path(board).parent == tmp_path / "logs" and Path(board).match("train-rank0.*.pt.trace.json")
    assert "train_batch" in names(Path(chrome)) and "train_batch" in names(Path(board))


def test_shapes_memory_stacks_and_flops_are_recorded_if_asked_for(tmp_path: Path) -> None:
    profiler = Profiler(
        tmp_path,
        wait=0,
        warmup=1,
        active=1,
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
        with_flops=True,
    )
    Training(tmp_path, profiler).train(3)
    trace = events(tmp_path / "train-rank0-0.json")
    product = next(event for event in trace if event["name"] == "aten::addmm")
    assert product["args"]["Input Dims"][1] == [2, 4]
    assert any(event["name"] == "[memory]" for event in trace)
    assert any(event.get("cat") == "python_function" for event in trace)
    table = (tmp_path / "train-rank0-0.txt").read_text()
    assert "FLOPs" in table and "Mem" in table and "Input Shapes" in table


def test_a_schedule_that_training_cuts_short_keeps_its_whole_batches(tmp_path: Path) -> None:
    Training(tmp_path, Profiler(tmp_path, wait=1, warmup=1, active=5, table_rows=0)).train(4)
    assert names(tmp_path / "train-rank0-0.json").count("train_batch") == 2


@pytest.mark.parametrize("num_batches", [1, 2])
def test_too_few_batches_give_a_warning_and_no_file(tmp_path: Path, num_batches: int) -> None:
    with pytest.warns(
        UserWarning, match=rf"`wait` \+ `warmup` must be less than .* 'train', but got 2 for {num_batches}"
    ):
        Training(tmp_path, Profiler(tmp_path)).train(num_batches)
    assert list(tmp_path.iterdir()) == [] and not is_profiling()


def test_after_an_exception_nothing_is_active_and_the_open_cycle_is_written(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, wait=0, warmup=1, active=5)
    training = Training(tmp_path, profiler)
    training.trainer.begin()
    profiler.on_train_start(training.trainer, training.module)
    training.step(0)
    training.step(1)
    profiler.on_train_batch_start(training.trainer, training.module, None, 2)
    profiler.on_before_backward(training.trainer, training.module, None)
    profiler.on_exception(training.trainer, training.module, ValueError("no"))
    training.trainer.end()
    assert not is_profiling()
    found = names(tmp_path / "train-rank0-0.json")
    assert found.count("train_batch") == 2 and found.count("backward") == 2  # those of the failed batch were closed
    Training(tmp_path, Profiler(tmp_path, wait=0, warmup=1, active=1)).train(3)  # the next profiler can run
    assert (tmp_path / "train-rank0-1.json").exists()


def test_a_batch_whose_start_skipped_the_epoch_is_closed_by_the_next(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, wait=0, warmup=0, active=2, table_rows=0)
    training = Training(tmp_path, profiler)
    training.trainer.begin()
    profiler.on_train_start(training.trainer, training.module)
    profiler.on_train_batch_start(training.trainer, training.module, None, 0)
    training.step(0)
    assert profiler._ranges == []
    training.step(1)
    assert not is_profiling()
    assert names(tmp_path / "train-rank0-0.json").count("train_batch") == 3


def test_once_its_cycles_are_over_the_profiler_is_gone(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, wait=0, warmup=0, active=1, table_rows=0)
    training = Training(tmp_path, profiler)
    training.trainer.begin()
    profiler.on_train_start(training.trainer, training.module)
    assert is_profiling()
    training.step(0)
    assert not is_profiling() and profiler._profile is None


def test_validation_within_fit_is_profiled_once_and_not_in_the_sanity_check(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, wait=0, warmup=1, active=1, stages="validate", table_rows=0)  # type: ignore[arg-type]
    training = Training(tmp_path, profiler)
    training.trainer.begin()
    training.trainer.sanity_checking = True
    training.validate()
    assert list(tmp_path.iterdir()) == []
    training.trainer.sanity_checking = False
    profiler.on_train_start(training.trainer, training.module)
    training.step(0)
    training.validate()
    training.validate()
    profiler.on_train_end(training.trainer, training.module)
    training.trainer.end()
    assert [path.name for path in tmp_path.iterdir()] == ["validate-rank0-0.json"]
    found = names(tmp_path / "validate-rank0-0.json")
    assert found.count("validate_batch") == 1 and "aten::sigmoid" not in found


@pytest.mark.parametrize("stage", ["test", "predict"])
def test_other_stages_are_profiled_too(tmp_path: Path, stage: str) -> None:
    profiler = Profiler(tmp_path, wait=0, warmup=1, active=1, stages=("test", "predict"), table_rows=0)
    trainer = Training(tmp_path, profiler).trainer
    trainer.begin(stage)
    getattr(profiler, f"on_{stage}_start")(trainer, None)
    for batch_idx in range(3):
        getattr(profiler, f"on_{stage}_batch_start")(trainer, None, None, batch_idx)
        torch.ones(2).tanh()
        getattr(profiler, f"on_{stage}_batch_end")(trainer, None, None, None, batch_idx)
    getattr(profiler, f"on_{stage}_end")(trainer, None)
    found = names(tmp_path / f"{stage}-rank0-0.json")
    assert found.count(f"{stage}_batch") == 1 and "aten::tanh" in found


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("wait", -1),
        ("active", 0),
        ("repeat", -1),
        ("table_rows", -1),
        ("export", "xml"),
        ("stages", ("fit",)),
        ("stages", ()),
    ],
)
def test_arguments_out_of_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"`{field}` must be"):
        Profiler(**{field: value})


def test_a_second_profiler_is_refused(tmp_path: Path) -> None:
    trainer = RecordingTrainer(str(tmp_path), callbacks=[Profiler(), Profiler(stages=("test",))])
    with pytest.raises(InvalidArgumentError, match="`callbacks` must be with one Profiler at most"):
        trainer.begin()
