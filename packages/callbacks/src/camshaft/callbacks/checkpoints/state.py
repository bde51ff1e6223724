"""State of a `ModelCheckpoint`: the checkpoints that it keeps, and the saves that are not durable yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from camshaft.callbacks.monitoring import Mode, is_better, worst_score
from camshaft.hooks_core.support.durable_files import found_at
from camshaft.hooks_core.support.messages import warn_user
from camshaft.hooks_core.support.remote_files import INDEX_FILE, exists, is_folder, is_url, join, lies_in, written_at

_DERIVED = ("best_model_score", "kth_best_model_path", "kth_value")
_STATE = ("best_k_models", "best_model_path", "last_model_path", "current_score")


@attrs.define(eq=False)
class KeptCheckpoints:
    """The checkpoints that a `ModelCheckpoint` keeps: the k best scores so far, or the newest k, and "last".

    Its attributes are those of `ModelCheckpoint`, which documents them. Among equal scores the older is the better. NaN
    counts as the worst score there is, and is kept as an infinity.

    Args:
        save_top_k: How many to keep; -1 keeps all.
        mode: "min" where lower is better, "max" where higher is.
        best_k_models: Paths with their scores, scalars on the CPU, oldest first; empty without a monitored metric.
        newest_paths: Paths without a score, oldest first; the newest alone where all are kept.
    """

    save_top_k: int
    mode: Mode
    best_k_models: dict[str, Tensor] = attrs.Factory(dict)
    newest_paths: list[str] = attrs.Factory(list)
    best_model_path: str = ""
    last_model_path: str = ""
    current_score: Tensor | None = None
    best_model_score: Tensor | None = attrs.field(init=False)
    kth_best_model_path: str = attrs.field(init=False)
    kth_value: Tensor = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._update_scores()

    def ranking(self) -> list[str]:
        """Return the paths with scores, best first."""
        # sorted() is stable in both directions: equals stay in the order in which they came.
        scores = self.best_k_models
        return sorted(scores, key=lambda path: float(scores[path]), reverse=self.mode == "max")

    def takes(self, score: Tensor) -> bool:
        """Return whether a score is good enough to be kept."""
        if self.save_top_k == 0:
            return False
        displaced = self.displaced_by(score)
        if not displaced:
            return True
        return is_better(float(self._without_nan(score)), float(self.best_k_models[displaced[0]]), self.mode)

    def displaced_by(self, score: Tensor | None) -> tuple[str, ...]:
        """Return the paths that a new checkpoint displaces; without a score the oldest of those that have none."""
        if self.save_top_k == -1:
            return ()
        ranking = self.newest_paths[::-1] if score is None else self.ranking()
        return tuple(ranking[max(self.save_top_k - 1, 0) :])

    def add(self, path: str, score: Tensor | None, displaced: tuple[str, ...]) -> tuple[str, ...]:
        """Keep a checkpoint.

        Args:
            path: Its path; that of a kept one displaces that one alone.
            score: Its score; None without a monitored metric.
            displaced: The paths that it displaces.

        Returns:
            The other paths that are no longer kept.
        """
        if path in self.paths:
            displaced = (path,)
        self._drop(displaced)
        if score is None:
            self.newest_paths = [path] if self.save_top_k == -1 else [*self.newest_paths, path]
            self.best_model_path = path
        else:
            self.best_k_models[path] = self.current_score = self._without_nan(score)
            self.best_model_path = self.ranking()[0]
        self._update_scores()
        return tuple(one for one in displaced if one != path)

    def state_dict(self) -> dict[str, Any]:
        """Return the paths and scores."""
        state = {name: getattr(self, name) for name in (*_STATE, *_DERIVED)}
        return {**state, "best_k_models": dict(self.best_k_models), "newest_paths": list(self.newest_paths)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore paths and scores, whether the files exist or not."""
        for name in _STATE:
            setattr(self, name, state_dict[name])
        self.best_k_models = dict(self.best_k_models)
        newest = [self.best_model_path] if self.best_model_path and not self.best_k_models else []
        self.newest_paths = list(state_dict.get("newest_paths", newest))  # which 0.1.0 does not save
        self._update_scores()

    @property
    def paths(self) -> list[str]:
        """Paths of those that are kept by score or age, oldest first."""
        return [*self.best_k_models, *self.newest_paths]

    def missing_files(self, expected: list[str]) -> list[str]:
        """Return the kept paths at which nothing exists, with a warning; those that are expected are left out."""
        known = dict.fromkeys([*self.paths, self.best_model_path, self.last_model_path])
        missing = [path for path in known if path and path not in expected and not _is_there(path)]
        if missing:
            warn_user(
                f"ModelCheckpoint forgets checkpoints that no longer exist: {missing}. Put them back, and resume."
            )
        return missing

    def forget(self, paths: list[str]) -> None:
        """Keep some checkpoints no longer."""
        self._drop(paths)
        if self.best_model_path in paths:
            self.best_model_path = next(iter(self.ranking() or self.newest_paths[::-1]), "")
        if self.last_model_path in paths:
            self.last_model_path = ""
        self._update_scores()

    def _drop(self, paths: Sequence[str]) -> None:
        self.newest_paths = [path for path in self.newest_paths if path not in paths]
        for path in paths:
            self.best_k_models.pop(path, None)

    def _without_nan(self, score: Tensor) -> Tensor:
        return torch.full_like(score, worst_score(self.mode)) if math.isnan(float(score)) else score

    def _update_scores(self) -> None:
        """Derive the scores of the best and the worst."""
        scores = self.best_k_models
        self.best_model_score = scores.get(self.best_model_path)
        self.kth_best_model_path = self.ranking()[-1] if scores and len(scores) >= self.save_top_k else ""
        self.kth_value = scores.get(self.kth_best_model_path, torch.tensor(worst_score(self.mode)))


@attrs.define(eq=False)
class PendingSave:
    """A save that was requested and is not durable yet.

    Args:
        save_idx: Index in the order of requests.
        path: Path of the checkpoint.
        state: The callback's state once it is durable.
        displaced: Checkpoints that it replaces; removed once it is durable.
        last_path: Path of "last", which moves to it once it is durable, or `path` itself if it is written there; None
            leaves "last" where it is.

    Attributes:
        is_abandoned: Whether a later save has displaced it, so that it is removed as soon as it is durable.
    """

    save_idx: int
    path: str
    state: dict[str, Any]
    displaced: tuple[str, ...]
    last_path: str | None
    is_abandoned: bool = attrs.field(default=False, init=False)


@attrs.define(eq=False)
class PendingSaves:
    """The saves of one callback that are not yet durable.

    They usually become durable in the order of requests; an asynchronous writer need not keep that order.

    Args:
        folder: The only folder in which checkpoints are removed; others are not touched.
        durable_state: The callback's state as of its newest durable save.
        point_last: Points "last" at a durable checkpoint; called with the paths of both.
        remove_checkpoint: Removes a checkpoint; called with its path.
    """

    folder: str
    durable_state: dict[str, Any]
    point_last: Callable[[str, str], None] = attrs.field(kw_only=True)
    remove_checkpoint: Callable[[str], None] = attrs.field(kw_only=True)
    _saves: list[PendingSave] = attrs.field(factory=list, init=False)
    _num_saves: int = attrs.field(default=0, init=False)
    _durable_idx: int = attrs.field(default=-1, init=False)
    _last_idx: int = attrs.field(default=-1, init=False)

    def __bool__(self) -> bool:
        return bool(self._saves)

    def __contains__(self, save: object) -> bool:
        return save in self._saves

    def holds(self, path: str) -> bool:
        """Return whether a save to `path` is pending."""
        return any(save.path == path for save in self._saves)

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the pending saves in the order of requests, as plain values."""
        return [
            {"path": save.path, "displaced": list(save.displaced), "last_path": save.last_path}
            for save in self._saves
            if not save.is_abandoned
        ]

    def add(self, path: str, state: dict[str, Any], displaced: tuple[str, ...], last_path: str | None) -> PendingSave:
        """Add a save that is about to be requested."""
        save = PendingSave(self._num_saves, path, state, displaced, last_path)
        self._num_saves += 1
        self._saves.append(save)
        return save

    def finish(self, save: PendingSave) -> bool:
        """Move "last" and remove displaced checkpoints, now that `save` is durable. Nothing happens if it was dropped.

        Returns:
            Whether there is a checkpoint at its path now.

        Raises:
            OSError: If "last" cannot be moved, as if the save had failed; or a displaced checkpoint cannot be removed.
        """
        if save not in self._saves:
            return False
        if save.last_path is not None and save.save_idx > self._last_idx:
            if save.last_path != save.path:
                self.point_last(save.path, save.last_path)
            self._last_idx = save.save_idx
        self._saves.remove(save)
        if save.save_idx >= self._durable_idx:
            self._durable_idx = save.save_idx
            self.durable_state = save.state
        for path in save.displaced:
            self._release(path)
        if save.is_abandoned:
            self._remove(save.path)
        return not save.is_abandoned

    def reopen(self, save: PendingSave) -> None:
        """Make a durable save pending again, so that `finish` can do what was added to it."""
        self._saves.append(save)

    def drop_all(self) -> dict[str, Any]:
        """Drop the saves that never became durable. Return the callback's state as of the newest durable save."""
        self._saves.clear()
        return self.durable_state

    def _release(self, path: str) -> None:
        pending = [save for save in self._saves if save.path == path]
        for save in pending:
            save.is_abandoned = True
        if not pending:
            self._remove(path)

    def _remove(self, path: str) -> None:
        if lies_in(path, self.folder):
            self.remove_checkpoint(path)


def unfinished_saves(pending: list[dict[str, Any]], folder: str) -> list[dict[str, Any]]:
    """Return the pending saves of a saved state that were written, and what a crash kept from following them.

    That is "last", if it is missing or older, and displaced checkpoints that are older and still there. What is newer
    is of a later save, and stays.
    """
    unfinished = []
    for save in pending:
        path, last = save["path"], save["last_path"]
        if not (lies_in(path, folder) and _is_there(path)):
            continue
        when = written_at(path)
        is_behind = last not in (None, path) and not (_is_there(last) and written_at(last) >= when)
        displaced = [one for one in save["displaced"] if _is_there(one) and written_at(one) < when]
        if is_behind or displaced:
            unfinished.append({"path": path, "displaced": displaced, "last_path": last if is_behind else None})
    return unfinished


def unwritten_saves(pending: list[dict[str, Any]], folder: str) -> list[dict[str, Any]]:
    """Return the pending saves of a saved state that were never written and belong into a folder."""
    return [
        save
        for save in pending
        if all(lies_in(path, folder) for path in (save["path"], save["last_path"]) if path is not None)
        and not _is_there(save["path"])
    ]


def _is_there(path: str) -> bool:
    """Return whether there is a checkpoint: in a store a folder without an index is half of one."""
    if not is_url(path):
        return found_at(Path(path)) is not None
    return exists(join(path, INDEX_FILE)) if is_folder(path) else exists(path)
