"""Stock callbacks and loggers for any trainer that follows camshaft's hook protocol."""

from typing import TYPE_CHECKING

from camshaft.hooks_core import Callback
from camshaft.hooks_core.on_demand import on_demand

if TYPE_CHECKING:
    from camshaft.callbacks.backbone_finetuning import BackboneFinetuning
    from camshaft.callbacks.batch_size_finder import BatchSizeFinder
    from camshaft.callbacks.device_stats_monitor import DeviceStatsMonitor
    from camshaft.callbacks.displays.summary_table import Summary
    from camshaft.callbacks.early_stopping import EarlyStopping
    from camshaft.callbacks.finders.learning_rate_curve import LearningRateCurve
    from camshaft.callbacks.finetuning import BaseFinetuning
    from camshaft.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
    from camshaft.callbacks.hook_timeline import HookTimeline
    from camshaft.callbacks.lambda_callback import LambdaCallback
    from camshaft.callbacks.learning_rate_finder import LearningRateFinder
    from camshaft.callbacks.learning_rate_monitor import LearningRateMonitor
    from camshaft.callbacks.loggers.csv_logger import CSVLogger
    from camshaft.callbacks.loggers.curve_report import CurveReport
    from camshaft.callbacks.loggers.mlflow_logger import MLFlowLogger
    from camshaft.callbacks.loggers.tensorboard_logger import TensorBoardLogger
    from camshaft.callbacks.loggers.wandb_logger import WandbLogger
    from camshaft.callbacks.model_checkpoint import ModelCheckpoint
    from camshaft.callbacks.model_summary import ModelSummary, summarize
    from camshaft.callbacks.non_finite_guard import NonFiniteError, NonFiniteGuard
    from camshaft.callbacks.on_exception_checkpoint import OnExceptionCheckpoint
    from camshaft.callbacks.predictions.npz_prediction_writer import NPZPredictionWriter
    from camshaft.callbacks.predictions.parquet_prediction_writer import ParquetPredictionWriter
    from camshaft.callbacks.predictions.prediction_writer import BasePredictionWriter
    from camshaft.callbacks.preemption_checkpoint import PreemptionCheckpoint
    from camshaft.callbacks.profiler import Profiler
    from camshaft.callbacks.progress_bar import ProgressBar
    from camshaft.callbacks.rates.peak_flops import get_available_flops
    from camshaft.callbacks.rates.throughput import Throughput, measure_flops
    from camshaft.callbacks.rich_progress_bar import RichProgressBar, RichProgressBarTheme
    from camshaft.callbacks.spike_detection import SpikeDetection, TrainingSpikeException
    from camshaft.callbacks.stochastic_weight_averaging import StochasticWeightAveraging
    from camshaft.callbacks.throughput_monitor import ThroughputMonitor
    from camshaft.callbacks.timer import Timer
    from camshaft.callbacks.tqdm_progress_bar import TQDMProgressBar
    from camshaft.callbacks.weight_averaging import EMAWeightAveraging, WeightAveraging

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

# Imported when they are asked for: nobody uses all of them.
_ON_DEMAND = {
    "BackboneFinetuning": "backbone_finetuning",
    "BaseFinetuning": "finetuning",
    "BasePredictionWriter": "predictions.prediction_writer",
    "BatchSizeFinder": "batch_size_finder",
    "CSVLogger": "loggers.csv_logger",
    "CurveReport": "loggers.curve_report",
    "DeviceStatsMonitor": "device_stats_monitor",
    "EMAWeightAveraging": "weight_averaging",
    "EarlyStopping": "early_stopping",
    "GradientAccumulationScheduler": "gradient_accumulation_scheduler",
    "HookTimeline": "hook_timeline",
    "LambdaCallback": "lambda_callback",
    "LearningRateCurve": "finders.learning_rate_curve",
    "LearningRateFinder": "learning_rate_finder",
    "LearningRateMonitor": "learning_rate_monitor",
    "MLFlowLogger": "loggers.mlflow_logger",
    "ModelCheckpoint": "model_checkpoint",
    "ModelSummary": "model_summary",
    "NPZPredictionWriter": "predictions.npz_prediction_writer",
    "NonFiniteError": "non_finite_guard",
    "NonFiniteGuard": "non_finite_guard",
    "OnExceptionCheckpoint": "on_exception_checkpoint",
    "ParquetPredictionWriter": "predictions.parquet_prediction_writer",
    "PreemptionCheckpoint": "preemption_checkpoint",
    "Profiler": "profiler",
    "ProgressBar": "progress_bar",
    "RichProgressBar": "rich_progress_bar",
    "RichProgressBarTheme": "rich_progress_bar",
    "SpikeDetection": "spike_detection",
    "StochasticWeightAveraging": "stochastic_weight_averaging",
    "Summary": "displays.summary_table",
    "TQDMProgressBar": "tqdm_progress_bar",
    "TensorBoardLogger": "loggers.tensorboard_logger",
    "Throughput": "rates.throughput",
    "ThroughputMonitor": "throughput_monitor",
    "Timer": "timer",
    "TrainingSpikeException": "spike_detection",
    "WandbLogger": "loggers.wandb_logger",
    "WeightAveraging": "weight_averaging",
    "get_available_flops": "rates.peak_flops",
    "measure_flops": "rates.throughput",
    "summarize": "model_summary",
}

__getattr__ = on_demand(__name__, _ON_DEMAND)
