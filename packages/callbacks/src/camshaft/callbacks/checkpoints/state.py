"""State of a checkpoint callback: kept files, best values, requested saves."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from camshaft.callbacks.monitoring import Mode, from_rank_zero, is_better, worst_score
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


class KeptCheckpoints:
    """The memory of a `ModelCheckpoint`: paths and scores; it touches no file.

    Args:
        top_k: The scored checkpoints; without a monitor it only says how many to keep.

    Attributes:
        best_path: The best one, or without a monitor the newest; "" for none.
        last_path: The one called "last"; "" for none.
        current_score: The score of the latest due time, a scalar on the CPU.
    """

    def __init__(self, top_k: TopK) -> None:
        self.top_k = top_k
        self.best_path = ""
        self.last_path = ""
        self.current_score: Tensor | None = None

    def displaced(self, *, is_scored: bool) -> tuple[str, ...]:
        """Return the kept checkpoints that make room for one more."""
        if is_scored:
            return self.top_k.displaced()
        return (self.best_path,) if self.top_k.k == 1 and self.best_path else ()

    def keep(self, path: str, score: Tensor | None, displaced: Sequence[str]) -> tuple[str, ...]:
        """Keep one more checkpoint.

        Args:
            path: Where it is to be.
            score: The monitored value; None without a monitor.
            displaced: What makes room for it.

        Returns:
            The checkpoints that are kept no longer once this one is durable.
        """
        if path in self.top_k.scores:
            displaced = (path,)  # the same name again takes its predecessor's place
        for one in displaced:
            self.top_k.discard(one)
        if score is not None:
            self.top_k.add(path, score)
        self.best_path = path if score is None else self.top_k.best_path
        return tuple(one for one in displaced if one != path)

    def state_dict(self) -> dict[str, Any]:
        """Everything that it remembers, as tensors and plain values."""
        return {
            "best_k_models": dict(self.top_k.scores),
            "best_model_path": self.best_path,
            "last_model_path": self.last_path,
            "current_score": self.current_score,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.top_k.scores = dict(state["best_k_models"])
        self.best_path = state["best_model_path"]
        self.last_path = state["last_model_path"]
        self.current_score = state["current_score"]

    def missing(self, besides: Sequence[str] = ()) -> list[str]:
        """What it remembers and is not on the disk, besides some that are to come."""
        known = dict.fromkeys([*self.top_k.scores, self.best_path, self.last_path])
        return [path for path in known if path and path not in besides and not os.path.exists(path)]

    def forget(self, missing: Sequence[str]) -> None:
        """Remember paths no longer."""
        for path in missing:
            self.top_k.discard(path)
        if self.best_path in missing:
            self.best_path = self.top_k.best_path
        if self.last_path in missing:
            self.last_path = ""


class TopK:
    """The k best scores seen so far, by path; touches no file.

    Among equal scores the earlier is the better. NaN counts as the worst score there is, and is kept as an infinity.

    Args:
        k: How many to keep; -1 keeps all.
        mode: "min" where lower is better, "max" where higher is.
        scores: Kept paths with their scores, scalars on the CPU, in the order in which they came.
    """

    def __init__(self, k: int, mode: Mode, scores: dict[str, Tensor] | None = None) -> None:
        self.k = k
        self.mode = mode
        self.scores = {} if scores is None else scores

    def ranking(self) -> list[str]:
        """The kept paths, best first."""
        # sorted() is stable in both directions: equals stay in the order in which they came.
        return sorted(self.scores, key=lambda path: float(self.scores[path]), reverse=self.mode == "max")

    def displaced(self) -> tuple[str, ...]:
        """Return the paths that have to go if one more comes."""
        return () if self.k == -1 else tuple(self.ranking()[max(self.k - 1, 0) :])

    def takes(self, score: Tensor) -> bool:
        """Return whether a score is good enough to be kept."""
        if self.k == 0:
            return False
        displaced = self.displaced()
        return not displaced or is_better(float(self._without_nan(score)), float(self.scores[displaced[0]]), self.mode)

    def add(self, path: str, score: Tensor) -> None:
        """Keep `path`; one that is kept already becomes the newest."""
        self.scores.pop(path, None)
        self.scores[path] = self._without_nan(score)

    def discard(self, path: str) -> None:
        """No longer keep `path`; nothing happens if it is not kept."""
        self.scores.pop(path, None)

    @property
    def best_path(self) -> str:
        """The path with the best score; "" if none is kept."""
        return self.ranking()[0] if self.scores else ""

    @property
    def worst_path(self) -> str:
        """The path that goes next; "" if none is kept."""
        return self.ranking()[-1] if self.scores else ""

    def _without_nan(self, score: Tensor) -> Tensor:
        return torch.full_like(score, worst_score(self.mode)) if math.isnan(float(score)) else score


class SaveRequest:
    """One save on its way to the disk.

    Args:
        request_idx: Its place among the requests.
        path: The checkpoint to be written.
        memory: The callback's state with this save in it: what is true once it is durable.
        displaced: Checkpoints that it replaces; they go once it is durable.
        last_path: The name "last" that moves to it once it is durable, `path` itself if it is written there; None
            leaves "last" where it is.

    Attributes:
        is_asked: Whether the trainer was asked to write it.
        is_abandoned: Whether a later save has displaced it already, so that it goes as soon as it comes.
    """

    def __init__(
        self,
        request_idx: int,
        path: str,
        memory: dict[str, Any],
        displaced: tuple[str, ...],
        last_path: str | None,
    ) -> None:
        self.request_idx = request_idx
        self.path = path
        self.memory = memory
        self.displaced = displaced
        self.last_path = last_path
        self.is_asked = False
        self.is_abandoned = False


class PendingSaves:
    """The saves of one callback that are not yet durable.

    They usually become durable in the order in which they were asked for; an asynchronous writer need not keep it.

    Args:
        folder: The only folder in which checkpoints are removed; one that lies elsewhere is left alone.
        durable_memory: The callback's state as of its newest durable save.
        point_last: Names a durable checkpoint "last", given both paths.
        remove_checkpoint: Removes the checkpoint at a path.
    """

    def __init__(
        self,
        folder: Path,
        durable_memory: dict[str, Any],
        *,
        point_last: Callable[[str, str], None],
        remove_checkpoint: Callable[[str], None],
    ) -> None:
        self.folder = folder
        self.durable_memory = durable_memory
        self.point_last = point_last
        self.remove_checkpoint = remove_checkpoint
        self._requests: list[SaveRequest] = []
        self._num_requested = 0
        self._durable_idx = -1
        self._last_idx = -1

    def __bool__(self) -> bool:
        return bool(self._requests)

    def __contains__(self, request: object) -> bool:
        return request in self._requests

    def holds(self, path: str) -> bool:
        """Whether a save to `path` is on its way."""
        return any(request.path == path for request in self._requests)

    def state_dict(self) -> list[dict[str, Any]]:
        """The saves on their way, in the order in which they were asked for, as plain values."""
        return [
            {"path": request.path, "displaced": list(request.displaced), "last_path": request.last_path}
            for request in self._requests
            if not request.is_abandoned
        ]

    def add(self, path: str, memory: dict[str, Any], displaced: tuple[str, ...], last_path: str | None) -> SaveRequest:
        """Note a save that is about to be asked for."""
        request = SaveRequest(self._num_requested, path, memory, displaced, last_path)
        self._num_requested += 1
        self._requests.append(request)
        return request

    def settle(self, request: SaveRequest) -> bool:
        """Do what has waited until `request` is durable. Nothing happens if it was given up.

        Returns:
            Whether there is a checkpoint at its path now.

        Raises:
            OSError: If "last" cannot be moved, as if the save had failed; or a displaced checkpoint cannot be removed.
        """
        if request not in self._requests:
            return False
        if request.last_path is not None and request.request_idx > self._last_idx:
            if request.last_path != request.path:
                self.point_last(request.path, request.last_path)
            self._last_idx = request.request_idx
        self._requests.remove(request)
        if request.request_idx >= self._durable_idx:
            self._durable_idx = request.request_idx
            self.durable_memory = request.memory
        for path in request.displaced:
            self._let_go(path)
        if request.is_abandoned:
            self._remove(request.path)
        return not request.is_abandoned

    def reopen(self, request: SaveRequest) -> None:
        """Take a durable save back among those that have something to be done; `settle` does it."""
        self._requests.append(request)

    def give_up(self) -> dict[str, Any]:
        """Forget the saves that never came; return the state that the durable ones leave."""
        self._requests.clear()
        return self.durable_memory

    def _let_go(self, path: str) -> None:
        on_their_way = [request for request in self._requests if request.path == path]
        for request in on_their_way:
            request.is_abandoned = True
        if not on_their_way:
            self._remove(path)

    def _remove(self, path: str) -> None:
        if lies_in(path, self.folder):
            self.remove_checkpoint(path)


def lies_in(path: str, folder: Path) -> bool:
    """Whether a path is below a folder. It may come out of a checkpoint, with ".." that leads out."""
    return folder in Path(os.path.abspath(path)).parents
