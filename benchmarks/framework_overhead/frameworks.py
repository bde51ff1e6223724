"""What a framework must be able to do to be measured, and where its adapter is found."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from torch import Tensor

from .timed_loaders import Loader

Evidence = dict[str, Tensor]
"""What a run leaves behind (weights, metrics, logged rows). It must equal that of the hand-written loop."""


@dataclass(frozen=True)
class CallbackLoad:
    """How many callbacks are attached to a training run, beside the framework's own.

    Args:
        num_idle: callbacks that implement nothing.
        num_hooked: callbacks that implement the start and the end of a batch, trivially.
    """

    num_idle: int = 0
    num_hooked: int = 0


NO_CALLBACKS = CallbackLoad()


class Framework(Protocol):
    """One framework, or the loop written by hand. Every method runs over all of `batches` once."""

    @property
    def name(self) -> str:
        """Its name on the command line and in the table."""

    @property
    def takes_idle_callbacks(self) -> bool:
        """False where a callback that implements nothing cannot be expressed."""

    def version(self) -> str:
        """Look up the version. Not done at import, where it would count as the framework's start-up."""

    def train(self, batches: Loader, load: CallbackLoad = NO_CALLBACKS) -> Evidence:
        """Train in the leanest configuration; return "weights"."""

    def train_with_everything(self, batches: Loader, folder: Path) -> Evidence:
        """Train with logging, metric, bar, scheduler, clipping and callbacks.

        Returns:
            "weights", "accuracy" of the epoch, and "logged_losses", read back from the CSV file in `folder`.
        """

    def accumulate(self, batches: Loader) -> Evidence:
        """Train in the leanest configuration, with one update for 4 batches; return "weights"."""

    def tbptt(self, batches: Loader) -> Evidence:
        """Train the recurrent model in the leanest configuration, one update for each split; return "weights"."""

    def evaluate(self, batches: Loader) -> Evidence:
        """Compute the loss of each batch; return "last_loss"."""

    def predict(self, batches: Loader) -> Evidence:
        """Compute the logits of each batch, without keeping them; return "last_logits"."""

    def enter_first_step(self, report: Callable[[], NoReturn]) -> None:
        """Start training in the leanest configuration with a step that calls `report`."""


BY_HAND = "by hand"
OURS = "camshaft"
_MODULES = {
    BY_HAND: "by_hand",
    OURS: "with_camshaft",
    "lightning": "with_lightning",
    "fabric": "with_fabric",
    "ignite": "with_ignite",
    "torchtnt": "with_torchtnt",
    "lean": "lean_by_hand",
}
FRAMEWORK_NAMES = tuple(name for name in _MODULES if name != BY_HAND)


def load_framework(name: str) -> Framework:
    """Import one framework and nothing of the others.

    Raises:
        ImportError: if the framework, or something that its adapter needs, is not installed.
    """
    module = importlib.import_module(f".{_MODULES[name]}", __package__)
    framework: Framework = module.build()
    return framework
