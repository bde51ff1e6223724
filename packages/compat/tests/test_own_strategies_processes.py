"""Strategies, environments and plugins of one's own on two real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import run_ranks

pytestmark = [pytest.mark.processes]

SCRIPT = Path(__file__).with_name("own_strategies_ranks.py")


def test_overrides_of_strategies_work_on_two_ranks(tmp_path: Path) -> None:
    reports = run_ranks(SCRIPT, 2, args=[tmp_path, "torchrun"]).succeeded().named
    for report in reports:
        assert report["state"] == (True, "DistributedDataParallel", 4)  # half of the samples
        assert report["equal"] and report["loss"] == reports[0]["loss"]
        assert report["same data"] == 8
        assert report["sharded"]
        assert report["zero"] == report["own"] == (True, True)
    assert [report.get("saved by") for report in reports] == [0, None]


def test_an_environment_of_ones_own_says_the_ranks(tmp_path: Path) -> None:
    first, second = run_ranks(SCRIPT, 2, args=[tmp_path, "other"]).succeeded().named
    assert (first["place"], second["place"]) == ((0, 2, 0, 0), (1, 2, 1, 0))
    assert second["calls"] == [("size", 2), ("rank", 1), ("valid", 2, 1), "teardown"]
    assert first["weights"] == second["weights"]
