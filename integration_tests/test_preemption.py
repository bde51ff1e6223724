"""A signal to any one rank makes all of them save at the same step and stop; what follows is as if it had not come."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from launching import run_ranks

SCRIPT = Path(__file__).parent / "preempted_ranks.py"


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, torch.Tensor]:
    folder = tmp_path_factory.mktemp("straight")
    (((num_steps, weights),), _) = run_ranks(SCRIPT, 2, args=["train", str(folder)]).succeeded().reports
    return num_steps, weights


@pytest.mark.parametrize(("rank", "seconds"), [("0", "0.1"), ("1", "0.4")])
def test_a_run_that_left_goes_on_to_the_same_weights(
    rank: str, seconds: str, straight: tuple[int, torch.Tensor], tmp_path: Path
) -> None:
    left = run_ranks(SCRIPT, 2, args=["leave", str(tmp_path), rank, seconds]).succeeded().reports
    steps = [num_steps for ((num_steps, _),) in left]
    assert 0 < steps[0] == steps[1] < straight[0]
    for ((num_steps, weights),) in run_ranks(SCRIPT, 2, args=["resume", str(tmp_path)]).succeeded().reports:
        assert num_steps == straight[0]
        assert torch.equal(weights, straight[1])
