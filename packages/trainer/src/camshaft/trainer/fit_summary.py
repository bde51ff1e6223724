"""What a fit came to, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from camshaft.callbacks import ModelCheckpoint
from camshaft.callbacks.progress.meter import format_seconds

if TYPE_CHECKING:
    from camshaft.trainer.trainer import Trainer


def fit_summary(trainer: Trainer) -> str:
    """Why a fit ended, how much was trained how fast, and what was best and where it is; a line each.

    A callback that stopped it says why in its attribute `stopping_reason`, as `EarlyStopping` does.
    """
    rows = [("fit ended", _reason(trainer)), ("trained", _amount(trainer)), *_checkpoints(trainer)]
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:{width}}  {text}" for label, text in rows)


def _reason(trainer: Trainer) -> str:
    reason = trainer.fit_loop.stop_reason
    if reason is None:
        return "nothing was left to train"
    for callback in trainer.callbacks:
        text = getattr(callback, "stopping_reason", None)
        if isinstance(text, str) and trainer.should_stop:
            return f"{type(callback).__name__}: {text}"
    return reason


def _amount(trainer: Trainer) -> str:
    progress = trainer.fit_loop.progress
    seconds, num_updates = progress.elapsed_seconds, progress.global_step
    rate = f" ({num_updates / seconds:.1f} updates/s, validation included)" if seconds > 0 and num_updates else ""
    epochs = "epoch" if progress.current_epoch == 1 else "epochs"
    return f"{progress.current_epoch} {epochs}, {num_updates} updates in {format_seconds(seconds)}{rate}"


def _checkpoints(trainer: Trainer) -> Iterator[tuple[str, str]]:
    for callback in trainer.callbacks:
        if not isinstance(callback, ModelCheckpoint) or not callback.best_model_path:
            continue
        if callback.monitor is None or callback.best_model_score is None:
            yield "checkpoint", callback.best_model_path
        else:
            yield f"best {callback.monitor}", f"{float(callback.best_model_score):.6g}, in {callback.best_model_path}"
