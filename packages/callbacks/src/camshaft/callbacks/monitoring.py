"""Monitored metrics, and decisions that rank 0 takes for all ranks."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor

from camshaft.callbacks.arguments import InvalidArgumentError, MissingMetricError, check_one_of
from camshaft.hooks_core.protocols import Strategy, TrainerProtocol

Mode = Literal["min", "max"]
"""Whether lower or higher scores of a monitored metric are better."""


def check_mode(mode: str, where: object) -> Mode:
    """Return `mode`.

    Args:
        mode: What was passed.
        where: The class that checks it, for the error.

    Raises:
        InvalidArgumentError: If it is neither "min" nor "max".
    """
    check_one_of(where, ("min", "max"), "Choose the direction that is better.", mode=mode)
    return cast(Mode, mode)


def worst_score(mode: Mode) -> float:
    """Return the score that every other beats."""
    return math.inf if mode == "min" else -math.inf


def is_better(score: float, reference: float, mode: Mode) -> bool:
    """Return whether `score` strictly beats `reference`; NaN beats nothing and is beaten by nothing.

    Args:
        score: The new score.
        reference: The score to beat.
        mode: "min" where lower is better, "max" where higher is.
    """
    return score < reference if mode == "min" else score > reference


def read_metric(trainer: TrainerProtocol, name: str, where: object) -> Tensor:
    """Return the latest value of a logged metric as a scalar on the CPU. Waits for the device.

    Args:
        name: The metric's name.
        where: The class that monitors it, for the error.

    Raises:
        MissingMetricError: If the metric has not been logged.
        InvalidArgumentError: If it is not a scalar.
    """
    return read_scalar(trainer.callback_metrics, name, where)


def read_scalar(metrics: Mapping[str, Any], name: str, where: object, logged: Iterable[str] | None = None) -> Tensor:
    """Return a metric as a scalar on the CPU. Waits for the device.

    Args:
        metrics: Values by name.
        name: Name of the metric.
        where: The class to name in errors.
        logged: Names that were logged, for the error; None for those of `metrics`.

    Raises:
        MissingMetricError: If there is no such metric.
        InvalidArgumentError: If it is not a scalar.
    """
    if name not in metrics:
        raise MissingMetricError("monitor", name, metrics if logged is None else logged, where)
    value = torch.as_tensor(metrics[name]).detach()
    if value.numel() != 1:
        raise InvalidArgumentError(
            "monitor", "the name of a scalar metric", name, where, f"It has {value.numel()} values: reduce them."
        )
    return value.reshape(()).to("cpu", copy=True)


def validates(trainer: TrainerProtocol) -> bool:
    """Return whether this run has validation batches."""
    return sum(trainer.num_val_batches) > 0


def is_due_at_train_epoch_end(trainer: TrainerProtocol) -> bool:
    """Return whether a metric is complete at the end of the training epoch, rather than after each validation.

    That is so where there is no validation, or exactly one at the end of every training epoch.
    """
    if not validates(trainer):
        return True
    # 1.0 is once per epoch, the integer 1 is after every batch.
    interval = trainer.val_check_interval
    return trainer.check_val_every_n_epoch == 1 and isinstance(interval, float) and interval == 1.0


T = TypeVar("T")


def from_rank_zero(strategy: Strategy, decide: Callable[[], T]) -> T:
    """Return what a function returns on rank 0, on every rank. Collective.

    Args:
        strategy: The run's strategy. With one process nothing is sent.
        decide: Called on rank 0 only; its result must be picklable.

    Raises:
        Exception: On every rank, the error that `decide` raised on rank 0. If it cannot be pickled, other ranks raise a
            `RuntimeError` with its text.
    """
    if strategy.world_size == 1:
        return decide()
    if strategy.global_rank != 0:
        decided, failure = strategy.broadcast((None, None))
        if failure is not None:
            raise failure
        return decided  # type: ignore[return-value]
    try:
        value = decide()
    except Exception as error:
        strategy.broadcast((None, _picklable(error)))
        raise
    strategy.broadcast((value, None))
    return value


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"Rank 0 raised {type(error).__name__}: {error}")
    return error
