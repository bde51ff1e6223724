"""Enumerates the crash points of each scene, and resumes for real from a sample, or from all: `nox -s crashes`.

crash_points.py [SCENE ...]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "test_support"))

from crashes.checks import explore, faults_of_resumes, record
from crashes.collectives import Ends, count
from crashes.scenes import COLLECTIVES, SCENES
from s3_server import environment, s3_server

MOST_RESUMES = {1: 200, 2: 4}
"""By number of ranks: how many points of a scene on files are resumed for real, spread over it."""
Counts = tuple[int, int, int]
"""Of points, of different folders, and of resumed ones."""


def main(*names: str) -> None:
    """Print the counts of each scene; exit with 1 if anything is wrong."""
    totals, is_wrong = (0, 0, 0), False
    for name in names or (*SCENES, *COLLECTIVES):
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            counts, faults = (at_collectives if name in COLLECTIVES else at_operations)(name, Path(folder))
        seconds = time.monotonic() - started
        totals = tuple(total + one for total, one in zip(totals, counts, strict=True))
        print("{}: {} points, {} folders, {} resumed, {:.0f} s".format(name, *counts, seconds), flush=True)
        for fault, where in faults.items():
            is_wrong = True
            print(f"  {fault} ({len(where)} times, first {where[0]})", flush=True)
    print("In all: {} points, {} folders, {} resumed".format(*totals))
    sys.exit(is_wrong)


def at_operations(name: str, folder: Path) -> tuple[Counts, dict[str, list[str]]]:
    """Cut a scene off after every operation on its files. Return counts, and faults by where."""
    run = record(name, SCENES[name], folder)
    num_points, num_folders, faults = explore(run)
    num_resumes, of_resumes = faults_of_resumes(run, num_points, MOST_RESUMES[run.scene.num_ranks])
    return (num_points, num_folders, num_resumes), faults | of_resumes


def at_collectives(name: str, folder: Path) -> tuple[Counts, dict[str, list[str]]]:
    """Let a scene lose a rank before and after every collective. Return counts, and faults by where."""
    run = count(name, COLLECTIVES[name], folder)
    every, ends = list(run.ends()), Ends(run, folder)
    faults = ends.faults(every)
    return (len(every), ends.num_folders, ends.num_folders), faults


if __name__ == "__main__":
    with s3_server() as variables, environment(variables):
        main(*sys.argv[1:])
