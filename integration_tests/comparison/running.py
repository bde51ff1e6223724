"""Running a configuration on a framework."""

from __future__ import annotations

import contextlib
import csv
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch

from camshaft.hooks_core import CATALOGUE
from camshaft.hooks_core.spec import HookSpec, Receiver
from comparison.configuration import Configuration
from comparison.frameworks import Framework
from comparison.participants import Loaders, make_data, make_module, make_watcher
from comparison.recording import Recorder, Recording, as_numbers, parameters_of, summary

_WITH_LOADER_IDX = frozenset(
    name for name, spec in CATALOGUE.items() if "dataloader_idx" in spec.parameters and "transfer" not in name
)
_TRANSFERS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_OF_LOADERS = ("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")
_STEPS = (
    "training_step",
    "validation_step",
    "test_step",
    "predict_step",
    "configure_optimizers",
    "configure_callbacks",
)


def as_is(module_class: Any) -> Any:
    """Changes nothing."""
    return module_class


def record(framework: Framework, configuration: Configuration, adapt: Callable[[Any], Any] = as_is) -> Recording:
    """Run a configuration, and record everything.

    Args:
        framework: What to run it on.
        configuration: What to run.
        adapt: Makes a subclass of the recorded module's class to run instead.
    """
    recording = Recording()
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore")
        _Runs(framework, configuration, recording, Path(directory), adapt).run()
    return recording


@attrs.define
class _Runs:
    """The verbs of a configuration, and the resumed fit if it asks for one."""

    framework: Framework
    configuration: Configuration
    recording: Recording
    directory: Path
    adapt: Callable[[Any], Any]
    recorder: Recorder = attrs.field(init=False)
    loaders: Loaders = attrs.field(init=False)
    num_built: int = attrs.field(default=0, init=False)
    module: Any = attrs.field(default=None, init=False)
    data: Any = attrs.field(default=None, init=False)
    trainer: Any = attrs.field(default=None, init=False)

    def run(self) -> None:
        self.recorder = Recorder(self.recording)
        self.loaders = Loaders(self.configuration)
        configuration, recording = self.configuration, self.recording
        self._build(configuration.trainer)
        torch.manual_seed(7)
        for verb in configuration.verbs:
            self._run_verb(verb)
        if configuration.continues_to is not None:
            self.trainer.fit_loop.max_epochs = configuration.continues_to
            self._run_verb("fit")
        if configuration.resumes_to is not None:
            newest = max((self.directory / "kept").glob("*.ckpt"), key=lambda path: int(path.stem.rpartition("=")[2]))
            self._build({**configuration.trainer, "max_epochs": configuration.resumes_to})
            self._run_verb("fit", ckpt_path=str(newest))
        recording.weights = {name: tensor.clone() for name, tensor in self.module.state_dict().items()}
        recording.checkpoints = self._checkpoints()

    def _build(self, arguments: dict[str, Any]) -> None:
        framework, configuration = self.framework, self.configuration
        self.num_built += 1
        torch.manual_seed(3)
        self.module = self._recorded_module()()
        self.data = self._recorded(make_data(framework, configuration, self.loaders), "data", Receiver.DATA)()
        strategy = self._recorded(framework.strategy, "strategy", Receiver.STRATEGY)("cpu")
        self.trainer = framework.trainer(
            **framework.quiet,
            strategy=strategy,
            callbacks=self._callbacks(),
            logger=framework.csv_logger(self.directory / "logs", name="", version=str(self.num_built)),
            **{"max_epochs": 2, **arguments},
        )
        self.recorder.trainer, self.recorder.module = self.trainer, self.module

    def _recorded_module(self) -> Any:
        configuration = self.configuration
        base = make_module(self.framework, configuration, self.loaders)
        return self.adapt(self._recorded(base, "module", Receiver.MODULE, (*_STEPS, *configuration.overrides)))

    def _callbacks(self) -> list[Any]:
        framework, configuration = self.framework, self.configuration
        watcher = make_watcher(framework, configuration)
        callbacks = [
            self._recorded(watcher, "first", Receiver.CALLBACK)(),
            self._recorded(framework.callback, "second", Receiver.CALLBACK)(),
        ]
        monitor = self._recorded(framework.monitoring, "monitor", Receiver.CALLBACK)()
        callbacks.insert(0 if configuration.monitoring_first else len(callbacks), monitor)
        if configuration.early_stopping is not None:
            callbacks.append(framework.early_stopping(**configuration.early_stopping))
        # an own one in any case, since trainers add one otherwise
        saving = configuration.checkpoints if configuration.checkpoints is not None else {"every_n_epochs": 0}
        return [*callbacks, framework.model_checkpoint(self.directory / "kept", **saving)]

    def _recorded(self, base: type, receiver: str, kind: Receiver, further: tuple[str, ...] = ()) -> Any:
        names = [spec.name for spec in CATALOGUE.values() if kind in spec.receivers and _is_recorded(spec, self, kind)]
        names += further
        parameters = parameters_of(names, CATALOGUE, is_callback=kind is Receiver.CALLBACK)
        formed = _WITH_LOADER_IDX if kind in (Receiver.CALLBACK, Receiver.MODULE) else ()
        return self.recorder.recorded(base, receiver, parameters, self.configuration.signatures, formed)

    def _run_verb(self, verb: str, **arguments: Any) -> None:
        recording, trainer = self.recording, self.trainer
        if verb in ("validate", "test"):
            arguments["verbose"] = False
        try:
            returned = getattr(trainer, verb)(self.module, **self._loaders(verb), **arguments)
        except KeyError as error:
            recording.raised.append(repr(error))
        else:
            recording.returned.append(summary(returned))
        recording.loading.append(self.loaders.take_loading())
        recording.progress.append({"epoch": trainer.current_epoch, "step": trainer.global_step})
        recording.callback_metrics.append(as_numbers(trainer.callback_metrics))
        recording.rows.append(self._rows()[sum(map(len, recording.rows)) :])

    def _loaders(self, verb: str) -> dict[str, Any]:
        source = self.configuration.loaders_from
        if source == "module":
            return {}
        if source == "data":
            return {"datamodule": self.data}
        loaders = self.loaders
        if verb == "fit":
            return {"train_dataloaders": loaders.train(), "val_dataloaders": loaders.evaluation()}
        return {"dataloaders": loaders.evaluation()}

    def _rows(self) -> list[dict[str, float]]:
        rows = []
        for path in sorted((self.directory / "logs").glob("*/metrics.csv")):
            with path.open(newline="") as file:
                rows += [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]
        return rows

    def _checkpoints(self) -> dict[str, Any]:
        found = {}
        for path in sorted((self.directory / "kept").glob("*.ckpt")):
            saved = torch.load(path, weights_only=False)
            parts = ("epoch", "global_step", "state_dict", "optimizer_states", "lr_schedulers")
            found[path.name] = {part: summary(dict(enumerate([saved.get(part)]))) for part in parts}
        return found


def _is_recorded(spec: HookSpec, runs: _Runs, kind: Receiver) -> bool:
    if spec.name in _OF_LOADERS:
        is_there = spec.name == "train_dataloader" or bool(runs.configuration.num_eval_batches)
        return is_there and runs.configuration.loaders_from == kind.value
    if spec.name in _TRANSFERS:
        return spec.name in runs.configuration.overrides and kind is Receiver.DATA
    if spec.name == "configure_sharded_model":  # Lightning lets nobody override both this and `configure_model`
        return False
    return spec.kind == "event"
