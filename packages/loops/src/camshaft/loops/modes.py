"""The train or eval mode of each submodule, remembered and restored."""

from __future__ import annotations

from torch import nn


class ModuleModes:
    """Remembers the mode of a module and of each of its submodules.

    Args:
        module: The module, as it is now.
    """

    def __init__(self, module: nn.Module) -> None:
        self._modes = [(submodule, submodule.training) for submodule in module.modules()]

    def restore(self) -> None:
        """Give every submodule its mode back; one that was added since keeps its own."""
        for submodule, training in self._modes:
            submodule.training = training
