"""The trainer: a module, data, and everything in between."""

from typing import TYPE_CHECKING

from camshaft.hooks_core.on_demand import on_demand
from camshaft.trainer.data_module import DataModule
from camshaft.trainer.hook_comparison import HookDivergenceError
from camshaft.trainer.metric_records import MetricMismatchError
from camshaft.trainer.module import TrainingModule
from camshaft.trainer.seeding import seed_everything
from camshaft.trainer.trainer import Trainer

__all__ = [
    "DataModule",
    "GradientNorms",
    "HookDivergenceError",
    "MetricMismatchError",
    "TorchSwitches",
    "Trainer",
    "TrainingModule",
    "install_aliases",
    "remove_aliases",
    "seed_everything",
]

if TYPE_CHECKING:
    from camshaft.trainer.gradient_norms import GradientNorms
    from camshaft.trainer.import_names import install_aliases, remove_aliases
    from camshaft.trainer.torch_switches import TorchSwitches
else:  # seldom used, so imported when asked for; a type checker does not understand that
    __getattr__ = on_demand(
        __name__,
        {
            "GradientNorms": "gradient_norms",
            "TorchSwitches": "torch_switches",
            "install_aliases": "import_names",
            "remove_aliases": "import_names",
        },
    )
