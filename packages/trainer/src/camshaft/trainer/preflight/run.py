"""Running a preflight: the fit of a trainer, made anew for a simulated world, for some updates on fake tensors."""

from __future__ import annotations

import copy
import logging
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import attrs
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

import camshaft.callbacks as stock  # imports its exports on access
from camshaft.hooks_core import Callback
from camshaft.hooks_core.support.messages import must_be
from camshaft.loops.metrics import EpochEndReduction
from camshaft.strategies import ParallelStrategy, TorchStrategy
from camshaft.trainer.checkpoints import checkpoint_of
from camshaft.trainer.configuration import choose_strategy
from camshaft.trainer.preflight.graphs import Calls
from camshaft.trainer.preflight.measurement import Measurement, checkpoint_sizes
from camshaft.trainer.preflight.report import Report, device_of
from camshaft.trainer.preflight.world import convert, on_fake_device, simulated_world

_NUM_UPDATES = 2  # the first one makes the optimizer's state
_OF_DATA = ("prepare_data", "setup", "train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")
"""Hooks that are called with real tensors: they make datasets, and read values of them."""

_PRECISION_FORMATS: dict[str, Any] = {"bf16": torch.bfloat16, "16": torch.float16, "32": torch.float32}


def preflight(
    trainer: Any,
    model: nn.Module | Callable[[], nn.Module],
    train_dataloaders: Any,
    val_dataloaders: Any,
    datamodule: Any,
    *,
    world_size: int,
    devices_per_node: int,
    device: str,
) -> Report:
    """Run some updates, a validation and a save on fake tensors, as one rank of many; see `Trainer.preflight`."""
    of_device = device_of(device)
    measured = Measurement()
    with simulated_world(world_size, devices_per_node), tempfile.TemporaryDirectory() as folder:
        of_world = _made_anew(trainer, measured, folder)
        probe = next(one for one in of_world.callbacks if isinstance(one, Probe))
        not_run: list[str] = probe.notes
        logger = logging.getLogger("torch._subclasses.fake_tensor")  # prints each error that is reported here
        was_disabled, logger.disabled = logger.disabled, True
        try:
            with measured.running(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*(FSDP|fake|Fake).*")
                with measured.device.on():
                    module = measured.device.module_of(model)
                probe.loaders |= {"train_dataloader": train_dataloaders, "val_dataloader": val_dataloaders}
                of_world.fit(module, train_dataloaders, val_dataloaders, datamodule)
                measured.begin("save")
                sizes = _save(of_world, not_run)
        except Exception as error:
            measured.flops.note()
            not_run.append(_reason(error, of_world))
            sizes = {}
        finally:
            logger.disabled = was_disabled
        report = _report(of_world, of_device, measured, probe, sizes, devices_per_node)
        return report if probe.compilation is None else _with_graphs(report, model, of_world.strategy, probe)


def _with_graphs(report: Report, model: Any, strategy: Any, probe: Probe) -> Report:
    """Return a report with the graphs of what is compiled, of a copy of the model that is whole."""
    device, precision = probe.measured.device, strategy.precision
    with device, device.on():
        module = device.module_of(model)
        precision.convert_module(module)
    graphs, failures = probe.calls.trace(module, device, precision.wrap_step)
    return attrs.evolve(report, graphs=graphs, not_run=[*report.not_run, *failures])


class Probe(Callback):
    """Tells the measurement what runs, and lets hooks compute on fake tensors.

    Args:
        measured: The measurement.
        num_batches: The number of batches of an update.
        compilation: The compilation that the trainer's strategy does; None without.
    """

    only_observes = True

    def __init__(self, measured: Measurement, num_batches: int, compilation: Any) -> None:
        self.measured, self.num_batches, self.compilation = measured, num_batches, compilation
        self.calls = Calls()
        self.notes: list[str] = []
        self.loaders: dict[str, Any] = {"train_dataloader": None, "val_dataloader": None}
        self.between: dict[str, int] = {}
        self.num_parameters = self.num_padded = 0
        self.dtypes: list[torch.dtype] = []

    def wrap_call(self, hook: str, kind: Any, receiver: object, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a hook's function that computes on fake tensors, unless it is about data."""
        if hook in self.loaders:

            @wraps(function)
            def noted(*args: Any, **kwargs: Any) -> Any:
                self.loaders[hook] = function(*args, **kwargs)
                return self.loaders[hook]

            return noted
        if receiver is self or kind == "data" or hook in _OF_DATA:
            return function
        device = self.measured.device

        @wraps(function)
        def faked(*args: Any, **kwargs: Any) -> Any:
            with device.on():
                return function(*args, **kwargs)

        return faked

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Note the model, and the dimensions of the mesh."""
        self.num_parameters = sum(parameter.numel() for parameter in module.parameters())
        self.num_padded = sum(_is_padded(parameter) for parameter in module.parameters())
        self.measured.collectives.name_dimensions(getattr(trainer.strategy, "device_mesh", None))
        if self.compilation is not None:
            blocks = [part for part in module.modules() if isinstance(part, FSDPModule) and part is not module]
            is_sharded = isinstance(module, FSDPModule)
            self.calls.watch(module, self.compilation.parts(module, blocks if is_sharded else None))

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Begin an update; the last one is what counts."""
        if batch_idx % self.num_batches == 0:
            self.measured.memory.start(module, trainer.optimizers if batch_idx else [])
            self.between = self.measured.memory.by_kind("current")
            self.measured.begin("update")
            self.measured.forget("update")

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End the update."""
        self.calls.close()
        if (batch_idx + 1) % self.num_batches == 0:
            self.measured.begin("end")

    def on_validation_batch_start(
        self, trainer: Any, module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Begin a batch of validation, of which the first is measured."""
        if batch_idx == 0 and dataloader_idx == 0:
            self.measured.begin("validation batch")

    def on_validation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """End the batch."""
        self.measured.begin("end")


def _is_padded(parameter: Any) -> bool:
    """Return whether a parameter is sharded over more ranks than it has rows, so that padding is communicated."""
    sizes = [
        (parameter.size(placement.dim), mesh_size)
        for placement, mesh_size in zip(
            getattr(parameter, "placements", ()), getattr(parameter, "device_mesh", torch.empty(0)).shape, strict=False
        )
        if placement.is_shard()
    ]
    return any(rows < ranks for rows, ranks in sizes)


def _made_anew(trainer: Any, measured: Measurement, folder: str) -> Any:
    """Return a trainer of the same arguments for the simulated world, which writes nothing and makes some updates."""
    kwargs = trainer.given_arguments
    num_batches = trainer.accumulate_grad_batches
    probe = Probe(measured, num_batches, getattr(trainer.strategy, "compilation", None))
    strategy = kwargs.get("strategy", "auto")
    if isinstance(strategy, str):
        chosen = {"accelerator": "cpu", "devices": "auto", "num_nodes": 1, "precision": kwargs.get("precision")}
        strategy = choose_strategy(strategy, **chosen)
    changed: dict[str, Any] = {
        "strategy": _strategy_anew(strategy, measured),
        "callbacks": [probe, *copy.deepcopy([one for one in trainer.callbacks if _is_kept(one)])],
        "fast_dev_run": _NUM_UPDATES * num_batches,
        "default_root_dir": folder,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    if kwargs.get("barebones"):
        changed |= {"logger": False, "enable_checkpointing": False}
    if kwargs.get("sync_batchnorm"):
        probe.notes.append("`sync_batchnorm`, which torch has on GPUs alone: its collectives are not counted.")
    if getattr(trainer.strategy, "compile", False):
        probe.notes.append("`compile`: the model ran as it is; memory and reads may differ.")
    dropped = {"accelerator", "devices", "num_nodes", "barebones", "report", "sync_batchnorm", "compile"}
    dropped |= {"profiler", "deterministic", "benchmark", "detect_anomaly"}  # their callbacks are among those
    return type(trainer)(**{name: kwargs[name] for name in kwargs if name not in dropped} | changed)


def _is_kept(callback: Any) -> bool:
    return not isinstance(callback, (stock.ProgressBar, stock.ModelSummary, stock.ProfiledHooks, EpochEndReduction))


def _strategy_anew(strategy: Any, measured: Measurement) -> Any:
    """Return a strategy of the same arguments for the simulated world.

    Raises:
        TypeError: If it is none of camshaft's.
    """
    if not isinstance(strategy, TorchStrategy):
        rule, action = "one of camshaft.strategies", "Pass such a strategy."
        raise TypeError(must_be("strategy", rule, strategy, "preflight", action))
    given = strategy.given_arguments
    kwargs = {name: value for name, value in given.items() if name not in ("compile", "sync_batchnorm", "max_restarts")}
    kind = on_fake_device(type(strategy), measured.device)
    if isinstance(strategy, ParallelStrategy):
        kwargs |= {"accelerator": "cpu", "devices": "auto", "num_nodes": 1, "backend": None}
    else:
        kwargs["device"] = "cpu"
    made = kind(**kwargs)
    if made.precision.param_dtype is not None:
        made.precision.convert_module = partial(convert, made.precision.param_dtype)  # type: ignore[method-assign]
    return made


def _save(trainer: Any, not_run: list[str]) -> dict[str, int]:
    """Put a checkpoint together, and return its sizes."""
    try:
        run = trainer.current_run
        checkpoint = checkpoint_of(run, trainer.fit_loop, was_fitted=True, weights_only=False)
    except Exception as error:
        not_run.append(f"a checkpoint: {type(error).__name__}: {error}")
        return {}
    return checkpoint_sizes(checkpoint, trainer.global_rank)


def _reason(error: BaseException, trainer: Any) -> str:
    """Return an error with the innermost line outside of torch."""
    torch_folder = os.path.dirname(torch.__file__)
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(torch_folder)
    ]
    users = [frame for frame in frames if "/camshaft/" not in frame.filename] or frames
    where = f" at {users[-1].filename}:{users[-1].lineno}: {users[-1].line}" if users else ""
    notes = " ".join(getattr(error, "__notes__", ()))
    position = trainer.current_run.position() if trainer.current_run is not None else "set-up"
    text = " ".join(str(error).split())[:400]
    return f"the rest of the fit ({position}): {type(error).__name__}: {text}{where}. {notes}".strip()


def _report(
    trainer: Any, device: Any, measured: Measurement, probe: Probe, sizes: dict[str, int], devices_per_node: int
) -> Report:
    strategy = trainer.strategy
    counts, num_bytes = measured.collectives.counts, measured.collectives.bytes
    shown = ("update", "validation batch")
    name = str(getattr(getattr(strategy, "precision", None), "name", "32-true"))
    peak_format = next((value for prefix, value in _PRECISION_FORMATS.items() if name.startswith(prefix)), None)
    data, warned = _facts_of_data(probe.loaders, strategy)
    is_sharded = bool(sizes.get("of a rank"))
    report = Report(
        device=device,
        world={
            "strategy": type(strategy).__name__,
            "world_size": strategy.world_size,
            "num_nodes": -(-strategy.world_size // devices_per_node),
            "devices_per_node": devices_per_node,
            "precision": name,
            "accumulate_grad_batches": trainer.accumulate_grad_batches,
        },
        num_parameters=probe.num_parameters,
        memory=measured.memory.by_kind("peak"),
        memory_between_steps=probe.between,
        collectives=[
            (phase, kind, counts[phase, kind], num_bytes[phase, kind]) for phase, kind in counts if phase in shown
        ],
        flops=measured.flops.by_phase["update"],
        compute_format=peak_format,
        reads=[(phase, read, count) for (phase, read), count in measured.device.reads.items() if phase in shown],
        checkpoint=sizes,
        num_files=strategy.world_size + 2 if is_sharded else 1,
        data=data,
        warnings=warned,
        not_run=probe.notes,
    )
    if probe.num_padded:
        warned.append(
            f"{probe.num_padded} parameters have fewer rows than ranks that share them: what is gathered is mostly "
            "padding. Shard over fewer ranks (`data_parallel_replicas`)."
        )
    return attrs.evolve(report, warnings=[*warned, *_warnings_of(report)])


def _facts_of_data(loaders: dict[str, Any], strategy: Any) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return samples and batches of each stage, and warnings about them."""
    facts: dict[str, dict[str, Any]] = {}
    found: list[str] = []
    num_ranks = getattr(strategy, "num_logical_ranks", None) or strategy.num_data_ranks
    for stage, given in zip(("train", "validate"), loaders.values(), strict=True):
        listed = list(given.values()) if isinstance(given, dict) else given
        listed = listed if isinstance(listed, (list, tuple)) else [listed]
        for idx, loader in enumerate(one for one in listed if one is not None):
            name = stage if len(listed) == 1 else f"{stage} loader {idx}"
            facts[name] = _facts_of_loader(loader, num_ranks, stage, name, found)
    return facts, found


def _facts_of_loader(loader: Any, num_ranks: int, stage: str, name: str, found: list[str]) -> dict[str, Any]:
    batch_size = getattr(loader, "batch_size", None)
    try:
        num_samples: int | None = len(loader.dataset)
    except (TypeError, AttributeError, NotImplementedError):
        num_samples = None
    if num_samples is None or batch_size is None:
        return {"samples": num_samples, "samples per batch": batch_size}
    if stage == "train":
        of_rank = -(-num_samples // num_ranks)
        drops = getattr(loader, "drop_last", False)
        num_batches = of_rank // batch_size if drops else -(-of_rank // batch_size)
        last = of_rank % batch_size
        if num_samples < num_ranks:
            found.append(f"{name}: {num_samples} samples are fewer than the {num_ranks} ranks that share them.")
        elif of_rank < batch_size:
            found.append(
                f"{name}: a rank has {of_rank} samples an epoch, fewer than its batch of {batch_size}"
                + (": drop_last leaves it none." if drops else ".")
            )
        elif last and not drops:
            found.append(
                f"{name}: the last batch of each rank has {last} of {batch_size} samples. Pass drop_last=True."
            )
        if num_samples % num_ranks and not drops:
            found.append(
                f"{name}: {num_samples} samples are not divisible by {num_ranks} ranks; "
                f"{-num_samples % num_ranks} are repeated in each epoch."
            )
        return {
            "samples": num_samples,
            "samples per batch": batch_size,
            "samples per batch of all ranks": batch_size * num_ranks,
            "batches per epoch and rank": num_batches,
        }
    num_batches = -(-num_samples // batch_size)
    rounds = -(-num_batches // num_ranks)
    if num_batches < num_ranks:
        idle = num_ranks - num_batches
        found.append(f"{name}: {num_batches} batches for {num_ranks} ranks: {idle} of them have none.")
    elif num_batches % num_ranks:
        found.append(f"{name}: the last round of batches is missing on {num_ranks - num_batches % num_ranks} ranks.")
    return {"samples": num_samples, "samples per batch": batch_size, "batches, at most, per rank": rounds}


def _warnings_of(report: Report) -> list[str]:
    found = []
    if report.fits is False:
        over = report.memory["total"] / report.device.num_bytes
        found.append(
            f"The peak is {over:.0%} of the device's memory: shard, checkpoint activations, or use smaller batches."
        )
    for phase, kind, count, num_bytes in report.collectives:
        if (
            phase == "update"
            and count > 1
            and num_bytes / count < 2**16
            and kind.num_ranks > report.world["devices_per_node"]
        ):
            found.append(
                f"{count} x {kind.operation} over {kind.num_ranks} ranks move {num_bytes // count} bytes each: latency "
                "will count more than bandwidth. Choose larger units (`policy`)."
            )
    return found
