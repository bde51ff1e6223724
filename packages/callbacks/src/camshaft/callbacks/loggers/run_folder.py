"""Loggers that keep each run in a folder of its own: `<save_dir>/<name>/version_<number>`."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, ClassVar

from camshaft.callbacks.loggers.logged_values import Hyperparameters, jsonable, named
from camshaft.hooks_core.durable_paths import written_whole


class RunFolderLogger:
    """Chooses the folder of a run, and keeps the run's hyperparameters there in `hparams.json`.

    Args:
        save_dir: Folder of all experiments.
        name: Folder of the experiment in it; "" and None use `save_dir` itself.
        version: Folder of the run in that: a number n stands for "version_n", a text for itself. None takes the number
            after the highest there is when it is first asked for. A version that exists is continued.

    Attributes:
        hparams: The hyperparameters so far.
    """

    HPARAMS_FILE: ClassVar[str] = "hparams.json"

    def __init__(self, save_dir: str | os.PathLike[str], name: str | None, version: int | str | None) -> None:
        self.hparams: dict[str, Any] = {}
        self._save_dir = os.fspath(save_dir)
        self._name = name or ""
        self._version = version

    @property
    def save_dir(self) -> str:
        """Folder of all experiments."""
        return self._save_dir

    @property
    def name(self) -> str:
        """Name of the experiment; may be empty."""
        return self._name

    @property
    def root_dir(self) -> str:
        """Folder of the experiment, which holds its versions."""
        return os.path.join(self._save_dir, self._name) if self._name else self._save_dir

    @property
    def version(self) -> int | str:
        """Number or name of the run; chosen when first read, if the constructor did not say."""
        if self._version is None:
            self._version = self._next_version()
        return self._version

    @property
    def log_dir(self) -> str:
        """Folder of the run."""
        version = self.version
        return os.path.join(self.root_dir, version if isinstance(version, str) else f"version_{version}")

    def log_hyperparams(self, params: Hyperparameters) -> None:
        """Add to `hparams.json` and write it; a name that is there already gets the new value.

        Args:
            params: Values by name, nested as they are; what JSON does not know is written as its `str`.
        """
        self.hparams.update(named(params))
        path = Path(self.log_dir, self.HPARAMS_FILE)
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as fresh:
            fresh.write_text(json.dumps(jsonable(self.hparams), indent=2) + "\n", encoding="utf-8")

    def _next_version(self) -> int:
        try:
            names = os.listdir(self.root_dir)
        except FileNotFoundError:
            return 0
        matches = (re.fullmatch(r"version_(\d+)", name) for name in names)
        return max((int(match[1]) for match in matches if match), default=-1) + 1
