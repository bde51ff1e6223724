"""Settings of a module that earlier releases took as arguments of the trainer."""

from __future__ import annotations

from typing import Any

from camshaft.hooks_core import Callback


class ModuleSettings(Callback):
    """Sets attributes of the module when a verb is set up.

    Args:
        settings: Their values by name.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Set them."""
        for name, value in self._settings.items():
            setattr(module, name, value)
