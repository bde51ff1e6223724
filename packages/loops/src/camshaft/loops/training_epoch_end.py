"""The end of a training epoch as the module's era has it."""

from __future__ import annotations

from typing import Any

from camshaft.loops.epoch_outputs import TrainingOutputs
from camshaft.loops.progress import FitProgress
from camshaft.loops.returned_logs import log_returned
from camshaft.loops.run import Run


class TrainingEpochEnd:
    """Calls the hooks of a training epoch's end.

    For those of earlier eras that get the outputs of the epoch's steps these are kept; for others nothing is kept.

    Args:
        run: A run whose `training_step` is not bound yet.
        num_optimizers: How many optimizers the module has.
        progress: Counts the batches.

    Attributes:
        outputs: What is kept; None if nobody wants it.
        comes_before_validation: Whether the era has the hooks before the validation at an epoch's end.
        is_done: Whether they were called in this epoch already.
    """

    def __init__(self, run: Run, num_optimizers: int, progress: FitProgress) -> None:
        self._run = run
        self._progress = progress
        self._hook = run.hooks.training_epoch_end
        self._takes_outputs = run.hooks.takes("on_train_epoch_end", "outputs")
        is_automatic = bool(getattr(run.module, "automatic_optimization", True))
        self.outputs: TrainingOutputs | None = None
        if self._hook is not None or self._takes_outputs:
            self.outputs = TrainingOutputs(run, num_optimizers if is_automatic else 1)
        self.comes_before_validation = run.hooks.behaviour.epoch_ends_before_validation
        self.is_done = False

    def start_epoch(self) -> None:
        """Begin an epoch."""
        self.is_done = False
        self.clear()

    def clear(self) -> None:
        """Let go of the outputs."""
        if self.outputs is not None:
            self.outputs.clear()

    def run(self) -> None:
        """Call the hooks: `training_epoch_end`, unless no batch was run in the epoch, and then those of today.

        What `training_epoch_end` returns to be logged is logged. Hooks: training_epoch_end, on_train_epoch_end.
        """
        run, self.is_done = self._run, True
        outputs = [] if self.outputs is None else self.outputs.for_epoch_end()
        if self._hook is not None and self._progress.batches.processed:
            log_returned(run.metrics, self._hook(outputs))
        if self._takes_outputs:
            run.hooks.on_train_epoch_end(outputs=outputs)
        else:
            run.hooks.on_train_epoch_end()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint inside an epoch has to hold beside all else; empty if nothing is kept."""
        return {} if self.outputs is None else {"epoch_outputs": self.outputs.state_dict()}

    def load_state_dict(self, fit: dict[str, Any]) -> None:
        """Go on inside an epoch, from the "fit" of a checkpoint.

        Raises:
            ValueError: If outputs are wanted and those of the epoch so far are not in the checkpoint.
        """
        if self.outputs is not None:
            self.outputs.load_state_dict(fit.get("epoch_outputs"))
