"""Batch normalisation over the batches of all processes, for as long as a module is set up."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from camshaft.hooks_core.messages import must_be

_SHARED = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked", "training")


class SynchronizedBatchNorm:
    """Replaces the batch normalisation layers in a module by `torch.nn.SyncBatchNorm`, until `revert`.

    Parameters and buffers are shared, so names in checkpoints and parameters in optimizers stay.

    Args:
        module: The module, on its device.

    Raises:
        ValueError: If the module is itself such a layer.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        layers = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
        every_name = module.named_modules(remove_duplicate=False)
        self._originals = {name: layer for name, layer in every_name if isinstance(layer, layers)}
        if "" in self._originals:
            rule = "a module with layers, where sync_batchnorm=True replaces some"
            action = "Put it into an nn.Sequential."
            raise ValueError(must_be("module", rule, type(module).__name__, "setup_module", action))
        convert: Callable[[nn.Module], nn.Module] = nn.SyncBatchNorm.convert_sync_batchnorm
        converted = {id(layer): convert(layer) for layer in self._originals.values()}
        for name, layer in self._originals.items():
            module.set_submodule(name, converted[id(layer)])

    def revert(self) -> None:
        """Put the layers back, with what was learned meanwhile."""
        for name, layer in self._originals.items():
            converted = self._module.get_submodule(name)
            for attribute in _SHARED:
                setattr(layer, attribute, getattr(converted, attribute))
            self._module.set_submodule(name, layer)
        self._originals.clear()
