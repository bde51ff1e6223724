"""Loaders, how much of them a stage takes, and iterating over that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from camshaft.hooks_core.messages import must_be
from camshaft.loops.run import Run

UNKNOWN = float("inf")
"""The number of batches of a loader that does not tell."""

_MISSING = object()


def loaders_of(run: Run, stage: str) -> list[Iterable[Any]] | None:
    """The loaders of a stage: those that were passed, else what the data module or the module provides.

    Hooks: train_dataloader, val_dataloader, test_dataloader, predict_dataloader.

    Returns:
        The loaders, or None if there are none.

    Raises:
        TypeError: If something else than a loader or a list of loaders was given.
    """
    providers: dict[str, Callable[[], Any] | None] = {
        "train": run.hooks.train_dataloader,
        "validate": run.hooks.val_dataloader,
        "test": run.hooks.test_dataloader,
        "predict": run.hooks.predict_dataloader,
    }
    given, provider = run.loaders.get(stage), providers[stage]
    if given is None and provider is not None:
        given = provider()
    if given is None:
        return None
    loaders = list(given) if isinstance(given, (list, tuple)) else [given]
    for loader in loaders:
        if isinstance(loader, Mapping) or not isinstance(loader, Iterable):
            rule = "a loader (an iterable of batches) or a list of loaders"
            raise TypeError(must_be(f"{stage} loaders", rule, loader, run.verb, "Pass one of these."))
    return loaders


def count_batches(loader: Iterable[Any], limit: int | float, argument: str) -> int | float:
    """How many batches of a loader are taken.

    Args:
        loader: The loader.
        limit: An int is a number of batches, a float a share of them.
        argument: Name of the argument that the limit was given by, for errors.

    Returns:
        The number, or infinity if nobody knows.

    Raises:
        ValueError: If a share is asked of a loader of unknown length, or amounts to less than one batch.
    """
    length = _length(loader)
    if isinstance(limit, int):
        return min(length, limit)
    if limit == 1.0:
        return length
    if length == UNKNOWN and limit != 0.0:
        action = "Pass an int."
        raise ValueError(must_be(argument, "1.0 or an int for a loader of unknown length", limit, "fit", action))
    num_batches = int(length * limit) if limit else 0
    if limit > 0 and num_batches == 0 and length > 0:
        rule = f"0 or a share of at least one of the loader's {length} batches"
        raise ValueError(must_be(argument, rule, limit, "fit", f"Pass at least {1 / length}."))
    return num_batches


def numbered(loader: Iterable[Any], num_batches: int | float) -> Iterator[tuple[int, Any, bool]]:
    """Iterate over a loader's batches, each with its index and whether it is the last.

    A loader of known length is read one batch at a time; if it is taken whole it is run to its end, as a plain `for`
    does, because what it does there (drawing from its own generator, say) matters to the next epoch. Of a stream (a
    loader of unknown length, or over an `IterableDataset`, whose length is an estimate) the next batch is read ahead,
    because there is no other way to know the last.

    Args:
        loader: The loader.
        num_batches: How many batches to take; infinite takes all there are.

    Raises:
        RuntimeError: If a loader of known length ends before its time, as it does when the dataset
            raises `StopIteration`.
    """
    length = _length(loader)
    if length == UNKNOWN or _is_stream(loader):
        yield from _read_ahead(loader if num_batches == UNKNOWN else islice(loader, int(num_batches)))
        return
    batch_idx = -1
    for batch_idx, batch in enumerate(islice(loader, int(num_batches) + (num_batches == length))):
        if batch_idx == num_batches:
            return  # more than it promised
        yield batch_idx, batch, batch_idx + 1 == num_batches
    if batch_idx + 1 < num_batches:
        raise RuntimeError(
            f"`{type(loader).__name__}` must give the {num_batches} batches that it promises, but got {batch_idx + 1} "
            "(int) in this epoch: it ended early, as when its dataset raises StopIteration. Raise another error "
            "there."
        )


def _read_ahead(loader: Iterable[Any]) -> Iterator[tuple[int, Any, bool]]:
    batches = iter(loader)
    batch = next(batches, _MISSING)
    batch_idx = 0
    while batch is not _MISSING:
        following = next(batches, _MISSING)
        yield batch_idx, batch, following is _MISSING
        batch, batch_idx = following, batch_idx + 1


def _length(loader: Iterable[Any]) -> int | float:
    try:
        return len(loader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return UNKNOWN


def _is_stream(loader: Iterable[Any]) -> bool:
    return isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)


def set_epoch(loader: Iterable[Any] | None, epoch: int) -> None:
    """Tell samplers that shuffle by epoch which one begins."""
    for sampler in (getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
        if callable(getattr(sampler, "set_epoch", None)):
            sampler.set_epoch(epoch)  # type: ignore[union-attr]


def generators_of(loader: Iterable[Any]) -> list[torch.Generator]:
    """The random number generators of a loader's own, each once: those of the loader and of its samplers."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    found = [getattr(owner, "generator", None) for owner in owners]
    return list(dict.fromkeys(generator for generator in found if isinstance(generator, torch.Generator)))


def batch_mover(run: Run) -> Callable[[Any, int], Any] | None:
    """What brings a batch to its device, or None if nothing is to be done.

    Hooks: on_before_batch_transfer, transfer_batch_to_device, on_after_batch_transfer.
    """
    hooks, strategy = run.hooks, run.strategy
    before, transfer, after = (
        hooks.on_before_batch_transfer,
        hooks.transfer_batch_to_device,
        hooks.on_after_batch_transfer,
    )
    if before is None and transfer is None and after is None and strategy.device.type == "cpu":
        return None  # loaders give batches on the CPU

    def move(batch: Any, dataloader_idx: int) -> Any:
        if before is not None:
            batch = before(batch, dataloader_idx)
        if transfer is not None:
            batch = transfer(batch, strategy.device, dataloader_idx)
        else:
            batch = strategy.batch_to_device(batch)
        return batch if after is None else after(batch, dataloader_idx)

    return move
