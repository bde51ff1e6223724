"""Loggers that keep each run in a folder of its own: `<save_dir>/<name>/version_<number>`."""

from __future__ import annotations

import json
import os
import re
import weakref
from pathlib import Path
from typing import Any, ClassVar

import torch

from camshaft.callbacks.arguments import check_local
from camshaft.callbacks.loggers.logged_values import Hyperparameters, jsonable, named
from camshaft.hooks_core.durable_paths import written_whole


class RunFolderLogger:
    """Chooses the folder of a run, and keeps the run's hyperparameters there in `hparams.json`.

    A version that nobody gave is claimed when it is first asked for, by `version`, `log_dir` or the first write: its
    folder is made, which one logger alone can do, be the others in this process or elsewhere. Not earlier, so that a
    logger that is never asked makes nothing; not later, since from then on others rely on what they were told. A
    folder that is still empty when the logger is finalized, or gone, is removed, and the next use claims a version
    anew. Of the processes of one distributed run the first one claims.

    Args:
        save_dir: Folder of all experiments.
        name: Folder of the experiment in it; "" and None use `save_dir` itself.
        version: Folder of the run in that: a number n stands for "version_n", a text for itself. None takes the number
            after the highest there is when it is first asked for. A version that is given is continued if it exists.

    Attributes:
        hparams: The hyperparameters so far.

    Raises:
        InvalidArgumentError: If `save_dir` is no folder of this machine.
    """

    HPARAMS_FILE: ClassVar[str] = "hparams.json"

    def __init__(self, save_dir: str | os.PathLike[str], name: str | None, version: int | str | None) -> None:
        self.hparams: dict[str, Any] = {}
        self._save_dir = os.fspath(save_dir)
        check_local("save_dir", self._save_dir, type(self).__name__)
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
        """Number or name of the run; claimed when first read, if the constructor did not say."""
        if self._version is None:
            self._version = self._claim_version() if _is_first_process() else self._version_of_first_process()
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

    def finalize(self, status: str) -> None:
        """Give the version back if nothing was written to its folder."""
        release = _CLAIMS.pop(self, None)
        if release is not None and release():
            self._version = None

    def _claim_version(self) -> int:
        """Make the folder of the next version, and return its number."""
        root = Path(os.path.abspath(self.root_dir))
        missing = [folder for folder in (root, *root.parents) if not folder.exists()]
        while True:
            version = self._next_version()
            folder = root / f"version_{version}"
            try:
                root.mkdir(parents=True, exist_ok=True)
                folder.mkdir()
            except (FileExistsError, FileNotFoundError):
                if not root.is_dir() and os.path.lexists(root):
                    return version
                continue  # another logger made the folder first, or removed an empty one around it
            except OSError:
                return version  # where nothing can be written, writing says so
            _CLAIMS[self] = weakref.finalize(self, _remove_empty, [folder, *missing], os.getpid())
            return version

    def _version_of_first_process(self) -> int:
        """Return the version that the first process of this run claims: the newest, if its folder is still empty."""
        version = self._next_version()
        try:
            is_claimed = version > 0 and not os.listdir(os.path.join(self.root_dir, f"version_{version - 1}"))
        except OSError:
            is_claimed = False
        return version - is_claimed

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Do nothing: a checkpoint is a file already. Subclasses may override it."""

    def _next_version(self) -> int:
        try:
            names = os.listdir(self.root_dir)
        except OSError:
            return 0
        matches = (re.fullmatch(r"version_(\d+)", name) for name in names)
        return max((int(match[1]) for match in matches if match), default=-1) + 1


_CLAIMS: weakref.WeakKeyDictionary[RunFolderLogger, weakref.finalize[Any, Any]] = weakref.WeakKeyDictionary()
"""Functions that give back the version that a logger has claimed; not in the logger, which is copied and pickled."""


def _remove_empty(folders: list[Path], process_id: int) -> bool:
    """Remove folders, innermost first, up to one that is not empty; return whether the first one was.

    A fork leaves what its parent claimed.
    """
    if os.getpid() != process_id:
        return False
    for idx, folder in enumerate(folders):
        try:
            folder.rmdir()
        except OSError:
            return idx > 0
    return True


def _is_first_process() -> bool:
    """Return whether this is the first process of its run, also before the processes are connected."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank() == 0
    rank = next((os.environ[name] for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK") if name in os.environ), "0")
    return not rank.isdigit() or int(rank) == 0
