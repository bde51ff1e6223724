"""Command lines for modules and data modules; they need jsonargparse, of the extra `cli`."""

from typing import TYPE_CHECKING, Any

from camshaft.hooks_core.support.on_demand import on_demand

if TYPE_CHECKING:
    from camshaft.trainer.cli.argument_parser import TrainerArgumentParser
    from camshaft.trainer.cli.optimizers import (
        LRSchedulerCallable,
        LRSchedulerType,
        LRSchedulerTypeTuple,
        LRSchedulerTypeUnion,
        OptimizerCallable,
        ReduceLROnPlateau,
        instantiate_class,
    )
    from camshaft.trainer.cli.save_config import SaveConfigCallback
    from camshaft.trainer.cli.trainer_cli import ArgsType, TrainerCLI

__all__ = [
    "ArgsType",
    "LRSchedulerCallable",
    "LRSchedulerType",
    "LRSchedulerTypeTuple",
    "LRSchedulerTypeUnion",
    "OptimizerCallable",
    "ReduceLROnPlateau",
    "SaveConfigCallback",
    "TrainerArgumentParser",
    "TrainerCLI",
    "instantiate_class",
]

_ON_DEMAND = {
    "ArgsType": "trainer_cli",
    "LRSchedulerCallable": "optimizers",
    "LRSchedulerType": "optimizers",
    "LRSchedulerTypeTuple": "optimizers",
    "LRSchedulerTypeUnion": "optimizers",
    "OptimizerCallable": "optimizers",
    "ReduceLROnPlateau": "optimizers",
    "SaveConfigCallback": "save_config",
    "TrainerArgumentParser": "argument_parser",
    "TrainerCLI": "trainer_cli",
    "instantiate_class": "optimizers",
}
_get = on_demand(__name__, _ON_DEMAND)


_DISTRIBUTIONS = {
    "docstring_parser": "docstring-parser",
    "jsonargparse": "jsonargparse",
    "yaml": "PyYAML",
}
"""By module, the distributions that the extra brings along."""


def __getattr__(name: str) -> Any:
    try:
        return _get(name)
    except ModuleNotFoundError as error:
        missing = _DISTRIBUTIONS.get((error.name or "").partition(".")[0])
        if missing is None:
            raise
        message = f"The command line needs {missing}. Install the extra: camshaft-trainer[cli]."
        raise ModuleNotFoundError(message, name=error.name) from error
