"""A logger that writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self


class SilentLogger:
    """Stands in for a logger in a trial, and on processes that do not write: takes every call, and writes nothing.

    Whatever a module asks of the logger that it expects (`self.logger.experiment.add_image(...)`) is there, too.

    Attributes:
        log_dir, save_dir: None in a trial, as there are no files; else those of the logger of the process that writes.
        name, version: Likewise empty, or those of that logger.
    """

    log_dir: str | None = None
    save_dir: str | None = None
    name: str | None = ""
    version: int | str | None = ""

    def __getattr__(self, name: str) -> Self:
        """Everything else: something that can be called and asked as well."""
        if name.startswith("__"):  # of Python, as `copy` and `pickle` look for it
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Self:
        """Does nothing."""
        return self

    def __getitem__(self, key: Any) -> Self:
        """Something as silent."""
        return self

    def __iter__(self) -> Iterator[Self]:
        """Nothing to go through."""
        return iter(())
