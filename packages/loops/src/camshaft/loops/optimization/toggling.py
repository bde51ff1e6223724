"""Toggling optimizers: the parameters of one optimizer alone require gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor
from torch.optim import Optimizer

ToggleState = tuple[Optimizer | None, list[Tensor]]
"""The optimizer that is at work, and the parameters that were frozen for it."""


class OptimizerToggle:
    """Freezes the parameters of the other optimizers while one is at work, so that no graph is built to them.

    It is for models whose parts train against each other, as a GAN's do: a module that optimizes by hand toggles by
    itself, and one that names `optimizer_idx` has it done.

    Parameters that the working optimizer has as well keep requiring gradients, and so do those of no optimizer. What
    was frozen by its owner stays frozen.

    Args:
        optimizers: All optimizers.

    Attributes:
        active: The optimizer that is at work; None if all parameters require gradients as their owner wants.
        isolates: Whether the optimizer at work adds nothing to the gradients of others.
    """

    isolates: ClassVar[bool] = True

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.active: Optimizer | None = None
        self._optimizers = list(optimizers)
        self._frozen: list[Tensor] = []

    def toggle(self, optimizer: Optimizer) -> None:
        """Freeze what belongs to other optimizers only. If another one was at work, its turn is over."""
        self.untoggle()
        self.active = optimizer
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for group in [group for other in self._optimizers if other is not optimizer for group in other.param_groups]:
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in own:
                    parameter.requires_grad = False
                    self._frozen.append(parameter)

    def swap(self, state: ToggleState) -> ToggleState:
        """Go on as another logical rank of this process left it, whose parameters are in place. Returns the state."""
        before = self.active, self._frozen
        self.active, self._frozen = state
        return before

    def copy_state(self) -> ToggleState:
        """Return a copy of the state, for `swap`."""
        return self.active, [*self._frozen]

    def untoggle(self) -> None:
        """Let require gradients again whatever `toggle` froze."""
        self.active = None
        for parameter in self._frozen:
            parameter.requires_grad = True
        self._frozen.clear()
