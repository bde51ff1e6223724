"""Checkpoints that verbs start from, and their contents. Rank 0 looks for files, all ranks read them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import attrs
from torch import nn

import camshaft.callbacks as stock  # imports its exports on access
from camshaft.callbacks.monitoring import from_rank_zero
from camshaft.hooks_core.spec import Verb
from camshaft.hooks_core.support.durable_files import SUFFIX, found_at, interrupted_targets
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.remote_files import (
    INDEX_FILE,
    entries_of,
    exists,
    files_below,
    is_folder,
    is_url,
    join,
    local_path,
    parent_of,
    written_at,
)
from camshaft.loops import CheckpointAdapter, FitLoop, Run, collect
from camshaft.strategies import CheckpointError, job_id, objects_left_out, restart_count
from camshaft.trainer.hyperparameters import DATA_PREFIX, HYPER_PARAMETERS_KEY

_NOT_MISSED = (HYPER_PARAMETERS_KEY, DATA_PREFIX + HYPER_PARAMETERS_KEY)
_NEEDED_BY_FIT = ("optimizer_states", "lr_schedulers", "strategy", "loops", "fit", "rng", "ranks")


@attrs.frozen
class StartingPoint:
    """The checkpoint that a verb starts from, if any.

    Attributes:
        path: The path of the checkpoint; None without one.
        checkpoint: The checkpoint; None without one.
        adapter: Translates the states of a checkpoint of another format.
        is_continuing: Whether the verb goes on with an earlier run, which may have saved no checkpoint yet.
    """

    path: str | None = None
    checkpoint: dict[str, Any] | None = None
    adapter: CheckpointAdapter = attrs.field(factory=CheckpointAdapter)
    is_continuing: bool = False


def read_requested(
    trainer: Any,
    ckpt_path: str | os.PathLike[str] | None,
    verb: Verb,
    fit_idx: int = 0,
    weights_only: bool | None = None,
) -> StartingPoint:
    """Read the checkpoint that a verb was asked to start from. Collective.

    Args:
        ckpt_path: A path; "best", the best that the trainer's checkpoint callback kept; "last", the newest readable
            one where its checkpoint callbacks save; None for none, but in a fit that runs again because the elastic
            agent has restarted its processes, the newest one that the same fit saved.
        fit_idx: Index of the fit within this process.
        weights_only: False unpickles the objects in it. Otherwise a warning names those that may be missed.

    Returns:
        The checkpoint; none if none was asked for, or fit was asked to resume from "last" and there is none yet.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If "best" is asked for and nothing was saved; or "last", except by fit, which starts without then.
        CheckpointError: If the file is damaged; a note names the newest one beside it that can be read, which may be of
            another run. Or if fit cannot resume from it because of an object that was not unpickled.
    """
    is_restarted = ckpt_path is None and verb == "fit" and _is_restarted(trainer.strategy)
    if is_restarted:
        wanted = _read_after_restart(trainer, fit_idx, weights_only)
    else:
        wanted = None if ckpt_path is None else _find(trainer, ckpt_path, verb, weights_only)
    is_continuing = is_restarted or ckpt_path is not None
    if wanted is None:
        return StartingPoint(is_continuing=is_continuing)
    path, checkpoint = wanted
    found = format_of(checkpoint, trainer.checkpoint_formats)
    if found is not None:
        return StartingPoint(path, *found.for_run(checkpoint, trainer), is_continuing)
    _check_left_out(checkpoint, verb, "last" if ckpt_path is None else local_path(ckpt_path))
    return StartingPoint(path, checkpoint, is_continuing=is_continuing)


def _find(
    trainer: Any, ckpt_path: str | os.PathLike[str], verb: Verb, weights_only: bool | None
) -> tuple[str, dict[str, Any]] | None:
    if ckpt_path == "last":
        return _read_last(trainer, verb, weights_only)
    path = from_rank_zero(
        trainer.strategy, lambda: _best(trainer, verb) if ckpt_path == "best" else local_path(ckpt_path)
    )
    try:
        return path, _read(trainer, path, weights_only)
    except CheckpointError as error:
        # a whole file that needs the names of a library is no worse than another
        is_broken = not getattr(error, "names", ())
        beside = from_rank_zero(trainer.strategy, lambda: _others_beside(path) if is_broken else [])
        for other in beside:
            with suppress(CheckpointError):
                readable = _read(trainer, other, weights_only)
                place = f"epoch {readable.get('epoch')}, {readable.get('global_step')} updates"
                error.add_note(f"{other!r} beside it can be read: {place}. Take it only if it is of the same run.")
                break
        raise


def _is_restarted(strategy: Any) -> bool:
    """Return whether an agent has restarted this job. Collective.

    Only the agent of the machine that a process failed on counts a restart; the others follow it.
    """
    if "TORCHELASTIC_RESTART_COUNT" not in os.environ or strategy.world_size == 1:
        return restart_count() > 0
    counts: list[int] = strategy.all_gather(restart_count())
    return max(counts) > 0


def best_of_last_fit(trainer: Any, verb: Verb) -> str | None:
    """Return the checkpoint of a verb without module and `ckpt_path`: the best of the fit before, as in Lightning.

    Returns:
        Its path, after a warning; None if the fit kept none, so that the weights stay as they are.
    """
    path = _best_path(trainer)
    if not path:
        return None
    warn_user(
        f"`{verb}` was called without a module, so it takes the weights of the best checkpoint of the fit before, "
        f"{path!r}. Pass the module to keep its weights, or a `ckpt_path`."
    )
    return path


def _best_path(trainer: Any) -> str:
    """Return the best checkpoint of the callback that saves; "" if there is none."""
    return str(getattr(trainer.checkpoint_callback, "best_model_path", ""))


def _best(trainer: Any, verb: Verb) -> str:
    path = _best_path(trainer)
    if not path:
        action = f"Fit with a ModelCheckpoint first, or give {verb} a path."
        raise ValueError(must_be("ckpt_path", "a path, as no checkpoint was saved yet", "best", verb, action))
    if len(trainer.checkpoint_callbacks) > 1:
        warn_user(f'Of several checkpoint callbacks, the first has the "best", {path!r}. Pass a path to take another.')
    return path


def _read_last(trainer: Any, verb: Verb, weights_only: bool | None) -> tuple[str, dict[str, Any]] | None:
    for path, checkpoint in _readable(trainer, weights_only):
        if verb != "fit" or "optimizer_states" in checkpoint:
            return path, checkpoint  # one of weights only may be newer, but fit cannot resume from it
    if verb != "fit":
        action = f"Fit with a ModelCheckpoint first, or give {verb} a path."
        raise ValueError(must_be("ckpt_path", "a path, as there is no readable checkpoint yet", "last", verb, action))
    warn_user(
        "There is no checkpoint to resume from yet: fit starts from scratch. Pass a path if there is one elsewhere."
    )
    return None


def _read_after_restart(trainer: Any, fit_idx: int, weights_only: bool | None) -> tuple[str, dict[str, Any]] | None:
    job = from_rank_zero(trainer.strategy, job_id)  # the machine that saved; each machine may have another name for it
    for path, checkpoint in _readable(trainer, weights_only):
        if checkpoint.get(JOB_KEY) != job:
            break  # it is of an earlier job, like all before it
        if checkpoint.get(FIT_IDX_KEY) == fit_idx and "optimizer_states" in checkpoint:
            told = f"The processes were restarted: fit resumes from this job's newest checkpoint, {path!r}."
            warn_user(f"{told} Pass `ckpt_path` to take another.")
            return path, checkpoint
    told = "The processes were restarted, and this job has saved no checkpoint yet: fit starts from scratch."
    warn_user(f"{told} Save more often with a ModelCheckpoint.")
    return None


def _readable(trainer: Any, weights_only: bool | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the checkpoints of the trainer's callbacks, newest first; warn of each that cannot be read.

    Of those in a store that were written at the same time, as far as its clock tells (that of S3 has whole seconds),
    the one with the most steps is the newest.
    """
    names = tuple(
        callback.CHECKPOINT_NAME_LAST.partition("{")[0]
        for callback in trainer.callbacks
        if isinstance(callback, stock.ModelCheckpoint)
    )
    newest = from_rank_zero(trainer.strategy, lambda: _newest_first(_saved_by(trainer), names))
    for _, paths in groupby(newest, lambda one: one[0] if is_url(one[1]) else one[1]):
        found = []
        for _, path in paths:
            try:
                found.append((path, _read(trainer, path, weights_only)))
            except CheckpointError as error:
                warn_user(f"{error} Trying the one before.")
        yield from sorted(found, key=lambda one: one[1].get("global_step", 0), reverse=True)


def _saved_by(trainer: Any) -> Iterator[str]:
    """Yield every checkpoint in the folders where the trainer's callbacks save, or did in the run before."""
    folders: set[str] = set()
    for callback in trainer.callbacks:
        if isinstance(callback, stock.ModelCheckpoint):
            folders |= {callback.dirpath} if callback.dirpath is not None else set(_default_folders(trainer))
    for folder in folders:
        yield from checkpoints_in(folder)


def is_folder_of_checkpoints(path: str) -> bool:
    """Return whether a path is a folder that holds checkpoints, rather than a checkpoint that is a folder itself."""
    is_checkpoint = path.endswith(stock.ModelCheckpoint.FILE_EXTENSION) or exists(join(path, INDEX_FILE))
    return not is_checkpoint and is_folder(path)


def checkpoints_in(folder: str) -> Iterator[str]:
    """Yield the checkpoints in a folder and below it; a checkpoint may be a directory."""
    extension = stock.ModelCheckpoint.FILE_EXTENSION
    if is_url(folder):
        names = (url.removeprefix(join(folder, "")) for url in files_below(folder))
        found = (re.match(rf"(?:[^/]+/)*?[^/]*{re.escape(extension)}(?=/|$)", name) for name in names)
        yield from dict.fromkeys(join(folder, match[0]) for match in found if match)
        return
    for path in (*Path(folder).rglob(f"*{extension}"), *interrupted_targets(Path(folder), extension)):
        is_inside = any(parent.endswith((extension, SUFFIX)) for parent in path.relative_to(folder).parts[:-1])
        if not is_inside and found_at(path) is not None:  # no link to nowhere
            yield str(path)


def _default_folders(trainer: Any) -> Iterator[str]:
    """Yield the folders of a callback without `dirpath`: beside the logs, also those of an earlier run.

    Loggers number their runs: a new run is recognised by its empty folder.
    """
    folder = trainer.checkpoint_dir
    run_dir = parent_of(folder)
    root = parent_of(run_dir)
    if re.fullmatch(r"version_\d+", run_dir.removeprefix(join(root, ""))) and not any(checkpoints_in(folder)):
        for version in entries_of(root):
            if version.startswith("version_"):
                yield join(root, version, "checkpoints")
    else:
        yield folder


def _others_beside(path: str) -> list[str]:
    folder = parent_of(path)
    names = [name for name in entries_of(folder) if name.endswith(stock.ModelCheckpoint.FILE_EXTENSION)]
    others = [other for _, other in _newest_first(filter(exists, (join(folder, name) for name in names)))]
    return [other for other in others if not (other == path if is_url(path) else os.path.samefile(other, path))]


def _newest_first(paths: Iterable[str], names_of_last: tuple[str, ...] = ()) -> list[tuple[int, str]]:
    """Return paths with their times of writing, in nanoseconds.

    Of several names of one file, "last" is first, so that the others can be displaced.
    """
    ages = {path: (written_at(path), os.path.basename(path).startswith(names_of_last), path) for path in paths}
    return [(ages[path][0], path) for path in sorted(ages, key=ages.__getitem__, reverse=True)]


def _read(trainer: Any, path: str, weights_only: bool | None) -> dict[str, Any]:
    """Read a checkpoint on every process, or raise on every one. Collective."""
    strategy = trainer.strategy
    checkpoint: dict[str, Any] = {}
    failure: CheckpointError | FileNotFoundError | None = None
    try:
        trusted = {} if weights_only is None else {"weights_only": weights_only}  # strategies of others may not know it
        checkpoint = strategy.load_checkpoint(path, **trusted)
    except (CheckpointError, FileNotFoundError) as error:
        failure = error
    if strategy.world_size > 1:
        texts: list[str | None] = strategy.all_gather(None if failure is None else str(failure))
        elsewhere = next((rank for rank, text in enumerate(texts) if text is not None), None)
        if failure is None and elsewhere is not None:
            failure = CheckpointError(f"Rank {elsewhere} could not read it: {texts[elsewhere]}", path)
    if failure is not None:
        raise failure
    return checkpoint


def _check_left_out(checkpoint: dict[str, Any], verb: Verb, path: str) -> None:
    """Raise if fit cannot do without an object that was not unpickled; else warn of those that may be missed.

    Hyperparameters are not: the module is there.
    """
    left_out = {keys: kind for keys, kind in objects_left_out(checkpoint).items() if keys[0] not in _NOT_MISSED}
    if verb != "fit":
        left_out = {keys: kind for keys, kind in left_out.items() if keys[0] not in (*_NEEDED_BY_FIT, "callbacks")}
    if not left_out:
        return
    listed = ", ".join("".join(f"[{key!r}]" for key in keys) + f" (a {kind})" for keys, kind in left_out.items())
    if any(keys[0] in _NEEDED_BY_FIT for keys in left_out):
        rule = f"one whose states are plain, as objects are not unpickled by default: {listed}"
        action = "Pass weights_only=False if you trust the file."
        raise CheckpointError(must_be("ckpt_path", rule, path, "fit", action), path)
    warn_user(
        f"Objects in the checkpoint are left out: {listed}. Pass weights_only=False to `{verb}` if you trust the file."
    )


def note_left_out(error: KeyError, checkpoint: Mapping[str, Any]) -> None:
    """Add a note to the error of a hook that missed an object which was not unpickled.

    Args:
        checkpoint: The checkpoint that was passed to the hook.
    """
    missing = error.args[0] if error.args else None
    for keys, kind in objects_left_out(checkpoint).items():
        if missing in keys:
            place = "".join(f"[{key!r}]" for key in keys)
            error.add_note(
                f"The checkpoint holds {place} as an object (a {kind}), which was left out. Pass weights_only=False if "
                "you trust the file."
            )
            return


JOB_KEY = "job"
"""Key of the job that saved a checkpoint, see `job_id`."""

FIT_IDX_KEY = "fit_idx"
"""Key of the index, within its process, of the fit that saved a checkpoint."""


def checkpoint_of(run: Run, loop: FitLoop, *, was_fitted: bool, weights_only: bool, fit_idx: int = 0) -> dict[str, Any]:
    """Put together what a trainer saves. Hooks: see `collect`.

    Args:
        run: The current or last run.
        loop: The loop that trains.
        was_fitted: True if the loop trains or trained the run's module; otherwise there is nothing to
            resume, and the checkpoint holds no optimizers.
        weights_only: If true, everything that only matters for resuming is left out.
        fit_idx: Index of the fit within this process.

    Returns:
        The checkpoint.
    """
    facts = run.trainer.checkpoint_facts(run)
    checkpoint = collect(run, loop if was_fitted else None, weights_only=weights_only, facts=facts)
    with suppress(PackageNotFoundError):  # run from its source alone
        checkpoint["camshaft_version"] = version("camshaft-trainer")
    checkpoint[JOB_KEY] = job_id()
    if was_fitted:
        checkpoint[FIT_IDX_KEY] = fit_idx
    return checkpoint


class CheckpointFormat(Protocol):
    """Reads the checkpoints of another framework.

    Assign instances to `checkpoint_formats` of a subclass: of `Trainer`, for what its verbs begin with (`ckpt_path`);
    of `TrainingModule` or `DataModule`, for `load_from_checkpoint`. The first that matches a checkpoint reads it; one
    that none matches is taken for ours.
    """

    def matches(self, checkpoint: Mapping[str, Any]) -> bool:
        """Return whether a checkpoint is of this format."""

    def for_run(self, checkpoint: dict[str, Any], trainer: Any) -> tuple[dict[str, Any], CheckpointAdapter]:
        """Return the checkpoint with the entries that a run reads, and its adapter; warn of what is left out."""

    def constructor_arguments(
        self, cls: type, checkpoint: Mapping[str, Any], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments that a class is built with.

        Args:
            cls: The class of a module or a data module.
            checkpoint: The checkpoint. For a data module what its own keys hold takes the place of the module's.
            given: Arguments that were passed, which count before those that were saved.
        """

    def weights(self, saved: Mapping[str, Any], module: nn.Module) -> Mapping[str, Any]:
        """Return the weights under the names that they have in the module.

        Args:
            saved: The weights under the names in the checkpoint.
        """

    def data_state(self, checkpoint: Mapping[str, Any], cls: type) -> dict[str, Any] | None:
        """Return what the checkpoint keeps of a data module of a class; None if there is nothing."""


def format_of(checkpoint: Mapping[str, Any], formats: Sequence[CheckpointFormat]) -> CheckpointFormat | None:
    """Return the first format that matches a checkpoint; None if there is none, so that it is ours.

    Args:
        formats: The formats, in the order in which they are asked.
    """
    return next((one for one in formats if one.matches(checkpoint)), None)
