"""Loops that train and evaluate a module on any strategy, emitting every hook at its moment."""

from camshaft.loops.data.combined_loader import CombinedLoader
from camshaft.loops.data.fit_data import LoaderSettings
from camshaft.loops.data.resumable_loader import StatelessLoaders
from camshaft.loops.evaluation.loops import EvaluationLoop, PredictLoop, StageHooks, TestLoop, ValidationLoop
from camshaft.loops.fit.limits import FitLimits
from camshaft.loops.fit.loop import FitLoop
from camshaft.loops.fit.saving import collect
from camshaft.loops.lifecycle import run_verb
from camshaft.loops.optimization.configuration import ConfiguredOptimizers, LRSchedulerConfig
from camshaft.loops.optimization.mode import StandardOptimizationFactory, UpdateMode
from camshaft.loops.optimization.settings import OptimizationSettings
from camshaft.loops.state.progress import Counters, FitProgress
from camshaft.loops.state.run import CheckpointAdapter, EpochState, FitOrder, OptimizationFactory, Run, SaveRequest

__all__ = [
    "CheckpointAdapter",
    "CombinedLoader",
    "ConfiguredOptimizers",
    "Counters",
    "EpochState",
    "EvaluationLoop",
    "FitLimits",
    "FitLoop",
    "FitOrder",
    "FitProgress",
    "LRSchedulerConfig",
    "LoaderSettings",
    "OptimizationFactory",
    "OptimizationSettings",
    "PredictLoop",
    "Run",
    "SaveRequest",
    "StageHooks",
    "StandardOptimizationFactory",
    "StatelessLoaders",
    "TestLoop",
    "UpdateMode",
    "ValidationLoop",
    "collect",
    "run_verb",
]
