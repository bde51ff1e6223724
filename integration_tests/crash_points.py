"""Enumerates the crash points of each scene, and resumes for real from the first folder of each: `nox -s crashes`.

crash_points.py [SCENE ...]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "test_support"))

from crashes.checks import Checker, explore, points, record
from crashes.scenes import SCENES

MOST_RESUMES = {1: 200, 2: 4}
"""By number of ranks: how many points of a scene are resumed for real, spread over it."""


def main(*names: str) -> None:
    """Print the counts of each scene; exit with 1 if anything is wrong."""
    totals, is_wrong = [0, 0, 0], False
    for name in names or SCENES:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            run = record(name, SCENES[name], Path(folder, "run"), Path(folder, "log"))
            num_points, num_folders, faults = explore(run)
            states = [state for _, _, state in points(run)]
            sample = states[:: max(1, len(states) // MOST_RESUMES[run.scene.num_ranks])]
            checker = Checker(run)
            for state in sample:
                for fault in checker.faults_of_resume(state):
                    faults.setdefault(fault, []).append("a resume")
        seconds = time.monotonic() - started
        counts = (num_points, num_folders, len(sample))
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        print(f"{name}: {num_points} points, {num_folders} folders, {len(sample)} resumed, {seconds:.0f} s", flush=True)
        for fault, where in faults.items():
            is_wrong = True
            print(f"  {fault} ({len(where)} times, first {where[0]})", flush=True)
    print("In all: {} points, {} folders, {} resumed".format(*totals))
    sys.exit(is_wrong)


if __name__ == "__main__":
    main(*sys.argv[1:])
