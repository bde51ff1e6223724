"""A rank that is killed with SIGKILL makes the job start again and end as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from launching import Outcome, run_ranks

SCRIPT = Path(__file__).parent / "restarted_ranks.py"
NUM_UPDATES = 40


def train(folder: Path, launcher: Any, *killed: str) -> Outcome:
    options = ["--max-restarts=1"] if launcher == "torchrun" else []
    return run_ranks(SCRIPT, 2, launcher=launcher, args=[str(folder), *killed], options=options).succeeded()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    reports = train(tmp_path_factory.mktemp("undisturbed"), "torchrun").reports
    ((restarts, global_step, weights),), other = reports
    assert (restarts, global_step) == (0, NUM_UPDATES)
    assert torch.equal(other[0][2], weights)
    return weights


@pytest.mark.parametrize(
    ("launcher", "rank", "moment"),
    [("bare", "1", "17"), ("torchrun", "0", "23"), ("torchrun", "1", "1"), ("bare", "0", "0.13s")],
)
def test_a_killed_rank_costs_nothing_but_time(
    launcher: str, rank: str, moment: str, undisturbed: torch.Tensor, tmp_path: Path
) -> None:
    outcome = train(tmp_path, launcher, rank, moment)
    for reports in outcome.reports:
        ((restarts, global_step, weights),) = reports
        assert (restarts, global_step) == (1, NUM_UPDATES)
        assert torch.equal(weights, undisturbed)
    if moment not in ("1", "0.13s"):  # after the first update nothing was saved yet, in 0.13 s not everywhere
        assert "goes on from" in outcome.output


def test_a_new_job_does_not_go_on_from_what_another_one_saved(undisturbed: torch.Tensor, tmp_path: Path) -> None:
    train(tmp_path, "torchrun")
    for reports in train(tmp_path, "torchrun", "1", "1").reports:
        ((restarts, _, weights),) = reports
        assert restarts == 1
        assert torch.equal(weights, undisturbed)
