"""Types, enumerations, errors and flags that earlier code imports."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from enum import Enum
from importlib.util import find_spec
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

STEP_OUTPUT = Tensor | Mapping[str, Any] | None
EPOCH_OUTPUT = list[Tensor | Mapping[str, Any] | None]
TRAIN_DATALOADERS = Any
EVAL_DATALOADERS = Any
OptimizerLRScheduler = Any
LRSchedulerType = type[LRScheduler] | type[ReduceLROnPlateau]
LRSchedulerTypeUnion = LRScheduler | ReduceLROnPlateau
LRSchedulerPLType = LRScheduler | ReduceLROnPlateau
_EVALUATE_OUTPUT = list[dict[str, float]]
_METRIC = Tensor | float
_METRIC_COLLECTION = _METRIC | Mapping[str, Any]
_NUMBER = int | float
_PATH = str | os.PathLike[str]
_PREDICT_OUTPUT = list[Any] | list[list[Any]]


class LightningOptimizer:
    """The wrapper that optimizers had in releases 1.1 to 2.x; ours are torch's own, so nothing is an instance of it."""

    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse.

        Raises:
            TypeError: Always.
        """
        raise TypeError("Optimizers are torch's own and need no LightningOptimizer around them. Use them as they are.")


class LightningEnum(str, Enum):  # noqa: UP042
    """An enumeration whose members equal their values, in upper or lower case."""

    @classmethod
    def from_str(cls, value: str) -> LightningEnum | None:
        """Return the member of that name or value; None if there is none."""
        wanted = value.lower()
        return next((member for member in cls if wanted in (member.name.lower(), member.value.lower())), None)

    def __eq__(self, other: object) -> bool:
        other = other.value if isinstance(other, Enum) else other
        return isinstance(other, str) and self.value.lower() == other.lower()

    def __hash__(self) -> int:
        return hash(self.value.lower())

    def __str__(self) -> str:
        return str(self.value)


class TrainerFn(LightningEnum):
    """The verbs, which equal the arguments of `setup` and `teardown`."""

    FITTING = "fit"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"
    TUNING = "tune"


class RunningStage(LightningEnum):
    """The stages of a run."""

    TRAINING = "train"
    SANITY_CHECKING = "sanity_check"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"
    TUNING = "tune"

    @property
    def evaluating(self) -> bool:
        """True for the stages of evaluation."""
        return self in (RunningStage.VALIDATING, RunningStage.TESTING)


class GradClipAlgorithmType(LightningEnum):
    """The algorithms of gradient clipping, which equal the trainer's values."""

    VALUE = "value"
    NORM = "norm"


class MisconfigurationException(ValueError):
    """The error of earlier code about contradictory arguments.

    Ours raise `TypeError` and `ValueError` there, which an `except` clause for this one does not catch.
    """


VERSION = "1.9.5"
"""The last release of the line in which all of these names and arguments were taken, so that code that looks at the
version takes the ways that work here."""

LIGHTNING_VERSION = "2.6.0"
"""Likewise for `lightning`, which came with 2.0."""


def _package_available(package_name: str) -> bool:
    """Return whether a package can be imported."""
    return _module_available(package_name.partition(".")[0])


def _module_available(module_path: str) -> bool:
    """Return whether a module can be imported."""
    try:
        return find_spec(module_path) is not None
    except ImportError:
        return False


APEX_AVAILABLE = _APEX_AVAILABLE = False
TPU_AVAILABLE = _TPU_AVAILABLE = _XLA_AVAILABLE = False
_DEEPSPEED_AVAILABLE = _FAIRSCALE_AVAILABLE = _HOROVOD_AVAILABLE = False
NATIVE_AMP_AVAILABLE = NATIVE_AMP_AVALAIBLE = _NATIVE_AMP_AVAILABLE = True
_HYDRA_AVAILABLE = _module_available("hydra")
_JSONARGPARSE_AVAILABLE = _module_available("jsonargparse")
_MLFLOW_AVAILABLE = _module_available("mlflow")
_OMEGACONF_AVAILABLE = _module_available("omegaconf")
_RICH_AVAILABLE = _module_available("rich")
_TORCHTEXT_AVAILABLE = _module_available("torchtext")
_TORCHVISION_AVAILABLE = _module_available("torchvision")
_WANDB_AVAILABLE = _module_available("wandb")
_IS_INTERACTIVE = hasattr(sys, "ps1")
_TORCH_GREATER_EQUAL_1_6 = _TORCH_GREATER_EQUAL_1_7 = _TORCH_GREATER_EQUAL_1_8 = True
_TORCH_GREATER_EQUAL_1_9 = _TORCH_GREATER_EQUAL_1_10 = True
FLOAT16_EPSILON = torch.finfo(torch.float16).eps
FLOAT32_EPSILON = torch.finfo(torch.float32).eps
FLOAT64_EPSILON = torch.finfo(torch.float64).eps
