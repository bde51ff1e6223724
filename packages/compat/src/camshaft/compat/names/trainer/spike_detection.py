"""Detection of spikes under its name in Lightning: by each process's own loss, at every batch."""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from camshaft.callbacks import SpikeDetection as _SpikeDetection
from camshaft.callbacks import TrainingSpikeException
from camshaft.compat.names.stand_ins import StandIn
from camshaft.hooks_core import Callback
from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.remote_files import join, local_path, replace_file


class SpikeDetection(Callback, metaclass=StandIn):
    """Ends training with `TrainingSpikeException` if the loss of any process jumps.

    `camshaft.callbacks.SpikeDetection` checks the mean over processes, does not wait for the device at every batch, and
    names batches by their epoch.

    Args:
        mode: "min" if spikes go up, "max" if they go down.
        window: Number of losses in the running mean.
        warmup: Index of the first batch of an epoch that can be a spike.
        atol: Smallest distance of a spike from the mean; None: any.
        rtol: The same as a multiple of the mean; None: any.
        exclude_batches_path: A JSON file, or a folder for "skip_batches.json", which lists the indices of the batch of
            the spike and of the one before it. None: the trainer's `default_root_dir`.
        finite_only: Whether a loss that is NaN or infinite is a spike in any case.

    Attributes:
        bad_batches: What is in the file.

    Raises:
        ValueError: If `mode` is neither of the two.
    """

    __stands_for__: ClassVar[type] = _SpikeDetection

    def __init__(
        self,
        mode: str = "min",
        window: int = 10,
        warmup: int = 1,
        atol: float | None = None,
        rtol: float | None = 2.0,
        exclude_batches_path: str | os.PathLike[str] | None = None,
        finite_only: bool = True,
    ) -> None:
        super().__init__()
        if mode not in ("min", "max"):
            raise ValueError(must_be("mode", "'min' or 'max'", mode, "SpikeDetection", "Choose which way spikes go."))
        self.mode = mode
        self.warmup = warmup
        self.atol = atol
        self.rtol = rtol
        self.exclude_batches_path = exclude_batches_path
        self.finite_only = finite_only
        self.last_val = 0.0
        self.bad_batches: list[int] = []
        self._latest: deque[float] = deque(maxlen=window)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Check the loss. Collective. Waits for the device."""
        found = outputs["loss"] if isinstance(outputs, Mapping) else outputs
        if not isinstance(found, torch.Tensor):
            action = "Return it from `training_step`."
            raise TypeError(must_be("loss", "a tensor, or in a dictionary", outputs, "SpikeDetection", action))
        loss, strategy = float(found.detach()), trainer.strategy
        flags = torch.tensor([float(batch_idx >= self.warmup and self._is_spike(loss)), float(not math.isfinite(loss))])
        is_spike, is_infinite = flags.tolist() if strategy.world_size == 1 else strategy.reduce(flags, "max").tolist()
        if is_spike:
            self._handle_spike(trainer, batch_idx)
            mean = sum(self._latest) / len(self._latest) if self._latest else math.nan
            raise TrainingSpikeException(trainer.current_epoch, batch_idx, loss, mean)
        if self.finite_only or not is_infinite:
            self._latest.append(loss)
            self.last_val = loss

    def state_dict(self) -> dict[str, Any]:
        """Return the latest losses and the bad batches."""
        return {"latest": list(self._latest), "last_val": self.last_val, "bad_batches": list(self.bad_batches)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state; the constructor's arguments stay as they are."""
        self._latest.extend(state_dict["latest"])
        self.last_val, self.bad_batches = state_dict["last_val"], list(state_dict["bad_batches"])

    def _is_spike(self, loss: float) -> bool:
        if not math.isfinite(loss) and self.finite_only:
            return True
        difference = loss - self.last_val
        if (difference <= 0) if self.mode == "min" else (difference >= 0):
            return False
        mean = sum(self._latest) / len(self._latest) if self._latest else math.nan
        distance = abs(loss - mean)
        is_far = self.atol is None or distance >= abs(self.atol)
        return is_far and (self.rtol is None or distance >= abs(self.rtol * mean))

    def _handle_spike(self, trainer: Any, batch_idx: int) -> None:
        self.bad_batches += [batch_idx - 1, batch_idx]
        if trainer.is_global_zero:
            path = local_path(self.exclude_batches_path or trainer.default_root_dir)
            path = path if os.path.splitext(path)[1] == ".json" else join(path, "skip_batches.json")
            with replace_file(path) as fresh:
                fresh.write_text(json.dumps(self.bad_batches, indent=4), encoding="utf-8")
