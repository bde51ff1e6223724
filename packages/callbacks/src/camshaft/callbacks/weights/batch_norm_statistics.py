"""Statistics of batch normalisation for weights that were not trained with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import Strategy

_MISSING = object()


def batch_norms(module: nn.Module) -> list[_BatchNorm]:
    """The layers of batch normalisation that take statistics in training, be they of several dimensions or kinds."""
    return [
        part
        for part in module.modules()
        if isinstance(part, _BatchNorm) and part.training and part.track_running_stats and part.running_mean is not None
    ]


def batch_norm_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the statistics of those layers, by all names that the module saves them under."""
    own = {id(buffer) for layer in batch_norms(module) for buffer in layer.buffers(recurse=False)}
    buffers = module.named_buffers(remove_duplicate=False)
    return {name: buffer.detach().clone() for name, buffer in buffers if id(buffer) in own}


@torch.no_grad()
def update_batch_norm(
    module: nn.Module, batches: Iterable[Any], forward: Callable[[Any], Any], strategy: Strategy
) -> None:
    """Take the statistics anew, as the mean over batches, like `torch.optim.swa_utils.update_bn`. Collective.

    Layers that are in evaluation mode, and what else there is in the module, stay as they are. The batches of all
    processes count; where one has none left, all end.

    Args:
        module: The module, in the mode of training.
        batches: This process's batches, on their device.
        forward: Computes the module's forward on a batch.
        strategy: Connects the processes.

    Raises:
        RuntimeError: If there is no batch.
    """
    layers = batch_norms(module)
    momenta = [layer.momentum for layer in layers]
    try:
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # the mean over all batches
        num_batches = 0
        for batch in _together(batches, strategy):
            forward(batch)
            num_batches += 1
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
    if not num_batches:
        raise RuntimeError(
            "`train loader` must give batches again after training for the statistics of batch normalisation, but got "
            "none in update_batch_norm. Pass a loader that begins anew each time, no generator."
        )
    if strategy.world_size > 1:
        _average([layer for layer in layers if not isinstance(layer, nn.SyncBatchNorm)], strategy)


def _average(layers: list[_BatchNorm], strategy: Strategy) -> None:
    """Let all processes have the mean over all their batches. Collective."""
    parts: list[Tensor] = []
    for layer in layers:
        assert layer.running_mean is not None and layer.running_var is not None
        count = layer.num_batches_tracked
        assert count is not None
        parts += [count.reshape(1).float(), layer.running_mean.float() * count, layer.running_var.float() * count]
    if not parts:
        return
    sums = torch.split(strategy.reduce(torch.cat(parts), "sum"), [part.numel() for part in parts])
    for layer, count, mean, var in zip(layers, sums[::3], sums[1::3], sums[2::3], strict=True):
        assert layer.running_mean is not None and layer.running_var is not None
        assert layer.num_batches_tracked is not None
        layer.running_mean.copy_(mean / count)
        layer.running_var.copy_(var / count)
        # processes that share a batch have all counted it
        layer.num_batches_tracked.fill_(int(count) * strategy.num_data_ranks // strategy.world_size)


def _together(batches: Iterable[Any], strategy: Strategy) -> Iterator[Any]:
    """Give batches while all processes have one. Collective."""
    if strategy.world_size == 1:
        yield from batches
        return
    iterator = iter(batches)
    while True:
        batch = next(iterator, _MISSING)
        if not strategy.reduce(torch.tensor(int(batch is not _MISSING)), "min").item():
            return
        yield batch
