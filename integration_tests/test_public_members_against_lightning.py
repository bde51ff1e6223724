"""Public attributes, methods and constructors' arguments of Lightning's classes, which ours of the same name have."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from textwrap import dedent
from typing import Any

import attrs
import pytest
from torch import nn

from camshaft.compat.names.finder import counterpart_of, load

pytest.importorskip("lightning.pytorch")

CLASSES = """
    .:Trainer .:LightningModule .:LightningDataModule .:Callback tuner:Tuner
    callbacks:BackboneFinetuning callbacks:BaseFinetuning callbacks:BasePredictionWriter callbacks:BatchSizeFinder
    callbacks:Checkpoint callbacks:DeviceStatsMonitor callbacks:EarlyStopping callbacks:EMAWeightAveraging
    callbacks:GradientAccumulationScheduler callbacks:LambdaCallback callbacks:LearningRateFinder
    callbacks:LearningRateMonitor callbacks:ModelCheckpoint callbacks:ModelPruning callbacks:ModelSummary
    callbacks:OnExceptionCheckpoint callbacks:ProgressBar callbacks:RichModelSummary callbacks:RichProgressBar
    callbacks:StochasticWeightAveraging callbacks:ThroughputMonitor callbacks:Timer callbacks:TQDMProgressBar
    callbacks:WeightAveraging callbacks.progress.rich_progress:RichProgressBarTheme
    loggers:CSVLogger loggers:CometLogger loggers:Logger loggers:MLFlowLogger loggers:TensorBoardLogger
    loggers:WandbLogger loggers.csv_logs:ExperimentWriter
    profilers:AdvancedProfiler profilers:PassThroughProfiler profilers:Profiler profilers:PyTorchProfiler
    profilers:SimpleProfiler
    cli:LightningArgumentParser cli:LightningCLI cli:SaveConfigCallback
    plugins.environments:LightningEnvironment plugins.environments:SLURMEnvironment
    plugins.environments:TorchElasticEnvironment accelerators:CPUAccelerator accelerators:CUDAAccelerator
    utilities.model_summary:ModelSummary
    utilities.combined_loader:CombinedLoader utilities.rank_zero:WarningCache utilities.parsing:AttributeDict
    strategies:SingleDeviceStrategy strategies:DDPStrategy strategies:FSDPStrategy strategies:ParallelStrategy
    strategies:Strategy plugins:AsyncCheckpointIO plugins:CheckpointIO plugins:Precision plugins:TorchCheckpointIO
    demos.boring_classes:BoringModel demos.boring_classes:BoringDataModule demos.boring_classes:DemoModel
"""

_NO_FABRIC = "there is no mode without a trainer"
_LOOPS = "set or called by Lightning's loops and private parts alone"
_UNCALLED = "an override is never called, which a warning says with what to use"

_DATA = dict.fromkeys(
    ("prepare_data_per_node", "allow_zero_length_dataloader_with_multiple_devices"),
    "read where a module or data module sets it",
)
_MODULE = {"fabric": _NO_FABRIC, "to_tensorrt": "an export to a library that is not supported", **_DATA}
_OF_AVERAGING = "pl_module_contains_batch_norm reset_batch_norm_and_save_state reset_momenta transfer_weights"

ABSENT = {
    "LightningModule": _MODULE,
    "BoringModel": _MODULE,
    "DemoModel": _MODULE,
    "LightningDataModule": _DATA,
    "BoringDataModule": _DATA,
    "StochasticWeightAveraging": dict.fromkeys(["momenta", "update_parameters", *_OF_AVERAGING.split()], _UNCALLED),
    "ThroughputMonitor": {"kwargs": "its parts are attributes"},
    "PyTorchProfiler": dict.fromkeys(("AVAILABLE_SORT_KEYS", "STEP_FUNCTIONS"), "torch checks the names"),
    "CUDAAccelerator": {"set_nvidia_flags": _LOOPS},
}
"""By class, the members that ours lacks, and why."""


def pairs() -> list[Any]:
    found = []
    for entry in CLASSES.split():
        place, _, name = entry.partition(":")
        place = "" if place == "." else place
        found.append(pytest.param(place, name, id=f"{place}:{name}"))
    return found


def both(place: str, name: str) -> tuple[Any, Any]:
    counterpart = counterpart_of(place, name)
    assert counterpart is not None
    return load(counterpart), getattr(import_module(f"lightning.pytorch.{place}".rstrip(".")), name)


def members(cls: type) -> set[str]:
    """Public names of a class, but those that torch's modules have."""
    return {name for name in dir(cls) if getattr(nn.Module, name, None) is not getattr(cls, name)}


def assigned(cls: type, part: Callable[[type], Any]) -> set[str]:
    """Names that a part of the classes, such as `__init__`, assigns to `self`."""
    found: set[str] = set()
    for base in cls.__mro__:
        if not base.__module__.startswith(("camshaft", "lightning")) or "__init__" not in vars(base):
            continue
        with suppress(OSError, TypeError):  # made by a decorator, or that of `object`
            tree = ast.parse(dedent(inspect.getsource(part(base))))
            found |= {
                node.attr
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and ast.unparse(node.value) == "self"
            }
    return found


@pytest.mark.parametrize(("place", "name"), pairs())
def test_ours_has_each_public_member(place: str, name: str) -> None:
    ours, theirs = both(place, name)
    expected = members(theirs) | assigned(theirs, lambda base: vars(base)["__init__"])
    fields = {field.name for field in attrs.fields(ours)} if attrs.has(ours) else set()
    missing = expected - set(dir(ours)) - fields - assigned(ours, lambda base: base)
    absent = ABSENT.get(name, {}) if place != "utilities.model_summary" else {"summarize": "a part of making it"}
    assert {one for one in missing if not one.startswith("_")} == set(absent)


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


@pytest.mark.parametrize(("place", "name"), pairs())
def test_ours_takes_each_argument_of_the_constructor(place: str, name: str) -> None:
    ours, theirs = both(place, name)
    taken = parameters(ours.__init__)
    variadic = any(one.kind is one.VAR_KEYWORD for one in taken.values())
    for argument, parameter in parameters(theirs.__init__).items():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            assert argument in taken or variadic, argument


def test_every_reason_is_about_a_class() -> None:
    names = {entry.partition(":")[2] for entry in CLASSES.split()}
    assert set(ABSENT) <= names
