"""A run on logical ranks that is killed, and goes on with other numbers of processes, is the run that never was."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launching import run_ranks

SCRIPT = Path(__file__).with_name("moved_runs.py")

pytestmark = [pytest.mark.processes, pytest.mark.new_feature("trainer", "strategies", "loops")]


def run(folder: Path, num_processes: int, *arguments: Any) -> Any:
    outcome = run_ranks(SCRIPT, num_processes, args=[folder, *map(str, arguments)], imports=[SCRIPT.stem])
    return outcome.failed() if "--kill-at" in arguments else outcome.succeeded().reports[0][0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that returns the result of one process, made once for each case."""
    return cache(lambda *case: run(tmp_path_factory.mktemp("whole"), 1, *case))


TRANSFORMER, BY_HAND = ("--model", "transformer"), ("--model", "adversarial-by-hand", "--accumulate", 1)


@pytest.mark.parametrize("case", [TRANSFORMER, BY_HAND], ids=lambda case: case[1])
def test_weights_values_and_ledger_are_equal_on_any_processes_and_after_moves(
    whole: Any, tmp_path: Path, case: tuple[Any, ...]
) -> None:
    for number in (2, 4):
        assert run(tmp_path / str(number), number, *case) == whole(*case)
    moved = tmp_path / "moved"
    run(moved, 2, *case, "--kill-at", 1, "end")
    run(moved, 4, *case, "--kill-at", 4, "update", "--workers", 1)
    assert run(moved, 1, *case) == whole(*case)


def test_sharded_runs_of_several_optimizers_that_accumulate_move_too(whole: Any, tmp_path: Path) -> None:
    case = "--model", "adversarial", "--clip", 0.1
    run(tmp_path, 4, *case, "--strategy", "fsdp", "--kill-at", 2, "update")
    run(tmp_path, 2, *case, "--kill-at", 3, "end")
    assert run(tmp_path, 2, *case, "--strategy", "fsdp") == whole(*case)


def test_sharded_runs_are_equal_too_and_move_between_strategies(whole: Any, tmp_path: Path) -> None:
    sharded = "--strategy", "fsdp"
    for number in (1, 4):
        assert run(tmp_path / str(number), number, *sharded) == whole(*TRANSFORMER)
    moved = tmp_path / "moved"
    run(moved, 4, *sharded, "--kill-at", 1, "end")
    run(moved, 2, *sharded, "--kill-at", 2, "update")
    run(moved, 1, "--kill-at", 3, "start")
    run(moved, 2, "--kill-at", 5, "update")
    assert run(moved, 2, *sharded) == whole(*TRANSFORMER)
