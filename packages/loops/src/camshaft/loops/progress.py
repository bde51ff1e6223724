"""How far training is."""

from __future__ import annotations

from typing import Any

import attrs

_COUNTERS = ("current_epoch", "global_step", "num_batches", "total_batches")


@attrs.define(eq=False)
class FitProgress:
    """Counters of a fit.

    Attributes:
        current_epoch: Index of the epoch; after it has ended, of the next one.
        global_step: Number of optimizer updates so far, whatever the number of optimizers.
        num_batches: Batches begun in the current epoch; 0 between epochs.
        total_batches: Batches done in all epochs.
        should_stop: Whether something asked training to stop; no part of the state.
    """

    current_epoch: int = 0
    global_step: int = 0
    num_batches: int = 0
    total_batches: int = 0
    should_stop: bool = attrs.field(default=False, init=False)

    def state_dict(self) -> dict[str, Any]:
        """The counters."""
        return {name: getattr(self, name) for name in _COUNTERS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the counters back.

        Raises:
            NotImplementedError: If they stand in the middle of an epoch.
        """
        if state["num_batches"] != 0:
            raise NotImplementedError(
                f"`ckpt_path` must be a checkpoint from the end of an epoch, but got one after {state['num_batches']} "
                f"batches of epoch {state['current_epoch']} (dict) in fit. Resuming inside an epoch is not there yet: "
                "use a checkpoint that was saved at an epoch's end, or load its weights only."
            )
        for name in _COUNTERS:
            setattr(self, name, int(state[name]))
