"""The snapshot of the device's memory when that runs out, and where the error says that it is."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from trainer_parts import Regression, loader, quiet_trainer

from camshaft.callbacks import OutOfMemorySnapshot
from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.strategies import SingleDeviceStrategy

MESSAGE = "CUDA out of memory. Tried to allocate 2.00 GiB."


class Exhausting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor) -> Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        raise torch.OutOfMemoryError(MESSAGE)


class TooLarge(Regression):
    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        result: Tensor = Exhausting.apply(loss) if batch_idx == 2 else loss
        return result


class Memory:
    """What `torch.cuda.memory` has, for the CPU."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def _record_memory_history(self, **arguments: Any) -> None:
        self.calls.append(arguments)

    def _dump_snapshot(self, path: str) -> None:
        Path(path).write_bytes(pickle.dumps({"segments": []}))


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    memory = Memory()
    monkeypatch.setattr(torch.cpu, "memory", memory, raising=False)
    return memory


def error_of(trainer: Any, module: Any = None) -> str:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        trainer.fit(module or TooLarge(), loader())
    return "\n".join(caught.value.__notes__)


def test_the_snapshot_lies_beside_the_checkpoints_and_the_error_names_batch_update_and_file(
    tmp_path: Path, memory: Memory
) -> None:
    notes = error_of(quiet_trainer(tmp_path, callbacks=[OutOfMemorySnapshot()]))
    path = tmp_path / "checkpoints" / "memory-step=2-rank=0.pickle"
    assert pickle.loads(path.read_bytes()) == {"segments": []}
    where = "Memory ran out after 2 updates, in fit, stage train, epoch 0, batch 2"
    assert f"{where}: a snapshot of it is in {path}." in notes
    assert memory.calls == [{"max_entries": 100_000}, {"enabled": None}]


def test_without_entries_nothing_is_recorded_before_memory_runs_out(tmp_path: Path, memory: Memory) -> None:
    error_of(quiet_trainer(tmp_path, callbacks=[OutOfMemorySnapshot(tmp_path / "own", max_entries=0)]))
    assert (tmp_path / "own" / "memory-step=2-rank=0.pickle").is_file() and memory.calls == []


def test_a_device_without_snapshots_says_so_when_its_memory_runs_out(tmp_path: Path) -> None:
    notes = error_of(quiet_trainer(tmp_path, callbacks=[OutOfMemorySnapshot()]))
    assert "Torch takes no snapshots of the memory of cpu." in notes
    assert not list(tmp_path.rglob("*.pickle"))


def test_other_errors_leave_no_snapshot(tmp_path: Path, memory: Memory) -> None:
    class Broken(Regression):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            raise ValueError("another error")

    with pytest.raises(ValueError, match="another error"):
        quiet_trainer(tmp_path, callbacks=[OutOfMemorySnapshot()]).fit(Broken(), loader())
    assert not list(tmp_path.rglob("*.pickle"))
    assert memory.calls[-1] == {"enabled": None}


def test_a_negative_number_of_entries_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="`max_entries` must be an int, 0 or more, but got -1"):
        OutOfMemorySnapshot(max_entries=-1)


def test_an_error_outside_of_hooks_says_in_which_batch_it_was_raised(tmp_path: Path) -> None:
    assert error_of(quiet_trainer(tmp_path)) == "Raised in fit, stage train, epoch 0, batch 2, rank 0."


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_memory_of_a_gpu_is_written_with_the_stack_of_the_allocation_that_failed(tmp_path: Path) -> None:
    class Huge(Regression):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return torch.empty(1 << 50, device=self.device).sum()

    strategy = SingleDeviceStrategy("cuda")
    error_of(quiet_trainer(tmp_path, strategy=strategy, callbacks=[OutOfMemorySnapshot(tmp_path)]), Huge())
    snapshot = pickle.loads((tmp_path / "memory-step=0-rank=0.pickle").read_bytes())
    failed = [entry for trace in snapshot["device_traces"] for entry in trace if entry["action"] == "oom"]
    assert failed and any(frame["name"] == "training_step" for frame in failed[-1]["frames"])
