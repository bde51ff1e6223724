"""What steps and epoch ends of eras before 1.0 return to be logged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from camshaft.hooks_core.protocols import MetricSink
from camshaft.hooks_core.user_warnings import warn_user

_NO_METRICS = frozenset({"log", "progress_bar", "callback_metrics", "hiddens"})


def log_returned(metrics: MetricSink | None, returned: Any) -> None:
    """Log what a step or an epoch's end returned in a dictionary; anything else, and without a sink all, is left alone.

    Values under `log` go to loggers, those under `progress_bar` to progress bars, and these, what is under
    `callback_metrics` and every other single number of the dictionary to whoever monitors metrics. A dictionary within
    `log` is logged under names of the form "outer/inner". A name in both has the value of `log`.

    Args:
        metrics: Where to log, at its present moment.
        returned: What was returned.
    """
    if metrics is None or not isinstance(returned, Mapping):
        return
    to_loggers, to_bars = dict(_values(returned.get("log"))), dict(_values(returned.get("progress_bar")))
    rest = dict(_values(returned.get("callback_metrics")))
    rest |= {name: value for name, value in returned.items() if name not in _NO_METRICS and _is_number(value)}
    groups: dict[tuple[bool, bool], dict[str, Any]] = {}
    for name, value in (rest | to_bars | to_loggers).items():
        group = groups.setdefault((name in to_loggers, name in to_bars), {})
        group[str(name)] = value.detach() if isinstance(value, Tensor) else value
    for (logger, prog_bar), values in groups.items():
        metrics.log_returned(values, logger=logger, prog_bar=prog_bar)


def _values(given: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a dictionary of any nesting, by name; numbers that were formatted for display as numbers."""
    for name, value in given.items() if isinstance(given, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _values(value, f"{prefix}{name}/")
        elif isinstance(value, str):
            try:
                yield f"{prefix}{name}", float(value)
            except ValueError:
                warn_user(f"{prefix}{name} is returned to be logged, but {value!r} is no number: it is left out.")
        elif value is not None:
            yield f"{prefix}{name}", value


def _is_number(value: Any) -> bool:
    return value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, (int, float))
