from __future__ import annotations

import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from launching import Launcher, run_ranks
from torch.distributed import HashStore

from camshaft.strategies import CollectiveError
from camshaft.strategies.launch.failures import FailureWatch

pytestmark = pytest.mark.processes

LONG = timedelta(hours=1)

# What the loops do around a run: the failing rank tells the others first of all.
FAILING = """
import os, signal, sys, time
from camshaft.hooks_core.support.messages import note_errors
from camshaft.strategies import ParallelStrategy

how, victim, others = sys.argv[1], int(sys.argv[2]), sys.argv[3]
strategy = ParallelStrategy(accelerator="cpu", devices=2, timeout=10)
strategy.connect()
strategy.barrier()
if how == "leave" and strategy.global_rank == victim:
    sys.exit(0)
try:
    with note_errors(strategy, "on_train_batch_start", lambda: f"epoch 0, batch 3, rank {strategy.global_rank}"):
        if strategy.global_rank == victim:
            if how == "raise":
                raise ValueError("boom")
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "stop":
                time.sleep(2)  # looked at by then
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(3600)
        if others == "busy":
            time.sleep(3600)
        strategy.barrier()
except BaseException as error:
    strategy.note_failure(error)
    raise
"""
HOOK = "Raised in hook `on_train_batch_start` of ParallelStrategy (epoch 0, batch 3, rank {})."


@pytest.fixture
def watches() -> Iterator[list[FailureWatch]]:
    """Those of three ranks, in this process; none of them has the time to end it."""
    store = HashStore()
    watches = [FailureWatch(store, rank, 3, LONG) for rank in range(3)]
    for watch in watches:
        watch._interval = 0.01
        watch.start()
    yield watches
    for watch in reversed(watches):
        watch.leave()


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_failure_on_one_rank_is_known_on_all_and_told_once(
    watches: list[FailureWatch], capsys: pytest.CaptureFixture[str]
) -> None:
    error = ValueError("boom")
    error.add_note("Raised in hook `setup`.")
    watches[1].note(error)
    wait_for(lambda: all(watch.failure is not None for watch in watches))
    assert {watch.failure for watch in watches} == {watches[1].failure}
    assert watches[0].failure.rank == 1 and watches[0].failure.text == "ValueError: boom\nRaised in hook `setup`."
    assert error.__notes__ == ["Raised in hook `setup`."]
    wait_for(lambda: "[camshaft] Raised in hook" in capsys.readouterr().err)
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_after_a_failure_collectives_are_refused_on_every_rank(watches: list[FailureWatch]) -> None:
    watches[0].check("barrier")
    watches[0].note(ValueError("boom"))
    with pytest.raises(
        CollectiveError,
        match=r"`barrier` must be called while no process has failed, but got a call on rank 0 after this process "
        r"failed: ValueError: boom. Handle that error first.",
    ):
        watches[0].check("barrier")
    wait_for(lambda: watches[2].failure)
    with pytest.raises(CollectiveError, match="a call on rank 2 after rank 0 failed: ValueError: boom"):
        watches[2].check("reduce")


def test_an_error_that_another_rank_caused_says_so(watches: list[FailureWatch]) -> None:
    watches[2].note(ValueError("boom"))
    broken = RuntimeError("gloo: Connection closed by peer")
    watches[0].note(broken)
    assert broken.__notes__ == ["Rank 2 failed first: ValueError: boom"]
    watches[0].note(KeyError("later"))
    assert watches[0].failure == watches[2].failure


def test_an_error_of_the_backend_lets_its_cause_be_heard_first(watches: list[FailureWatch]) -> None:
    watches[0]._interval = 10.0
    broken = RuntimeError("gloo: Connection reset by peer")
    noting = threading.Thread(target=watches[0].note, args=[broken])
    noting.start()
    time.sleep(0.3)
    watches[1].note(MemoryError())
    noting.join()
    assert broken.__notes__ == ["Rank 1 failed first: MemoryError"]


def test_of_ranks_that_time_out_together_one_reads_where_the_others_are(
    watches: list[FailureWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[FailureWatch] = []
    read = FailureWatch._positions
    monkeypatch.setattr(FailureWatch, "_positions", lambda watch, store: readers.append(watch) or read(watch, store))
    errors = [RuntimeError("gloo: Timed out waiting 1000ms for recv operation to complete") for _ in watches]
    noting = [threading.Thread(target=watch.note, args=[error]) for watch, error in zip(watches, errors, strict=True)]
    for thread in noting:
        thread.start()
    for thread in noting:
        thread.join()
    assert len(readers) == 1
    assert len({watch.failure for watch in watches}) == 1
    for watch, error in zip(watches, errors, strict=True):
        (note,) = error.__notes__
        assert all(f"{rank}" in note for rank in range(3)) and ("failed first" in note) == (watch is not readers[0])


def test_when_all_have_failed_they_may_begin_anew(watches: list[FailureWatch]) -> None:
    for watch in watches:
        watch.note(ValueError("the same everywhere"))
    for watch in watches:
        watch.wait_until_all_failed()
        watch._thread.join(60)
        assert not watch._thread.is_alive()


def test_when_some_have_not_failed_nobody_begins_anew(watches: list[FailureWatch]) -> None:
    watches[0].note(ValueError("boom"))
    watches[0]._is_leaving.set()  # or its thread would end this process, as it should
    watches[0]._thread.join(60)
    watches[0]._timeout = 0.1
    with pytest.raises(CollectiveError, match="`connect` must be called while no process has failed"):
        watches[0].wait_until_all_failed()


def test_once_the_first_rank_has_left_well_nobody_watches(watches: list[FailureWatch]) -> None:
    watches[2]._peers.clear()
    watches[0].leave()
    for watch in watches[1:]:
        watch._thread.join(60)
        assert not watch._thread.is_alive() and watch.failure is None


def fails(how: str, victim: int, launcher: Launcher, others: str = "waiting") -> str:
    outcome = run_ranks(FAILING, 2, launcher=launcher, args=[how, str(victim), others], timeout=120).failed()
    return outcome.output


@pytest.mark.parametrize("launcher", ["torchrun", "bare", "slurm"])
def test_an_exception_on_one_rank_ends_all_and_is_printed(launcher: Launcher) -> None:
    output = fails("raise", 1, launcher)
    assert "ValueError: boom" in output and HOOK.format(1) in output
    if launcher == "torchrun":
        root = output.partition("Root Cause")[2]
        assert "rank      : 1" in root and "ValueError: boom" in root and HOOK.format(1) in root
    if launcher == "bare":
        report = "[camshaft] The process of rank 1 (local rank 1) ended with status 1: ValueError: boom"
        assert output.count(report) == 1


@pytest.mark.parametrize("launcher", ["torchrun", "bare", "slurm"])
def test_a_killed_rank_ends_all_and_is_named(launcher: Launcher) -> None:
    output = fails("kill", 1, launcher)
    if launcher == "slurm":
        assert "Rank 1 failed first: its process ended unexpectedly: it was killed" in output
    elif launcher == "bare":
        assert output.count("[camshaft] The process of rank 1 (local rank 1) ended by signal SIGKILL.") == 1
    else:
        assert "Signal 9 (SIGKILL)" in output


@pytest.mark.parametrize("launcher", ["torchrun", "bare", "slurm"])
def test_a_rank_that_never_comes_ends_with_all_others(launcher: Launcher) -> None:
    output = fails("sleep", 1, launcher)
    assert "Timed out waiting 10000ms" in output
    assert "Raised on rank 0 in the collective `barrier`, which every rank must call." in output
    assert HOOK.format(0) in output
    assert output.count("Rank 1 is missing in a collective that others wait in:\n") >= 2
    assert re.search(r"rank 1: outside of a run, since \d+ s \(at script.py:\d+ in <module>\); ", output)
    assert re.search(r"rank 0: outside of a run, collective `barrier`, since \d+ s", output)
    stack = output.partition("[camshaft] Rank 1, which the others wait for, is at:\n")[2]
    assert "time.sleep(3600)" in stack.partition("\n[rank")[0]
    if launcher == "slurm":
        assert output.count("[camshaft] Rank 1 was ended, because rank 0 failed: RuntimeError") == 1


TIMING_OUT = """
import sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from camshaft.strategies import ParallelStrategy
strategy = ParallelStrategy(accelerator="cpu", devices=3, timeout=20)
strategy.connect()
pair = dist.new_group([0, 2], timeout=timedelta(seconds=20))
def exchange(group):
    dist.all_reduce(torch.ones(2), group=group)
exchange(None)
if strategy.global_rank != 1:
    exchange(pair)
try:
    if strategy.global_rank == 1:
        time.sleep(3600)
    exchange(None)
except BaseException as error:
    strategy.note_failure(error)
    raise
"""


def test_a_collective_that_times_out_leaves_dumps_of_all_ranks_that_torch_reads(tmp_path: Path) -> None:
    dumps = tmp_path / "the dumps"
    environment = {"TORCH_FR_DUMP_TEMP_FILE": str(dumps / "nccl_trace_")}
    output = run_ranks(TIMING_OUT, 3, launcher="slurm", timeout=120, env=environment).failed().output
    assert f"The last collectives of each rank are in {dumps}/flight_recorder_<rank>." in output
    assert sorted(path.name for path in dumps.iterdir()) == [f"flight_recorder_{rank}" for rank in range(3)]
    command = shlex.split(output.partition("Read them with `")[2].partition("`")[0])
    read = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", *command[1:]]
    analysis = subprocess.run(read, capture_output=True, text=True, check=True)
    assert "Not all ranks joining collective, sequence number: 2" in analysis.stderr
    assert "missing ranks: {1}" in analysis.stderr and "exchange at" in analysis.stderr


TIMING_OUT_ON_GPUS = """
import time
import torch, torch.distributed as dist
from camshaft.strategies import ParallelStrategy
strategy = ParallelStrategy(accelerator="cuda", devices=2, timeout=10)
strategy.connect()
tensor = torch.ones(2, device=strategy.device)
dist.all_reduce(tensor)
if strategy.global_rank == 1:
    time.sleep(3600)
dist.all_reduce(tensor)
torch.cuda.synchronize()
"""


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_collective_of_nccl_that_times_out_leaves_its_own_dumps(tmp_path: Path) -> None:
    environment = {"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "nccl_trace_")}
    run_ranks(TIMING_OUT_ON_GPUS, 2, launcher="slurm", timeout=120, env=environment).failed()
    assert (tmp_path / "nccl_trace_0").is_file()


@pytest.mark.parametrize(("victim", "reason"), [(1, "gave no sign of life for 5 s"), (0, "was stopped, hangs")])
def test_a_rank_that_was_stopped_is_named_with_where_it_was_seen_last_and_killed(victim: int, reason: str) -> None:
    output = fails("stop", victim, "slurm")
    assert f"[camshaft] Rank {victim} failed, which ends the run on every rank: its process {reason}" in output
    seen = rf"rank {victim}: outside of a run, .*since \d+ s .*no sign of life for \d+ s"
    assert re.search(seen, output)
    assert f"[camshaft] Rank {victim}, which gave no sign of life, was killed by rank {1 - victim}." in output


def test_a_rank_whose_script_ends_before_a_collective_is_missing_in_it() -> None:
    outcome = run_ranks(FAILING, 2, launcher="slurm", args=["leave", "1", "waiting"], timeout=120)
    assert outcome.exit_codes == [1, 0]
    assert "Rank 1 is missing in a collective that others wait in:" in outcome.output
    assert re.search(r"rank 1: its script has ended, since \d+ s", outcome.output)


def test_without_an_agent_the_end_of_whoever_holds_the_store_is_noticed_by_a_rank_that_computes() -> None:
    output = fails("kill", 0, "slurm", "busy")
    assert "[camshaft] Rank 1 was ended, because rank 0 failed: its process was killed" in output


def test_without_an_agent_an_exception_ends_a_rank_that_computes() -> None:
    output = fails("raise", 0, "slurm", "busy")
    assert output.count("[camshaft] Rank 0 failed, which ends the run on every rank: ValueError: boom") == 1
    assert "[camshaft] Rank 1 was ended, because rank 0 failed: ValueError: boom" in output


SCRIPT_ERROR = """
import time
from camshaft.strategies import ParallelStrategy
strategy = ParallelStrategy(accelerator="cpu", devices=2, timeout=10)
strategy.connect()
if strategy.global_rank == 1:
    raise KeyError("between two runs")
time.sleep(3600)
"""


def test_an_error_that_nobody_catches_ends_all_outside_of_a_run_too() -> None:
    output = run_ranks(SCRIPT_ERROR, 2, launcher="slurm", timeout=120).failed().output
    assert "[camshaft] Rank 0 was ended, because rank 1 failed: KeyError: 'between two runs'" in output


SEVERAL_LIVES = """
import sys
from camshaft.strategies import CollectiveError, ParallelStrategy
from launching import report
strategies = [ParallelStrategy(accelerator="cpu", devices=2, timeout=60)]
for life in range(3):
    strategy = strategies[life]
    strategy.connect()
    strategies.append(ParallelStrategy(accelerator="cpu", timeout=60))
    report(strategy.all_gather((life, strategy.global_rank)))
    strategy.note_failure(ValueError(f"the same on all ranks in life {life}"))
    try:
        strategy.barrier()
    except CollectiveError as error:
        report("the same on all ranks" in str(error))
sys.exit(0)
"""


def test_a_script_goes_on_after_an_error_that_all_ranks_had() -> None:
    outcome = run_ranks(SEVERAL_LIVES, 2, launcher="slurm").succeeded()
    expected = [value for life in range(3) for value in ([(life, 0), (life, 1)], True)]
    assert outcome.reports == [expected, expected]
