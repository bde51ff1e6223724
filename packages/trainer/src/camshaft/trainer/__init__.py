"""`Trainer`, `TrainingModule` and `DataModule`, put together from the other packages."""

from typing import TYPE_CHECKING

from camshaft.hooks_core.support.on_demand import collection_paused, on_demand

with collection_paused():
    from camshaft.loops.metrics import MetricMismatchError
    from camshaft.trainer.data_module import DataModule
    from camshaft.trainer.module import TrainingModule
    from camshaft.trainer.seeding import seed_everything
    from camshaft.trainer.trainer import Trainer

__all__ = [
    "CheckpointFormat",
    "DataModule",
    "GradientNorms",
    "MetricMismatchError",
    "TorchSwitches",
    "Trainer",
    "TrainingModule",
    "Tuner",
    "seed_everything",
]

if TYPE_CHECKING:
    from camshaft.trainer.callbacks.gradient_norms import GradientNorms
    from camshaft.trainer.callbacks.torch_switches import TorchSwitches
    from camshaft.trainer.checkpoints import CheckpointFormat
    from camshaft.trainer.tuner import Tuner
else:  # imported on access
    __getattr__ = on_demand(
        __name__,
        {
            "CheckpointFormat": "checkpoints",
            "GradientNorms": "callbacks.gradient_norms",
            "TorchSwitches": "callbacks.torch_switches",
            "Tuner": "tuner",
        },
    )
