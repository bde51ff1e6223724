"""The `DataModule` with the hooks of earlier releases."""

from __future__ import annotations

from typing import Any, ClassVar

from camshaft.compat.arguments.argparse_arguments import ArgparseArguments
from camshaft.compat.checkpoints.format import ReleaseFormat
from camshaft.compat.hyperparameters import HyperparametersMixin
from camshaft.hooks_core import DataHooks
from camshaft.trainer import CheckpointFormat
from camshaft.trainer import DataModule as _DataModule
from camshaft.trainer.hyperparameters import DATA_PREFIX, HYPER_PARAMETERS_KEY, NAME_KEY, TYPE_KEY


class EarlierDataHooks:
    """Defaults of data hooks with the arguments of earlier releases. They do not count as overrides."""

    __hook_base__: ClassVar[bool] = True


class DataModule(EarlierDataHooks, ArgparseArguments, HyperparametersMixin, _DataModule):
    """A data module of any era; see `camshaft.trainer.DataModule`.

    Args:
        train_transforms: Kept as the attribute of that name, as are the others, for the loaders of a subclass.
        val_transforms: The same for validation.
        test_transforms: The same for test.
        dims: The shape of an example.
    """

    __hook_base__: ClassVar[bool] = True

    CHECKPOINT_HYPER_PARAMS_KEY: ClassVar[str] = DATA_PREFIX + HYPER_PARAMETERS_KEY
    CHECKPOINT_HYPER_PARAMS_NAME: ClassVar[str] = DATA_PREFIX + NAME_KEY
    CHECKPOINT_HYPER_PARAMS_TYPE: ClassVar[str] = DATA_PREFIX + TYPE_KEY

    checkpoint_formats: ClassVar[tuple[CheckpointFormat, ...]] = (ReleaseFormat(),)

    # On the class, since a subclass may have properties of these names, or never call `super().__init__`.
    train_transforms: Any = None
    val_transforms: Any = None
    test_transforms: Any = None
    dims: Any = ()

    def __init__(
        self, train_transforms: Any = None, val_transforms: Any = None, test_transforms: Any = None, dims: Any = None
    ) -> None:
        super().__init__()
        given = (train_transforms, val_transforms, test_transforms, dims)
        for name, value in zip(("train_transforms", "val_transforms", "test_transforms", "dims"), given, strict=True):
            if value is not None:
                setattr(self, name, value)

    def size(self, dim: int | None = None) -> Any:
        """Return `dims`, or the one at an index."""
        return self.dims if dim is None else self.dims[dim]


def do_nothing(self: Any, *args: Any, **kwargs: Any) -> None:
    """Do nothing, with any arguments."""


def _transfer_batch_to_device(self: Any, batch: Any, device: Any, dataloader_idx: int = 0) -> Any:
    """Move a batch to its device."""
    return DataHooks.transfer_batch_to_device(self, batch, device, dataloader_idx)


OF_DATA = {"setup": do_nothing, "teardown": do_nothing, "transfer_batch_to_device": _transfer_batch_to_device}

# Put in here and not written out above, so that editors and type checkers compare an override with today's signature.
for _name, _hook in OF_DATA.items():
    setattr(EarlierDataHooks, _name, _hook)
