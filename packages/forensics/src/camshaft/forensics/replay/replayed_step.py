"""The result of a replay: one training step that was made again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from torch import Tensor

if TYPE_CHECKING:
    from camshaft.forensics.replay.step_inspection import StepInspection


@attrs.frozen(eq=False)
class ReplayedStep:
    """A training step that was made again.

    Attributes:
        step: Number of the optimizer update that the step belongs to, from 1 on.
        epoch: Zero-based epoch.
        batch_idx: Zero-based index of the batch in it.
        batch: The batch, on its device.
        outputs: What `training_step` returned.
        loss: The loss, detached; None if the step returned none.
        inspection: Statistics of the submodules' outputs and gradients, and where values ceased to be finite.
        gradients: The gradients of the parameters by name that this step gave, before clipping and scaled as
            they were; of parameters that are sharded, this process's part.
        differences: In what it differs from what was recorded of it; empty if it is equal bit for bit.
    """

    step: int
    epoch: int
    batch_idx: int
    batch: Any
    outputs: Any
    loss: Tensor | None
    inspection: StepInspection
    gradients: dict[str, Tensor] = attrs.field(repr=False)
    differences: list[str] = attrs.field(factory=list)
