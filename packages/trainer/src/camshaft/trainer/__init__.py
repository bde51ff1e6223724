"""The trainer: a module, data, and everything in between."""

from camshaft.trainer.data_module import DataModule
from camshaft.trainer.module import TrainingModule
from camshaft.trainer.seeding import seed_everything
from camshaft.trainer.trainer import Trainer

__all__ = ["DataModule", "Trainer", "TrainingModule", "seed_everything"]
