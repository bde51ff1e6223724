"""The checkpoint formats of Lightning, from 0.4 on."""

from __future__ import annotations

import copy
import math
import re
import warnings
from argparse import Namespace
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import attrs
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.swa_utils import SWALR

from camshaft.hooks_core.support.messages import warn_user
from camshaft.loops import CheckpointAdapter, Counters, FitProgress, Run
from camshaft.loops.state.random_state import random_state
from camshaft.strategies import NamedValues
from camshaft.trainer.checkpoints import JOB_KEY
from camshaft.trainer.hyperparameters import (
    HYPER_PARAMETERS_KEY,
    Hyperparameters,
    accepted_by,
    parameters_of,
    takes_any,
)

_SCALER_KEYS = ("native_amp_scaling_state", "NativeMixedPrecisionPlugin", "MixedPrecisionPlugin", "MixedPrecision")
"""The keys of the gradient scaler's state in releases, in their order."""

_PREFIXES = ("module.", "model.module.", "_forward_module.")
_COMPILED = "_orig_mod."


class ReleaseFormat:
    """The format of checkpoints of any release of Lightning; see `CheckpointFormat` of `camshaft.trainer`."""

    def matches(self, checkpoint: Mapping[str, Any]) -> bool:
        """Return whether a release of Lightning saved a checkpoint, rather than camshaft."""
        if "camshaft_version" in checkpoint or JOB_KEY in checkpoint or "state_dict" not in checkpoint:
            return False
        is_old = {"epoch", "global_step"} <= checkpoint.keys() and "loops" not in checkpoint
        return VERSION_KEY in checkpoint or is_old

    def for_run(self, checkpoint: dict[str, Any], trainer: Any) -> tuple[dict[str, Any], ReleaseAdapter]:
        """Return the checkpoint with the entries that a run of today reads, and what adapts its states.

        The release's own entries are kept, for `on_load_checkpoint`. Random numbers are not restored.

        Args:
            checkpoint: The checkpoint.
            trainer: The trainer that reads it.
        """
        from camshaft.compat.checkpoints.callback_states import averages, without_finetuning  # seldom needed

        progress = read_progress(checkpoint, trainer.accumulate_grad_batches)
        validation = trainer.fit_loop.validation.progress.state_dict()
        scaler = _scaler_of(checkpoint)
        states, apart = without_finetuning(checkpoint, trainer.callbacks)
        average = averages(checkpoint, trainer.callbacks)
        adapted = {
            **checkpoint,
            "callbacks": states,
            **average,
            "loops": {**checkpoint.get("loops", {}), "fit": progress.state_dict(), "validate": validation},
            "fit": {"metrics": None, "metric_states": {}},
            "rng": random_state(),
            "strategy": {} if scaler is None else {"gradient_scaler": scaler},
        }
        return adapted, ReleaseAdapter(trainer, progress, apart, bool(average))

    def constructor_arguments(self, *arguments: Any) -> dict[str, Any]:
        """Return the constructor arguments of a class, by the rules of the release; see `constructor_arguments`."""
        return constructor_arguments(*arguments)

    def weights(self, saved: Mapping[str, Any], module: nn.Module) -> Mapping[str, Any]:
        """Return the weights, without prefixes of wrappers; see `unwrapped`."""
        return unwrapped(saved, module)

    def data_state(self, checkpoint: Mapping[str, Any], cls: type) -> dict[str, Any] | None:
        """Return the state of the data module, which releases since 1.6 saved under its class's name."""
        return checkpoint.get(cls.__qualname__)


@attrs.define
class ReleaseAdapter(CheckpointAdapter):
    """The adapter of a checkpoint of an earlier release to a run.

    Args:
        trainer: The trainer that reads it.
        progress: What the checkpoint says about the progress.
        states_apart: States of callbacks that these do not find in the checkpoint.
        has_average: Whether weights had been averaged, which a callback goes on with.
    """

    trainer: Any
    progress: EarlierProgress
    states_apart: dict[str, Any] = attrs.field(factory=dict)
    has_average: bool = False
    _scheduler_lag: int = attrs.field(default=1, init=False)
    _left_out: list[str] = attrs.field(factory=list, init=False)

    def weights(self, saved: Mapping[str, Any], module: nn.Module) -> Mapping[str, Any]:
        """Return the weights without prefixes of wrappers; see `unwrapped`."""
        return unwrapped(saved, module)

    def data_state(self, checkpoint: dict[str, Any], data: object) -> dict[str, Any] | None:
        """Return the state of the data module, which releases since 1.6 saved under its class's name."""
        state = checkpoint.get(type(data).__qualname__)
        return state if isinstance(state, dict) else None

    def callback_states(self, checkpoint: dict[str, Any], run: Run) -> dict[str, dict[str, Any]]:
        """Return the states that today's callbacks can take."""
        from camshaft.compat.checkpoints.callback_states import callback_states

        saved = {**checkpoint, "callbacks": {**checkpoint["callbacks"], **self.states_apart}}
        states, self._left_out = callback_states(saved, run.callbacks)
        return states

    def training(self, checkpoint: dict[str, Any], run: Run) -> dict[str, Any]:
        """Return states for schedulers, and settle the progress by the data; warn of assumptions. Collective."""
        trainer = self.trainer
        self.progress = progress = settled(
            self.progress, checkpoint, trainer.num_training_batches, trainer.accumulate_grad_batches
        )
        elapsed = trainer.fit_loop.progress.elapsed_seconds
        trainer.fit_loop.progress.load_state_dict({**progress.state_dict(), "elapsed_seconds": elapsed})
        run.epoch = progress.num_epochs
        checkpoint["rng"] = random_state(trainer.fit_loop.data.generators)  # files have none: that of now, to go on
        # before 0.7 schedulers were given the index of the epoch that was over, so the first step changed nothing
        self._scheduler_lag = 2 if checkpoint_release(checkpoint) == UNVERSIONED else 1
        schedulers, added = _scheduler_states(checkpoint, trainer)
        if self.has_average:
            schedulers = [_of_averaging(state) if "_step_count" in state else state for state in schedulers[:1]]
        warn_user(_summary(checkpoint, progress, self._left_out, added))
        return {**checkpoint, "lr_schedulers": schedulers}

    def finish(self, run: Run) -> None:
        """Step the schedulers that releases stepped after they had saved the end of an epoch."""
        if self.progress.is_repeated:
            return
        num_epochs = self.progress.num_epochs
        for config in self.trainer.lr_scheduler_configs:
            scheduler, num_due = config.scheduler, num_epochs // config.frequency
            is_plain = config.interval == "epoch" and not isinstance(scheduler, ReduceLROnPlateau)
            if not is_plain or num_epochs % config.frequency:
                continue
            if self.has_average and isinstance(scheduler, SWALR):
                continue  # it counts from where averaging began; the callback makes the steps that it lacks
            if num_due - self._scheduler_lag <= scheduler.last_epoch < num_due:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")  # it was the other run's
                    scheduler.step()


def unwrapped(saved: Mapping[str, Any], module: nn.Module) -> Mapping[str, Any]:
    """Return weights under a module's names, if they differ from these by the name of a wrapper alone.

    Such names are "module.", "model.module." and "_forward_module." at the start (of parallel wrappers), and
    "_orig_mod." anywhere (of compiled modules). Unless all names are the module's without it, they stay as they are.

    Args:
        saved: The weights.
        module: The module that is to take them.
    """
    own = set(module.state_dict())
    if own == set(saved):
        return saved
    renamed = {
        wrapper: {name: name.removeprefix(wrapper) for name in saved if name.startswith(wrapper)}
        for wrapper in _PREFIXES
    }
    renamed[_COMPILED] = {name: name.replace(_COMPILED, "") for name in saved}
    for wrapper, names in renamed.items():
        if len(own) == len(names) == len(saved) and set(names.values()) == own:
            warn_user(
                f"The names of the checkpoint's weights have {wrapper!r} in them: it is left out. Save the weights of "
                "the module itself, not of its wrapper."
            )
            return {names[name]: value for name, value in saved.items()}
    return saved


def _scaler_of(checkpoint: Mapping[str, Any]) -> dict[str, Any] | None:
    for key in _SCALER_KEYS:
        state = checkpoint.get(key)
        if isinstance(state, dict) and "scale" in state:
            return state
    apex = checkpoint.get("amp_scaling_state")
    first = apex.get("loss_scaler0") if isinstance(apex, dict) else None
    if not isinstance(first, dict) or "loss_scale" not in first:
        return None
    fixed = {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}
    return {"scale": float(first["loss_scale"]), "_growth_tracker": int(first.get("unskipped", 0)), **fixed}


def _scheduler_states(checkpoint: Mapping[str, Any], trainer: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Return states for today's schedulers, and the names of those without a saved state.

    Releases before 0.7 did not save schedulers that monitor a value; torch before 1.4 kept no latest rates.
    """
    saved = list(checkpoint["lr_schedulers"])
    schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
    unsaved = [scheduler for scheduler in schedulers if isinstance(scheduler, ReduceLROnPlateau)]
    added: list[str] = []
    if checkpoint_release(checkpoint) == UNVERSIONED and unsaved and len(saved) == len(schedulers) - len(unsaved):
        for idx, scheduler in enumerate(schedulers):
            if scheduler in unsaved:
                saved.insert(idx, scheduler.state_dict())
                added.append(type(scheduler).__name__)
    states = []
    for scheduler, state in zip(schedulers, saved, strict=False):
        idxs = [idx for idx, one in enumerate(trainer.optimizers) if one is getattr(scheduler, "optimizer", None)]
        if "_last_lr" not in state and idxs and idxs[0] < len(checkpoint["optimizer_states"]):
            groups = checkpoint["optimizer_states"][idxs[0]]["param_groups"]
            state = {**state, "_last_lr": [group["lr"] for group in groups]}
        states.append(state)
    return [*states, *saved[len(states) :]], added


def _of_averaging(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of SWALR, which releases counted from `max_epochs`, and torch saved with a function."""
    kept = {name: value for name, value in state.items() if not name.endswith("anneal_func")}
    return kept | {"last_epoch": state["_step_count"] - 1}


def _summary(
    checkpoint: Mapping[str, Any], progress: EarlierProgress, left_out: Sequence[str], added: Sequence[str]
) -> str:
    version = checkpoint.get(VERSION_KEY)
    release = "an earlier release" if version is None else f"release {version}"
    text = (
        f"The checkpoint is of {release}: training goes on after {progress.num_epochs} epochs and "
        f"{progress.num_updates} updates, with the random numbers of now."
    )
    further = [f"What callbacks remembered is left out for {', '.join(left_out)}."] if left_out else []
    further += [f"It holds no state of {', '.join(added)}, which begins anew."] if added else []
    return " ".join([text, *progress.notes, *further])


def constructor_arguments(cls: type, checkpoint: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a class's constructor arguments from the hyperparameters of a checkpoint of an earlier release.

    Those that were one argument (`hparams`, or whatever name the checkpoint tells) are one again, readable as items and
    as attributes; a namespace before 0.8 is one. Others are keywords, as far as the constructor takes them.

    Args:
        cls: The class.
        checkpoint: The checkpoint.
        given: Arguments that count before those that were saved; those of the constructor, else values in the one.
    """
    keys = ("hparams", "module_arguments", HYPER_PARAMETERS_KEY)  # the second between 0.7 and 0.8
    saved = {name: value for key in keys for name, value in _dict(checkpoint, key).items()}
    parameters = parameters_of(cls)
    name, configuration = _single(cls, checkpoint, saved), checkpoint.get(HYPER_PARAMETERS_KEY)
    if not isinstance(configuration, MutableMapping) or isinstance(configuration, dict):
        configuration = None  # one of OmegaConf is in a file that was trusted, and stays one
    if name is None:
        values = {key: _readable(value) for key, value in saved.items()} if configuration is None else configuration
        return {**accepted_by(cls, values), **given}
    inner = {key: value for key, value in given.items() if key not in parameters and not takes_any(cls)}
    outer = {key: value for key, value in given.items() if key not in inner}
    if name in outer:
        return {**outer, **inner}
    if configuration is not None:
        configuration = copy.copy(configuration)
        configuration.update(inner)
        return {name: configuration, **outer}
    values = {key: _readable(value) for key, value in {**saved, **inner}.items()}
    is_namespace = HYPER_PARAMETERS_KEY not in checkpoint and checkpoint.get("hparams_type", "Namespace") == "Namespace"
    return {name: Namespace(**values) if is_namespace else Hyperparameters(values), **outer}


def _single(cls: type, checkpoint: Mapping[str, Any], saved: Mapping[str, Any]) -> str | None:
    """Return the name of the argument that takes all hyperparameters; None if each is an argument of its own."""
    parameters = parameters_of(cls)
    told = checkpoint.get("hparams_name")
    if told in parameters:
        return str(told)
    if not saved or told is not None:
        return None
    if "hparams" in parameters:
        return "hparams"
    if "hparams" not in checkpoint and VERSION_KEY in checkpoint:
        return None
    first = next(iter(parameters.values()), None)
    is_required = first is not None and first.kind is first.POSITIONAL_OR_KEYWORD and first.default is first.empty
    return first.name if first is not None and is_required and first.name not in saved else None


def _dict(checkpoint: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = checkpoint.get(key)
    value = vars(value) if isinstance(value, Namespace) else value  # of a file that was trusted
    return dict(value) if isinstance(value, Mapping) else {}


def _readable(value: Any) -> Any:
    """Return containers in which a namespace can be saved again as hyperparameters."""
    if isinstance(value, NamedValues):
        return Hyperparameters({key: _readable(item) for key, item in value.items()})
    if type(value) is dict:
        return {key: _readable(item) for key, item in value.items()}
    return type(value)(_readable(item) for item in value) if type(value) in (list, tuple) else value


VERSION_KEY = "pytorch-lightning_version"
"""The key of the release that saved a checkpoint."""

UNVERSIONED = (0, 7)
"""Stands for every release before 0.8: their files do not say which one it was."""


@attrs.frozen
class EarlierProgress:
    """The counters from which training resumes.

    Attributes:
        num_epochs: Epochs that are over.
        num_updates: Optimizer updates.
        num_batches: Training batches.
        is_sure: Whether the file says by itself if it was saved inside of an epoch.
        notes: What was assumed, in sentences.
        is_repeated: Whether the next epoch had begun when the file was saved.
    """

    num_epochs: int
    num_updates: int
    num_batches: int
    is_sure: bool = False
    notes: tuple[str, ...] = ()
    is_repeated: bool = False

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a fit with this progress, at the end of an epoch."""
        epochs, batches = (Counters(num, num, num, num) for num in (self.num_epochs, self.num_batches))
        return FitProgress(global_step=self.num_updates, epochs=epochs, earlier_batches=batches).state_dict()


def checkpoint_release(checkpoint: Mapping[str, Any]) -> tuple[int, int]:
    """Return the release that saved a checkpoint, such as (1, 5); `UNVERSIONED` for all before 0.8."""
    found = re.match(r"(\d+)\.(\d+)", str(checkpoint.get(VERSION_KEY, "")))
    return (int(found[1]), int(found[2])) if found else UNVERSIONED


def read_progress(checkpoint: Mapping[str, Any], accumulate_grad_batches: int) -> EarlierProgress:
    """Return the progress by the checkpoint alone, before the data is known.

    Releases before 0.7 saved the index of the epoch and the batches before the latest; 0.7 to 1.5 the number of epochs
    and of updates, also inside of epochs; later ones the state of their loops, and the steps of all optimizers.

    Args:
        checkpoint: The checkpoint.
        accumulate_grad_batches: Batches whose gradients make one update, in the run that goes on.
    """
    epoch, step = int(checkpoint["epoch"]), int(checkpoint["global_step"])
    by_these = EarlierProgress(epoch, step, step * accumulate_grad_batches)
    if checkpoint_release(checkpoint) < (1, 6):
        return by_these
    try:
        fit = checkpoint["loops"]["fit_loop"]
        epochs, batches = fit["epoch_progress"]["current"], fit["epoch_loop.batch_progress"]
        total, current = int(batches["total"]["ready"]), batches["current"]
        is_last, num_over = bool(batches["is_last_batch"]), int(epochs["completed"])
        is_inside = int(epochs["ready"]) > num_over
        all_trained = is_last and int(current["processed"]) >= int(current["ready"])
        in_epoch = int(current["ready"])
    except (KeyError, TypeError):
        return by_these
    updates, notes = _updates(checkpoint, step, total, accumulate_grad_batches)
    progress = EarlierProgress(num_over, updates, total, is_sure=True, notes=notes)
    if not is_inside or in_epoch == 0:
        return progress
    if all_trained:
        return attrs.evolve(progress, num_epochs=num_over + 1)
    return _inside(progress, num_over, total - in_epoch)


def settled(
    progress: EarlierProgress, checkpoint: Mapping[str, Any], num_batches: int | float, accumulate_grad_batches: int
) -> EarlierProgress:
    """Return the progress by the number of batches of an epoch, for files without their position in it.

    Args:
        progress: What was read.
        checkpoint: The checkpoint.
        num_batches: Batches of a training epoch; infinite if unknown.
        accumulate_grad_batches: As in `read_progress`.
    """
    if progress.is_sure:
        return progress
    if math.isinf(num_batches) or num_batches < 1:
        note = "As the length of an epoch is not known, the checkpoint is taken to be of the end of one."
        return attrs.evolve(progress, notes=(*progress.notes, note))
    per_epoch = int(num_batches)
    if checkpoint_release(checkpoint) == UNVERSIONED:
        found = _of_unversioned(progress, checkpoint, per_epoch, accumulate_grad_batches)
        if found is not None:
            return found
    epoch, step = progress.num_epochs, progress.num_updates
    updates_per_epoch = max(per_epoch // accumulate_grad_batches, 1)
    if epoch > 0 and (epoch - 1) * updates_per_epoch <= step < epoch * updates_per_epoch - 1:
        return _inside(progress, epoch - 1, (epoch - 1) * per_epoch)
    return attrs.evolve(progress, num_batches=epoch * per_epoch)


def _of_unversioned(
    progress: EarlierProgress, checkpoint: Mapping[str, Any], per_epoch: int, accumulate: int
) -> EarlierProgress | None:
    """Return the progress of a release before 0.7, which saved before counting the latest batch; None for 0.7."""
    epoch, num_batches = progress.num_epochs, progress.num_updates + 1
    if "hparams_type" in checkpoint or "native_amp_scaling_state" in checkpoint or num_batches <= epoch * per_epoch + 1:
        return None
    counted = attrs.evolve(progress, num_updates=max(num_batches // accumulate, 1))
    if num_batches < (epoch + 1) * per_epoch:
        return _inside(counted, epoch, epoch * per_epoch)
    note = "`epoch` is taken as the index of an epoch that was over, `global_step` as that of its last batch."
    return attrs.evolve(counted, num_epochs=epoch + 1, num_batches=num_batches, notes=(*counted.notes, note))


def _inside(progress: EarlierProgress, epoch: int, num_batches: int) -> EarlierProgress:
    note = (
        f"It was saved inside of epoch {epoch}, and has no place in the data: that epoch begins anew, so some of its "
        "batches are trained on once more. A checkpoint of an epoch's end goes on without that."
    )
    notes = (*progress.notes, note)
    return attrs.evolve(progress, num_epochs=epoch, num_batches=num_batches, notes=notes, is_repeated=True)


def _updates(
    checkpoint: Mapping[str, Any], step: int, num_batches: int, accumulate: int
) -> tuple[int, tuple[str, ...]]:
    """Return the number of updates, with notes: releases since 1.6 counted the steps of each optimizer."""
    num_optimizers = len(checkpoint.get("optimizer_states", ()))
    if num_optimizers < 2 or (step <= num_batches and accumulate == 1):
        return step, ()
    note = (
        f"`global_step` ({step}) is taken as the steps of {num_optimizers} optimizers that stepped equally often: "
        f"{step // num_optimizers} updates."
    )
    return step // num_optimizers, (note,)
