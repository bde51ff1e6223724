"""Types, enumerations, errors and flags that earlier code imports."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, Literal, NotRequired, Protocol, Required, TypedDict, runtime_checkable

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from camshaft.hooks_core.messages import must_be
from camshaft.trainer import states

_DEVICE = torch.device | str | int
_MAP_LOCATION_TYPE = (
    _DEVICE | Callable[[torch.UntypedStorage, str], torch.UntypedStorage | None] | dict[_DEVICE, _DEVICE] | None
)
_PRECISION_INPUT_INT = Literal[64, 32, 16]
_PRECISION_INPUT_STR_ALIAS = Literal["64", "32", "16", "bf16"]
_PRECISION_INPUT_STR = Literal[
    "transformer-engine",
    "transformer-engine-float16",
    "16-true",
    "16-mixed",
    "bf16-true",
    "bf16-mixed",
    "32-true",
    "64-true",
]
_PRECISION_INPUT = _PRECISION_INPUT_INT | _PRECISION_INPUT_STR | _PRECISION_INPUT_STR_ALIAS
UntypedStorage = torch.UntypedStorage
STEP_OUTPUT = Tensor | Mapping[str, Any] | None
EPOCH_OUTPUT = list[Tensor | Mapping[str, Any] | None]
TRAIN_DATALOADERS = Any
EVAL_DATALOADERS = Any
OptimizerLRScheduler = Any
LRSchedulerType = type[LRScheduler] | type[ReduceLROnPlateau]
LRSchedulerTypeUnion = LRScheduler | ReduceLROnPlateau
LRSchedulerPLType = LRScheduler | ReduceLROnPlateau
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

    scheduler: LRSchedulerTypeUnion
    name: str | None = None
    interval: str = "epoch"
    frequency: int = 1
    reduce_on_plateau: bool = False
    monitor: str | None = None
    strict: bool = True

    def __eq__(self, other: object) -> bool:
        """Return whether another one has the same settings, such as one of `trainer.lr_scheduler_configs`."""
        return all(getattr(other, name, self) == value for name, value in vars(self).items())


class LRSchedulerConfigType(TypedDict, total=False):
    """The dictionary of a scheduler; see `LRSchedulerConfig`."""

    scheduler: Required[LRSchedulerTypeUnion]
    name: str | None
    interval: str
    frequency: int
    reduce_on_plateau: bool
    monitor: str | None
    strict: bool


class OptimizerConfig(TypedDict):
    """The dictionary of an optimizer."""

    optimizer: torch.optim.Optimizer


class OptimizerLRSchedulerConfig(TypedDict):
    """The dictionary of an optimizer and its scheduler."""

    optimizer: torch.optim.Optimizer
    lr_scheduler: LRSchedulerTypeUnion | LRSchedulerConfigType
    monitor: NotRequired[str]


@runtime_checkable
class Steppable(Protocol):
    """An object with the method `step` of optimizers."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Make a step."""


@runtime_checkable
class Optimizable(Steppable, Protocol):
    """An object with the methods and attributes of optimizers."""

    param_groups: list[dict[Any, Any]]
    defaults: dict[Any, Any]
    state: Any

    def state_dict(self) -> dict[str, dict[Any, Any]]:
        """Return the state."""

    def load_state_dict(self, state_dict: dict[str, dict[Any, Any]]) -> None:
        """Restore the state."""


@runtime_checkable
class CollectibleGroup(Protocol):
    """An object with the size and rank of a process group."""

    def size(self) -> int:
        """Return the number of processes."""

    def rank(self) -> int:
        """Return the index of this process."""


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


class LightningEnum(states.StateName):
    """An enumeration whose members equal their values, in upper or lower case."""

    @classmethod
    def from_str(cls, value: str) -> LightningEnum | None:
        """Return the member of that name or value; None if there is none."""
        wanted = value.lower()
        return next((member for member in cls if wanted in (member.name.lower(), member.value.lower())), None)


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

    evaluating = states.RunningStage.evaluating  # it compares values
    dataloader_prefix = states.RunningStage.dataloader_prefix


class AMPType(LightningEnum):
    """The libraries of mixed precision up to 1.9."""

    APEX = "apex"
    NATIVE = "native"


class DeviceType(LightningEnum):
    """The kinds of devices of 1.1 to 1.6."""

    CPU = "CPU"
    GPU = "GPU"
    IPU = "IPU"
    TPU = "TPU"


class DistributedType(LightningEnum):
    """The names of strategies of 1.1 to 1.6."""

    DP = "dp"
    DDP = "ddp"
    DDP2 = "ddp2"
    DDP_CPU = "ddp_cpu"
    DDP_SPAWN = "ddp_spawn"
    TPU_SPAWN = "tpu_spawn"
    DEEPSPEED = "deepspeed"
    HOROVOD = "horovod"
    DDP_SHARDED = "ddp_sharded"
    DDP_SHARDED_SPAWN = "ddp_sharded_spawn"
    DDP_FULLY_SHARDED = "ddp_fully_sharded"


class GradClipAlgorithmType(LightningEnum):
    """The algorithms of gradient clipping, which equal the trainer's values."""

    VALUE = "value"
    NORM = "norm"


class Interval(LightningEnum):
    """When a `Timer` looks at the clock: after each step or epoch."""

    step = "step"
    epoch = "epoch"


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


def __getattr__(name: str) -> bool:
    """Return a flag by its name, such as `_TORCH_GREATER_EQUAL_2_4`, `_OMEGACONF_AVAILABLE` or `_IS_WINDOWS`."""
    compared = _COMPARED.fullmatch(name)
    if compared is not None:
        wanted = tuple(int(part) for part in compared["version"].split("_"))
        return _release(compared["package"].lower()) >= wanted
    if name in _OF_TORCH:
        return _OF_TORCH[name]()
    if name == "_IS_WINDOWS":
        return sys.platform == "win32"
    if name.startswith("_") and name.endswith("_AVAILABLE"):
        library = name[1:].removesuffix("_AVAILABLE")
        return name not in _WITHOUT_COUNTERPART and _module_available(_MODULES.get(library, library.lower()))
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
_OF_TORCH: dict[str, Callable[[], bool]] = {
    "_GROUP_AVAILABLE": torch.distributed.is_available,
    "_KINETO_AVAILABLE": lambda: torch.profiler.kineto_available(),
    "_TORCH_QUANTIZE_AVAILABLE": lambda: len(torch.backends.quantized.supported_engines) > 1,
}
_WITHOUT_COUNTERPART = (
    "_BAGUA_AVAILABLE",
    "_BITSANDBYTES_AVAILABLE",
    "_FAIRSCALE_FULLY_SHARDED_AVAILABLE",
    "_FAIRSCALE_OSS_FP16_BROADCAST_AVAILABLE",
    "_FAIRSCALE_PIPE_AVAILABLE",
    "_HABANA_FRAMEWORK_AVAILABLE",
    "_HIVEMIND_AVAILABLE",
    "_HPU_AVAILABLE",
    "_IPU_AVAILABLE",
    "_POPTORCH_AVAILABLE",
    "_TRANSFORMER_ENGINE_AVAILABLE",
)
"""Flags of libraries that may be installed, but that nothing here works with."""


def _release(package: str) -> tuple[int, ...]:
    """Return the numbers of a package's version; () if it is not installed."""
    if package == "python":
        return tuple(sys.version_info[:3])
    try:
        found = re.match(r"\d+(\.\d+)*", version(package))
    except PackageNotFoundError:
        return ()
    return tuple(int(part) for part in found[0].split(".")) if found else ()
