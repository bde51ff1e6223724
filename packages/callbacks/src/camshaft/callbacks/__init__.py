"""Stock callbacks and loggers for any trainer that follows camshaft's hook protocol."""

from typing import TYPE_CHECKING

from camshaft.hooks_core import Callback
from camshaft.hooks_core.on_demand import on_demand

if TYPE_CHECKING:
    from camshaft.callbacks.checkpoints.model_checkpoint import ModelCheckpoint
    from camshaft.callbacks.checkpoints.on_exception_checkpoint import OnExceptionCheckpoint
    from camshaft.callbacks.checkpoints.preemption_checkpoint import PreemptionCheckpoint
    from camshaft.callbacks.early_stopping import EarlyStopping
    from camshaft.callbacks.finders.batch_size_finder import BatchSizeFinder
    from camshaft.callbacks.finders.learning_rate_finder import LearningRateCurve, LearningRateFinder
    from camshaft.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
    from camshaft.callbacks.lambda_callback import LambdaCallback
    from camshaft.callbacks.loggers.csv_logger import CSVLogger
    from camshaft.callbacks.loggers.curve_report import CurveReport
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
    from camshaft.callbacks.predictions.prediction_writer import BasePredictionWriter
    from camshaft.callbacks.profiling.hook_timeline import HookTimeline
    from camshaft.callbacks.profiling.profiler import Profiler
    from camshaft.callbacks.progress.model_summary import ModelSummary, Summary, summarize
    from camshaft.callbacks.progress.progress_bar import ProgressBar
    from camshaft.callbacks.progress.rich_progress_bar import RichProgressBar, RichProgressBarTheme
    from camshaft.callbacks.progress.tqdm_progress_bar import TQDMProgressBar
    from camshaft.callbacks.timer import Timer
    from camshaft.callbacks.weights.finetuning import BackboneFinetuning, BaseFinetuning
    from camshaft.callbacks.weights.stochastic_weight_averaging import StochasticWeightAveraging
    from camshaft.callbacks.weights.weight_averaging import EMAWeightAveraging, WeightAveraging

__all__ = [
    "BackboneFinetuning",
    "BaseFinetuning",
    "BasePredictionWriter",
    "BatchSizeFinder",
    "CSVLogger",
    "Callback",
    "CurveReport",
    "DeviceStatsMonitor",
    "EMAWeightAveraging",
    "EarlyStopping",
    "GradientAccumulationScheduler",
    "HookTimeline",
    "LambdaCallback",
    "LearningRateCurve",
    "LearningRateFinder",
    "LearningRateMonitor",
    "MLFlowLogger",
    "ModelCheckpoint",
    "ModelSummary",
    "NPZPredictionWriter",
    "NonFiniteError",
    "NonFiniteGuard",
    "OnExceptionCheckpoint",
    "ParquetPredictionWriter",
    "PreemptionCheckpoint",
    "Profiler",
    "ProgressBar",
    "RichProgressBar",
    "RichProgressBarTheme",
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
    "get_available_flops",
    "measure_flops",
    "summarize",
]

# Imported on first access, since no program uses all of them.
_ON_DEMAND = {
    "BackboneFinetuning": "weights.finetuning",
    "BaseFinetuning": "weights.finetuning",
    "BasePredictionWriter": "predictions.prediction_writer",
    "BatchSizeFinder": "finders.batch_size_finder",
    "CSVLogger": "loggers.csv_logger",
    "CurveReport": "loggers.curve_report",
    "DeviceStatsMonitor": "monitors.device_stats_monitor",
    "EMAWeightAveraging": "weights.weight_averaging",
    "EarlyStopping": "early_stopping",
    "GradientAccumulationScheduler": "gradient_accumulation_scheduler",
    "HookTimeline": "profiling.hook_timeline",
    "LambdaCallback": "lambda_callback",
    "LearningRateCurve": "finders.learning_rate_finder",
    "LearningRateFinder": "finders.learning_rate_finder",
    "LearningRateMonitor": "monitors.learning_rate_monitor",
    "MLFlowLogger": "loggers.mlflow_logger",
    "ModelCheckpoint": "checkpoints.model_checkpoint",
    "ModelSummary": "progress.model_summary",
    "NPZPredictionWriter": "predictions.prediction_files",
    "NonFiniteError": "monitors.non_finite_guard",
    "NonFiniteGuard": "monitors.non_finite_guard",
    "OnExceptionCheckpoint": "checkpoints.on_exception_checkpoint",
    "ParquetPredictionWriter": "predictions.prediction_files",
    "PreemptionCheckpoint": "checkpoints.preemption_checkpoint",
    "Profiler": "profiling.profiler",
    "ProgressBar": "progress.progress_bar",
    "RichProgressBar": "progress.rich_progress_bar",
    "RichProgressBarTheme": "progress.rich_progress_bar",
    "SpikeDetection": "monitors.spike_detection",
    "StochasticWeightAveraging": "weights.stochastic_weight_averaging",
    "Summary": "progress.model_summary",
    "TQDMProgressBar": "progress.tqdm_progress_bar",
    "TensorBoardLogger": "loggers.tensorboard_logger",
    "Throughput": "monitors.throughput",
    "ThroughputMonitor": "monitors.throughput_monitor",
    "Timer": "timer",
    "TrainingSpikeException": "monitors.spike_detection",
    "WandbLogger": "loggers.wandb_logger",
    "WeightAveraging": "weights.weight_averaging",
    "get_available_flops": "monitors.throughput",
    "measure_flops": "monitors.throughput",
    "summarize": "progress.model_summary",
}

__getattr__ = on_demand(__name__, _ON_DEMAND)
