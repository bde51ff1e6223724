from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import checkpoint_ranks
import pytest
import torch
from launching import run_ranks
from strategies_in_threads import Exchange, InThreads
from torch import nn

from camshaft.strategies import SingleDeviceStrategy, read_checkpoint, write_checkpoint
from camshaft.strategies.checkpoints import writer as writer_module
from camshaft.strategies.checkpoints.writer import CheckpointWriter

RANKS = Path(checkpoint_ranks.__file__)


def writer(*, asynchronous: bool = True) -> CheckpointWriter:
    return CheckpointWriter(SingleDeviceStrategy("cpu"), asynchronous)


def save_and_wait(saves: CheckpointWriter, checkpoint: dict[str, Any], path: str) -> None:
    pending = saves.save(checkpoint, path)
    if pending is not None:
        pending.wait()


class Gate:
    """A gate that blocks writing threads until it is opened, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        self._replace = os.replace
        self.num_inside = 0
        self.most_inside = 0
        monkeypatch.setattr(os, "replace", self._wait)

    def open(self) -> None:
        self._open.set()

    def _wait(self, *paths: Any) -> None:
        self.num_inside += 1
        self.most_inside = max(self.most_inside, self.num_inside)
        assert self._open.wait(60)
        self._replace(*paths)
        self.num_inside -= 1


def training_state() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 300), nn.ReLU(), nn.Linear(300, 4))
    return model, torch.optim.Adam(model.parameters())


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(8, 40)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_save_at_once_is_durable_when_it_returns(tmp_path: Path) -> None:
    assert writer(asynchronous=False).save({"epoch": 3}, str(tmp_path / "deep" / "a.ckpt")) is None
    assert read_checkpoint(tmp_path / "deep" / "a.ckpt") == {"epoch": 3}


def test_the_file_equals_the_state_at_its_step_though_training_went_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = training_state()
    saves = writer()
    progress = {"order": [1, 2], "nested": {"step": 0}}
    for step in range(3):
        train(model, optimizer)
        checkpoint = {"state_dict": model.state_dict(), "optimizer_states": [optimizer.state_dict()], "fit": progress}
        write_checkpoint(checkpoint, tmp_path / f"{step}-reference.ckpt")
        gate = Gate(monkeypatch)
        pending = saves.save(checkpoint, str(tmp_path / f"{step}.ckpt"))
        for _ in range(3):
            train(model, optimizer)
        progress["order"].append(step)  # type: ignore[attr-defined]
        progress["nested"]["step"] += 1  # type: ignore[index]
        checkpoint["optimizer_states"].clear()  # type: ignore[union-attr]
        gate.open()
        assert pending is not None
        pending.wait()
        monkeypatch.undo()
        read, reference = (read_checkpoint(tmp_path / f"{step}{end}.ckpt") for end in ("", "-reference"))
        torch.testing.assert_close(read, reference, rtol=0, atol=0)
        assert type(read["state_dict"]) is type(reference["state_dict"])
        assert read["state_dict"]._metadata == reference["state_dict"]._metadata


def test_the_target_is_absent_until_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    pending = writer().save({"weights": torch.ones(10)}, str(tmp_path / "a.ckpt"))
    assert not (tmp_path / "a.ckpt").exists()
    gate.open()
    assert pending is not None
    pending.wait()
    assert os.listdir(tmp_path) == ["a.ckpt"]
    pending.wait()  # once more changes nothing


def test_two_saves_never_interleave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    saves = writer()
    saves.save({"weights": torch.ones(10)}, str(tmp_path / "a.ckpt"))
    threading.Timer(0.2, gate.open).start()
    pending = saves.save({"weights": torch.zeros(10)}, str(tmp_path / "b.ckpt"))
    assert (tmp_path / "a.ckpt").exists()  # the second began only after the first was whole
    assert pending is not None
    pending.wait()
    assert gate.most_inside == 1
    assert read_checkpoint(tmp_path / "a.ckpt")["weights"].sum() == 10
    assert read_checkpoint(tmp_path / "b.ckpt")["weights"].sum() == 0


def test_loading_waits_for_what_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    saves = writer()
    saves.save({"epoch": 3}, str(tmp_path / "a.ckpt"))
    threading.Timer(0.2, gate.open).start()
    assert saves.load(str(tmp_path / "a.ckpt"), sharded=False) == {"epoch": 3}


def test_a_failing_writer_raises_when_it_is_waited_for_and_not_again_at_the_next_save(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    saves = writer()
    pending = saves.save({"epoch": 1}, str(tmp_path / "file" / "a.ckpt"))
    assert pending is not None
    for _ in range(2):
        with pytest.raises(FileExistsError, match="file"):
            pending.wait()
    save_and_wait(saves, {"epoch": 2}, str(tmp_path / "b.ckpt"))
    assert read_checkpoint(tmp_path / "b.ckpt") == {"epoch": 2}


def test_a_failing_writer_raises_at_the_next_save_which_is_not_done(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    saves = writer()
    saves.save({"epoch": 1}, str(tmp_path / "file" / "a.ckpt"))
    with pytest.raises(FileExistsError, match="file"):
        saves.save({"epoch": 2}, str(tmp_path / "b.ckpt"))
    assert not (tmp_path / "b.ckpt").exists()
    save_and_wait(saves, {"epoch": 3}, str(tmp_path / "b.ckpt"))
    assert read_checkpoint(tmp_path / "b.ckpt") == {"epoch": 3}
    assert writer_module._unsettled == set()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_cannot_be_pickled_is_refused_at_once(tmp_path: Path, asynchronous: bool) -> None:
    saves = writer(asynchronous=asynchronous)
    with pytest.raises(TypeError, match=r"`checkpoint\['a'\]\[1\]` must be a tensor or a plain value"):
        saves.save({"a": [torch.ones(3), lambda: None]}, str(tmp_path / "a.ckpt"))
    assert os.listdir(tmp_path) == []
    save_and_wait(saves, {"a": torch.ones(2)}, str(tmp_path / "a.ckpt"))
    assert read_checkpoint(tmp_path / "a.ckpt")["a"].tolist() == [1, 1]


def test_an_interrupted_wait_leaves_the_save_to_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    saves = writer()
    saves.save({"weights": torch.ones(10)}, str(tmp_path / "a.ckpt"))
    join = threading.Thread.join

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        saves.save({"weights": torch.zeros(10)}, str(tmp_path / "b.ckpt"))
    monkeypatch.setattr(threading.Thread, "join", join)
    gate.open()
    save_and_wait(saves, {"weights": torch.zeros(10)}, str(tmp_path / "b.ckpt"))
    assert read_checkpoint(tmp_path / "a.ckpt")["weights"].sum() == 10
    assert gate.most_inside == 1


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "raise ValueError('mine')"])
def test_an_interpreter_that_ends_completes_what_is_being_written(tmp_path: Path, ending: str) -> None:
    script = f"""
        import sys, torch
        from camshaft.strategies import SingleDeviceStrategy
        strategy = SingleDeviceStrategy("cpu", save_asynchronously=True)
        strategy.save_checkpoint({{"weights": torch.ones(5_000_000)}}, sys.argv[1])
        {ending}
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "a.ckpt")]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == {"": 0, "sys.exit(3)": 3}.get(ending, 1), answer.stderr
    assert read_checkpoint(tmp_path / "a.ckpt")["weights"].sum() == 5_000_000
    assert os.listdir(tmp_path) == ["a.ckpt"]


def test_an_error_that_was_not_waited_for_is_printed_at_exit(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    script = """
        import sys
        from camshaft.strategies import SingleDeviceStrategy
        SingleDeviceStrategy("cpu", save_asynchronously=True).save_checkpoint({"epoch": 1}, sys.argv[1])
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "file" / "a.ckpt")]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stderr.count("error: the checkpoint ") == 1
    assert "file/a.ckpt' was not written (FileExistsError: [Errno 17] File exists:" in answer.stderr


def test_training_is_not_held_up_by_the_writing_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    model, optimizer = training_state()
    pending = writer().save({"state_dict": model.state_dict()}, str(tmp_path / "a.ckpt"))
    for _ in range(5):
        train(model, optimizer)
    while not gate.num_inside:
        time.sleep(0.01)
    train(model, optimizer)
    gate.open()
    assert pending is not None
    pending.wait()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_first_rank_writes_and_every_rank_raises_its_error(tmp_path: Path, asynchronous: bool) -> None:
    (tmp_path / "a-file").touch()
    exchange = Exchange(2)

    def save(rank: int) -> list[str]:
        writer = CheckpointWriter(InThreads(exchange, rank), asynchronous)
        raised = []
        for path in (tmp_path / "a.ckpt", tmp_path / "a-file" / "a.ckpt"):
            try:
                pending = writer.save({"rank": torch.tensor(rank), "of": rank}, str(path))
                if pending is not None:
                    pending.wait()
                raised.append("")
            except OSError as error:
                raised.append(type(error).__name__)
        return raised

    with ThreadPoolExecutor(2) as executor:
        assert list(executor.map(save, range(2))) == [["", "FileExistsError"]] * 2
    assert read_checkpoint(tmp_path / "a.ckpt") == {"rank": torch.tensor(0), "of": 0}


@pytest.mark.processes
def test_every_rank_raises_the_error_of_one(tmp_path: Path) -> None:
    outcome = run_ranks(RANKS, 2, args=[str(tmp_path), "--failures"]).succeeded()
    first, second = (reports[2] for reports in outcome.reports)
    for found in (first, second):
        for kind, error in (("sharded", "NotADirectoryError"), ("replicated", "FileExistsError")):
            for moment in ("at once", "waited for", "again", "at the next save"):
                name, message, notes = found[f"{kind}, {moment}"]
                assert (name, "a-file" in message) == (error, True)
                assert found is first or "rank 0" in notes[0]
            assert found[f"{kind}, the one after"] is None
            assert found[f"{kind}, read"] is None
        assert found["different names"][0] == "ValueError"
        assert "ranks 0 and 1 differ in these, but got ['here.weights', 'there.weights']" in found["different names"][1]
        assert found["not plain"][:1] == ("TypeError",)
        assert "`checkpoint['callbacks']` must be a tensor or a plain value" in found["not plain"][1]
        assert found["absent"][0] == "FileNotFoundError"
        assert found["damaged part"][0]
        assert "which has a damaged __1_0.distcp" in found["damaged part"][1]
        assert found["private disks"][0] == "NotSharedError"
        assert re.search(
            r"`path` must be one directory for all ranks; rank 0 \(node '.+'\) does not see what others wrote: "
            r"__1_0.distcp \(node '.+'\), but got '.*/private.ckpt'.*Use a `dirpath` that all machines share",
            found["private disks"][1],
        )
        assert found["left on private disks"] == []
        assert found["left over"] == []
        *read, damaged, whole, in_parts = found["loaded from private disks"]
        assert read == [[epoch, 999 * 499, "ReLU"] for epoch in (1, 1, 2, 2)]
        assert damaged[0] == "CheckpointError" and "disk-of-0/one.ckpt" in damaged[1]
        for kind, message, _ in (whole, in_parts):
            assert kind == "NotSharedError"
            assert re.search(r"ranks 1 \(node '.+'\) do not see what rank 0 \(node '.+'\) does.*some.ckpt", message)
    assert first["not plain"][2] == ["Raised on rank 1 by the checkpoint '" + str(tmp_path / "good.ckpt") + "'."]


WRITE_FOREVER = textwrap.dedent(
    """
    import sys, torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from camshaft.strategies import SingleDeviceStrategy
    from camshaft.strategies.checkpoints.writer import CheckpointWriter
    path, kind, asynchronous = sys.argv[1], sys.argv[2], sys.argv[3] == "async"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    writer = CheckpointWriter(SingleDeviceStrategy("cpu"), asynchronous)
    weights = torch.zeros(200_000)
    saved = distribute_tensor(weights, mesh, [Shard(0)]) if kind == "directory" else weights
    step = 0
    while True:
        step += 1
        with torch.no_grad():
            weights.fill_(step)
            (saved.to_local() if kind == "directory" else saved).fill_(step)
        pending = writer.save({"step": step, "weights": saved}, path)
        if step > 1:
            print(step, flush=True)
    """
)


@pytest.mark.processes
@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize(
    ("kind", "way"), [("file", "sync"), ("directory", "sync"), ("directory", "async"), ("file", "async")]
)
def test_a_process_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path, kind: str, way: str) -> None:
    path = tmp_path / "a.ckpt"
    for delay_seconds in (0.003, 0.017):
        command = [sys.executable, "-c", WRITE_FOREVER, str(path), kind, way]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()  # at least one checkpoint is there
            time.sleep(delay_seconds)
            process.send_signal(signal.SIGKILL)
        checkpoint = read_checkpoint(path)
        assert torch.equal(checkpoint["weights"], torch.full((200_000,), float(checkpoint["step"])))
