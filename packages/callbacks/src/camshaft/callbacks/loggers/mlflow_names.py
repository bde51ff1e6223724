"""Names as MLflow takes them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable

from camshaft.hooks_core.user_warnings import warn_user


class MLflowNames:
    """What parameters and metrics are called in MLflow; warns once of each that is called otherwise than it is."""

    def __init__(self) -> None:
        self._allowed: dict[str, str] = {}
        self._of_metrics: dict[str, str] = {}

    def allowed(self, name: str) -> str:
        """A path of letters, digits and _ - . only."""
        known = self._allowed.get(name)
        if known is None:
            known = self._allowed[name] = posixpath.normpath(re.sub(r"[^/\w.\- ]", "_", name)).strip("/")
            if known != name:
                warn_user(
                    f"{name!r} is called {known!r} in MLflow, which takes paths of letters, digits and _ - . only."
                )
        return known

    def known_metric(self, name: str) -> str | None:
        """What a metric is called that was logged before."""
        return self._of_metrics.get(name)

    def metric(self, name: str, existing: Iterable[str], *, in_files: bool) -> str:
        """What a metric is called.

        Args:
            name: Its name.
            existing: The metrics that the run has from before.
            in_files: Whether each metric is a file, so that no name can be the path above another's.
        """
        free = allowed = self.allowed(name)
        taken = {*existing, *self._of_metrics.values()} if in_files else set()
        while any(one.startswith(f"{free}/") or free.startswith(f"{one}/") for one in taken):
            free = free.replace("/", "-") if "/" in free else f"{free}-"
        if free != allowed:
            warn_user(f"{name!r} is called {free!r} in MLflow, whose files cannot hold it beside what it has.")
        self._of_metrics[name] = free
        return free
