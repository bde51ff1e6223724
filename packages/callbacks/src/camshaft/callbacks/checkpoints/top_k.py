"""Which of many scored checkpoints to keep."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from camshaft.callbacks.monitoring import Mode, is_better, worst_score


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
