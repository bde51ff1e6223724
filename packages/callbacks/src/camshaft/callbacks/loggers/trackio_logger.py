"""Logger for Trackio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from camshaft.callbacks.arguments import check_installed, check_keywords
from camshaft.callbacks.loggers.logged_values import Hyperparameters, jsonable, named, numbers_by_name
from camshaft.callbacks.loggers.logger import Logger
from camshaft.hooks_core.support.messages import warn_user


class TrackioLogger(Logger):
    """Logs to a run of Trackio: to files on this machine, to a server, or to a Space of Hugging Face.

    `experiment` is Trackio's object: `logger.experiment.log({"sample": trackio.Image(image)}, step=step)`. The run is
    started at the first write, or when `experiment` is first read, by `trackio.init`. It ends with each verb of the
    trainer, so that everything is sent, and goes on under its name in the next one.

    Args:
        project: Name of the project.
        name: Name of the run, which goes on if it exists; None chooses one.
        prefix: Prefix of the metrics' names, followed by "-"; "" adds none.
        **kwargs: Further arguments of `trackio.init`, such as `space_id`, `server_url`, `group`, `auto_log_gpu`.

    Raises:
        ModuleNotFoundError: If trackio is not installed.
        TypeError: If `trackio.init` does not accept one of `kwargs`.
    """

    def __init__(
        self, project: str = "camshaft_logs", name: str | None = None, *, prefix: str = "", **kwargs: Any
    ) -> None:
        check_installed("trackio", "trackio", self)
        if kwargs:
            import trackio

            check_keywords(kwargs, trackio.init, ("project", "name"), self)
        self.prefix = prefix
        self._project, self._run_name, self._kwargs = project, name, kwargs
        self._run: Any = None
        self._has_metrics = False  # with the first of which Trackio writes the configuration, once

    @property
    def name(self) -> str:
        """Name of the project."""
        return self._project

    @property
    def version(self) -> str | None:
        """Name of the run; None as long as it is not started, unless it was given."""
        return self._run_name

    @property
    def experiment(self) -> Any:
        """The run; started when first read."""
        if self._run is None:
            import trackio

            resume = "never" if self._run_name is None else "allow"
            self._run = trackio.init(self._project, self._run_name, **{"resume": resume, **self._kwargs})
            self._run_name = self._run.name
        return self._run

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log metrics. Tensors are read now, which waits for their device.

        Args:
            metrics: Numbers or scalar tensors by name; if empty, nothing is logged.
            step: Number of optimizer updates; None is Trackio's next one.

        Raises:
            InvalidArgumentError: If a value is not a number.
        """
        if metrics:
            self.experiment.log(numbers_by_name(metrics, self._names_start, self), step=step)
            self._has_metrics = True

    def log_hyperparams(self, params: Hyperparameters) -> None:
        """Add hyperparameters to the run's configuration, with a warning where Trackio has written it already.

        Args:
            params: Values by name, which may be nested; objects that JSON cannot hold are written as their `str`.
        """
        config, given = self.experiment.config, jsonable(named(params))
        changed = sorted(name for name, value in given.items() if name not in config or config[name] != value)
        if changed and self._has_metrics:
            warn_user(
                f"TrackioLogger logs no hyperparameters after the first metrics, when Trackio writes them: "
                f"{', '.join(changed)}. Log them before."
            )
        config.update(given)

    def finalize(self, status: str) -> None:
        """Send everything, and end the run; the next write goes on with it."""
        if self._run is not None:
            self._run.finish()
            self._run = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the run: a copy goes on with it by its name."""
        return {**vars(self), "_run": None}
