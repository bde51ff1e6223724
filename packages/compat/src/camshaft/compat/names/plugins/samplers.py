"""A sampler of one's own, shared by processes as torch shares a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DistributedSampler

from camshaft.hooks_core.messages import must_be


class DistributedSamplerWrapper(DistributedSampler[Any]):
    """Gives each process its share of what a sampler gives, as `DistributedSampler` does of a dataset.

    All processes must draw the same order. A trainer's loaders are shared without it: it is for loops of one's own.

    Args:
        sampler: A sampler, or another iterable of indices, with a length.
        *args, **kwargs: Those of `DistributedSampler`; `shuffle` and `seed` change the order of what was drawn.

    Raises:
        TypeError: If the sampler has no length.
    """

    def __init__(self, sampler: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        if not hasattr(sampler, "__len__"):
            action = "Give it `__len__`, or share out its indices yourself."
            raise TypeError(must_be("sampler", "one with a length", sampler, type(self).__name__, action))
        self.sampler = sampler
        super().__init__(sampler, *args, **kwargs)  # type: ignore[arg-type]  # it reads the length alone

    def __iter__(self) -> Iterator[Any]:
        """Draw an order, and give this process's share of it."""
        order = list(self.sampler)
        return (order[place] for place in super().__iter__())

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch here and in the sampler, if that has one."""
        super().set_epoch(epoch)
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
