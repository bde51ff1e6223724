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
    of_agent = {"TORCHELASTIC_MAX_RESTARTS": "1"} if launcher == "forked" else {}
    arguments: dict[str, Any] = {"args": [str(folder), *killed], "options": options, "env": of_agent}
    return run_ranks(SCRIPT, 2, launcher=launcher, **arguments).succeeded()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """The folder and the weights of a job in which no rank is killed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    ((restarts, global_step, weights),), other = train(folder, "forked").reports
    assert (restarts, global_step) == (0, NUM_UPDATES)
    assert torch.equal(other[0][2], weights)
    return folder, weights


def assert_ends_like(weights: torch.Tensor, outcome: Outcome) -> None:
    """Check that both ranks ended, after one restart, with these weights."""
    for ((restarts, global_step, found),) in outcome.reports:
        assert (restarts, global_step) == (1, NUM_UPDATES)
        assert torch.equal(found, weights)


# A script that starts its ranks itself, one killed after an update, is tried in the trainer's tests.
@pytest.mark.parametrize(("launcher", "rank", "moment"), [("torchrun", "0", "23"), ("bare", "0", "0.13s")])
def test_a_killed_rank_costs_nothing_but_time(
    launcher: str, rank: str, moment: str, undisturbed: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    outcome = train(tmp_path, launcher, rank, moment)
    assert_ends_like(undisturbed[1], outcome)
    if moment != "0.13s":  # after which not every rank has saved
        assert "resumes from" in outcome.output


def test_a_job_that_has_saved_nothing_begins_anew_whatever_another_one_saved(
    undisturbed: tuple[Path, torch.Tensor],
) -> None:
    folder, weights = undisturbed
    outcome = train(folder, "torchrun", "1", "1")
    assert_ends_like(weights, outcome)
    assert "resumes from" not in outcome.output
