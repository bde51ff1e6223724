"""What a run finds in a folder or a store after a crash, beside what it may find."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import attrs
from launching import run_ranks
from s3_server import environment

from camshaft.callbacks import ModelCheckpoint
from camshaft.hooks_core.support.durable_files import found_at
from camshaft.hooks_core.support.remote_files import is_url, join
from camshaft.strategies import CheckpointError, read_checkpoint
from camshaft.trainer.checkpoints import read_requested
from crashes import stores
from crashes.persistence import Disk, after_kill, after_power_cut, build, contents, contents_on_disk
from crashes.recorder import Operation, operations_of, recording
from crashes.results import Results, differences, results_of
from crashes.scenes import Scene, digest, make_trainer, train

JOB = {"TORCHELASTIC_RUN_ID": "crashes"}
"""The name of the job, in all processes."""
RANKS = Path(__file__).parents[1] / "crash_ranks.py"
WARM = (
    *("crashes.scenes", "crashes.recorder", "crashes.collectives"),
    *("camshaft.callbacks.progress.model_summary", "camshaft.callbacks.progress.progress_bar"),
    *("camshaft.strategies.checkpoints.sharded", "torchdata.stateful_dataloader"),
)
"""What is imported before ranks are forked: all that they import by themselves as they train."""


@attrs.frozen
class Recorded:
    """A run that was recorded.

    Attributes:
        root: Its folder or URL.
        operations: What it did there.
        orders: By digest of a checkpoint: the place of its save in the order of saves.
        results: What it left at its end.
    """

    scene: Scene
    name: str
    root: str
    operations: list[Operation]
    orders: dict[str, int]
    results: Results


def record(name: str, scene: Scene, folder: Path) -> Recorded:
    """Run a scene and record it; an assertion fails if an operation was missed.

    Args:
        folder: For its files, unless they are in a store.
    """
    root, log = f"{scene.store}://crashes/run" if scene.store else str(folder / "run"), folder / "log"
    if scene.store == "s3":
        stores.make_bucket(root)
    if scene.store is not None:
        stores.put({}, root)
    with environment(JOB):
        if scene.store is not None:
            with stores.recording_store(root) as recorder_of_store:
                weights = train(scene, root, resume=False, mark=recorder_of_store.mark)
            operations = recorder_of_store.operations
        elif scene.num_ranks == 1:
            Path(root).mkdir(parents=True)
            with recording(Path(root), log) as recorder:
                weights = train(scene, root, resume=False, mark=recorder.mark)
            operations = operations_of(log)
        else:
            Path(root).mkdir(parents=True)
            weights = on_ranks(scene, name, root, "record", log)
            operations = operations_of(log)
    if scene.store is None:
        disk = Disk()
        for operation in operations:
            disk.apply(operation)
        parted = differing(contents(disk.tree(frozenset(), {})), contents_on_disk(Path(root)))
        assert not parted, f"the record of {name!r} misses operations: {parted}"
    durable = [one.data for one in operations if one.kind == "mark" and "durable" in one.data]
    orders = {one["digest"]: order for order, one in enumerate(durable)}
    assert len(orders) == len(durable) > 0
    return Recorded(scene, name, root, operations, orders, results_of(scene, root, weights))


def on_ranks(scene: Scene, name: str, root: str, verb: str, *arguments: str | Path) -> str:
    """Run crash_ranks.py on the ranks of a scene, and return the digest of the weights that it ends with."""
    args = [name, root, verb, *arguments]
    reports = run_ranks(RANKS, scene.num_ranks, args=args, env=JOB, imports=WARM).succeeded().reports
    return str(reports[0][0])


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the paths at which two folders differ."""
    return sorted(path for path in one.keys() | other.keys() if one.get(path) != other.get(path))


def points(run: Recorded) -> Iterator[tuple[str, int, Any]]:
    """Yield each state after a crash: of which kind, after how many operations, and the folder or store."""
    if run.scene.store is not None:
        yield from (("kill", number, one.data) for number, one in enumerate(run.operations, 1) if one.kind == "store")
        return
    for number, state in after_kill(run.operations):
        yield "kill", number, state
    for number, state in after_power_cut(run.operations):
        yield "power", number, state


class Checker:
    """Looks into folders, or stores, of one run after crashes."""

    def __init__(self, run: Recorded) -> None:
        self._run = run
        self._state: Any = {}
        self._trainer = make_trainer(run.scene, run.root, is_alone=True)
        self._known: dict[Any, Any] = {}
        self._digests: dict[int, str] = {}  # by identity of what is known
        strategy: Any = self._trainer.strategy
        strategy.load_checkpoint = lambda path, **options: self._read(path)[0]

    def build(self, state: Any) -> None:
        """Let the run's folder, or store, be in a state."""
        self._state = state
        if self._run.scene.store is None:
            build(state, Path(self._run.root))
        else:
            stores.put(state, self._run.root)

    def faults(self, number: int, state: Any) -> list[str]:
        """Return what is wrong in a folder after the first operations of a run; nothing, as it should be."""
        run = self._run
        self.build(state)
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
                last = join(run.root, "checkpoints", run.scene.last)
                found += self._faults_of_path(last, num_durable - 2, num_begun)
        return found

    def _read(self, path: str) -> tuple[dict[str, Any], str]:
        """Return a checkpoint and its digest, or raise; of what was read before at once."""
        key = path, hash(self._content_at(path))
        if key not in self._known:
            try:
                checkpoint = read_checkpoint(path)
                self._digests[id(checkpoint)] = digest(checkpoint)
                self._known[key] = checkpoint, self._digests[id(checkpoint)]
            except (CheckpointError, OSError) as error:
                self._known[key] = copy.copy(error)  # without the frames, and what these hold
        known = self._known[key]
        if isinstance(known, OSError | CheckpointError):
            raise copy.copy(known)
        return known

    def _content_at(self, path: str) -> Any:
        """Return what is at a path, or in the folder there."""
        if is_url(path):
            relative = path.removeprefix(f"{self._run.root}/")
            return tuple(
                sorted(one for one in self._state.items() if one[0] == relative or one[0].startswith(f"{relative}/"))
            )
        place = found_at(Path(path))
        is_folder = place is not None and place.is_dir()
        return tuple(sorted(contents_on_disk(place).items())) if is_folder else place.read_bytes() if place else None

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
        order = self._run.orders.get(self._digests.get(id(checkpoint)) or digest(checkpoint))
        if order is None:
            return "it is none that was saved"
        if not oldest <= order < num_begun:
            return f"it is save {order}, though {oldest} was durable and {num_begun} begun"
        return None

    def _faults_of_path(self, path: str, oldest: int, num_begun: int) -> list[str]:
        try:
            problem = self._problem(self._read(path)[0], oldest, num_begun)
        except (CheckpointError, OSError) as error:
            problem = f"{type(error).__name__}: {error}"
        return [f"path: {path}: {problem}"] if problem else []

    def _faults_of_memory(self, checkpoint: dict[str, Any]) -> list[str]:
        """Return what is wrong with the files that the callbacks of a checkpoint remember."""
        found = []
        for callback in self._run.scene.saving(join(self._run.root, "checkpoints")):
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

    def faults_of_resume(self, state: Any) -> list[str]:
        """Resume for real, to the end, and return what differs from the run that was not stopped."""
        run = self._run
        self.build(state)
        if run.scene.num_ranks == 1:
            weights = train(run.scene, run.root, resume=True)
        else:
            weights = on_ranks(run.scene, run.name, run.root, "resume")
        return differences(results_of(run.scene, run.root, weights), run.results)


def key_of(state: Any) -> tuple[Any, ...]:
    """Return what tells states apart."""
    if any(isinstance(entry, bytes) for entry in state.values()):
        return tuple(state.items())
    return tuple(sorted((path, entry.kind, entry.content, entry.time_ns) for path, entry in state.items()))


def explore(run: Recorded) -> tuple[int, int, dict[str, list[str]]]:
    """Check every point of a run once. Return numbers of points and of different folders, and faults by where."""
    checker, seen, num_points = Checker(run), set(), 0
    faults: dict[str, list[str]] = {}
    for kind, number, state in points(run):
        num_points += 1
        num_durable = sum("durable" in one.data for one in run.operations[:number] if one.kind == "mark")
        key = hash((key_of(state), num_durable))
        if key in seen:
            continue
        seen.add(key)
        for fault in checker.faults(number, state):
            faults.setdefault(fault, []).append(f"{kind} after operation {number}")
    return num_points, len(seen), faults


def faults_of_resumes(run: Recorded, num_points: int, most: int) -> tuple[int, dict[str, list[str]]]:
    """Resume for real from so many of its points, spread over a run. Return their number, and faults by where."""
    checker, num_resumes = Checker(run), 0
    faults: dict[str, list[str]] = {}
    for kind, number, state in islice(points(run), 0, None, max(1, num_points // most)):
        num_resumes += 1
        for fault in checker.faults_of_resume(state):
            faults.setdefault(fault, []).append(f"{kind} after operation {number}")
    return num_resumes, faults
