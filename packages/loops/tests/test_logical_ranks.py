"""A run on logical ranks has the same bits on any number of processes that plays them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from launching import run_ranks

SCRIPT = Path(__file__).with_name("logical_scenes.py")


def differing(one: dict[str, str], other: dict[str, str]) -> dict[str, Any]:
    return {key: (one.get(key), other.get(key)) for key in one.keys() | other.keys() if one.get(key) != other.get(key)}


def played(num_processes: int, folder: Path, *scenes: str) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    return dict(run_ranks(SCRIPT, num_processes, args=[folder, *scenes]).succeeded().reports[0])


@pytest.mark.processes
def test_a_run_has_the_same_bits_on_one_two_and_four_processes(tmp_path: Path) -> None:
    folders = {number: tmp_path / str(number) for number in (1, 4)}
    found = {number: played(number, folder, "whole", "along_time", "mixed") for number, folder in folders.items()}
    workers = played(2, tmp_path / "workers", "workers")
    for scene in ("whole", "along_time", "mixed"):
        assert not differing(found[1][scene], found[4][scene])
    assert not differing(found[1]["whole"], workers["workers"])
    # each one goes on with another's checkpoint, from inside an accumulation window
    for number, folder in ((1, folders[4]), (2, folders[1])):
        resumed = played(number, folder, "resumed")["resumed"]
        ends = {key: value for key, value in found[1]["whole"].items() if not key.startswith("/states/inside")}
        departed = differing(ends, resumed)
        assert set(departed) <= {"rows"}
        assert found[1]["whole"]["rows"].endswith(resumed["rows"][1:])
