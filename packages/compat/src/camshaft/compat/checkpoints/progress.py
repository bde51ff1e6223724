"""The progress of training in checkpoints of earlier releases."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import attrs

from camshaft.loops import Counters, FitProgress

_VERSION_KEY = "pytorch-lightning_version"

UNVERSIONED = (0, 7)
"""Stands for every release before 0.8: their files do not say which one it was."""


@attrs.frozen
class EarlierProgress:
    """The counters from which training resumes.

    Attributes:
        num_epochs: Epochs that are over.
        num_updates: Optimizer updates.
        num_batches: Training batches.
        is_sure: Whether the file says by itself if it was saved inside of an epoch.
        notes: What was assumed, in sentences.
        is_repeated: Whether the next epoch had begun when the file was saved.
    """

    num_epochs: int
    num_updates: int
    num_batches: int
    is_sure: bool = False
    notes: tuple[str, ...] = ()
    is_repeated: bool = False

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a fit with this progress, at the end of an epoch."""
        epochs, batches = (Counters(num, num, num, num) for num in (self.num_epochs, self.num_batches))
        return FitProgress(global_step=self.num_updates, epochs=epochs, earlier_batches=batches).state_dict()


def checkpoint_release(checkpoint: Mapping[str, Any]) -> tuple[int, int]:
    """Return the release that saved a checkpoint, such as (1, 5); `UNVERSIONED` for all before 0.8."""
    found = re.match(r"(\d+)\.(\d+)", str(checkpoint.get(_VERSION_KEY, "")))
    return (int(found[1]), int(found[2])) if found else UNVERSIONED


def read_progress(checkpoint: Mapping[str, Any], accumulate_grad_batches: int) -> EarlierProgress:
    """Return the progress by the checkpoint alone, before the data is known.

    Releases before 0.7 saved the index of the epoch and the batches before the latest; 0.7 to 1.5 the number of epochs
    and of updates, also inside of epochs; later ones the state of their loops, and the steps of all optimizers.

    Args:
        checkpoint: The checkpoint.
        accumulate_grad_batches: Batches whose gradients make one update, in the run that goes on.
    """
    epoch, step = int(checkpoint["epoch"]), int(checkpoint["global_step"])
    if checkpoint_release(checkpoint) >= (1, 6):
        return _by_loops(checkpoint, accumulate_grad_batches)
    return EarlierProgress(epoch, step, step * accumulate_grad_batches)


def settled(
    progress: EarlierProgress, checkpoint: Mapping[str, Any], num_batches: int | float, accumulate_grad_batches: int
) -> EarlierProgress:
    """Return the progress by the number of batches of an epoch, for files without their position in it.

    Args:
        progress: What was read.
        checkpoint: The checkpoint.
        num_batches: Batches of a training epoch; infinite if unknown.
        accumulate_grad_batches: As in `read_progress`.
    """
    if progress.is_sure:
        return progress
    if math.isinf(num_batches) or num_batches < 1:
        note = "As the length of an epoch is not known, the checkpoint is taken to be of the end of one."
        return attrs.evolve(progress, notes=(*progress.notes, note))
    per_epoch = int(num_batches)
    if checkpoint_release(checkpoint) == UNVERSIONED:
        found = _of_unversioned(progress, checkpoint, per_epoch, accumulate_grad_batches)
        if found is not None:
            return found
    epoch, step = progress.num_epochs, progress.num_updates
    updates_per_epoch = max(per_epoch // accumulate_grad_batches, 1)
    if epoch > 0 and (epoch - 1) * updates_per_epoch <= step < epoch * updates_per_epoch - 1:
        return _inside(progress, epoch - 1, (epoch - 1) * per_epoch)
    return attrs.evolve(progress, num_batches=epoch * per_epoch)


def _of_unversioned(
    progress: EarlierProgress, checkpoint: Mapping[str, Any], per_epoch: int, accumulate: int
) -> EarlierProgress | None:
    """Return the progress of a release before 0.7, which saved before counting the latest batch; None for 0.7."""
    epoch, num_batches = progress.num_epochs, progress.num_updates + 1
    if "hparams_type" in checkpoint or "native_amp_scaling_state" in checkpoint or num_batches <= epoch * per_epoch + 1:
        return None
    counted = attrs.evolve(progress, num_updates=max(num_batches // accumulate, 1))
    if num_batches < (epoch + 1) * per_epoch:
        return _inside(counted, epoch, epoch * per_epoch)
    note = "`epoch` is taken as the index of an epoch that was over, `global_step` as that of its last batch."
    return attrs.evolve(counted, num_epochs=epoch + 1, num_batches=num_batches, notes=(*counted.notes, note))


def _inside(progress: EarlierProgress, epoch: int, num_batches: int) -> EarlierProgress:
    note = (
        f"It was saved inside of epoch {epoch}, and has no place in the data: that epoch begins anew, so some of its "
        "batches are trained on once more. A checkpoint of an epoch's end goes on without that."
    )
    notes = (*progress.notes, note)
    return attrs.evolve(progress, num_epochs=epoch, num_batches=num_batches, notes=notes, is_repeated=True)


def _by_loops(checkpoint: Mapping[str, Any], accumulate: int) -> EarlierProgress:
    epoch, step = int(checkpoint["epoch"]), int(checkpoint["global_step"])
    try:
        fit = checkpoint["loops"]["fit_loop"]
        epochs, batches = fit["epoch_progress"]["current"], fit["epoch_loop.batch_progress"]
        total, current = int(batches["total"]["ready"]), batches["current"]
        is_last, num_over = bool(batches["is_last_batch"]), int(epochs["completed"])
        is_inside = int(epochs["ready"]) > num_over
        all_trained = is_last and int(current["processed"]) >= int(current["ready"])
        in_epoch = int(current["ready"])
    except (KeyError, TypeError):
        return EarlierProgress(epoch, step, step * accumulate)
    updates, notes = _updates(checkpoint, step, total, accumulate)
    progress = EarlierProgress(num_over, updates, total, is_sure=True, notes=notes)
    if not is_inside or in_epoch == 0:
        return progress
    if all_trained:
        return attrs.evolve(progress, num_epochs=num_over + 1)
    return _inside(progress, num_over, total - in_epoch)


def _updates(
    checkpoint: Mapping[str, Any], step: int, num_batches: int, accumulate: int
) -> tuple[int, tuple[str, ...]]:
    """Return the number of updates, with notes: releases since 1.6 counted the steps of each optimizer."""
    num_optimizers = len(checkpoint.get("optimizer_states", ()))
    if num_optimizers < 2 or (step <= num_batches and accumulate == 1):
        return step, ()
    note = (
        f"`global_step` ({step}) is taken as the steps of {num_optimizers} optimizers that stepped equally often: "
        f"{step // num_optimizers} updates."
    )
    return step // num_optimizers, (note,)
