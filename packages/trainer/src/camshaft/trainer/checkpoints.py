"""What goes into a trainer's checkpoints, and finding the one that a verb starts from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from camshaft.callbacks import ModelCheckpoint
from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.spec import Verb
from camshaft.hooks_core.user_warnings import warn_user
from camshaft.loops import FitLoop, Run, collect
from camshaft.strategies import CheckpointError
from camshaft.trainer.hyperparameters import HYPER_PARAMETERS_KEY
from camshaft.trainer.loggers import hyperparameters_of

EXTENSION = ModelCheckpoint.FILE_EXTENSION


def checkpoint_of(run: Run, loop: FitLoop, *, was_fitted: bool, weights_only: bool) -> dict[str, Any]:
    """Put together what a trainer saves. Hooks: see `collect`.

    Args:
        run: The current or last run.
        loop: The loop that trains.
        was_fitted: Whether it is the run's module that the loop trains or trained; otherwise there is nothing to
            resume, and the checkpoint holds no optimizers.
        weights_only: Whether to leave out what only matters for resuming.
    """
    checkpoint = collect(run, loop if was_fitted else None, weights_only=weights_only)
    hparams = hyperparameters_of(run.module)
    if hparams:
        checkpoint[HYPER_PARAMETERS_KEY] = dict(hparams)
    with suppress(PackageNotFoundError):  # run from its source alone
        checkpoint["camshaft_version"] = version("camshaft-trainer")
    return checkpoint


def read_requested(trainer: Any, ckpt_path: str | os.PathLike[str] | None, verb: Verb) -> dict[str, Any] | None:
    """Read the checkpoint that a verb was asked to start from.

    Args:
        trainer: The trainer.
        ckpt_path: A path; "best", the best that the trainer's checkpoint callback kept; "last", the newest readable
            one where its checkpoint callbacks save; None for none.
        verb: The verb.

    Returns:
        The checkpoint; None if none was asked for, or fit was asked to go on from "last" and there is none yet.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If "best" is asked for and nothing was saved; likewise "last", except by fit, which then begins.
        CheckpointError: If the file is damaged; a note names the newest one beside it that can be read.
    """
    if ckpt_path is None:
        return None
    if ckpt_path == "last":
        return _read_last(trainer, verb)
    if ckpt_path == "best":
        ckpt_path = _best(trainer, verb)
    path = os.fspath(ckpt_path)
    try:
        return _read(trainer, path)
    except CheckpointError as error:
        for other in _newest_first(Path(path).parent.glob(f"*{EXTENSION}")):
            if not os.path.samefile(other, path) and _is_readable(trainer, other):
                error.add_note(f"The newest readable checkpoint beside it is {str(other)!r}.")
                break
        raise


def best_of_last_fit(trainer: Any, verb: Verb) -> str | None:
    """What a verb without a module and a checkpoint takes: the best of the fit before, as in Lightning.

    Returns:
        Its path, with a warning that tells; None if the fit kept none, so that the weights stay as they are.
    """
    callback = trainer.checkpoint_callback
    if callback is None or not callback.best_model_path:
        return None
    path = str(callback.best_model_path)
    warn_user(
        f"`{verb}` was called without a module, so it takes the weights of the best checkpoint of the fit before, "
        f"{path!r}. Pass the module to keep its weights, or a `ckpt_path`."
    )
    return path


def _best(trainer: Any, verb: Verb) -> str:
    callback = trainer.checkpoint_callback
    if callback is None or not callback.best_model_path:
        action = f"Fit with a ModelCheckpoint first, or give {verb} a path."
        raise ValueError(must_be("ckpt_path", "a path, as no checkpoint was saved yet", "best", verb, action))
    return str(callback.best_model_path)


def _read_last(trainer: Any, verb: Verb) -> dict[str, Any] | None:
    for path in _newest_first(_saved_by(trainer)):
        try:
            checkpoint = _read(trainer, str(path))
        except CheckpointError as error:
            warn_user(f"{error} Trying the one before.")
            continue
        if verb != "fit" or "optimizer_states" in checkpoint:
            return checkpoint  # one of weights only may be newer, but training cannot go on from it
    if verb != "fit":
        action = f"Fit with a ModelCheckpoint first, or give {verb} a path."
        raise ValueError(must_be("ckpt_path", "a path, as there is no readable checkpoint yet", "last", verb, action))
    warn_user("There is no checkpoint to go on from yet: fit starts without.")
    return None


def _saved_by(trainer: Any) -> Iterator[Path]:
    """Every checkpoint in the folders where the trainer's callbacks save, or did in the run before."""
    folders: set[Path] = set()
    for callback in trainer.callbacks:
        if isinstance(callback, ModelCheckpoint):
            folders |= {Path(callback.dirpath)} if callback.dirpath is not None else set(_default_folders(trainer))
    for folder in folders:
        yield from folder.glob(f"*{EXTENSION}")


def _default_folders(trainer: Any) -> Iterator[Path]:
    """Where a callback without a folder of its own saves: beside the logs, be it those of an earlier run.

    A logger numbers its runs, so a run that starts anew is told apart by its folder, which has nothing in it yet.
    """
    log_dir = Path(trainer.log_dir)
    folder = log_dir / "checkpoints"
    if re.fullmatch(r"version_\d+", log_dir.name) and not any(folder.glob(f"*{EXTENSION}")):
        yield from log_dir.parent.glob("version_*/checkpoints")
    else:
        yield folder


def _newest_first(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True)


def _is_readable(trainer: Any, path: Path) -> bool:
    try:
        _read(trainer, str(path))
    except CheckpointError:
        return False
    return True


def _read(trainer: Any, path: str) -> dict[str, Any]:
    checkpoint: dict[str, Any] = trainer.strategy.load_checkpoint(path)
    return checkpoint
