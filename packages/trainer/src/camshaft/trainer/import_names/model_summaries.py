"""The summary of a model, as a function of earlier releases."""

from __future__ import annotations

from torch import nn

from camshaft.callbacks import Summary
from camshaft.callbacks import summarize as _summarize
from camshaft.callbacks.displays.summary_table import format_count
from camshaft.hooks_core.messages import must_be

_DEPTHS = {"top": 1, "full": -1}


def ModelSummary(model: nn.Module, mode: str | None = None, max_depth: int | None = None) -> Summary:
    """A summary of a model's layers, to be printed.

    Args:
        model: The model.
        mode: "top" for its own layers, or "full" for all.
        max_depth: How deep, where `mode` is not given; None means 1.

    Raises:
        ValueError: If there is no such mode.
    """
    if mode is None:
        return _summarize(model, 1 if max_depth is None else max_depth)
    if mode not in _DEPTHS:
        raise ValueError(must_be("mode", "'top' or 'full'", mode, "ModelSummary", "Pass `max_depth`."))
    return _summarize(model, _DEPTHS[mode])


def summarize(lightning_module: nn.Module, mode: str | None = None, max_depth: int | None = None) -> Summary:
    """The same, under the name that it has since 1.5."""
    return ModelSummary(lightning_module, mode, max_depth)


def get_human_readable_count(number: int) -> str:
    """A number of parameters, short."""
    return format_count(number)
