"""Logger for Comet."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from torch import nn

from camshaft.callbacks.arguments import check_installed
from camshaft.callbacks.loggers.checkpoint_log import CheckpointLogger, LoggedCheckpoint, LogModel
from camshaft.callbacks.loggers.logged_values import Hyperparameters, flat, named, numbers_by_name


class CometLogger(CheckpointLogger):
    """Logs to an experiment of Comet.

    `experiment` is Comet's object: `logger.experiment.log_image(image)`. It is started at the first write, or when
    `experiment` is first read, by `comet_ml.start`, and stays open at the end of a verb, so that a test can follow
    training; it ends with the script, or with `experiment.end()`.

    Args:
        api_key: Key of the API; None takes that of `comet login`, or of the environment variable `COMET_API_KEY`.
        workspace: Name of the workspace; None is that of the user.
        project: Name of the project; None is the environment variable `COMET_PROJECT_NAME`, or Comet's default.
        experiment_key: Key of the experiment, to continue one or to choose that of a new one.
        mode: "get_or_create", "get" or "create"; None is Comet's default.
        online: If false, files are written, for `comet upload`; None goes by Comet's configuration.
        prefix: Prefix of the metrics' names, followed by "_"; None and "" add none.
        log_model: Whether to log the checkpoints that are kept when a verb of the trainer ends; "all" logs each once
            saved, and so does True for a `ModelCheckpoint(save_top_k=-1)`.
        **kwargs: Arguments of `comet_ml.ExperimentConfig`, such as `name`, `tags`, `offline_directory`, `log_code`.

    Raises:
        ModuleNotFoundError: If comet_ml is not installed.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        workspace: str | None = None,
        project: str | None = None,
        experiment_key: str | None = None,
        mode: Literal["get_or_create", "get", "create"] | None = None,
        online: bool | None = None,
        prefix: str | None = None,
        log_model: LogModel = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(log_model)
        check_installed("comet_ml", "comet", self)
        self.prefix = prefix
        self._arguments: dict[str, Any] = {
            "api_key": api_key,
            "workspace": workspace,
            "project": project,
            "experiment_key": experiment_key,
            "mode": mode,
            "online": online,
        }
        self._config = kwargs
        self._experiment: Any = None

    @property
    def save_dir(self) -> str | None:
        """Folder of the files of an offline experiment, if it was given."""
        folder = self._config.get("offline_directory")
        return None if folder is None else os.fspath(folder)

    @property
    def name(self) -> str | None:
        """Name of the project; None if Comet chooses it."""
        project: str | None = self._arguments["project"]
        return project or os.environ.get("COMET_PROJECT_NAME")

    @property
    def version(self) -> str | None:
        """Key of the experiment; None as long as it is not started, unless it was given."""
        key: str | None = self._arguments["experiment_key"]
        return key

    @property
    def experiment(self) -> Any:
        """The experiment; started when first read."""
        if self._experiment is None:
            import comet_ml

            # metrics come from `log_metrics`, and not a second time from Comet's patches of frameworks
            config = comet_ml.ExperimentConfig(**{"auto_metric_logging": False, **self._config})
            self._experiment = comet_ml.start(**self._arguments, experiment_config=config)
            self._arguments["experiment_key"] = self._experiment.get_key()
            self._experiment.log_other("Created from", "camshaft")
        return self._experiment

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log metrics; one called "epoch" is Comet's epoch. Tensors are read now, which waits for their device.

        Args:
            metrics: Numbers or scalar tensors by name; if empty, nothing is logged.
            step: Number of optimizer updates.

        Raises:
            InvalidArgumentError: If a value is not a number.
        """
        numbers = numbers_by_name(metrics, "", self)
        epoch = numbers.pop("epoch", None)
        if numbers:
            self.experiment.log_metrics(
                numbers, prefix=self.prefix or None, step=step, epoch=None if epoch is None else int(epoch)
            )

    def log_hyperparams(self, params: Hyperparameters) -> None:
        """Log parameters, nested ones by their path (`optimizer/lr`).

        Args:
            params: Values by name, which may be nested; objects are written as their `str`.
        """
        self.experiment.log_parameters(flat(named(params)))

    def log_graph(self, model: nn.Module, input_array: Any = None) -> None:
        """Log the structure of a model, if the experiment is started."""
        if self._experiment is not None:
            self._experiment.set_model_graph(str(model))

    def finalize(self, status: str) -> None:
        """Log kept checkpoints, and send everything; the experiment stays open."""
        self._log_kept()
        if self._experiment is not None:
            self._experiment.flush()

    def _log_checkpoint(self, checkpoint: LoggedCheckpoint) -> None:
        self.experiment.log_model(checkpoint.name, str(checkpoint.path), metadata=checkpoint.metadata)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the experiment: a copy continues it by its key."""
        return {**super().__getstate__(), "_experiment": None}
