"""Stock callbacks and loggers for any trainer that follows camshaft's hook protocol."""

from typing import TYPE_CHECKING

from camshaft.hooks_core import Callback
from camshaft.hooks_core.support.on_demand import on_demand

if TYPE_CHECKING:
    from camshaft.callbacks.checkpoints.checkpoint import Checkpoint
    from camshaft.callbacks.checkpoints.model_checkpoint import ModelCheckpoint
    from camshaft.callbacks.checkpoints.on_exception_checkpoint import OnExceptionCheckpoint
    from camshaft.callbacks.checkpoints.preemption_checkpoint import PreemptionCheckpoint
    from camshaft.callbacks.early_stopping import EarlyStopping, EarlyStoppingReason
    from camshaft.callbacks.finders.batch_size_finder import BatchSizeFinder
    from camshaft.callbacks.finders.learning_rate_finder import LearningRateCurve, LearningRateFinder
    from camshaft.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
    from camshaft.callbacks.lambda_callback import LambdaCallback
    from camshaft.callbacks.loggers.comet_logger import CometLogger
    from camshaft.callbacks.loggers.csv_logger import CSVLogger
    from camshaft.callbacks.loggers.curve_report import CurveReport
    from camshaft.callbacks.loggers.logger import Logger, rank_zero_experiment
    from camshaft.callbacks.loggers.mlflow_logger import MLFlowLogger
    from camshaft.callbacks.loggers.tensorboard_logger import TensorBoardLogger
    from camshaft.callbacks.loggers.wandb_logger import WandbLogger
    from camshaft.callbacks.monitors.device_stats_monitor import DeviceStatsMonitor
    from camshaft.callbacks.monitors.learning_rate_monitor import LearningRateMonitor
    from camshaft.callbacks.monitors.non_finite_guard import NonFiniteError, NonFiniteGuard
    from camshaft.callbacks.monitors.spike_detection import SpikeDetection, TrainingSpikeException
    from camshaft.callbacks.monitors.throughput import Throughput, get_available_flops, measure_flops
    from camshaft.callbacks.monitors.throughput_monitor import ThroughputMonitor
    from camshaft.callbacks.predictions.prediction_files import NPZPredictionWriter, ParquetPredictionWriter
    from camshaft.callbacks.predictions.prediction_writer import BasePredictionWriter, WriteInterval
    from camshaft.callbacks.profiling.action_profilers import (
        ActionProfiler,
        AdvancedProfiler,
        PassThroughProfiler,
        SimpleProfiler,
    )
    from camshaft.callbacks.profiling.hook_timeline import HookTimeline
    from camshaft.callbacks.profiling.profiled_hooks import ProfiledHooks
    from camshaft.callbacks.profiling.pytorch_profiler import PyTorchProfiler
    from camshaft.callbacks.progress.model_summary import ModelSummary, RichModelSummary, Summary, summarize
    from camshaft.callbacks.progress.progress_bar import ProgressBar
    from camshaft.callbacks.progress.rich_progress_bar import RichProgressBar
    from camshaft.callbacks.progress.tqdm_progress_bar import TQDMProgressBar
    from camshaft.callbacks.timer import Timer
    from camshaft.callbacks.weights.finetuning import BackboneFinetuning, BaseFinetuning
    from camshaft.callbacks.weights.model_pruning import ModelPruning
    from camshaft.callbacks.weights.stochastic_weight_averaging import StochasticWeightAveraging
    from camshaft.callbacks.weights.weight_averaging import EMAWeightAveraging, WeightAveraging

__all__ = [
    "ActionProfiler",
    "AdvancedProfiler",
    "BackboneFinetuning",
    "BaseFinetuning",
    "BasePredictionWriter",
    "BatchSizeFinder",
    "CSVLogger",
    "Callback",
    "Checkpoint",
    "CometLogger",
    "CurveReport",
    "DeviceStatsMonitor",
    "EMAWeightAveraging",
    "EarlyStopping",
    "EarlyStoppingReason",
    "GradientAccumulationScheduler",
    "HookTimeline",
    "LambdaCallback",
    "LearningRateCurve",
    "LearningRateFinder",
    "LearningRateMonitor",
    "Logger",
    "MLFlowLogger",
    "ModelCheckpoint",
    "ModelPruning",
    "ModelSummary",
    "NPZPredictionWriter",
    "NonFiniteError",
    "NonFiniteGuard",
    "OnExceptionCheckpoint",
    "ParquetPredictionWriter",
    "PassThroughProfiler",
    "PreemptionCheckpoint",
    "ProfiledHooks",
    "ProgressBar",
    "PyTorchProfiler",
    "RichModelSummary",
    "RichProgressBar",
    "SimpleProfiler",
    "SpikeDetection",
    "StochasticWeightAveraging",
    "Summary",
    "TQDMProgressBar",
    "TensorBoardLogger",
    "Throughput",
    "ThroughputMonitor",
    "Timer",
    "TrainingSpikeException",
    "WandbLogger",
    "WeightAveraging",
    "WriteInterval",
    "get_available_flops",
    "measure_flops",
    "rank_zero_experiment",
    "summarize",
]

# Imported on first access, since no program uses all of them.
_EXPORTS = {
    "checkpoints.checkpoint": ("Checkpoint",),
    "checkpoints.model_checkpoint": ("ModelCheckpoint",),
    "checkpoints.on_exception_checkpoint": ("OnExceptionCheckpoint",),
    "checkpoints.preemption_checkpoint": ("PreemptionCheckpoint",),
    "early_stopping": ("EarlyStopping", "EarlyStoppingReason"),
    "finders.batch_size_finder": ("BatchSizeFinder",),
    "finders.learning_rate_finder": ("LearningRateCurve", "LearningRateFinder"),
    "gradient_accumulation_scheduler": ("GradientAccumulationScheduler",),
    "lambda_callback": ("LambdaCallback",),
    "loggers.comet_logger": ("CometLogger",),
    "loggers.csv_logger": ("CSVLogger",),
    "loggers.curve_report": ("CurveReport",),
    "loggers.logger": ("Logger", "rank_zero_experiment"),
    "loggers.mlflow_logger": ("MLFlowLogger",),
    "loggers.tensorboard_logger": ("TensorBoardLogger",),
    "loggers.wandb_logger": ("WandbLogger",),
    "monitors.device_stats_monitor": ("DeviceStatsMonitor",),
    "monitors.learning_rate_monitor": ("LearningRateMonitor",),
    "monitors.non_finite_guard": ("NonFiniteError", "NonFiniteGuard"),
    "monitors.spike_detection": ("SpikeDetection", "TrainingSpikeException"),
    "monitors.throughput": ("Throughput", "get_available_flops", "measure_flops"),
    "monitors.throughput_monitor": ("ThroughputMonitor",),
    "predictions.prediction_files": ("NPZPredictionWriter", "ParquetPredictionWriter"),
    "predictions.prediction_writer": ("BasePredictionWriter", "WriteInterval"),
    "profiling.action_profilers": ("ActionProfiler", "AdvancedProfiler", "PassThroughProfiler", "SimpleProfiler"),
    "profiling.hook_timeline": ("HookTimeline",),
    "profiling.profiled_hooks": ("ProfiledHooks",),
    "profiling.pytorch_profiler": ("PyTorchProfiler",),
    "progress.model_summary": ("ModelSummary", "RichModelSummary", "Summary", "summarize"),
    "progress.progress_bar": ("ProgressBar",),
    "progress.rich_progress_bar": ("RichProgressBar",),
    "progress.tqdm_progress_bar": ("TQDMProgressBar",),
    "timer": ("Timer",),
    "weights.finetuning": ("BackboneFinetuning", "BaseFinetuning"),
    "weights.model_pruning": ("ModelPruning",),
    "weights.stochastic_weight_averaging": ("StochasticWeightAveraging",),
    "weights.weight_averaging": ("EMAWeightAveraging", "WeightAveraging"),
}
__getattr__ = on_demand(__name__, {name: module for module, names in _EXPORTS.items() for name in names})
