"""Base class of loggers that keep each run in a folder of its own: `<save_dir>/<name>/version_<number>`."""

from __future__ import annotations

import json
import os
import re
import weakref
from pathlib import Path
from typing import Any, ClassVar

from camshaft.callbacks.arguments import usable_path
from camshaft.callbacks.loggers.logged_values import Hyperparameters, jsonable, named
from camshaft.callbacks.loggers.logger import Logger, is_rank_zero
from camshaft.hooks_core.support.remote_files import claim, entries_of, is_url, join, remove, replace_file


class RunFolderLogger(Logger):
    """Chooses the folder of a run, and writes the run's hyperparameters to `hparams.json` in it.

    Without a given `version`, one is claimed when it is first read, by `version`, `log_dir` or the first write: its
    folder is made, which only one logger can do, in this process or another. Not before, so that an unused logger makes
    no folder; not after, since others rely on the version once they have read it. If the folder is still empty when the
    logger is finalized or garbage-collected, it is removed, and the next use claims a version anew. In a distributed
    run rank 0 claims.

    Args:
        save_dir: Folder of all experiments, or its URL.
        name: Folder of the experiment in it; "" and None use `save_dir` itself.
        version: Folder of the run in that: a number n is "version_n", a text is the folder's name. None is the number
            after the highest that exists when it is first read. A given version is continued if it exists.

    Attributes:
        hparams: The hyperparameters so far.

    Raises:
        InvalidArgumentError, ImportError: If `save_dir` is a URL where nothing can be written.
    """

    HPARAMS_FILE: ClassVar[str] = "hparams.json"

    def __init__(self, save_dir: str | os.PathLike[str], name: str | None, version: int | str | None) -> None:
        super().__init__()
        self.hparams: dict[str, Any] = {}
        self._save_dir = usable_path("save_dir", save_dir, self)
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
        return join(self._save_dir, self.name) if self.name else self._save_dir

    @property
    def version(self) -> int | str:
        """Number or name of the run; claimed when first read, if none was given."""
        if self._version is None:
            self._version = self._claim_version() if is_rank_zero() else self._version_of_rank_zero()
        return self._version

    @property
    def log_dir(self) -> str:
        """Folder of the run."""
        version = self.version
        return join(self.root_dir, version if isinstance(version, str) else f"version_{version}")

    def log_hyperparams(self, params: Hyperparameters | None = None) -> None:
        """Add hyperparameters to `hparams.json`; an existing name gets the new value.

        Args:
            params: Values by name, which may be nested; objects that JSON cannot hold are written as their `str`. None
                adds none.
        """
        self.hparams.update(named(params or {}))
        with replace_file(join(self.log_dir, self.HPARAMS_FILE)) as fresh:
            fresh.write_text(self._hparams_text(jsonable(self.hparams)), encoding="utf-8")

    def _hparams_text(self, hparams: dict[str, Any]) -> str:
        """Return the text of `HPARAMS_FILE`; a subclass with another file has another format."""
        return json.dumps(hparams, indent=2) + "\n"

    def finalize(self, status: str) -> None:
        """Release the claimed version if nothing was written to its folder."""
        give_up = _CLAIMS.pop(self, None)
        if give_up is not None and give_up():
            self._version = None

    def _claim_version(self) -> int:
        """Make the folder of the next version, and return its number."""
        if is_url(self.root_dir):
            return self._claim_in_store()
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
                continue  # another logger made this folder first, or removed an empty parent
            except OSError:
                return version  # an error that writing will report
            _CLAIMS[self] = weakref.finalize(self, _remove_empty, [folder, *missing], os.getpid())
            return version

    def _claim_in_store(self) -> int:
        """Make a file in the folder of the next version, as a store has no empty folders, and return its number."""
        while True:
            version = self._next_version()
            folder = join(self.root_dir, f"version_{version}")
            if claim(join(folder, _CLAIM_FILE)):
                _CLAIMS[self] = weakref.finalize(self, _release_in_store, folder, os.getpid())
                return version

    def _version_of_rank_zero(self) -> int:
        """Return the version that rank 0 of this run claims: the newest, if its folder is still empty."""
        version = self._next_version()
        newest = join(self.root_dir, f"version_{version - 1}")
        return version - (version > 0 and set(entries_of(newest)) <= {_CLAIM_FILE})

    def _next_version(self) -> int:
        matches = (re.fullmatch(r"version_(\d+)", name) for name in entries_of(self.root_dir))
        return max((int(match[1]) for match in matches if match), default=-1) + 1


_CLAIMS: weakref.WeakKeyDictionary[RunFolderLogger, weakref.finalize[Any, Any]] = weakref.WeakKeyDictionary()
"""Functions that release the version of a logger; kept outside of it, since loggers are copied and pickled."""


_CLAIM_FILE = ".claim"
"""The file that claims a version in a store, until the logger is finalized."""


def _release_in_store(folder: str, process_id: int) -> bool:
    """Remove the file that claims a folder of a store; return whether there was no other."""
    if os.getpid() != process_id:
        return False
    remove(join(folder, _CLAIM_FILE))
    is_empty = not entries_of(folder)
    if is_empty:
        remove(folder)
    return is_empty


def _remove_empty(folders: list[Path], process_id: int) -> bool:
    """Remove empty folders, innermost first; return whether the first one was empty.

    A forked process does not remove its parent's folders.
    """
    if os.getpid() != process_id:
        return False
    for idx, folder in enumerate(folders):
        try:
            folder.rmdir()
        except OSError:
            return idx > 0
    return True
