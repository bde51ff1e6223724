"""The checkpoint formats of Lightning, from 0.4 on."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.swa_utils import SWALR

from camshaft.compat.checkpoints.progress import (
    UNVERSIONED,
    EarlierProgress,
    checkpoint_release,
    read_progress,
    settled,
)
from camshaft.hooks_core.messages import warn_user
from camshaft.loops import Run
from camshaft.loops.fit.resume import ADAPTER_KEY
from camshaft.loops.state.random_state import random_state
from camshaft.trainer.checkpoints import JOB_KEY

_SCALER_KEYS = (
    "native_amp_scaling_state",
    "NativeMixedPrecisionPlugin",
    "MixedPrecisionPlugin",
    "MixedPrecision",
)
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
        return "pytorch-lightning_version" in checkpoint or is_old

    def for_run(self, checkpoint: dict[str, Any], trainer: Any) -> dict[str, Any]:
        """Return the checkpoint with the entries that a run of today reads.

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
        return {
            **checkpoint,
            "callbacks": states,
            **average,
            "loops": {**checkpoint.get("loops", {}), "fit": progress.state_dict(), "validate": validation},
            "fit": {"metrics": None, "metric_states": {}},
            "rng": random_state(),
            "strategy": {} if scaler is None else {"gradient_scaler": scaler},
            ADAPTER_KEY: ReleaseAdapter(trainer, progress, apart, bool(average)),
        }

    def constructor_arguments(
        self, cls: type, checkpoint: Mapping[str, Any], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the constructor arguments of a class, by the rules of the release."""
        from camshaft.compat.checkpoints.hyperparameters import constructor_arguments  # seldom needed

        return constructor_arguments(cls, checkpoint, given)

    def weights(self, saved: Mapping[str, Any], module: nn.Module) -> Mapping[str, Any]:
        """Return the weights, without prefixes of wrappers; see `unwrapped`."""
        return unwrapped(saved, module)

    def data_state(self, checkpoint: Mapping[str, Any], cls: type) -> dict[str, Any] | None:
        """Return the state of the data module, which releases since 1.6 saved under its class's name."""
        return checkpoint.get(cls.__qualname__)


@attrs.define
class ReleaseAdapter:
    """The adapter of a checkpoint of an earlier release to a run; see `CheckpointAdapter`.

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

    def weights(self, saved: Mapping[str, Any], module: nn.Module) -> Mapping[str, Any]:
        """Return the weights without prefixes of wrappers; see `unwrapped`."""
        return unwrapped(saved, module, tell=self.trainer.is_global_zero)

    def data_state(self, checkpoint: dict[str, Any], data: object) -> dict[str, Any]:
        """Return the state of the data module, which releases since 1.6 saved under its class's name."""
        state = checkpoint.get(type(data).__qualname__)
        return {"data": state} if isinstance(state, dict) else {}

    def training(self, checkpoint: dict[str, Any], run: Run) -> dict[str, Any]:
        """Return states for callbacks and schedulers, and settle the progress by the data; warn of assumptions.

        Collective.
        """
        from camshaft.compat.checkpoints.callback_states import callback_states

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
        saved = {**checkpoint, "callbacks": {**checkpoint["callbacks"], **self.states_apart}}
        states, left_out = callback_states(saved, run.callbacks)
        schedulers, added = _scheduler_states(checkpoint, trainer)
        if self.has_average:
            schedulers = [_of_averaging(state) if "_step_count" in state else state for state in schedulers[:1]]
        if trainer.is_global_zero:
            warn_user(_summary(checkpoint, progress, left_out, added))
        return {"callbacks": states, "lr_schedulers": schedulers}

    def finish(self, run: Run) -> None:
        """Step the schedulers that releases stepped after they had saved the end of an epoch."""
        if self.progress.is_repeated:
            return
        for config in self.trainer.lr_scheduler_configs:
            scheduler, num_epochs = config.scheduler, self.progress.num_epochs
            if self.has_average and isinstance(scheduler, SWALR):
                continue  # it counts from where averaging began; the callback makes the steps that it lacks
            is_plain = config.interval == "epoch" and not isinstance(scheduler, ReduceLROnPlateau)
            if not is_plain or num_epochs % config.frequency:
                continue
            num_due = num_epochs // config.frequency
            if num_due - self._scheduler_lag <= scheduler.last_epoch < num_due:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")  # it was the other run's
                    scheduler.step()


def unwrapped(saved: Mapping[str, Any], module: nn.Module, *, tell: bool = True) -> Mapping[str, Any]:
    """Return weights under a module's names, if they differ from these by the name of a wrapper alone.

    Such names are "module.", "model.module." and "_forward_module." at the start (of parallel wrappers), and
    "_orig_mod." anywhere (of compiled modules). Unless all names are the module's without it, they stay as they are.

    Args:
        saved: The weights.
        module: The module that is to take them.
        tell: Whether to warn of a change.
    """
    own = set(module.state_dict())
    if own == set(saved):
        return saved
    candidates = [
        {name: name.removeprefix(prefix) for name in saved if name.startswith(prefix)} for prefix in _PREFIXES
    ]
    candidates.append({name: name.replace(_COMPILED, "") for name in saved})
    for names, wrapper in zip(candidates, (*_PREFIXES, _COMPILED), strict=True):
        if len(names) == len(saved) and set(names.values()) == own and len(own) == len(names):
            if tell:
                warn_user(f"The names of the checkpoint's weights have {wrapper!r} in them: it is left out.")
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
    version = checkpoint.get("pytorch-lightning_version")
    sentences = [
        f"The checkpoint is of {'an earlier release' if version is None else f'release {version}'}: training goes on "
        f"after {progress.num_epochs} epochs and {progress.num_updates} updates, with the random numbers of now.",
        *progress.notes,
    ]
    if left_out:
        sentences.append(f"What callbacks remembered is left out for {', '.join(left_out)}.")
    if added:
        sentences.append(f"It holds no state of {', '.join(added)}, which begins anew.")
    return " ".join(sentences)
