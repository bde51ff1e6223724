"""What a trainer is made of, chosen from its constructor's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from camshaft.callbacks import CSVLogger, ModelCheckpoint, RichProgressBar
from camshaft.hooks_core.messages import must_be
from camshaft.strategies import SingleDeviceStrategy, choose_device

_WHERE = "Trainer"


def choose_strategy(strategy: Any, accelerator: str, devices: Any, precision: Any) -> Any:
    """The strategy: an instance as it is, else one device of the accelerator.

    Raises:
        ValueError: If more than one device, another precision than 32 bits, or a strategy by name is asked for, none
            of which is there yet.
    """
    if precision not in (32, "32", "32-true"):
        action = "Other precisions are not supported yet."
        raise ValueError(must_be("precision", "'32-true'", precision, _WHERE, action))
    if not isinstance(strategy, str):
        return strategy
    if strategy not in ("auto", "single_device"):
        rule = "'auto', 'single_device' or a strategy object"
        raise ValueError(must_be("strategy", rule, strategy, _WHERE, "Other strategies are not supported yet."))
    device_idx = 0
    if isinstance(devices, (list, tuple)) and len(devices) == 1:
        device_idx = devices[0]
    elif devices not in ("auto", 1, "1"):
        rule = "'auto', 1 or a list with one index"
        raise ValueError(must_be("devices", rule, devices, _WHERE, "Several devices are not supported yet."))
    return SingleDeviceStrategy(choose_device(accelerator, device_idx))


def choose_loggers(logger: Any, default_root_dir: str) -> list[Any]:
    """The loggers: None and True mean a CSV logger in the default directory, False none.

    Raises:
        TypeError: If something is no logger.
    """
    if logger is None or logger is True:
        return [CSVLogger(default_root_dir)]
    if logger is False:
        return []
    loggers = list(logger) if isinstance(logger, (list, tuple)) else [logger]
    for each in loggers:
        if not callable(getattr(each, "log_metrics", None)):
            rule = "a logger (with `log_metrics`), a list of them, True or False"
            raise TypeError(must_be("logger", rule, each, _WHERE, "Pass one of these."))
    return loggers


def choose_callbacks(
    callbacks: Any, *, enable_progress_bar: bool | None, enable_checkpointing: bool | None
) -> list[Any]:
    """The callbacks in the order in which they run: those that were passed, then a progress bar and a checkpoint.

    Each of the two is added unless it is disabled or one of its kind was passed.

    Raises:
        ValueError: If one of its kind was passed although it is disabled.
    """
    chosen = [] if callbacks is None else list(callbacks) if isinstance(callbacks, Sequence) else [callbacks]
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
    return chosen


def check_barebones(**arguments: Any) -> None:
    """Refuse what a trainer with nothing attached cannot have.

    Raises:
        ValueError: If any argument asks for something.
    """
    for name, value in arguments.items():
        if value not in (None, False, 0):
            rule = "left out with barebones=True"
            raise ValueError(must_be(name, rule, value, _WHERE, "Leave one of the two out."))


def seed_everything(seed: int) -> int:
    """Seed Python's, NumPy's (if installed) and torch's generators, on every device.

    Args:
        seed: From 0 to 2**32 - 1, the range that NumPy accepts.

    Returns:
        The seed.

    Raises:
        ValueError: If it is out of range.
    """
    import random

    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ValueError(must_be("seed", "an int from 0 to 2**32 - 1", seed, "seed_everything", "Pass another."))
    random.seed(seed)
    torch.manual_seed(seed)
    try:
        import numpy
    except ImportError:
        return seed
    numpy.random.seed(seed)
    return seed
