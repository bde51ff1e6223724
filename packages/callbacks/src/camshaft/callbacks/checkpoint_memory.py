"""What a `ModelCheckpoint` remembers, for whoever asks."""

from __future__ import annotations

from torch import Tensor

from camshaft.callbacks.kept_checkpoints import KeptCheckpoints
from camshaft.callbacks.top_k import TopK
from camshaft.hooks_core import Callback


class CheckpointMemory(Callback):
    """The kept checkpoints and their scores.

    Args:
        top_k: The scored checkpoints; without a monitor it only says how many to keep.
    """

    def __init__(self, top_k: TopK) -> None:
        self._kept = KeptCheckpoints(top_k)

    @property
    def best_model_path(self) -> str:
        """Path of the best kept checkpoint, of the newest without a `monitor`; "" if there is none."""
        return self._kept.best_path

    @property
    def best_model_score(self) -> Tensor | None:
        """Score of the best kept checkpoint, a scalar on the CPU; None without a `monitor`."""
        return self._kept.top_k.scores.get(self._kept.best_path)

    @property
    def best_k_models(self) -> dict[str, Tensor]:
        """Paths of the kept checkpoints with their scores, oldest first; a copy. Empty without a `monitor`."""
        return dict(self._kept.top_k.scores)

    @property
    def kth_best_model_path(self) -> str:
        """Path of the worst kept checkpoint; "" while fewer than `save_top_k` are kept."""
        top_k = self._kept.top_k
        return top_k.worst_path if len(top_k.scores) >= top_k.k else ""

    @property
    def last_model_path(self) -> str:
        """Path of "last"; "" if there is none."""
        return self._kept.last_path

    @property
    def current_score(self) -> Tensor | None:
        """The monitored value at the latest due time, a scalar on the CPU; None before it."""
        return self._kept.current_score
