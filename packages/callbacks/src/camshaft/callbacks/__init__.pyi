from camshaft.callbacks.checkpoints.checkpoint import Checkpoint as Checkpoint
from camshaft.callbacks.checkpoints.model_checkpoint import ModelCheckpoint as ModelCheckpoint
from camshaft.callbacks.checkpoints.on_exception_checkpoint import OnExceptionCheckpoint as OnExceptionCheckpoint
from camshaft.callbacks.checkpoints.preemption_checkpoint import PreemptionCheckpoint as PreemptionCheckpoint
from camshaft.callbacks.early_stopping import EarlyStopping as EarlyStopping
from camshaft.callbacks.early_stopping import EarlyStoppingReason as EarlyStoppingReason
from camshaft.callbacks.finders.batch_size_finder import BatchSizeFinder as BatchSizeFinder
from camshaft.callbacks.finders.learning_rate_finder import LearningRateCurve as LearningRateCurve
from camshaft.callbacks.finders.learning_rate_finder import LearningRateFinder as LearningRateFinder
from camshaft.callbacks.gradient_accumulation_scheduler import (
    GradientAccumulationScheduler as GradientAccumulationScheduler,
)
from camshaft.callbacks.lambda_callback import LambdaCallback as LambdaCallback
from camshaft.callbacks.loggers.comet_logger import CometLogger as CometLogger
from camshaft.callbacks.loggers.csv_logger import CSVLogger as CSVLogger
from camshaft.callbacks.loggers.curve_report import CurveReport as CurveReport
from camshaft.callbacks.loggers.logger import Logger as Logger
from camshaft.callbacks.loggers.logger import rank_zero_experiment as rank_zero_experiment
from camshaft.callbacks.loggers.mlflow_logger import MLFlowLogger as MLFlowLogger
from camshaft.callbacks.loggers.tensorboard_logger import TensorBoardLogger as TensorBoardLogger
from camshaft.callbacks.loggers.trackio_logger import TrackioLogger as TrackioLogger
from camshaft.callbacks.loggers.wandb_logger import WandbLogger as WandbLogger
from camshaft.callbacks.monitors.data_wait import DataWait as DataWait
from camshaft.callbacks.monitors.device_stats_monitor import DeviceStatsMonitor as DeviceStatsMonitor
from camshaft.callbacks.monitors.learning_rate_monitor import LearningRateMonitor as LearningRateMonitor
from camshaft.callbacks.monitors.non_finite_guard import NonFiniteError as NonFiniteError
from camshaft.callbacks.monitors.non_finite_guard import NonFiniteGuard as NonFiniteGuard
from camshaft.callbacks.monitors.spike_detection import SpikeDetection as SpikeDetection
from camshaft.callbacks.monitors.spike_detection import TrainingSpikeException as TrainingSpikeException
from camshaft.callbacks.monitors.straggler_report import StragglerReport as StragglerReport
from camshaft.callbacks.monitors.throughput import Throughput as Throughput
from camshaft.callbacks.monitors.throughput import get_available_flops as get_available_flops
from camshaft.callbacks.monitors.throughput import measure_flops as measure_flops
from camshaft.callbacks.monitors.throughput_monitor import ThroughputMonitor as ThroughputMonitor
from camshaft.callbacks.optuna_pruning import OptunaPruning as OptunaPruning
from camshaft.callbacks.predictions.prediction_files import NPZPredictionWriter as NPZPredictionWriter
from camshaft.callbacks.predictions.prediction_files import ParquetPredictionWriter as ParquetPredictionWriter
from camshaft.callbacks.predictions.prediction_writer import BasePredictionWriter as BasePredictionWriter
from camshaft.callbacks.predictions.prediction_writer import WriteInterval as WriteInterval
from camshaft.callbacks.profiling.action_profilers import ActionProfiler as ActionProfiler
from camshaft.callbacks.profiling.action_profilers import AdvancedProfiler as AdvancedProfiler
from camshaft.callbacks.profiling.action_profilers import PassThroughProfiler as PassThroughProfiler
from camshaft.callbacks.profiling.action_profilers import SimpleProfiler as SimpleProfiler
from camshaft.callbacks.profiling.hook_timeline import HookTimeline as HookTimeline
from camshaft.callbacks.profiling.out_of_memory_snapshot import OutOfMemorySnapshot as OutOfMemorySnapshot
from camshaft.callbacks.profiling.profiled_hooks import ProfiledHooks as ProfiledHooks
from camshaft.callbacks.profiling.pytorch_profiler import PyTorchProfiler as PyTorchProfiler
from camshaft.callbacks.progress.model_summary import ModelSummary as ModelSummary
from camshaft.callbacks.progress.model_summary import RichModelSummary as RichModelSummary
from camshaft.callbacks.progress.model_summary import Summary as Summary
from camshaft.callbacks.progress.model_summary import summarize as summarize
from camshaft.callbacks.progress.progress_bar import ProgressBar as ProgressBar
from camshaft.callbacks.progress.rich_progress_bar import RichProgressBar as RichProgressBar
from camshaft.callbacks.progress.tqdm_progress_bar import TQDMProgressBar as TQDMProgressBar
from camshaft.callbacks.timer import Timer as Timer
from camshaft.callbacks.weights.finetuning import BackboneFinetuning as BackboneFinetuning
from camshaft.callbacks.weights.finetuning import BaseFinetuning as BaseFinetuning
from camshaft.callbacks.weights.model_pruning import ModelPruning as ModelPruning
from camshaft.callbacks.weights.stochastic_weight_averaging import (
    StochasticWeightAveraging as StochasticWeightAveraging,
)
from camshaft.callbacks.weights.weight_averaging import EMAWeightAveraging as EMAWeightAveraging
from camshaft.callbacks.weights.weight_averaging import WeightAveraging as WeightAveraging
from camshaft.hooks_core import Callback as Callback
