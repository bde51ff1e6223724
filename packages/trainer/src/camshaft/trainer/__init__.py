"""The trainer: a module, data, and everything in between."""

from typing import TYPE_CHECKING

from camshaft.hooks_core.on_demand import on_demand
from camshaft.loops.metrics import MetricMismatchError
from camshaft.trainer.data_module import DataModule
from camshaft.trainer.module import TrainingModule
from camshaft.trainer.seeding import seed_everything
from camshaft.trainer.trainer import Trainer

__all__ = [
    "CheckpointFormat",
    "DataModule",
    "GradientNorms",
    "HookDivergenceError",
    "MetricMismatchError",
    "TorchSwitches",
    "Trainer",
    "TrainingModule",
    "seed_everything",
]

if TYPE_CHECKING:
    from camshaft.trainer.checkpoints import CheckpointFormat
    from camshaft.trainer.gradient_norms import GradientNorms
    from camshaft.trainer.hook_comparison import HookDivergenceError
    from camshaft.trainer.torch_switches import TorchSwitches
else:  # imported on access
    __getattr__ = on_demand(
        __name__,
        {
            "CheckpointFormat": "checkpoints",
            "GradientNorms": "gradient_norms",
            "HookDivergenceError": "hook_comparison",
            "TorchSwitches": "torch_switches",
        },
    )
