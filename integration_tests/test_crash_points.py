"""A sample of `nox -s crashes`: ways of saving, with every crash point of each and some resumes, and lost ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from crashes.checks import explore, faults_of_resumes, record
from crashes.collectives import Ends, count
from crashes.scenes import COLLECTIVES, SCENES
from s3_server import environment, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    for library in ("s3fs", "moto.server"):
        pytest.importorskip(library)
    with s3_server() as variables, environment(variables):
        yield


@pytest.mark.parametrize("name", ["best and last", "last is a link", "in memory"])
def test_no_crash_loses_a_durable_checkpoint(name: str, tmp_path: Path) -> None:
    run = record(name, SCENES[name], tmp_path)
    num_points, num_folders, faults = explore(run)
    assert not faults
    assert num_points > 150 and num_folders > 150
    assert faults_of_resumes(run, num_points, most=10)[1] == {}


def test_no_crash_loses_a_durable_checkpoint_on_s3(server: None, tmp_path: Path) -> None:
    run = record("on S3", SCENES["on S3"], tmp_path)
    num_points, _, faults = explore(run)
    assert not faults
    assert num_points > 20
    assert faults_of_resumes(run, num_points, most=5)[1] == {}


def test_a_run_that_lost_a_rank_at_a_collective_ends_and_goes_on(tmp_path: Path) -> None:
    run = count("collectives", COLLECTIVES["collectives"], tmp_path)
    assert {"training", "validation", "saving", "preemption"} < set(run.phases[0])
    assert Ends(run, tmp_path).faults(run.sample()) == {}
