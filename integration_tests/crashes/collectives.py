"""A rank that kills itself at a collective, what becomes of the other rank, and of the run when it is resumed."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import attrs
import torch
from launching import run_ranks
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from camshaft.strategies import read_checkpoint
from crashes.checks import RANKS, WARM, on_ranks
from crashes.results import Results, differences, results_of
from crashes.scenes import Scene, digest

NO_COLLECTIVES = ("wait_tensor", "wrap_tensor_autograd")
SECONDS_TO_START = 10
NUM_AT_ONCE = 3  # most of a point's time is waiting
PHASES = {
    "Agreement._finish": "preemption",
    "Agreement.hold": "agreement",
    "PreemptionCheckpoint.": "preemption",
    "ModelCheckpoint.": "saving",
    "Run.save_point": "saving",
    "EvaluationLoop.": "validation",
    "TrainingEpoch.run": "training",
}
"""By the beginning of the name of a function, the innermost of which tells the phase of a run."""
Side = Literal["before", "after"]


@attrs.frozen
class End:
    """Where a rank ends: before or after its collective of this number, which counts from 0."""

    rank: int
    number: int
    side: Side

    def __str__(self) -> str:
        return f"rank {self.rank} {self.side} collective {self.number}"


@attrs.frozen
class Counted:
    """A run whose collectives were counted.

    Attributes:
        phases: By rank: of each of its collectives the phase of the run.
        results: What the run left at its end.
    """

    name: str
    scene: Scene
    phases: list[list[str]]
    results: Results

    def ends(self) -> Iterator[End]:
        """Yield every end."""
        for rank, phases in enumerate(self.phases):
            for number in range(len(phases)):
                yield End(rank, number, "before")
                yield End(rank, number, "after")

    def sample(self) -> list[End]:
        """Return two ends in each phase of the run: one of each rank, one of each side."""
        found = []
        for phase in dict.fromkeys(self.phases[0]):
            for rank, phases in enumerate(self.phases):
                numbers = [number for number, one in enumerate(phases) if one == phase]
                found.append(End(rank, numbers[len(numbers) // 2], "before" if len(found) % 3 else "after"))
        return found


class Collectives(TorchDispatchMode):
    """Notes in which phase of the run each collective of this process is, and ends the process at one of them."""

    def __init__(self, end: tuple[int, Side] | None = None) -> None:
        super().__init__()
        self.phases: list[str] = []
        self._end = end

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # its own operations come here again
        is_collective = func.namespace in ("c10d", "_c10d_functional") and func._opname not in NO_COLLECTIVES
        if not is_collective:
            return func(*args, **(kwargs or {}))
        number = len(self.phases)
        self.phases.append("" if self._end else phase())
        if self._end == (number, "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        result = func(*args, **(kwargs or {}))
        if self._end == (number, "after"):
            for work in tree_leaves(result):
                if isinstance(work, torch.ScriptObject):
                    work.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def phase() -> str:
    """Return the phase of the run that this process is in."""
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        for start, name in PHASES.items():
            if frame.f_code.co_qualname.startswith(start):
                return name
    return "beginning and end"


def count(name: str, scene: Scene, folder: Path) -> Counted:
    """Run a scene, and count the collectives of each rank."""
    root = str(folder / "whole")
    outcome = run_ranks(RANKS, scene.num_ranks, args=[name, root, "count"], imports=WARM).succeeded()
    ((weights, _),) = outcome.reports[0]
    phases = [of_rank for ((_, of_rank),) in outcome.reports]
    return Counted(name, scene, phases, results_of(scene, root, weights))


class Ends:
    """Lets a rank of a run end in several ways, and resumes once from each different folder that is left.

    Args:
        run: The run.
        folder: A folder for the files of runs.

    Attributes:
        num_folders: Number of different folders that were resumed from.
    """

    def __init__(self, run: Counted, folder: Path) -> None:
        self.num_folders = 0
        self._run = run
        self._folder = folder
        self._seen: set[Any] = set()

    def faults(self, ends: Iterable[End]) -> dict[str, list[str]]:
        """Return what is wrong after which end; nothing, as it should be."""
        faults: dict[str, list[str]] = {}
        with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
            for end, found in pool.map(lambda one: (one, self._faults_or_error(one)), ends):
                for fault in found:
                    faults.setdefault(fault, []).append(f"{end}, {self._run.phases[end.rank][end.number]}")
        return faults

    def _faults_or_error(self, end: End) -> list[str]:
        try:
            return self._faults_of(end, self._folder / str(end))
        except Exception as error:  # such as of a rank that does not end, or does not resume
            return [f"{type(error).__name__}: {error}"]

    def _faults_of(self, end: End, root: Path) -> list[str]:
        run, scene = self._run, self._run.scene
        args = [run.name, str(root), "end", str(end.rank), str(end.number), end.side]
        for _ in range(2):  # another program may have taken the port of the first try
            outcome = run_ranks(RANKS, scene.num_ranks, args=args, imports=WARM)
            if outcome.exit_code == -signal.SIGKILL:
                break
            shutil.rmtree(root, ignore_errors=True)
        else:
            return [f"the rank does not come to this collective:\n{outcome.output}"]
        found = []
        if not any(outcome.reports) and f"rank {end.rank} failed" not in outcome.output.lower():
            found.append(f"the other rank does not say that rank {end.rank} failed")
        for (weights,) in filter(None, outcome.reports):
            # after the last collectives that it waits for, the other rank comes to its end
            found += [] if weights == run.results.weights else ["the other rank ends with other weights"]
        if outcome.seconds > SECONDS_TO_START + scene.timeout_seconds:
            found.append("the other rank does not end within the timeout")
        key = left_at(root)
        if key not in self._seen:
            self._seen.add(key)
            self.num_folders += 1
            weights = on_ranks(scene, run.name, str(root), "resume")
            found += differences(results_of(scene, str(root), weights), run.results)
        shutil.rmtree(root, ignore_errors=True)  # before the first file there is none
        return found


def left_at(root: Path) -> Any:
    """Return what tells apart the folders that a run can leave, but for names and times that each run has anew."""
    outside = [path for path in root.rglob("*") if path.parent.suffix != ".ckpt"]  # of sharded checkpoints
    files = [path for path in outside if not path.name.startswith((".", "flight_recorder"))]
    saved = {path for path in files if path.suffix == ".ckpt"}
    steps = [(path.name, digest(read_checkpoint(path)["state_dict"])) for path in sorted(saved)]
    others = [(path.name, path.read_bytes()) for path in sorted(files) if path.is_file() and path not in saved]
    unfinished = [path.name.partition(".ckpt")[0] for path in root.rglob(".*.ckpt*")]
    return tuple(steps), tuple(other for other in others if ".ckpt" not in other[0]), tuple(sorted(unfinished))
