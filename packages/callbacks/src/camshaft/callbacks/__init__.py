"""Stock callbacks and loggers for any trainer that follows camshaft's hook protocol."""

from camshaft.callbacks.csv_logger import CSVLogger
from camshaft.callbacks.early_stopping import EarlyStopping
from camshaft.callbacks.model_checkpoint import ModelCheckpoint
from camshaft.callbacks.rich_progress_bar import RichProgressBar
from camshaft.hooks_core import Callback

__all__ = ["CSVLogger", "Callback", "EarlyStopping", "ModelCheckpoint", "RichProgressBar"]
