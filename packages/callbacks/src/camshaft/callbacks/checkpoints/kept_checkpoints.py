"""Which checkpoints are kept, and what one more does to them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from camshaft.callbacks.checkpoints.top_k import TopK


class SavePlan(NamedTuple):
    """What one due time leads to.

    Args:
        path: Where to save; None if it is not to be kept for its score.
        score: The monitored value, a scalar on the CPU; None without a monitor.
        displaced: Kept checkpoints that make room for it.
        last_path: Where "last" goes; None if it is not wanted.
    """

    path: str | None
    score: Tensor | None
    displaced: tuple[str, ...]
    last_path: str | None


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

    def plan(
        self,
        score: Tensor | None,
        new_path: Callable[[tuple[str, ...]], str],
        last_path: Callable[[str | None], str | None],
    ) -> SavePlan:
        """What to do at a due time; changes nothing.

        Args:
            score: The monitored value; None without a monitor.
            new_path: Gives the new checkpoint's path, handed the paths that it may reuse.
            last_path: Gives the path of "last", handed the new checkpoint's path.
        """
        displaced = self._displaced_by(score)
        if displaced is None:
            return SavePlan(None, score, (), last_path(None))
        path = new_path(displaced)
        if path in self.top_k.scores:
            displaced = (path,)  # the same name again takes its predecessor's place
        return SavePlan(path, score, displaced, last_path(path))

    def follow(self, plan: SavePlan) -> tuple[str, ...]:
        """Take a plan in; return the checkpoints that it makes superfluous once its own is durable."""
        superfluous = list(plan.displaced)
        self.current_score = plan.score
        if plan.path is not None:
            for path in plan.displaced:
                self.top_k.discard(path)
            if plan.score is not None:
                self.top_k.add(plan.path, plan.score)
            self.best_path = plan.path if plan.score is None else self.top_k.best_path
        if plan.last_path is not None:
            superfluous.append(self.last_path)
            self.last_path = plan.last_path
        return tuple(path for path in superfluous if path and path not in (plan.path, plan.last_path))

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

    def _displaced_by(self, score: Tensor | None) -> tuple[str, ...] | None:
        if score is not None:
            return self.top_k.displaced_by(score)
        if self.top_k.k == 0:
            return None
        return (self.best_path,) if self.top_k.k == 1 and self.best_path else ()
