"""A sample of `nox -s crashes`: two ways of saving, with every crash point of each, and some resumes."""

from __future__ import annotations

from pathlib import Path

import pytest
from crashes.checks import Checker, explore, points, record
from crashes.scenes import SCENES


@pytest.mark.parametrize("name", ["best and last", "last is a link"])
def test_no_crash_loses_a_durable_checkpoint(name: str, tmp_path: Path) -> None:
    run = record(name, SCENES[name], tmp_path / "run", tmp_path / "log")
    num_points, num_folders, faults = explore(run)
    assert not faults
    assert num_points > 500 and num_folders > 200
    checker, states = Checker(run), [state for _, _, state in points(run)]
    for state in states[:: len(states) // 10]:
        assert checker.faults_of_resume(state) == []
