"""Types, enumerations, errors and flags that earlier code imports."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from camshaft.hooks_core.support.messages import must_be
from camshaft.trainer import states

_DEVICE = torch.device | str | int
STEP_OUTPUT = Tensor | Mapping[str, Any] | None
EPOCH_OUTPUT = list[Tensor | Mapping[str, Any] | None]
LRSchedulerType = type[LRScheduler] | type[ReduceLROnPlateau]
LRSchedulerTypeUnion = LRScheduler | ReduceLROnPlateau
LRSchedulerPLType = LRSchedulerTypeUnion
LRSchedulerTypeTuple = (LRScheduler, ReduceLROnPlateau)
_EVALUATE_OUTPUT = list[dict[str, float]]
_METRIC = Tensor | float
_METRIC_COLLECTION = _METRIC | Mapping[str, Any]
_NUMBER = int | float
_PATH = str | os.PathLike[str]
_PREDICT_OUTPUT = list[Any] | list[list[Any]]


@dataclass(eq=False)
class LRSchedulerConfig:
    """A learning rate scheduler and when it steps, as `configure_optimizers` may return it in a dictionary.

    Args:
        scheduler: The scheduler.
        name: A name for loggers.
        interval: "epoch" or "step".
        frequency: Steps after so many of these.
        reduce_on_plateau: Whether it steps with a metric.
        monitor: The name of that metric.
        strict: Whether the metric has to be there.
    """

    scheduler: LRScheduler | ReduceLROnPlateau
    name: str | None = None
    interval: str = "epoch"
    frequency: int = 1
    reduce_on_plateau: bool = False
    monitor: str | None = None
    strict: bool = True

    def __eq__(self, other: object) -> bool:
        """Return whether another one has the same settings, such as one of `trainer.lr_scheduler_configs`."""
        return all(getattr(other, name, self) == value for name, value in vars(self).items())


class LightningOptimizer:
    """The wrapper that optimizers had in releases 1.1 to 2.x: a call gives the optimizer itself, which needs none.

    Nothing is an instance of it.
    """

    def __new__(cls, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the optimizer, with itself as `optimizer`.

        Raises:
            TypeError: If the class is a subclass, whose methods would not be called.
        """
        from camshaft.loops.optimization.configuration import complete_optimizer  # later than the oldest loops

        if cls is not LightningOptimizer:
            rule, action = "LightningOptimizer itself", "Make it a subclass of the torch.optim.Optimizer that it wraps."
            raise TypeError(must_be("class of an optimizer's wrapper", rule, cls.__name__, cls.__qualname__, action))
        vars(complete_optimizer(optimizer, cls.__name__)).setdefault("optimizer", optimizer)
        return optimizer

    @classmethod
    def to_lightning_optimizer(cls, optimizer: Any, trainer: Any = None, opt_idx: int | None = None) -> Any:
        """Return the optimizer itself, as 1.2 to 1.5 wrapped it for `optimizer_step`."""
        return cls(optimizer)

    _to_lightning_optimizer = to_lightning_optimizer


class LightningEnum(str, Enum):  # noqa: UP042  # `StrEnum` compares case
    """An enumeration whose members equal their values, in upper or lower case."""

    def __eq__(self, other: object) -> bool:
        other = other.value if isinstance(other, Enum) else other
        return isinstance(other, str) and self.value.lower() == other.lower()

    def __hash__(self) -> int:
        return hash(self.value.lower())

    @classmethod
    def from_str(cls, value: str) -> LightningEnum | None:
        """Return the member of that name or value; None if there is none."""
        wanted = value.lower()
        return next((member for member in cls if wanted in (member.name.lower(), member.value.lower())), None)


def _names(title: str, words: str) -> Any:
    """Return an enumeration of words, or of names and values with "=" between."""
    members = (word.partition("=") for word in words.split())
    return LightningEnum(title, {name: value or name.lower() for name, _, value in members}, module=__name__)  # type: ignore[call-overload]


class TrainerStatus(LightningEnum):
    """The status of a trainer."""

    INITIALIZING = "initializing"
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"

    stopped = states.TrainerStatus.stopped  # it compares values


TrainerFn = _names("TrainerFn", "FITTING=fit VALIDATING=validate TESTING=test PREDICTING=predict TUNING=tune")
"""The verbs, which equal the arguments of `setup` and `teardown`."""


class RunningStage(LightningEnum):
    """The stages of a run."""

    TRAINING = "train"
    SANITY_CHECKING = "sanity_check"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"
    TUNING = "tune"

    evaluating = states.RunningStage.evaluating  # it compares values

    @property
    def dataloader_prefix(self) -> str:
        """The word for the stage in names of loader hooks, such as "val" in `val_dataloader`."""
        return "val" if self in ("validate", "sanity_check") else str(self.value)


AMPType = _names("AMPType", "APEX NATIVE")
DeviceType = _names("DeviceType", "CPU=CPU GPU=GPU IPU=IPU TPU=TPU")
DistributedType = _names(
    "DistributedType",
    "DP DDP DDP2 DDP_CPU DDP_SPAWN TPU_SPAWN DEEPSPEED HOROVOD DDP_SHARDED DDP_SHARDED_SPAWN DDP_FULLY_SHARDED",
)
GradClipAlgorithmType = _names("GradClipAlgorithmType", "VALUE NORM")
"""The algorithms of gradient clipping, which equal the trainer's values."""

Interval = _names("Interval", "step epoch")
"""When a `Timer` looks at the clock: after each step or epoch."""


class MisconfigurationException(ValueError):
    """The error of earlier code about contradictory arguments.

    Ours raise `TypeError` and `ValueError` there, which an `except` clause for this one does not catch.
    """


class SIGTERMException(SystemExit):
    """The exit of a run on SIGTERM in Lightning 2.6; ours are ended by `PreemptionCheckpoint`, if at all."""


VERSION = "1.9.5"
"""The last release of the line in which all of these names and arguments were taken, so that code that looks at the
version takes the ways that work here."""

LIGHTNING_VERSION = "2.6.0"
"""Likewise for `lightning`, which came with 2.0."""


_WITHOUT_COUNTERPART = re.compile(
    r"APEX|BAGUA|BITSANDBYTES|DEEPSPEED|FAIRSCALE\w*|HABANA_FRAMEWORK|HIVEMIND|HOROVOD|HPU|IPU|POPTORCH|TPU|"
    r"TRANSFORMER_ENGINE|XLA"
)
"""Libraries and devices that may be there, but that nothing here works with."""
_OF_MACHINE: dict[str, Callable[[], bool]] = {
    "_GROUP_AVAILABLE": torch.distributed.is_available,
    "_IS_INTERACTIVE": lambda: hasattr(sys, "ps1"),
    "_IS_WINDOWS": lambda: sys.platform == "win32",
    "_KINETO_AVAILABLE": lambda: torch.profiler.kineto_available(),
    "_NATIVE_AMP_AVAILABLE": lambda: True,
    "_TORCH_QUANTIZE_AVAILABLE": lambda: len(torch.backends.quantized.supported_engines) > 1,
}
APEX_AVAILABLE = TPU_AVAILABLE = False
NATIVE_AMP_AVAILABLE = NATIVE_AMP_AVALAIBLE = True
FLOAT16_EPSILON = torch.finfo(torch.float16).eps
FLOAT32_EPSILON = torch.finfo(torch.float32).eps
FLOAT64_EPSILON = torch.finfo(torch.float64).eps


def __getattr__(name: str) -> bool:
    """Return a flag by its name, such as `_TORCH_GREATER_EQUAL_2_4`, `_OMEGACONF_AVAILABLE` or `_IS_WINDOWS`."""
    from lightning_utilities.core.imports import RequirementCache, package_available  # rarely needed

    compared = _COMPARED.fullmatch(name)
    if compared is not None:
        package, wanted = compared["package"].lower(), compared["version"].replace("_", ".")
        if package == "python":
            return sys.version_info >= tuple(map(int, wanted.split(".")))
        return bool(RequirementCache(f"{package}>={wanted}"))
    if name in _OF_MACHINE:
        return _OF_MACHINE[name]()
    if name.startswith("_") and name.endswith("_AVAILABLE"):
        library = name[1:].removesuffix("_AVAILABLE")
        is_of_use = _WITHOUT_COUNTERPART.fullmatch(library) is None
        return is_of_use and package_available(_MODULES.get(library, library.lower()))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_COMPARED = re.compile(r"_(?P<package>[A-Z]+)_GREATER_EQUAL_(?P<version>\d+(_\d+)*)")
_MODULES = {
    "COMET": "comet_ml",
    "HYDRA_EXPERIMENTAL": "hydra",
    "JSONARGPARSE_SIGNATURES": "jsonargparse",
    "PIL": "PIL",
    "TENSORBOARDX": "tensorboardX",
}
"""The modules of libraries that are not the library's name in lower case."""
