"""Loops that train and evaluate a module on any strategy, emitting every hook at its moment."""

from camshaft.loops.combined_loader import CombinedLoader
from camshaft.loops.counters import Counters
from camshaft.loops.evaluation import EvaluationLoop, StageHooks
from camshaft.loops.evaluation_loops import PredictLoop, TestLoop, ValidationLoop
from camshaft.loops.fit_limits import FitLimits
from camshaft.loops.fit_loop import FitLoop
from camshaft.loops.lifecycle import run_verb
from camshaft.loops.optimization_mode import OptimizationFactory, OptimizationMode, StandardOptimization
from camshaft.loops.optimization_settings import OptimizationSettings
from camshaft.loops.optimizers import LRSchedulerConfig, Optimization
from camshaft.loops.progress import FitProgress
from camshaft.loops.resumable_loader import StatelessLoaders
from camshaft.loops.resume import collect
from camshaft.loops.run import EpochState, FitOrder, Run, SaveRequest

__all__ = [
    "CombinedLoader",
    "Counters",
    "EpochState",
    "EvaluationLoop",
    "FitLimits",
    "FitLoop",
    "FitOrder",
    "FitProgress",
    "LRSchedulerConfig",
    "Optimization",
    "OptimizationFactory",
    "OptimizationMode",
    "OptimizationSettings",
    "PredictLoop",
    "Run",
    "SaveRequest",
    "StageHooks",
    "StandardOptimization",
    "StatelessLoaders",
    "TestLoop",
    "ValidationLoop",
    "collect",
    "run_verb",
]
