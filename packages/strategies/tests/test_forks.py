from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from camshaft.strategies import DDPStrategy, ParallelStrategy, ShardedStrategy

pytestmark = pytest.mark.processes


class Refusal(Exception):
    """One that cannot be made from its `args`, and so cannot be unpickled."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Let torch have a second thread, which forks lack."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("kind", [DDPStrategy, ShardedStrategy])
def test_ranks_that_are_forks_train_together_and_rank_zero_answers(kind: type[ParallelStrategy]) -> None:
    torch.ones(400, 400).mm(torch.ones(400, 400))
    strategy = kind(accelerator="cpu", devices=2, start_method="fork", logical_ranks=4, timeout=60)
    model = torch.nn.Linear(400, 1)
    DDPStrategy(accelerator="cpu", devices=1).connect()
    kept: list[Any] = [dist.group.WORLD]
    kept.append(kept)  # only the collector frees the group
    dist.destroy_process_group()
    del kept

    def train() -> tuple[list[float], list[range]]:
        strategy.connect()
        torch.ones(400, 400).mm(torch.ones(400, 400))
        places = [strategy.global_rank, strategy.local_rank, strategy.world_size, os.environ["LOCAL_WORLD_SIZE"]]
        sums = [strategy.reduce(float(strategy.global_rank), "sum")]
        assert strategy.start_method is None and places == [strategy.global_rank] * 2 + [2, "2"]
        with torch.no_grad():
            model.weight.fill_(1.0)
        return sums, strategy.all_gather(strategy.logical_ranks)

    before = model.weight.clone()
    assert strategy.run_in_forks(train) == ([1.0], [range(2), range(2, 4)])
    assert torch.equal(model.weight, before) and "RANK" not in os.environ
    assert strategy.start_method == "fork" and strategy.global_rank == 0


def test_the_first_error_of_a_rank_is_raised_with_its_traceback(tmp_path: Path) -> None:
    strategy = ParallelStrategy(accelerator="cpu", devices=2, start_method="fork", timeout=60)

    def fail() -> None:
        strategy.connect()
        if strategy.global_rank == 1:
            unpicklable = Refusal(1, 2)
            raise unpicklable
        strategy.barrier()
        time.sleep(60)  # the watch ends it

    started = time.monotonic()
    with pytest.raises(RuntimeError, match="Refusal: 1 and 2") as raised:
        strategy.run_in_forks(fail)
    assert "raise unpicklable" in str(raised.value.__cause__) and time.monotonic() - started < 45

    def be_killed() -> None:
        if strategy.global_rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        (tmp_path / "other").touch()

    with pytest.raises(RuntimeError, match="rank 1 ended with status -9"):
        strategy.run_in_forks(be_killed)
    assert (tmp_path / "other").exists()


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_all_ranks_once(tmp_path: Path) -> None:
    strategy = ParallelStrategy(accelerator="cpu", devices=2, start_method="fork")
    starter = os.getpid()

    def wait() -> None:
        own = tmp_path / str(strategy.global_rank)
        own.touch()
        try:
            while not (tmp_path / "0").exists() or not (tmp_path / "1").exists():
                time.sleep(0.01)
            if strategy.global_rank == 0:
                os.kill(starter, signal.SIGINT)
            time.sleep(60)
        except KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGINT)  # a second one, as of the terminal
            own.write_text("interrupted")
            raise

    with pytest.raises(KeyboardInterrupt):
        strategy.run_in_forks(wait)
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["interrupted"] * 2


def test_what_forks_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"`start_method` must be None or one of .*, but got 'spawn'"):
        ParallelStrategy(accelerator="cpu", devices=2, start_method="spawn")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`max_restarts` must be 0 where ranks are forks, but got 1"):
        ParallelStrategy(accelerator="cpu", devices=2, start_method="fork", max_restarts=1)
    strategy = ParallelStrategy(accelerator="cpu", devices=2, start_method="fork")
    with pytest.raises(RuntimeError, match=r"`connect` must be called in every rank.*run_in_forks"):
        strategy.connect()
    with pytest.raises(RuntimeError, match=r"`start_method` must be 'fork' .*, but got None"):
        ParallelStrategy(accelerator="cpu", devices=1).run_in_forks(lambda: None)
    strategy.device = torch.device("cuda")
    monkeypatch.setattr("torch.cuda._is_in_bad_fork", lambda: True)
    with pytest.raises(RuntimeError, match="CUDA must be unused by the process that is forked"):
        strategy.run_in_forks(lambda: None)
