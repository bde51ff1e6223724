"""The trainer: a module, data, and everything in between."""

from camshaft.trainer.data_module import DataModule
from camshaft.trainer.hook_comparison import HookDivergenceError
from camshaft.trainer.metric_records import MetricMismatchError
from camshaft.trainer.module import TrainingModule
from camshaft.trainer.seeding import seed_everything
from camshaft.trainer.trainer import Trainer

__all__ = [
    "DataModule",
    "HookDivergenceError",
    "MetricMismatchError",
    "Trainer",
    "TrainingModule",
    "seed_everything",
]
