"""Loops that train and evaluate a module on any strategy, emitting every hook at its moment."""

from camshaft.loops.data.combined_loader import CombinedLoader
from camshaft.loops.data.resumable_loader import StatelessLoaders
from camshaft.loops.evaluation.loops import EvaluationLoop, PredictLoop, StageHooks, TestLoop, ValidationLoop
from camshaft.loops.fit.limits import FitLimits
from camshaft.loops.fit.loop import FitLoop
from camshaft.loops.fit.resume import collect
from camshaft.loops.lifecycle import run_verb
from camshaft.loops.optimization.configuration import LRSchedulerConfig, Optimization, OptimizationSettings
from camshaft.loops.optimization.mode import OptimizationFactory, OptimizationMode, StandardOptimization
from camshaft.loops.state.progress import Counters, FitProgress
from camshaft.loops.state.run import EpochState, FitOrder, Run, SaveRequest

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
