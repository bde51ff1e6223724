"""Which checkpoints are kept, and what one more does to them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from camshaft.callbacks.checkpoints.top_k import TopK


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
