"""The trainer's arguments of Lightning 2.6 and ours: their order, positions, defaults of the environment, callbacks of
installed packages."""

from __future__ import annotations

import inspect
import logging
import os
from ast import literal_eval
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.registered_names import registered
from camshaft.strategies import is_rank_zero
from camshaft.trainer.configuration import listed

_NAMES = """
    accelerator strategy devices num_nodes precision logger callbacks fast_dev_run max_epochs min_epochs max_steps
    min_steps max_time limit_train_batches limit_val_batches limit_test_batches limit_predict_batches
    overfit_batches val_check_interval check_val_every_n_epoch num_sanity_val_steps log_every_n_steps
    enable_checkpointing enable_progress_bar enable_model_summary accumulate_grad_batches gradient_clip_val
    gradient_clip_algorithm deterministic benchmark inference_mode use_distributed_sampler profiler detect_anomaly
    barebones plugins sync_batchnorm reload_dataloaders_every_n_epochs default_root_dir enable_autolog_hparams
    model_registry"""
ORDER = _NAMES.split()
"""Lightning's arguments in its order, in which they may be passed by position."""

_LIMITS = frozenset(name for name in ORDER if name.startswith("limit_")) | {"overfit_batches", "val_check_interval"}
_COUNTS = _LIMITS | {"num_sanity_val_steps", "log_every_n_steps", "check_val_every_n_epoch", "accumulate_grad_batches"}
_OF_LIGHTNING_ALONE = ("plugins", "model_registry")
_ACCELERATORS = "camshaft.compat.names.plugins.accelerators"
"""The module of kinds of devices, imported where one has to be chosen."""

_CALLBACKS_GROUP = "lightning.pytorch.callbacks_factory"


def signature_of(ours: inspect.Signature) -> inspect.Signature:
    """Return the signature of the constructor: Lightning's arguments in its order, then those that are only ours.

    Args:
        ours: The signature of our own, with `self`.
    """
    parameters = dict(ours.parameters)
    owner = parameters.pop("self")
    for name in _OF_LIGHTNING_ALONE:
        parameters[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Any)
    known = [parameters.pop(name).replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ORDER]
    return ours.replace(parameters=[owner, *known, *parameters.values()])


def by_name(positional: Sequence[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments that were passed by position in Lightning's order, by their names.

    Args:
        positional: These arguments.
        given: Arguments that were passed by name.

    Raises:
        TypeError: If the first is none of Lightning 2.x, there are too many, or one was passed by name, too.
    """
    first = positional[0] if positional else ""
    if not isinstance(first, str) and not hasattr(first, "auto_device_count"):
        rule, action = "an accelerator, as the first by position", "Write `logger=...`, or the name of what it is."
        raise TypeError(must_be("the first argument", rule, first, "Trainer", action))
    if len(positional) > len(ORDER):
        rule = f"at most {len(ORDER)} by position"
        raise TypeError(must_be("arguments", rule, len(positional), "Trainer", "Pass them by name."))
    named = dict(zip(ORDER, positional, strict=False))
    for name in named.keys() & given.keys():
        raise TypeError(must_be(name, "passed once", given[name], "Trainer", "It is passed by position, too."))
    return named


def from_environment(class_name: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the arguments that variables such as `PL_TRAINER_MAX_EPOCHS` set: Python literals, or else text.

    Args:
        class_name: The class of the trainer, in the middle of the variables' names.
        names: The arguments.
    """
    found = {}
    for name in names:
        text = os.environ.get(f"PL_{class_name.upper()}_{name.upper()}", "")
        if text:
            found[name] = text
            with suppress(ValueError, SyntaxError):
                found[name] = literal_eval(text)
    return found


def flags_as_counts(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with 0 and 1 for flags that stand for counts, as in `limit_val_batches=False`."""
    return {name: int(value) if name in _COUNTS and isinstance(value, bool) else value for name, value in given.items()}


def log_meaning_of_one(given: Mapping[str, Any]) -> None:
    """Log what a limit of 1 or of 1.0 stands for, which are easily mistaken for each other.

    Args:
        given: The arguments that were passed.
    """
    for name, value in given.items():
        if name not in _LIMITS or isinstance(value, bool) or value != 1:
            continue
        is_share = isinstance(value, float)
        meaning = "100% of the batches are used" if is_share else "1 batch is used"
        if name == "val_check_interval":
            meaning = "validation runs at the end of the epoch" if is_share else "validation runs after every batch"
        if is_rank_zero():
            logging.getLogger("pytorch_lightning").info(f"`Trainer({name}={value})`: {meaning}.")


def precision_of(arguments: Mapping[str, Any]) -> Any:
    """Return the precision of translated arguments: bfloat16 for mixed float16 on a CPU, as in 2.x, with a warning.

    A strategy object has a precision of its own, and `ScaledPrecision("cpu")` is taken as it is.
    """
    precision = arguments.get("precision")
    if str(precision) not in ("16", "16-mixed") or not isinstance(arguments.get("strategy", "auto"), str):
        return precision
    accelerator = arguments.get("accelerator", "auto")
    if accelerator == "auto":
        accelerator = import_module(_ACCELERATORS).choose_accelerator("auto").name()
    if accelerator != "cpu":
        return precision
    warn_user(
        f"Trainer: precision={precision!r} is taken as 'bf16-mixed' on a CPU, as in Lightning 2.x. "
        "Pass precision=ScaledPrecision('cpu') of `camshaft.strategies.precision` for float16."
    )
    return "bf16-mixed"


def with_timer(callbacks: Any, max_time: Any) -> Any:
    """Return the callbacks with a `Timer` that tells how much of `max_time` is left, unless they have one."""
    if max_time is None:
        return callbacks
    from camshaft.callbacks import Timer  # rarely needed

    if any(isinstance(callback, Timer) for callback in listed(callbacks)):
        return callbacks
    return [*listed(callbacks), Timer(max_time, verbose=False)]  # the trainer says itself why it stopped


def callbacks_of_packages() -> list[Any]:
    """Return the callbacks that installed packages give to every trainer, by an entry point of Lightning."""
    callbacks: list[Any] = []
    for entry in registered(_CALLBACKS_GROUP):
        made = entry.load()()
        callbacks += made if isinstance(made, list) else [made]
    return callbacks
