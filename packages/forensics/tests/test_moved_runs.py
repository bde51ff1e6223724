"""A run on logical ranks that is killed, and goes on with other numbers of processes, is the run that never was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from launching import run_ranks

SCRIPT = Path(__file__).with_name("moved_runs.py")

pytestmark = [pytest.mark.processes, pytest.mark.new_feature("trainer", "strategies", "loops")]


def run(folder: Path, num_processes: int, *arguments: Any) -> Any:
    outcome = run_ranks(SCRIPT, num_processes, args=[folder, *map(str, arguments)])
    return outcome.failed() if "--kill-at" in arguments else outcome.succeeded().reports[0][0]


@pytest.mark.parametrize(
    "case",
    [["--model", "transformer"], ["--model", "adversarial-by-hand", "--accumulate", 1]],
    ids=lambda case: case[1],
)
def test_weights_values_and_ledger_are_equal_on_any_processes_and_after_moves(tmp_path: Path, case: list[Any]) -> None:
    whole = run(tmp_path / "1", 1, *case)
    for number in (2, 4):
        assert run(tmp_path / str(number), number, *case) == whole
    moved = tmp_path / "moved"
    run(moved, 2, *case, "--kill-at", 1, "end")
    run(moved, 4, *case, "--kill-at", 4, "update", "--workers", 1)
    assert run(moved, 1, *case) == whole
