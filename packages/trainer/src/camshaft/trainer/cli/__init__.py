"""Command lines for modules and data modules; they need jsonargparse, of the extra `cli`."""

try:
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
except ModuleNotFoundError as error:
    missing = {"docstring_parser": "docstring-parser", "yaml": "PyYAML"}.get(error.name or "", error.name)
    if missing not in ("docstring-parser", "jsonargparse", "PyYAML"):
        raise
    message = f"The command line needs {missing}. Install the extra: camshaft-trainer[cli]."
    raise ModuleNotFoundError(message, name=error.name) from error

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
