"""The base class of users' data modules: download, split, loaders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sized
from functools import partial
from typing import IO, TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from camshaft.hooks_core import CheckpointHooks, DataHooks
from camshaft.hooks_core.support.transfer import map_nested
from camshaft.trainer.checkpoints import CheckpointFormat
from camshaft.trainer.forwarding import class_only
from camshaft.trainer.hyperparameters import HyperparametersMixin, parameters_of, takes_any

if TYPE_CHECKING:
    from camshaft.trainer.trainer import Trainer

_STAGES = {"train": "Train", "val": "Validation", "test": "Test", "predict": "Predict"}


class DataModule(HyperparametersMixin, DataHooks, CheckpointHooks):
    """Loaders and their data, for any module.

    Override the methods that your verbs need: `prepare_data` (once, on one process: download), `setup` (on every
    process: split, transform), `train_dataloader`, `val_dataloader`, `test_dataloader`, `predict_dataloader`,
    `teardown`, the transfer hooks, and `state_dict` with `load_state_dict` if it has a state that a resumed run needs.

    Attributes:
        name: A name for it, for code that asks for one.
        checkpoint_formats: Formats of others that `load_from_checkpoint` reads, beside ours.
    """

    __hook_base__: ClassVar[bool] = True

    name: str | None = None
    checkpoint_formats: ClassVar[tuple[CheckpointFormat, ...]] = ()

    _trainer: Trainer | None = None

    @property
    def trainer(self) -> Any:
        """The trainer of the current or last verb, or one that was assigned; None before."""
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Any) -> None:
        self._trainer = trainer

    @trainer.deleter
    def trainer(self) -> None:
        self._trainer = None

    @classmethod
    def from_datasets(
        cls,
        train_dataset: Dataset[Any] | Iterable[Dataset[Any]] | None = None,
        val_dataset: Dataset[Any] | Iterable[Dataset[Any]] | None = None,
        test_dataset: Dataset[Any] | Iterable[Dataset[Any]] | None = None,
        predict_dataset: Dataset[Any] | Iterable[Dataset[Any]] | None = None,
        batch_size: int = 1,
        num_workers: int = 0,
        **datamodule_kwargs: Any,
    ) -> Self:
        """Build a data module whose loaders read given datasets.

        Args:
            train_dataset: A dataset, or a list or dictionary of them, each of which gets a loader that shuffles,
                unless it is an `IterableDataset`.
            val_dataset, test_dataset, predict_dataset: Likewise, not shuffled.
            batch_size: Samples of a batch.
            num_workers: Worker processes of each loader.
            datamodule_kwargs: Arguments of `__init__`, which also gets `batch_size` and `num_workers` if it takes them.

        Example:
            >>> dataset = torch.utils.data.TensorDataset(torch.ones(6))
            >>> print(DataModule.from_datasets(dataset, batch_size=2))
            {Train dataloader: size=6}
            {Validation dataloader: None}
            {Test dataloader: None}
            {Predict dataloader: None}
        """
        datasets = {"train": train_dataset, "val": val_dataset, "test": test_dataset, "predict": predict_dataset}
        settings: dict[str, Any] = {"batch_size": batch_size, "num_workers": num_workers}
        known = settings if takes_any(cls) else parameters_of(cls)
        data = cls(**datamodule_kwargs, **{name: value for name, value in settings.items() if name in known})
        for stage, given in datasets.items():
            if given is not None:
                make = partial(_load, shuffles=stage == "train", settings=settings)
                setattr(data, f"{stage}_dataloader", partial(map_nested, given, _is_dataset, make))
        return data

    @class_only
    def load_from_checkpoint(
        cls,
        checkpoint_path: str | os.PathLike[str] | IO[bytes],
        map_location: Any = None,
        hparams_file: str | os.PathLike[str] | None = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """Build a data module from a checkpoint: with the hyperparameters and the state that are saved in it.

        Args:
            checkpoint_path: The checkpoint: a file, or the directory of one whose state was sharded; or a binary file
                object, or an address that begins with http:// or https://.
            map_location: Device of the tensors, or another mapping that `torch.load` takes; None means the CPU.
            hparams_file: A file in YAML or CSV whose values take the place of the hyperparameters.
            weights_only: False unpickles the objects in the file, which may run any code: pass it for files that you
                trust.
            kwargs: Arguments of `__init__`, before those that were saved. One that `__init__` does not take is left
                out, with a warning.

        Raises:
            FileNotFoundError: If there is no such checkpoint.
            CheckpointError: If it cannot be read.
            TypeError: If `__init__` takes other arguments; or takes some that the checkpoint keeps as objects, and that
                are not passed.
        """
        from camshaft.trainer.load_from_checkpoint import rebuild_data_module  # rarely needed

        built: Self = rebuild_data_module(cls, checkpoint_path, map_location, weights_only, hparams_file, kwargs)
        return built

    def on_exception(self, exception: BaseException) -> None:
        """Handle an error of a verb, before `teardown`."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints: tensors and plain values. Empty by default."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned; called only if a checkpoint holds it."""

    def __str__(self) -> str:
        """Return the sizes of the datasets of its loaders, stage by stage; those that are not set up are None.

        It makes the loaders, which are then dropped.
        """
        sizes = {title: _sizes(getattr(self, f"{stage}_dataloader")) for stage, title in _STAGES.items()}
        return os.linesep.join(f"{{{title} dataloader: {size}}}" for title, size in sizes.items())

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the trainer, for copies and pickles."""
        return {name: value for name, value in self.__dict__.items() if name != "_trainer"}


def _is_dataset(value: Any) -> bool:
    return isinstance(value, Dataset)


def _load(dataset: Dataset[Any], *, shuffles: bool, settings: dict[str, Any]) -> DataLoader[Any]:
    shuffle = shuffles and not isinstance(dataset, IterableDataset)
    return DataLoader(dataset, shuffle=shuffle, pin_memory=torch.accelerator.is_available(), **settings)


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
    return str(len(loader.dataset)) if isinstance(loader.dataset, Sized) else "NA"
