from __future__ import annotations

import pytest
import torch.distributed as dist
from launching import run_ranks

from camshaft.strategies import CollectiveError, ParallelStrategy, SingleDeviceStrategy, rank_zero_first, rank_zero_only

TWO_RANKS = """
import os
from pathlib import Path
from camshaft.strategies import CollectiveError, ParallelStrategy, rank_zero_first, rank_zero_only
from launching import report

@rank_zero_only
def name(value, *, twice=False):
    return value * (1 + twice)

before = name("a", twice=True)
strategy = ParallelStrategy(accelerator="cpu", devices=2, timeout=60)
strategy.connect()
report((before, name("b")))

found = []
def look(folder):
    with rank_zero_first(strategy):
        found.append(sorted(path.name for path in folder.iterdir()))
        (folder / str(strategy.global_rank)).touch()

folder = Path(strategy.broadcast(os.environ["CAMSHAFT_TEST_REPORTS"])) / "shared"
if strategy.global_rank == 0:
    folder.mkdir()
strategy.barrier()
look(folder)
report(found)

try:
    with rank_zero_first(strategy):
        if strategy.global_rank == 0:
            raise OSError("no space left")
        report("never")
except (OSError, RuntimeError) as error:
    report(f"{type(error).__name__}: {error}")

def misuse(within):
    try:
        within()
    except CollectiveError as error:
        return str(error)

report(misuse(rank_zero_only(strategy.barrier)))
report(strategy.all_gather(strategy.global_rank))  # all are where they were
"""


def test_what_the_first_rank_does_alone_or_first_never_leaves_the_others_waiting() -> None:
    first, second = run_ranks(TWO_RANKS, 2).succeeded().reports
    assert first[0] == ("aa", "b") and second[0] == (None, None)
    assert first[1] == [[]] and second[1] == [["0"]]
    assert first[2] == "OSError: no space left"
    assert second[2] == (
        "RuntimeError: The body of `rank_zero_first` failed on rank 0, so it is not run here: OSError: no space left. "
        "See the traceback of rank 0."
    )
    assert "`barrier` must be called by every rank, but got a call within `" in first[3]
    assert "which is `rank_zero_only`, on rank 0" in first[3]
    assert second[3] is None
    assert first[4] == second[4] == [0, 1]


def test_one_process_is_the_first() -> None:
    strategy = SingleDeviceStrategy("cpu")
    with rank_zero_first(strategy):
        ran = True
    assert ran
    assert rank_zero_only(lambda: 3)() == 3


def test_a_collective_in_rank_zero_only_code_is_refused_on_one_process_too() -> None:
    strategy = ParallelStrategy(accelerator="cpu", devices=1)
    strategy.connect()

    @rank_zero_only
    def save() -> None:
        inner()

    @rank_zero_only
    def inner() -> None:
        pass

    @rank_zero_only
    def gather() -> None:
        save()
        strategy.all_gather(1)

    with pytest.raises(CollectiveError, match=r"`all_gather` must be called by every rank.*gather`, which is"):
        gather()
    with (
        pytest.raises(CollectiveError, match="within the body of `rank_zero_first`"),
        rank_zero_first(strategy),
    ):
        strategy.barrier()
    assert strategy.all_gather(1) == [1]
    dist.destroy_process_group()
