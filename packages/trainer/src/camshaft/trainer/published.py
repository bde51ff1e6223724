"""What a metric log has published: the values of epochs that have ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from camshaft.trainer.saved_tensors import load_tensor, save_tensor
from camshaft.trainer.stage_log import LiveValue, StageLog, for_callbacks, for_loggers


class Published:
    """The latest values of epochs that have ended, by the names under which each reader gets them.

    Attributes:
        to_callbacks: Detached tensors of shape ().
        to_loggers: Those meant for loggers.
        to_progress_bars: Those meant for progress bars, as numbers.
    """

    def __init__(self) -> None:
        self.to_callbacks: dict[str, Tensor] = {}
        self.to_loggers: dict[str, Tensor] = {}
        self.to_progress_bars: dict[str, float | int | str] = {}

    def add(self, stage: StageLog, values: Sequence[LiveValue], numbers: Sequence[float]) -> None:
        """Publish the values of a stage whose epoch ends; `numbers` are the same values as numbers."""
        self.to_callbacks |= for_callbacks(values, stage)
        self.to_loggers |= for_loggers(values)
        self.to_progress_bars |= {
            live.name: number
            for live, number in zip(values, numbers, strict=True)
            if live.entry.options.prog_bar and live.stands_for(live.name)
        }

    def clear(self) -> None:
        """Forget everything."""
        self.to_callbacks.clear()
        self.to_loggers.clear()
        self.to_progress_bars.clear()

    def state_dict(self) -> dict[str, Any]:
        """Everything, as copies of tensors and plain values."""
        return {
            "to_callbacks": _save(self.to_callbacks),
            "to_loggers": _save(self.to_loggers),
            "to_progress_bars": dict(self.to_progress_bars),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back a state in place of what was published."""
        self.to_callbacks = _load(state["to_callbacks"])
        self.to_loggers = _load(state["to_loggers"])
        self.to_progress_bars = dict(state["to_progress_bars"])


def _save(metrics: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: save_tensor(value) for name, value in metrics.items()}


def _load(metrics: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: load_tensor(value) for name, value in metrics.items()}
