"""Loaders of a data module made of datasets, and the description of its loaders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sized
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from camshaft.hooks_core.transfer import map_nested
from camshaft.trainer.hyperparameters import parameters_of, takes_any

if TYPE_CHECKING:
    from camshaft.trainer.data_module import DataModule

_Data = TypeVar("_Data", bound="DataModule")

_STAGES = {"train": "Train", "val": "Validation", "test": "Test", "predict": "Predict"}


def from_datasets(
    cls: type[_Data],
    datasets: dict[str, Dataset[Any] | Iterable[Dataset[Any]] | None],
    batch_size: int,
    num_workers: int,
    arguments: dict[str, Any],
) -> _Data:
    """Build a data module; see `DataModule.from_datasets`."""
    settings: dict[str, Any] = {"batch_size": batch_size, "num_workers": num_workers}
    accepted = settings if takes_any(cls) else {name: settings[name] for name in settings if name in parameters_of(cls)}
    data = cls(**arguments, **accepted)
    for stage, given in datasets.items():
        if given is not None:
            make = partial(_load, shuffles=stage == "train", settings=settings)
            setattr(data, f"{stage}_dataloader", partial(map_nested, given, _is_dataset, make))
    return data


def _is_dataset(value: Any) -> bool:
    return isinstance(value, Dataset)


def _load(dataset: Dataset[Any], *, shuffles: bool, settings: dict[str, Any]) -> DataLoader[Any]:
    shuffle = shuffles and not isinstance(dataset, IterableDataset)
    return DataLoader(dataset, shuffle=shuffle, pin_memory=torch.accelerator.is_available(), **settings)


def describe(data: DataModule) -> str:
    """Return a line for each stage with the sizes of its datasets, as `str(data)` in Lightning."""
    lines = []
    for stage, title in _STAGES.items():
        lines.append(f"{{{title} dataloader: {_sizes(getattr(data, f'{stage}_dataloader'))}}}")
    return os.linesep.join(lines)


def _sizes(make: Callable[[], Any]) -> str:
    """Return the sizes of the datasets of loaders; "None" if there are no loaders, or not yet."""
    try:
        loaders = make()
        if isinstance(loaders, DataLoader):
            return f"size={_size(loaders)}"
        items = loaders.values() if isinstance(loaders, dict) else loaders
        parts = [f"{idx}. size={_size(loader)}" for idx, loader in enumerate(items, start=1)]
    except Exception:  # whatever the code of a data module that was not set up raises
        return "None"
    return " ; ".join(parts)


def _size(loader: Any) -> str:
    dataset = loader.dataset
    return str(len(dataset)) if isinstance(dataset, Sized) else "NA"
