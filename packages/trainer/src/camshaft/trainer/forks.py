"""Verbs in forks of this process, one for each rank, as in a notebook; their outcome comes back to its objects."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections import deque
from collections.abc import Mapping
from enum import Enum
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor, nn

from camshaft.hooks_core import is_overridden
from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.spec import Verb
from camshaft.hooks_core.support.messages import warn_user
from camshaft.loops import Run, SaveRequest
from camshaft.loops.state.random_state import random_state, restore_random_state
from camshaft.strategies import write_checkpoint
from camshaft.trainer.checkpoints import checkpoint_of
from camshaft.trainer.running import attach_module, choose_data, choose_module, run_of

_PLAIN = (bool, int, float, complex, str, bytes, PurePath, Enum, type(None), torch.device, torch.dtype)
_OF_VERB = ("status", "log_dir", "ckpt_path", "chosen_ckpt_path", "is_continuing")
_LOADERS = {"fit": {"train": "train_dataloaders", "validate": "val_dataloaders"}}
"""Arguments that are loaders, by stage; of other verbs it is `dataloaders`."""


def run_in_forks(trainer: Any, verb: Verb, arguments: Mapping[str, Any]) -> Any:
    """Run a verb in a fork of this process for each rank, and take over what became of rank 0.

    Afterwards, also after an error or an interrupt, this process has what it would have as rank 0: weights, metrics,
    progress, folder, random numbers, states of callbacks and data module, and attributes of these and of the module
    that hold plain values. What else the ranks have changed in objects ended with them, optimizers too.

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
            save = partial(_save_here, trainer)
            run = run_of(trainer, verb, module, data=data, loaders=given_loaders, write_checkpoint=save)
            run.forget_saves()
            if path.exists():
                # made by a fork of this process, in a folder of this user alone
                _take_over(trainer, run, torch.load(path, map_location="cpu", weights_only=False))


def _run_as_rank(trainer: Any, verb: Verb, given: Mapping[str, Any], path: Path) -> Any:
    """Run a verb in the fork of a rank, and write the outcome of rank 0 to a file."""
    trainer.loggers = trainer.loggers  # those of other ranks write nothing
    callbacks = list(trainer.callbacks)  # without those that the module will add, which this process's parent lacks
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
                torch.save(_outcome_of(trainer, run, callbacks) | {"weights": weights}, fresh)
                os.replace(fresh, path)


def _weights_of(module: nn.Module, *, gathers: bool) -> dict[str, Any] | None:
    """Return the whole weights of a module; None if they are sharded and cannot be gathered. Collective if sharded."""
    state = module.state_dict()
    sharded = [name for name, value in state.items() if hasattr(value, "full_tensor")]
    if sharded and not gathers:
        return None
    return state | {name: state[name].full_tensor() for name in sharded}


def _outcome_of(trainer: Any, run: Run, callbacks: list[Any]) -> dict[str, Any]:
    """Return what the process that forked this rank takes over, beside weights."""
    numbers = random_state()
    numbers.pop("devices", None)  # which the process that forks must not touch
    return {
        "verb": {name: getattr(trainer.verb_state, name) for name in _OF_VERB},
        "progress": trainer.fit_loop.progress.state_dict(),
        "should_stop": trainer.should_stop,
        "metrics": None if trainer.metric_log is None else trainer.metric_log.published(),
        "numbers": numbers,
        "module": {name: _plain_attributes(part) for name, part in run.module.named_modules()},
        "others": [
            (_state_of(one), _plain_attributes(one, private=one is not run.data)) for one in (run.data, *callbacks)
        ],
    }


def _state_of(owner: Any) -> Any:
    """Return the state of a callback or data module; None if it has none that can be pickled."""
    save = None if owner is None else implementation(owner, "state_dict")
    state = None if save is None else save()
    return state if _is_portable(state, type(owner).__qualname__) else None


def _plain_attributes(owner: Any, *, private: bool = False) -> dict[str, Any]:
    """Return the attributes that hold plain values, of which copies are as good."""
    own = getattr(owner, "__dict__", {}).items()
    return {name: value for name, value in own if (private or not name.startswith("_")) and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(one) for item in value.items() for one in item)
    if isinstance(value, list | tuple | set | frozenset | deque):
        return all(map(_is_plain, value))
    return type(value) is Tensor or isinstance(value, _PLAIN)


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
    _load_weights(module, outcome["weights"])
    parts = dict(module.named_modules())
    for name, attributes in outcome["module"].items():
        if name in parts:
            _set_attributes(parts[name], attributes)
    for owner, (of_owner, attributes) in zip((run.data, *run.callbacks), outcome["others"], strict=True):
        load = None if of_owner is None else implementation(owner, "load_state_dict")
        if load is not None:
            load(of_owner)
        _set_attributes(owner, attributes)
    restore_random_state(outcome["numbers"])


def _set_attributes(owner: Any, attributes: dict[str, Any]) -> None:
    """Set attributes, past the code of properties; lists and dictionaries stay the ones that others know."""
    for name, value in attributes.items():
        known = vars(owner).get(name)
        if type(known) is type(value) is list:
            known[:] = value
        elif type(known) is type(value) is dict:
            known.clear()
            known.update(value)
        else:
            vars(owner)[name] = value


def _load_weights(module: nn.Module, weights: dict[str, Any] | None) -> None:
    if weights is None:
        warn_user("The weights do not come back from ranks that were sharded when they failed. Load a checkpoint.")
        return
    if not weights.keys() <= module.state_dict().keys() and is_overridden(module, "configure_model"):
        configure: Any = module.configure_model
        configure()
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
