"""What a trainer is made of, chosen from its constructor's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import camshaft.callbacks as stock  # what it exports is imported when it is asked for
from camshaft.callbacks import EarlyStopping, ModelCheckpoint, RichProgressBar
from camshaft.callbacks.progress.model_summary import ModelSummary
from camshaft.callbacks.progress.progress_bar import ProgressBar
from camshaft.hooks_core import CATALOGUE, Callback
from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.methods import candidates
from camshaft.loops.callback_state import check_state_keys

_WHERE = "Trainer"


def choose_callbacks(
    callbacks: Any,
    *,
    enable_progress_bar: bool | None,
    enable_model_summary: bool | None,
    enable_checkpointing: bool | None,
) -> list[Any]:
    """The callbacks in the order in which they run: those that were passed, then progress bar, summary, checkpoint.

    Each of the three is added unless it is disabled or one of its kind was passed; a model summary by default only
    where there is a progress bar, so that a run can be quiet.

    Raises:
        TypeError: If something is no callback.
        ValueError: If one of its kind was passed although it is disabled, or two that keep a state would keep it under
            the same key.
    """
    chosen = listed(callbacks)
    for callback in chosen:
        _check_callback(callback)
    kinds: tuple[tuple[type, type, bool | None, bool | None, str], ...] = (
        (ProgressBar, RichProgressBar, enable_progress_bar, True, "enable_progress_bar"),
        (ModelSummary, ModelSummary, enable_model_summary, enable_progress_bar, "enable_model_summary"),
        (ModelCheckpoint, ModelCheckpoint, enable_checkpointing, True, "enable_checkpointing"),
    )
    for kind, default, enabled, is_default, argument in kinds:
        is_present = any(isinstance(callback, kind) for callback in chosen)
        if is_present and enabled is False:
            rule = f"true if `callbacks` has a {kind.__name__}"
            raise ValueError(must_be(argument, rule, enabled, _WHERE, "Leave one of the two out."))
        if not is_present and (is_default if enabled is None else enabled) is not False:
            chosen.append(default())
    check_state_keys(chosen, f"{_WHERE}(callbacks=...)")
    return chosen


def switching(
    profiler: Any, deterministic: bool | str | None, benchmark: bool | None, detect_anomaly: bool
) -> list[Callback]:
    """Return the callbacks that do what these arguments of the trainer ask for.

    Raises:
        TypeError, ValueError: If one is none of its values.
    """
    callbacks: list[Callback] = []
    if isinstance(profiler, Callback):
        callbacks.append(profiler)
    elif profiler is True or profiler == "simple":
        callbacks.append(stock.HookTimeline())
    elif profiler == "pytorch":
        callbacks.append(stock.Profiler())
    elif profiler not in (None, False):
        action = "Pass `callbacks=[HookTimeline()]`, or run the script with `python -m cProfile`."
        raise ValueError(
            must_be("profiler", "'simple', 'pytorch' or a callback that measures", profiler, _WHERE, action)
        )
    if deterministic or detect_anomaly or benchmark is not None:
        from camshaft.trainer.torch_switches import TorchSwitches  # seldom needed

        callbacks.append(TorchSwitches(deterministic or None, benchmark, detect_anomaly or None))
    return callbacks


def check_barebones(callbacks: Any, **attached: Any) -> None:
    """Refuse what a trainer with nothing attached cannot have.

    Args:
        callbacks: The callbacks that were passed.
        attached: The arguments that attach something, or need what is attached.

    Raises:
        ValueError: If any asks for something.
    """
    action = "Leave one of the two out."
    for name, value in attached.items():
        if value not in (None, False, 0):
            raise ValueError(must_be(name, "left out with barebones=True", value, _WHERE, action))
    for callback in listed(callbacks):
        if isinstance(callback, (ModelCheckpoint, ProgressBar, ModelSummary, EarlyStopping)):
            rule = f"without {type(callback).__name__}, which needs logged values or files, with barebones=True"
            raise ValueError(must_be("callbacks", rule, callback, _WHERE, action))


def choose_log_interval(log_every_n_steps: Any) -> int:
    """Updates between two entries of step values.

    Raises:
        TypeError, ValueError: If it is no int, or negative.
    """
    if log_every_n_steps is None:
        return 50
    if isinstance(log_every_n_steps, bool) or not isinstance(log_every_n_steps, int):
        action = "Pass a number of updates."
        raise TypeError(must_be("log_every_n_steps", "an int or None", log_every_n_steps, _WHERE, action))
    if log_every_n_steps < 0:
        action = "Pass 0 to send only the values of epochs."
        raise ValueError(must_be("log_every_n_steps", "0 or more", log_every_n_steps, _WHERE, action))
    return log_every_n_steps


def listed(callbacks: Any) -> list[Any]:
    """A new list of what was passed as `callbacks`: none, one or several."""
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, Sequence) and not isinstance(callbacks, str) else [callbacks]


def _check_callback(callback: Any) -> None:
    """Raise `TypeError` unless it is an object with a hook, be it a misspelt one, which set-up reports."""
    if isinstance(callback, type):
        action = f"Pass an instance: `{callback.__name__}(...)`."
        raise TypeError(must_be("callbacks", "callback objects", callback, _WHERE, action))
    if isinstance(callback, Callback):
        return
    if not any(name in CATALOGUE or name.startswith("on_") for name in candidates(callback)):
        rule = "a callback (an object with at least one hook) or a list of callbacks"
        raise TypeError(must_be("callbacks", rule, callback, _WHERE, "Pass one of these."))
