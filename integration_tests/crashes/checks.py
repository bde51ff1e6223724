"""What a run finds in a folder after a crash, beside what it may find."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
from launching import run_ranks

from camshaft.callbacks import ModelCheckpoint
from camshaft.hooks_core.support.durable_files import SUFFIX, found_at
from camshaft.strategies import CheckpointError, read_checkpoint
from camshaft.trainer.checkpoints import read_requested
from crashes.persistence import Disk, State, after_kill, after_power_cut, build, contents, contents_on_disk
from crashes.recorder import Operation, operations_of, recording
from crashes.scenes import Scene, digest, ledger_lines, make_trainer, train

JOB = {"TORCHELASTIC_RUN_ID": "crashes"}
"""The name of the job, in all processes."""
RANKS = Path(__file__).parents[1] / "crash_ranks.py"


@attrs.frozen
class Recorded:
    """A run that was recorded.

    Attributes:
        operations: What it did to its folder.
        orders: By digest of a checkpoint: the place of its save in the order of saves.
        weights: Digest of the final weights.
        final: What was in the folder at the end.
        ledger: Its ledger's lines, if it has one.
        epoch: The epoch of its newest checkpoint.
    """

    scene: Scene
    name: str
    root: Path
    operations: list[Operation]
    orders: dict[str, int]
    weights: str
    final: dict[str, bytes | str]
    ledger: list[Any] | None
    epoch: int


def record(name: str, scene: Scene, root: Path, log: Path) -> Recorded:
    """Run a scene and record it; an assertion fails if an operation was missed."""
    root.mkdir(parents=True)
    if scene.num_ranks == 1:
        with environment(JOB), recording(root, log) as recorder:
            weights = train(scene, str(root), resume=False, mark=recorder.mark)
    else:
        reports = run_ranks(RANKS, scene.num_ranks, args=[name, root, "record", log], env=JOB).succeeded().reports
        weights = reports[0][0]
    operations = operations_of(log)
    disk = Disk()
    for operation in operations:
        disk.apply(operation)
    final = contents_on_disk(root)
    replayed = contents(disk.tree(frozenset(), {}))
    assert replayed == final, f"the record of {name!r} misses operations: {differences(replayed, final)}"
    durable = [one.data for one in operations if one.kind == "mark" and "durable" in one.data]
    orders = {one["digest"]: order for order, one in enumerate(durable)}
    assert len(orders) == len(durable) > 0
    ledger = ledger_lines(root) if scene.has_logs else None
    newest = max(int(read_checkpoint(path)["epoch"]) for path in (root / "checkpoints").glob("*.ckpt"))
    return Recorded(scene, name, root, operations, orders, weights, final, ledger, newest)


@contextlib.contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables that are not set."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the paths at which two folders differ."""
    return sorted(path for path in one.keys() | other.keys() if one.get(path) != other.get(path))


def points(run: Recorded) -> Iterator[tuple[str, int, State]]:
    """Yield each state after a crash: of which kind, after how many operations, and the folder."""
    for number, state in after_kill(run.operations):
        yield "kill", number, state
    for number, state in after_power_cut(run.operations):
        yield "power", number, state


class Checker:
    """Looks into folders of one run after crashes."""

    def __init__(self, run: Recorded) -> None:
        self._run = run
        self._trainer = make_trainer(run.scene, str(run.root), is_alone=True)
        self._known: dict[Any, Any] = {}
        strategy: Any = self._trainer.strategy
        strategy.load_checkpoint = lambda path, **options: self._read(path)[0]

    def faults(self, number: int, state: State) -> list[str]:
        """Return what is wrong in a folder after the first operations of a run; nothing, as it should be."""
        run = self._run
        build(state, run.root)
        marks = [one.data for one in run.operations[:number] if one.kind == "mark"]
        num_durable = sum("durable" in one for one in marks)
        num_begun = sum("begins" in one for one in marks)
        found = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit_idx = 0
            for way in ("last", "restart"):
                try:
                    path, checkpoint = self._found(way, fit_idx)
                except Exception as error:
                    found.append(f"{way}: {type(error).__name__}: {error}")
                    continue
                problem = self._problem(checkpoint, num_durable - 1, num_begun)
                if problem:
                    found.append(f"{way}: {path}: {problem}")
                if checkpoint is not None and way == "last":
                    fit_idx = checkpoint["fit_idx"]
                    found += self._faults_of_memory(checkpoint)
            # "last" has moved when the save after the next begins
            if run.scene.last is not None and num_begun > 1 and num_durable > 0:
                found += self._faults_of_path(run.root / "checkpoints" / run.scene.last, num_durable - 2, num_begun)
        return found

    def _read(self, path: str) -> tuple[dict[str, Any], str]:
        """Return a checkpoint and its digest, or raise; of what was read before at once."""
        place = found_at(Path(path))
        content = contents_on_disk(place) if place and place.is_dir() else place.read_bytes() if place else None
        key = path, hash(tuple(sorted(content.items())) if isinstance(content, dict) else content)
        if key not in self._known:
            try:
                checkpoint = read_checkpoint(path)
                self._known[key] = checkpoint, digest(checkpoint)
            except (CheckpointError, OSError) as error:
                self._known[key] = error
        known = self._known[key]
        if isinstance(known, OSError | CheckpointError):
            raise known.with_traceback(None)
        return known

    def _found(self, way: str, fit_idx: int) -> tuple[str | None, Any]:
        """Return what `fit(ckpt_path="last")` resumes from, or a fit that an agent has restarted."""
        if way == "last":
            start = read_requested(self._trainer, "last", "fit")
        else:
            with environment({**JOB, "TORCHELASTIC_RESTART_COUNT": "1"}):
                start = read_requested(self._trainer, None, "fit", fit_idx)
        return start.path, start.checkpoint

    def _problem(self, checkpoint: Any, oldest: int, num_begun: int) -> str | None:
        """Return why a checkpoint is not one of those that may be found, if it is not."""
        if checkpoint is None:
            return f"nothing is found, though save {oldest} was durable" if oldest >= 0 else None
        order = self._run.orders.get(digest(checkpoint))
        if order is None:
            return "it is none that was saved"
        if not oldest <= order < num_begun:
            return f"it is save {order}, though {oldest} was durable and {num_begun} begun"
        return None

    def _faults_of_path(self, path: Path, oldest: int, num_begun: int) -> list[str]:
        try:
            problem = self._problem(self._read(str(path))[0], oldest, num_begun)
        except (CheckpointError, OSError) as error:
            problem = f"{type(error).__name__}: {error}"
        return [f"path: {path}: {problem}"] if problem else []

    def _faults_of_memory(self, checkpoint: dict[str, Any]) -> list[str]:
        """Return what is wrong with the files that the callbacks of a checkpoint remember."""
        found = []
        for callback in self._run.scene.saving(str(self._run.root / "checkpoints")):
            if not isinstance(callback, ModelCheckpoint):
                continue
            memory = checkpoint["callbacks"].get(callback.state_key)
            if memory is None:
                found.append(f"memory: {callback.state_key} has none")
                continue
            callback.load_state_dict(memory)
            unwritten = {one["path"] for one in callback._unwritten}
            to_follow = {one["last_path"] for one in (*callback._unwritten, *callback._unfinished)}
            wanted = {*memory["best_k_models"], memory["best_model_path"], memory["last_model_path"]}
            for path in wanted - unwritten - to_follow - {""}:
                try:
                    if self._read(path)[1] not in self._run.orders:
                        found.append(f"memory: {path} is none that was saved")
                except (CheckpointError, OSError) as error:
                    found.append(f"memory: {path}: {type(error).__name__}: {error}")
            forgotten = wanted - {*callback.best_k_models, callback.best_model_path, callback.last_model_path, ""}
            found += [f"memory: {path} is forgotten" for path in forgotten - unwritten]
        return found

    def faults_of_resume(self, state: State) -> list[str]:
        """Resume for real, to the end, and return what differs from the run that was not stopped."""
        run = self._run
        build(state, run.root)
        if run.scene.num_ranks == 1:
            weights = train(run.scene, str(run.root), resume=True)
        else:
            outcome = run_ranks(RANKS, run.scene.num_ranks, args=[run.name, run.root, "resume"], env=JOB).succeeded()
            weights = outcome.reports[0][0]
        found = [] if weights == run.weights else ["resume: other weights"]
        names, wanted = (
            {path for path in one if path.startswith("checkpoints/") and path.endswith(".ckpt") and SUFFIX not in path}
            for one in (contents_on_disk(run.root), run.final)
        )
        # what a run was resumed from is not removed
        if not names >= wanted or len(names - wanted) > 1:
            found.append(f"resume: {sorted(names ^ wanted)} in one of the two")
        if (
            run.scene.last is not None
            and read_checkpoint(run.root / "checkpoints" / run.scene.last)["epoch"] != run.epoch
        ):
            found.append("resume: an older last")
        if run.scene.has_logs and ledger_lines(run.root) != run.ledger:
            found.append("resume: another ledger")
        return found


def key_of(state: State) -> tuple[Any, ...]:
    """Return what tells states apart."""
    return tuple(sorted((path, entry.kind, entry.content, entry.time_ns) for path, entry in state.items()))


def explore(run: Recorded, kinds: Sequence[str] = ("kill", "power")) -> tuple[int, int, dict[str, list[str]]]:
    """Check every point of a run once. Return numbers of points and of different folders, and faults by where."""
    checker, seen, num_points = Checker(run), set(), 0
    faults: dict[str, list[str]] = {}
    for kind, number, state in points(run):
        if kind not in kinds:
            continue
        num_points += 1
        num_durable = sum("durable" in one.data for one in run.operations[:number] if one.kind == "mark")
        key = hash((key_of(state), num_durable))
        if key in seen:
            continue
        seen.add(key)
        for fault in checker.faults(number, state):
            faults.setdefault(fault, []).append(f"{kind} after operation {number}")
    return num_points, len(seen), faults


__all__ = ["Checker", "Recorded", "explore", "ledger_lines", "points", "record"]
