"""Stock callbacks do on two processes what Lightning's do there, and decide together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from launching import run_ranks
from stock_callbacks_ranks import INTERVAL, PRUNING

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).parent / "stock_callbacks_ranks.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("frameworks")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What each framework's processes reported, by rank."""
    names = ("lightning", "camshaft")
    return {name: run_ranks(SCRIPT, 2, args=[folder / name, name]).succeeded().named for name in names}


def zeros(weights: dict[str, torch.Tensor]) -> int:
    return sum(int((value == 0).sum()) for value in weights.values())


@pytest.mark.parametrize("kind", PRUNING)
def test_a_module_is_pruned_alike_on_all_ranks_and_as_by_lightning(
    found: dict[str, list[dict[str, Any]]], kind: str
) -> None:
    ours, theirs = ([of_rank[f"pruned: {kind}"] for of_rank in found[name]] for name in ("camshaft", "lightning"))
    for name, value in ours[0].items():
        assert torch.equal(value, ours[1][name]), name
    assert ours[0].keys() == theirs[0].keys()
    assert zeros(ours[0]) == zeros(theirs[0]) > 0
    for name, value in theirs[0].items():
        torch.testing.assert_close(ours[0][name], value, rtol=1e-5, atol=1e-6, msg=name)


def test_masks_are_those_of_the_first_rank_where_each_draws_its_own(found: dict[str, list[dict[str, Any]]]) -> None:
    first, second = (of_rank["pruned by other numbers"] for of_rank in found["camshaft"])
    assert zeros(first) > 0
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_the_time_between_validations_is_agreed_upon(found: dict[str, list[dict[str, Any]]]) -> None:
    first, second = (of_rank["timed"] for of_rank in found["camshaft"])
    assert first[0] == second[0], "the ranks validated after other batches"
    assert len(first[0]) >= 2 and len(set(first[0])) == len(first[0])
    longest = [max(both) for both in zip(first[1], second[1], strict=True)]
    assert min(longest) >= INTERVAL.total_seconds(), "a validation came before its time was over for any rank"
    assert all(torch.equal(value, second[2][name]) for name, value in first[2].items())
