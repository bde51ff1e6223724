"""The seam for checkpoints of other formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from camshaft.loops.state.run import Run


class CheckpointAdapter:
    """Adapts a checkpoint to a run, step by step as the parts of the run are made; this one changes nothing.

    Override methods for another format, and pass an instance as `Run.checkpoint_adapter`.
    """

    def weights(self, saved: Mapping[str, Any], module: nn.Module) -> Mapping[str, Any]:
        """Return the weights under their names in the module.

        Args:
            saved: The weights under the names in the checkpoint.
            module: The module.
        """
        return saved

    def data_state(self, checkpoint: dict[str, Any], data: object) -> dict[str, Any] | None:
        """Return the state of the data module; None if the checkpoint has none.

        Args:
            checkpoint: The checkpoint.
            data: The data module.
        """
        return checkpoint.get("data")

    def callback_states(self, checkpoint: dict[str, Any], run: Run) -> dict[str, dict[str, Any]]:
        """Return the states of the run's callbacks by their keys.

        Args:
            checkpoint: The checkpoint.
            run: The run.
        """
        states: dict[str, dict[str, Any]] = checkpoint.get("callbacks", {})
        return states

    def training(self, checkpoint: dict[str, Any], run: Run) -> dict[str, Any]:
        """Restore progress and random numbers; return the checkpoint with states that replace its own.

        Args:
            checkpoint: The checkpoint.
            run: The run.
        """
        return checkpoint

    def finish(self, run: Run) -> None:
        """Finish, once optimizers and schedulers are restored."""
