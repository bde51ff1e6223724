"""Signals to real processes, while they train, validate and save: they leave together, and go on to the same bits."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import run_ranks
from trainer_parts import assert_same

from camshaft.strategies import read_checkpoint

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform == "win32", reason="this system has no SIGUSR1"),
]

SCRIPT = Path(__file__).with_name("preempted_training.py")
TOO_LATE = "too late:0"
ALONE = {
    TOO_LATE: 24,
    "setup:0": 0,
    "start:0": 0,
    "training:0": 6,
    "validation:0": 6,
    "saving:0": 4,
    "saving:0:async": 4,
    "end:0": 24,
}
TOGETHER = ["setup:1", "training:1", "validation:0", "saving:1", "saving:0:async", "end:1"]
Reports = tuple[Path, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a job, with an `scontrol` that notes what it is asked for."""
    folder = tmp_path_factory.mktemp("slurm")
    scontrol = folder / "scontrol"
    scontrol.write_text('#!/bin/sh\necho "$@" >> "$REQUEUED"\n')
    scontrol.chmod(scontrol.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_ID": "42"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, slurm: dict[str, str]) -> Reports:
    folder = tmp_path_factory.mktemp("alone")
    outcome = run_ranks(SCRIPT, 1, launcher="bare", args=[folder, *ALONE], env=slurm)
    assert outcome.exit_code == 7, outcome.output
    return folder, outcome.named


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory, slurm: dict[str, str]) -> Reports:
    folder = tmp_path_factory.mktemp("together")
    outcome = run_ranks(SCRIPT, 2, launcher="torchrun", args=[folder, *TOGETHER], env=slurm)
    assert outcome.exit_code != 0 and "exitcode  : 7" in outcome.output, outcome.output
    assert "[camshaft]" not in outcome.output, outcome.output  # nobody was told of a failure
    return folder, outcome.named


def assert_left_and_went_on(told: dict[str, Any], scene: str) -> None:
    left = told[scene]
    assert (left["exit_code"], left["preempted"], left["is_restored"], left["former"]) == (7, True, True, [])
    assert left["path"].endswith(f"{scene}/kept/preempted.ckpt")
    assert read_checkpoint(left["path"])["global_step"] == left["end"]["step"]
    resumed = told[f"{scene} resumed"]
    assert resumed["exit_code"] is None and not resumed["preempted"]
    assert_same(resumed["end"], told["straight"]["end"], scene)


def requeued(folder: Path, scene: str) -> list[str]:
    path = folder / f"{scene}.requeued"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("scene", [scene for scene in ALONE if scene != TOO_LATE])
def test_a_process_saves_leaves_and_goes_on(scene: str, alone: Reports) -> None:
    folder, (told,) = alone
    assert told[scene]["end"]["step"] == ALONE[scene]
    assert_left_and_went_on(told, scene)
    # SIGTERM alone is a job that is cancelled, or that SLURM preempts and requeues by itself.
    assert requeued(folder, scene) == (["requeue 42"] if scene in ("training:0", "validation:0") else [])


def test_a_signal_when_all_is_over_reaches_the_former_handler(alone: Reports) -> None:
    folder, (told,) = alone
    found = told[TOO_LATE]
    assert (found["former"], found["preempted"], found["exit_code"]) == (["SIGTERM"], False, None)
    assert not (folder / TOO_LATE / "kept/preempted.ckpt").exists()


@pytest.mark.parametrize("scene", TOGETHER)
def test_two_ranks_of_which_one_gets_the_signal_do_it_together(scene: str, together: Reports) -> None:
    folder, (first, second) = together
    for told in (first, second):
        assert_left_and_went_on(told, scene)
    assert first[scene]["end"]["step"] == second[scene]["end"]["step"]
    assert torch.equal(first[scene]["end"]["weights"], second[scene]["end"]["weights"])
    assert requeued(folder, scene) == (["requeue 42"] if scene in ("training:1", "validation:0") else [])
