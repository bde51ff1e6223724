"""The rows of the table: each stock callback, how it is set up, and what Lightning has for the same purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from framework_overhead.workload import BAR_REFRESHES_PER_SECOND, BATCH_SIZE, LOG_EVERY_N_STEPS

from .work import WATCHED

Arguments = Callable[[Path], dict[str, Any]]
"""Takes a folder to write to."""

NEVER = 10**9


def _no_arguments(folder: Path) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Equivalent:
    """What Lightning has for a callback's purpose under another name, or as an argument of its trainer.

    Args:
        title: as shown in the table.
        trainer_arguments: what asks for it; takes a folder to write to.
    """

    title: str
    trainer_arguments: Arguments


@dataclass(frozen=True)
class Row:
    """One callback.

    Args:
        name: its class, or a name of the row's own where there is no class.
        arguments: of the constructor, the same for both frameworks.
        camshaft_arguments: further ones of camshaft's.
        lightning_arguments: further ones of Lightning's.
        lightning: the equivalent; True for the class of the same name, False if there is none.
        attaches: False to attach nothing.
        methods: what a subclass is to define, for a class that is abstract.
        logs: True to give the trainer a CSV logger, in both runs of a pair.
        allows: the trainer's argument that must not be false for it to take the callback.
        lightning_allows: likewise, of Lightning's trainer alone.
        verb: "fit", or "predict" if that is where the callback works.
        has_backbone: True to train behind a frozen layer, in both runs.
        is_uneven: True if the work does not recur in every slice of a run (by the clock, or every so many rows), so
            that whole runs are compared, one after the other.
        has_indices: True for a `DataLoader` that asks for prebuilt batches by the indices of their samples, in place of
            a plain iterable, in both runs.
        draws: True if it must draw something.
        keeps_weights: False if the weights at the end are others than without it.
        has_worked: `(callback, text of the CSV file)` to whether it did what it is for; None if that is not to be seen.
    """

    name: str
    arguments: Arguments = _no_arguments
    camshaft_arguments: dict[str, Any] = field(default_factory=dict)
    lightning_arguments: dict[str, Any] = field(default_factory=dict)
    lightning: Equivalent | bool = True
    attaches: bool = True
    methods: dict[str, Callable[..., None]] = field(default_factory=dict)
    logs: bool = False
    allows: str | None = None
    lightning_allows: str | None = None
    verb: str = "fit"
    has_backbone: bool = False
    is_uneven: bool = False
    has_indices: bool = False
    draws: bool = False
    keeps_weights: bool = True
    has_worked: Callable[[Any, str], bool] | None = None


def _ignore(*arguments: Any) -> None:
    """What is attached where only the call counts."""


def _lambda(trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
    pass


def _has_averaged(callback: Any, logged: str) -> bool:
    model = callback.average_model if hasattr(callback, "average_model") else callback._average_model
    return int(model.n_averaged) > 1


ROWS = (
    Row("nothing", attaches=False),
    Row("LambdaCallback", lambda _: {"on_train_batch_end": _lambda}),
    Row(
        "ModelCheckpoint",
        lambda folder: {"dirpath": str(folder), "every_n_train_steps": NEVER},
        allows="enable_checkpointing",
    ),
    Row(
        "EarlyStopping",
        lambda _: {"monitor": WATCHED, "check_on_train_epoch_end": True},
        has_worked=lambda callback, _: float(callback.best_score) == 1.0,
    ),
    Row(
        "LearningRateMonitor",
        lambda _: {"logging_interval": "step"},
        logs=True,
        has_worked=lambda _, logged: "lr-SGD" in logged,
    ),
    Row(
        "RichProgressBar",
        camshaft_arguments={"refresh_rate_seconds": 1 / BAR_REFRESHES_PER_SECOND},
        lightning_arguments={"refresh_rate": BAR_REFRESHES_PER_SECOND},
        allows="enable_progress_bar",
        is_uneven=True,
        draws=True,
    ),
    Row(
        "TQDMProgressBar",
        camshaft_arguments={"refresh_rate_seconds": 1 / BAR_REFRESHES_PER_SECOND},
        lightning_arguments={"refresh_rate": LOG_EVERY_N_STEPS},
        allows="enable_progress_bar",
        is_uneven=True,
        draws=True,
    ),
    Row("ModelSummary", allows="enable_model_summary"),
    Row(
        "Timer",
        lambda _: {"duration": timedelta(days=1)},
        has_worked=lambda callback, _: callback.time_elapsed("train") > 0,
    ),
    Row("GradientAccumulationScheduler", lambda _: {"scheduling": {5: 2}}),
    Row("StochasticWeightAveraging", lambda _: {"swa_lrs": 0.01}),
    Row(
        "WeightAveraging",
        camshaft_arguments={"apply_at_end": False},
        keeps_weights=False,
        has_worked=_has_averaged,
    ),
    Row(
        "EMAWeightAveraging",
        camshaft_arguments={"apply_at_end": False},
        keeps_weights=False,
        has_worked=_has_averaged,
    ),
    Row("BackboneFinetuning", has_backbone=True),
    Row(
        "DeviceStatsMonitor",
        logs=True,
        has_worked=lambda _, logged: "DeviceStatsMonitor" in logged,
    ),
    Row(
        "ThroughputMonitor",
        lambda _: {"batch_size_fn": lambda batch: BATCH_SIZE},
        logs=True,
        has_worked=lambda _, logged: "samples_per_sec" in logged,
    ),
    Row("DataWait", lightning=False, logs=True, has_worked=lambda _, logged: "data_wait" in logged),
    Row("StragglerReport", lightning=False),
    Row(
        "OnExceptionCheckpoint",
        lambda folder: {"dirpath": str(folder)},
        lightning_allows="enable_checkpointing",
    ),
    Row("PreemptionCheckpoint", lambda folder: {"dirpath": str(folder)}, lightning=False),
    Row("SpikeDetection", lambda _: {"atol": 1e6}),
    Row("NonFiniteGuard", lightning=False),
    Row("RepeatedStep", lightning=False),
    Row(
        "RunLedger",
        lambda folder: {"path": str(folder / "ledger"), "weights_every_n_steps": NEVER},
        lightning=False,
        has_indices=True,
        has_worked=lambda callback, _: '"samples":[[[' in callback.path.read_text().splitlines()[-2],
    ),
    Row(
        "LearningRateFinder",
        lambda _: {"num_training_steps": 20, "update_attr": False},
        has_worked=lambda callback, _: callback.optimal_lr is not None,
    ),
    Row(
        "BatchSizeFinder",
        lambda _: {"init_val": BATCH_SIZE, "max_trials": 1},
        has_worked=lambda callback, _: callback.optimal_batch_size is not None,
    ),
    Row(
        "HookTimeline",
        lambda folder: {"dirpath": str(folder)},
        lightning=Equivalent("SimpleProfiler", lambda _: {"profiler": "simple"}),
        has_worked=lambda callback, _: callback is None or callback.html_path is not None,
    ),
    Row(
        "BasePredictionWriter",
        lambda _: {"write_interval": "batch"},
        methods={"write_on_batch_end": _ignore},
        verb="predict",
    ),
    Row(
        "NPZPredictionWriter",
        lambda folder: {"dirpath": str(folder)},
        lightning=False,
        verb="predict",
        is_uneven=True,
    ),
    Row(
        "ParquetPredictionWriter",
        lambda folder: {"dirpath": str(folder)},
        lightning=False,
        verb="predict",
        is_uneven=True,
    ),
)
"""All rows; the first attaches nothing to either run, and so shows what the benchmark takes for nothing."""
