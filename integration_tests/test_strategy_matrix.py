"""Every strategy trains what one device trains, in every precision, and resumes to the bit."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launching import run_ranks
from matrix.cases import TOLERANCES, Case, cases

SCRIPT = Path(__file__).parent / "matrix" / "ranks.py"


@cache
def results(size: int, device: str) -> list[dict[str, Any]]:
    """By rank: what came of each case."""
    return [dict(reports) for reports in run_ranks(SCRIPT, size, args=[device], timeout=600).succeeded().reports]


def check(case: Case) -> None:
    for result in (by_case[case.name] for by_case in results(case.size, case.device)):
        assert result["names"]
        assert result["moved"] > 5 * TOLERANCES[case.precision]  # or nothing was learned
        assert result["error"] <= case.tolerance
        assert result["same on all ranks"]
        assert result["resumed to the bit"]


@pytest.mark.parametrize("case", [*cases(2), *cases(4)], ids=lambda case: f"{case.size}-{case.name}")
def test_the_weights_are_those_of_one_device_and_a_resumed_run_ends_with_the_same_bits(case: Case) -> None:
    check(case)


@pytest.mark.gpu(kind="cuda")
@pytest.mark.parametrize("case", cases(1, "cuda"), ids=lambda case: case.name)
def test_so_they_are_on_a_gpu_through_nccl(case: Case) -> None:
    check(case)
