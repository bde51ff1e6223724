"""What a `ModelCheckpoint` remembers: for whoever asks, and for the run that goes on."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from camshaft.callbacks.agreement import from_rank_zero
from camshaft.callbacks.checkpoints.kept_checkpoints import KeptCheckpoints
from camshaft.callbacks.checkpoints.save_requests import PendingSaves, SaveRequest, lies_in
from camshaft.callbacks.checkpoints.top_k import TopK
from camshaft.callbacks.monitoring import worst_score
from camshaft.hooks_core import Callback
from camshaft.hooks_core.user_warnings import warn_user

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import Strategy, TrainerProtocol


class CheckpointMemory(Callback):
    """The kept checkpoints and their scores, and the saves that are on their way.

    Args:
        top_k: The scored checkpoints; without a monitor it only says how many to keep.
        save_weights_only: Passed on with each save.
        verbose: Whether rank 0 prints each decision.

    Attributes:
        dirpath: The folder; None before it is chosen.
        best_model_score: Score of the best kept checkpoint, a scalar on the CPU; None without a `monitor`.
        kth_best_model_path: Path of the worst kept checkpoint; "" while fewer than `save_top_k` are kept.
        kth_value: Its score; an infinity where there is none.
        saved_path: Where the newest checkpoint is that has become durable in this process; "" before the first.
    """

    def __init__(self, top_k: TopK, save_weights_only: bool, verbose: bool) -> None:
        self.dirpath: str | None = None
        self.saved_path = ""
        self.save_weights_only = save_weights_only
        self.verbose = verbose
        self._kept = KeptCheckpoints(top_k)
        self._last_global_step_saved = 0  # before the first update there is nothing worth saving
        self._is_deferred = False
        self._pending: PendingSaves | None = None
        self._unwritten: list[dict[str, Any]] = []
        self._dirpath_of_memory: str | None = None
        self._strategy: Strategy | None = None
        self._publish()

    @property
    def best_model_path(self) -> str:
        """Path of the best kept checkpoint, of the newest without a `monitor`; "" if there is none."""
        return self._kept.best_path

    @best_model_path.setter
    def best_model_path(self, path: str) -> None:
        self._kept.best_path = path

    @property
    def best_k_models(self) -> dict[str, Tensor]:
        """Paths of the kept checkpoints with their scores, oldest first. Empty without a `monitor`."""
        return self._kept.top_k.scores

    @best_k_models.setter
    def best_k_models(self, scores: dict[str, Tensor]) -> None:
        self._kept.top_k.scores = scores

    @property
    def last_model_path(self) -> str:
        """Path of "last"; "" if there is none."""
        return self._kept.last_path

    @last_model_path.setter
    def last_model_path(self, path: str) -> None:
        self._kept.last_path = path

    @property
    def current_score(self) -> Tensor | None:
        """The monitored value at the latest due time, a scalar on the CPU; None before it."""
        return self._kept.current_score

    @current_score.setter
    def current_score(self, score: Tensor | None) -> None:
        self._kept.current_score = score

    def state_dict(self) -> dict[str, Any]:
        """Kept checkpoints with their scores, "last", and where in the rhythm it is."""
        return {
            **self._kept.state_dict(),
            "best_model_score": self.best_model_score,
            "kth_best_model_path": self.kth_best_model_path,
            "dirpath": self.dirpath,
            "step_saved_at": self._last_global_step_saved,
            "is_deferred": self._is_deferred,
            "pending": [] if self._pending is None else self._pending.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, with those of its checkpoints that still exist; warns of the others.

        Collective in fit: rank 0 looks for the files.
        """
        self._restore(state_dict)
        look = partial(self._look_for_files, state_dict)
        self._unwritten, missing = look() if self._strategy is None else from_rank_zero(self._strategy, look)
        self._kept.forget(missing)
        self._publish()
        self._dirpath_of_memory = state_dict["dirpath"]
        self._warn_if_moved()
        if self._pending is not None:
            self._pending.durable_memory = self.state_dict()

    def _tell(self, trainer: TrainerProtocol, path: str | None, score: Tensor | None, monitor: str | None) -> None:
        if not (self.verbose and trainer.is_global_zero):
            return
        moment = f"epoch {trainer.current_epoch}, step {trainer.global_step}"
        shown = "" if score is None else f"{monitor} is {float(score):.6g}, "
        kept = f"saving {path}" if path else f"not among the best {self._kept.top_k.k}"
        print(f"ModelCheckpoint, {moment}: {shown}{kept}", flush=True)

    def _settle(self, trainer: TrainerProtocol, pending: PendingSaves, request: SaveRequest) -> None:
        """Clear up behind a checkpoint that is durable, and tell the loggers that want to know."""
        if not pending.settle(request):
            return
        self.saved_path = request.path
        for logger in trainer.loggers if trainer.is_global_zero else ():
            tell = getattr(logger, "after_save_checkpoint", None)
            if tell is not None:
                tell(self)

    def _publish(self) -> None:
        """Bring the attributes that follow from what is kept up to date."""
        top_k = self._kept.top_k
        self.best_model_score = top_k.scores.get(self._kept.best_path)
        self.kth_best_model_path = top_k.worst_path if len(top_k.scores) >= top_k.k else ""
        self.kth_value = top_k.scores.get(self.kth_best_model_path, torch.tensor(worst_score(top_k.mode)))

    def _look_for_files(self, state_dict: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
        """The saves that were to come when a state was taken, and did not; and the checkpoints that are gone."""
        folder = Path(self.dirpath or "")
        unwritten = [
            save
            for save in state_dict.get("pending", [])
            if all(lies_in(path, folder) for path in (save["path"], save["last_path"]) if path is not None)
            and not os.path.exists(save["path"])
        ]
        missing = self._kept.missing(besides=[save["path"] for save in unwritten])
        if missing:
            warn_user(f"ModelCheckpoint forgets checkpoints that no longer exist: {missing}.")
        return unwritten, missing

    def _restore(self, memory: dict[str, Any]) -> None:
        self._kept.load_state_dict(memory)
        self._publish()
        self._last_global_step_saved = memory["step_saved_at"]
        self._is_deferred = memory["is_deferred"]

    def _warn_if_moved(self) -> None:
        former = self._dirpath_of_memory
        if self.dirpath is None or former is None:
            return
        self._dirpath_of_memory = None
        if former != self.dirpath and (self._strategy is None or self._strategy.global_rank == 0):
            warn_user(
                f"ModelCheckpoint now saves in {self.dirpath!r}; checkpoints of the resumed run in {former!r} still"
                " count for the ranking, and are never removed."
            )
