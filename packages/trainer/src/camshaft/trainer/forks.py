"""Verbs in forks of this process, one for each rank, as in a notebook; their outcome comes back to its objects."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from camshaft.hooks_core import is_overridden
from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.spec import Verb
from camshaft.hooks_core.support.messages import warn_user
from camshaft.loops import Run, SaveRequest
from camshaft.loops.fit.resume import restore_callbacks, restore_data_module
from camshaft.loops.state.callback_state import state_key
from camshaft.loops.state.random_state import random_state, restore_random_state
from camshaft.strategies import write_checkpoint
from camshaft.trainer.checkpoints import checkpoint_of
from camshaft.trainer.running import attach_module, choose_data, choose_module

_OF_VERB = ("status", "log_dir", "ckpt_path", "chosen_ckpt_path", "is_continuing")
_LOADERS = {"fit": {"train": "train_dataloaders", "validate": "val_dataloaders"}}
"""Arguments that are loaders, by stage; of other verbs it is `dataloaders`."""


def run_in_forks(trainer: Any, verb: Verb, arguments: Mapping[str, Any]) -> Any:
    """Run a verb in a fork of this process for each rank, and take over what became of rank 0.

    Afterwards, also after an error or an interrupt, the module has the weights of rank 0, and the trainer its metrics,
    progress, folder, states of callbacks and data module, and random numbers, as if this process had been rank 0. What
    else the ranks have changed in objects ended with them, optimizers too.

    Args:
        trainer: The trainer.
        verb: The verb.
        arguments: Its arguments, and perhaps "self".

    Returns:
        What the verb returned in rank 0.

    Raises:
        BaseException: As the verb, or `ParallelStrategy.run_in_forks`.
    """
    given = {name: value for name, value in arguments.items() if name != "self"}
    loaders = {stage: given[name] for stage, name in _LOADERS.get(verb, {verb: "dataloaders"}).items()}
    module = choose_module(verb, given["model"], trainer.model)
    if given["model"] is not None:
        given["model"] = module  # of a module that `torch.compile` wrapped, the module itself
    previous = trainer.datamodule if module is trainer.model else None
    given_loaders, data = choose_data(verb, loaders, given["datamodule"], previous)
    trainer.find_log_dir()  # a logger numbers its run here, so that a later verb goes on with it
    with tempfile.TemporaryDirectory(prefix="camshaft-") as folder:
        path = Path(folder, "rank_0.pt")
        try:
            return trainer.strategy.run_in_forks(partial(_run_as_rank, trainer, verb, given, path))
        finally:
            run = Run(
                verb=verb,
                module=module,
                strategy=trainer.strategy,
                trainer=trainer,
                callbacks=trainer.callbacks,
                data=data,
                loaders=given_loaders,
                write_checkpoint=partial(_save_here, trainer),
                is_connected=True,
            )
            run.forget_saves()
            if path.exists():
                # made by a fork of this process, in a folder of this user alone
                _take_over(trainer, run, torch.load(path, map_location="cpu", weights_only=False))


def _run_as_rank(trainer: Any, verb: Verb, given: Mapping[str, Any], path: Path) -> Any:
    """Run a verb in the fork of a rank, and write the outcome of rank 0 to a file."""
    trainer.loggers = trainer.loggers  # those of other ranks write nothing
    has_ended = False
    try:
        result = getattr(trainer, verb)(**given)
        has_ended = True
        return result
    finally:
        run = trainer.current_run
        if run is not None:
            # other ranks may not join a collective after an error
            weights = _weights_of(run.module, gathers=has_ended)
            if trainer.is_global_zero:
                fresh = path.with_suffix(".writing")
                torch.save(_outcome_of(trainer, run) | {"state_dict": weights}, fresh)
                os.replace(fresh, path)


def _weights_of(module: nn.Module, *, gathers: bool) -> dict[str, Any] | None:
    """Return the whole weights of a module; None if they are sharded and cannot be gathered. Collective if sharded."""
    state = module.state_dict()
    sharded = [name for name, value in state.items() if hasattr(value, "full_tensor")]
    if sharded and not gathers:
        return None
    return state | {name: state[name].full_tensor() for name in sharded}


def _outcome_of(trainer: Any, run: Run) -> dict[str, Any]:
    """Return what the process that forked this rank takes over, beside weights."""
    callbacks = {}
    for callback in run.callbacks:
        save = implementation(callback, "state_dict")
        if save is not None and _is_portable(state := save(), type(callback).__qualname__):
            callbacks[state_key(callback)] = state
    save_data = implementation(run.data, "state_dict") if run.data is not None else None
    numbers = random_state()
    numbers.pop("devices", None)  # which the process that forks must not touch
    outcome = {
        "verb": {name: getattr(trainer.verb_state, name) for name in _OF_VERB},
        "progress": trainer.fit_loop.progress.state_dict(),
        "should_stop": trainer.should_stop,
        "metrics": None if trainer.metric_log is None else trainer.metric_log.published(),
        "callbacks": callbacks,
        "numbers": numbers,
    }
    if save_data is not None and _is_portable(state := save_data(), type(run.data).__qualname__):
        outcome["data"] = state
    return outcome


def _is_portable(state: Any, owner: str) -> bool:
    """Return whether a state can be pickled; warn if not."""
    try:
        pickle.dumps(state)
    except Exception as error:
        warn_user(
            f"The state of {owner} does not come back from the ranks: {error}. Let its `state_dict` hold plain values."
        )
        return False
    return True


def _take_over(trainer: Any, run: Run, outcome: dict[str, Any]) -> None:
    """Give the objects of this process what became of rank 0."""
    state, module = trainer.verb_state, run.module
    attach_module(module, trainer, trainer.metric_log)
    state.run = run
    if run.verb == "fit":
        state.fitted = module
    for name, value in outcome["verb"].items():
        setattr(state, name, value)
    trainer.fit_loop.progress.load_state_dict(outcome["progress"])
    trainer.should_stop = outcome["should_stop"]
    run.epoch = trainer.fit_loop.current_epoch
    if trainer.metric_log is not None:
        trainer.metric_log.publish(outcome["metrics"])
    _load_weights(module, outcome["state_dict"])
    own = {state_key(callback) for callback in run.callbacks}  # without those that the module added in the ranks
    restore_callbacks(run, {"callbacks": {key: one for key, one in outcome["callbacks"].items() if key in own}})
    if "data" in outcome:
        restore_data_module(run, outcome)
    restore_random_state(outcome["numbers"])


def _load_weights(module: nn.Module, weights: dict[str, Any] | None) -> None:
    if weights is None:
        warn_user("The weights do not come back from the ranks, which were sharded when they failed.")
        return
    if not weights.keys() <= module.state_dict().keys() and is_overridden(module, "configure_model"):
        module.configure_model()
    result = module.load_state_dict(weights, strict=False)
    if differing := [*result.missing_keys, *result.unexpected_keys]:
        warn_user(
            f"{len(differing)} weights are either in the ranks or in this process only, such as {differing[0]!r}. "
            "Build them in the constructor or in `configure_model`, or load a checkpoint."
        )


def _save_here(trainer: Any, request: SaveRequest) -> None:
    """Save a checkpoint in the process that forked the ranks, which has no optimizers."""
    if not request.weights_only:
        warn_user(
            f"{request.path!r} holds weights and no states of optimizers, which have ended with the ranks. Let a "
            "ModelCheckpoint save what fit can resume from; pass weights_only=True otherwise."
        )
    state = trainer.verb_state
    was_fitted = state.run.module is state.fitted
    write_checkpoint(checkpoint_of(state.run, trainer.fit_loop, was_fitted=was_fitted, weights_only=True), request.path)
