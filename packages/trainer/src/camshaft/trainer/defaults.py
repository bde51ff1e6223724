"""What a trainer is made of, chosen from its constructor's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from camshaft.callbacks import EarlyStopping, ModelCheckpoint, RichProgressBar
from camshaft.hooks_core import CATALOGUE, Callback
from camshaft.hooks_core.faults import candidates
from camshaft.hooks_core.messages import must_be
from camshaft.loops.callback_state import check_state_keys
from camshaft.strategies import SingleDeviceStrategy, choose_device

_WHERE = "Trainer"
_STRATEGY_ATTRIBUTES = ("device", "global_rank", "local_rank", "world_size")
_STRATEGY_METHODS = (
    "setup_module",
    "setup_optimizers",
    "batch_to_device",
    "backward",
    "optimizer_step",
    "clip_gradients",
    "save_checkpoint",
    "load_checkpoint",
    "teardown",
)


def choose_strategy(strategy: Any, accelerator: Any, devices: Any, precision: Any) -> Any:
    """The strategy: an instance as it is, else one device of the accelerator.

    Raises:
        TypeError: If a strategy object lacks something that a strategy must have.
        ValueError: If more than one device, another precision than 32 bits, or a strategy by name is asked for, none
            of which is there yet; or if a strategy object has another device than the one asked for.
    """
    if precision not in (32, "32", "32-true"):
        action = "Other precisions are not supported yet."
        raise ValueError(must_be("precision", "'32-true'", precision, _WHERE, action))
    if not isinstance(strategy, str):
        _check_strategy(strategy)
        _check_device(strategy.device, accelerator, devices)
        return strategy
    if strategy not in ("auto", "single_device"):
        rule = "'auto', 'single_device' or a strategy object"
        raise ValueError(must_be("strategy", rule, strategy, _WHERE, "Other strategies are not supported yet."))
    device_idx = 0
    if isinstance(devices, (list, tuple)) and len(devices) == 1 and type(devices[0]) is int:
        device_idx = devices[0]
    elif devices not in ("auto", 1, "1"):
        rule = "'auto', 1 or a list with one index"
        raise ValueError(must_be("devices", rule, devices, _WHERE, "Several devices are not supported yet."))
    return SingleDeviceStrategy(choose_device(accelerator, device_idx))


def choose_callbacks(
    callbacks: Any, *, enable_progress_bar: bool | None, enable_checkpointing: bool | None
) -> list[Any]:
    """The callbacks in the order in which they run: those that were passed, then a progress bar and a checkpoint.

    Each of the two is added unless it is disabled or one of its kind was passed.

    Raises:
        TypeError: If something is no callback.
        ValueError: If one of its kind was passed although it is disabled, or two that keep a state would keep it under
            the same key.
    """
    chosen = _listed(callbacks)
    for callback in chosen:
        _check_callback(callback)
    for kind, enabled, argument in (
        (RichProgressBar, enable_progress_bar, "enable_progress_bar"),
        (ModelCheckpoint, enable_checkpointing, "enable_checkpointing"),
    ):
        is_present = any(isinstance(callback, kind) for callback in chosen)
        if is_present and enabled is False:
            rule = f"true if `callbacks` has a {kind.__name__}"
            raise ValueError(must_be(argument, rule, enabled, _WHERE, "Leave one of the two out."))
        if not is_present and enabled is not False:
            chosen.append(kind())
    check_state_keys(chosen, f"{_WHERE}(callbacks=...)")
    return chosen


def check_barebones(*, callbacks: Any, **arguments: Any) -> None:
    """Refuse what a trainer with nothing attached cannot have.

    Raises:
        ValueError: If any argument asks for something.
    """
    action = "Leave one of the two out."
    for name, value in arguments.items():
        if value not in (None, False, 0):
            raise ValueError(must_be(name, "left out with barebones=True", value, _WHERE, action))
    for callback in _listed(callbacks):
        if isinstance(callback, (ModelCheckpoint, RichProgressBar, EarlyStopping)):
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


def _listed(callbacks: Any) -> list[Any]:
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


def _check_device(device: torch.device, accelerator: Any, devices: Any) -> None:
    """Raise `ValueError` unless a strategy object's device is the one that was asked for beside it."""
    action = "Choose the device when you make the strategy."
    kinds = {"auto": (device.type,), "gpu": ("cuda", "mps")}.get(str(accelerator), (accelerator,))
    if device.type not in kinds:
        rule = f"'auto' or that of the strategy object ({device.type})"
        raise ValueError(must_be("accelerator", rule, accelerator, _WHERE, action))
    if devices not in ("auto", 1, "1", [device.index or 0]):
        rule = f"'auto', 1 or that of the strategy object ([{device.index or 0}])"
        raise ValueError(must_be("devices", rule, devices, _WHERE, action))


def _check_strategy(strategy: Any) -> None:
    if isinstance(strategy, type):
        action = f"Pass an instance: `{strategy.__name__}(...)`."
        raise TypeError(must_be("strategy", "a strategy object", strategy, _WHERE, action))
    missing = [name for name in _STRATEGY_ATTRIBUTES if not hasattr(strategy, name)]
    missing += [name for name in _STRATEGY_METHODS if not callable(getattr(strategy, name, None))]
    if missing:
        rule = f"a strategy, or the name of one (missing: {', '.join(missing)})"
        action = "See `camshaft.hooks_core.protocols.Strategy`."
        raise TypeError(must_be("strategy", rule, strategy, _WHERE, action))
