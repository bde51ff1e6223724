"""Compatibility with code for Lightning 0.4 to 1.9: modules of every era, arguments, checkpoints, import names."""

from typing import TYPE_CHECKING

from camshaft.compat.callback import Callback as Callback
from camshaft.compat.data_module import DataModule
from camshaft.compat.module import TrainingModule
from camshaft.compat.names.finder import aliases_installed, install_aliases, remove_aliases
from camshaft.compat.trainer import Trainer
from camshaft.hooks_core.support.on_demand import on_demand
from camshaft.trainer import seed_everything

__all__ = [
    "Callback",
    "DataModule",
    "EvalResult",
    "TrainResult",
    "Trainer",
    "TrainingModule",
    "aliases_installed",
    "install_aliases",
    "remove_aliases",
    "seed_everything",
]

if TYPE_CHECKING:
    from camshaft.compat.results import EvalResult, TrainResult
else:  # rarely used, so imported on first use
    __getattr__ = on_demand(__name__, {"EvalResult": "results", "TrainResult": "results"})
