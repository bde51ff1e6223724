"""Reading checkpoints that something else has saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import nn


class CheckpointFormat(Protocol):
    """Reads the checkpoints of another framework.

    Assign instances to `checkpoint_formats` of a subclass: of `Trainer`, for what its verbs begin with (`ckpt_path`);
    of `TrainingModule` or `DataModule`, for `load_from_checkpoint`. The first that matches a checkpoint reads it; one
    that none matches is taken for ours.
    """

    def matches(self, checkpoint: Mapping[str, Any]) -> bool:
        """Return whether a checkpoint is of this format."""

    def for_run(self, checkpoint: dict[str, Any], trainer: Any) -> dict[str, Any]:
        """Return what a run of the trainer begins with: the checkpoint, and in it what a run looks for.

        Say there, too, what is left out of it.
        """

    def constructor_arguments(
        self, cls: type, checkpoint: Mapping[str, Any], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments that a class is built with.

        Args:
            cls: The class of a module or a data module.
            checkpoint: The checkpoint. For a data module what its own keys hold takes the place of the module's.
            given: Arguments that were passed, which count before those that were saved.
        """

    def weights(self, saved: Mapping[str, Any], module: nn.Module) -> Mapping[str, Any]:
        """Return the weights under the names that they have in the module."""

    def data_state(self, checkpoint: Mapping[str, Any], cls: type) -> dict[str, Any] | None:
        """Return what the checkpoint keeps of a data module of a class; None if there is nothing."""


def format_of(checkpoint: Mapping[str, Any], formats: Sequence[CheckpointFormat]) -> CheckpointFormat | None:
    """Return the first format that matches a checkpoint; None if there is none, so that it is ours."""
    return next((one for one in formats if one.matches(checkpoint)), None)
