"""The budget of host reads: how often a training waits for its device in 32 updates that log every 8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.simulated

NUM_SENDINGS = 4  # to loggers, in the window
# What is not listed waits for nothing. A logger gets all values of a step in one transfer, if the module logs any.
OF_LOGGERS = {"CSVLogger", "CurveReport", "MLFlowLogger", "TensorBoardLogger", "WandbLogger"}
WAITS = {
    "NonFiniteGuard(check_every_n_batches=8)": 8,  # two a check, of which the second finds the device idle
    "ThroughputMonitor": NUM_SENDINGS,  # for the event that ends the time that a row is about
}
NEEDS: dict[str, dict[str, Any]] = {
    "ModelCheckpoint": {"enable_checkpointing": True},
    "ModelSummary": {"enable_model_summary": True},
    "OnExceptionCheckpoint": {"enable_checkpointing": True},
    "PreemptionCheckpoint": {"enable_checkpointing": True},
    "RichModelSummary": {"enable_model_summary": True},
    "RichProgressBar": {"enable_progress_bar": True},
    "TQDMProgressBar": {"enable_progress_bar": True},
}
MONITORS = ("DataWait", "DeviceStatsMonitor", "LearningRateMonitor", "ThroughputMonitor")  # which need a logger
NOT_IN_THE_LOOP = {
    "ActionProfiler", "AdvancedProfiler", "BaseFinetuning", "BasePredictionWriter", "BatchSizeFinder", "Callback",
    "Checkpoint", "CometLogger", "LearningRateFinder", "Logger", "NPZPredictionWriter", "OptunaPruning",
    "ParquetPredictionWriter", "PassThroughProfiler", "ProfiledHooks", "ProgressBar", "PyTorchProfiler",
    "SimpleProfiler", "TrackioLogger",
}  # fmt: skip
"""Bases, what acts before training, when an epoch ends or in prediction, profilers, and the client of a server."""


def check(events: list[Any], expected: int) -> None:
    assert len(events) == expected, "\n".join(event.place for event in events)


@pytest.mark.parametrize("logs", [False, True])
@pytest.mark.parametrize(
    ("arguments", "per_update"),
    [
        ({}, 0),
        ({"precision": "bf16-mixed"}, 0),
        ({"precision": "16-mixed"}, 1),  # whether gradients overflowed
        ({"precision": "bf16-true"}, 0),
        ({"gradient_clip_val": 1.0}, 0),
        ({"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"}, 0),
        ({"accumulate_grad_batches": 4}, 0),
    ],
)
def test_an_update_waits_for_nothing_but_overflows(
    arguments: dict[str, Any], per_update: int, logs: bool, tmp_path: Path
) -> None:
    from host_waits import NUM_STEPS, waits_of

    check(waits_of(tmp_path, logs=logs, **arguments), per_update * NUM_STEPS)


def test_every_stock_callback_is_in_the_table() -> None:
    import host_waits

    classes = {name for name, one in vars(host_waits.stock).items() if isinstance(one, type)} | set(_exported())
    kinds = (host_waits.stock.Callback, host_waits.stock.Logger)
    found = {name for name in classes if issubclass(getattr(host_waits.stock, name), kinds)}
    assert found - NOT_IN_THE_LOOP <= {*host_waits.CALLBACKS, *host_waits.LOGGERS}


def _exported() -> list[str]:
    from camshaft import callbacks

    return [name for name in dir(callbacks) if isinstance(getattr(callbacks, name), type)]


@pytest.mark.parametrize("logs", [False, True])
def test_callbacks_wait_as_listed(logs: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from host_waits import CALLBACKS, waits_of

    found = {}
    for name, make in CALLBACKS.items():
        if name == "EarlyStopping" and not logs:
            continue  # it would have nothing to watch
        folder = tmp_path / name
        arguments = {"callbacks": [make(folder)], **NEEDS.get(name, {})}
        if name in MONITORS:
            arguments["logger"] = make_csv(folder)
        found[name] = len(waits_of(folder, logs=logs, **arguments))
    expected = {name: WAITS.get(name, 0) + NUM_SENDINGS * (logs and name in MONITORS) for name in found}
    assert found == expected


def make_csv(folder: Path) -> Any:
    from host_waits import LOGGERS

    return LOGGERS["CSVLogger"](folder)


@pytest.mark.parametrize("logs", [False, True])
def test_loggers_wait_once_for_a_row_however_many_there_are(logs: bool, tmp_path: Path) -> None:
    from host_waits import LOGGERS, waits_of

    assert LOGGERS.keys() == OF_LOGGERS
    for name, make in LOGGERS.items():
        check(waits_of(tmp_path / name, logs=logs, logger=make(tmp_path / name)), NUM_SENDINGS * logs)
    all_of_them = [make(tmp_path / f"all {name}") for name, make in LOGGERS.items()]
    check(waits_of(tmp_path / "all", logs=logs, logger=all_of_them), NUM_SENDINGS * logs)
