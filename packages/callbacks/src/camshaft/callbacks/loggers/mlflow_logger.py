"""Logging to MLflow."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from camshaft.callbacks.extras import check_installed
from camshaft.callbacks.loggers.checkpoint_log import CheckpointLog, LoggedCheckpoint, LogModel
from camshaft.callbacks.loggers.logged_values import Hyperparameters, flat, named, numbers_by_name
from camshaft.callbacks.loggers.mlflow_names import MLflowNames
from camshaft.callbacks.loggers.mlflow_run import adopt_run, start_run
from camshaft.callbacks.loggers.mlflow_store import check_database, local_path
from camshaft.hooks_core.user_warnings import warn_user

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

    from camshaft.callbacks.model_checkpoint import ModelCheckpoint

_NUM_HELD = 1000
"""Metrics that MLflow takes at once."""

_HELD_SECONDS = 2.0

_NUM_UNANSWERED = 1000


class MLFlowLogger:
    """Writes a run of MLflow; without a server to files in `save_dir`, or to a database.

    `experiment` is the `MlflowClient`, to be used with `run_id`:
    `logger.experiment.log_figure(logger.run_id, figure, "curve.png")`. The run is made when something is first written
    or read of it.

    Metrics are sent together, 1000 of them or those of two seconds at a time; `save` and `finalize` send the rest.
    Hyperparameters become parameters, nested ones by their path (`optimizer/lr`). MLflow never changes a parameter:
    another value for one that the run has is left out, with a warning. So is the end of one that is too long.

    With `log_model`, checkpoints become artifacts: `<name>/<name>.ckpt` with `<name>/metadata.yaml`, where the name is
    the checkpoint's without extension. The run's tags "best_checkpoint" and "last_checkpoint" tell which of them the
    `ModelCheckpoint` that saved last calls so.

    Newer versions of MLflow refuse stores of files unless `MLFLOW_ALLOW_FILE_STORE` is "true": the logger sets that for
    this process where it is unset and such a store is used. `mlflow ui --backend-store-uri <save_dir>` needs it, too. A
    database (`tracking_uri="sqlite:///mlflow.db"`) needs sqlalchemy and alembic, which `mlflow-skinny` leaves out.

    Args:
        experiment_name: Name of the experiment, which is made if it is not there.
        run_name: Name of the run; None lets MLflow invent one.
        tracking_uri: Where runs are kept. None means the environment variable `MLFLOW_TRACKING_URI`, or if it is unset
            files in `save_dir`.
        tags: Tags of the run.
        save_dir: Folder of all experiments if there is no tracking URI.
        log_model: Whether to log the checkpoints that are kept when a verb of the trainer ends; "all" logs each when it
            is saved, and so does True for a `ModelCheckpoint(save_top_k=-1)`. Training waits while it is copied.
        prefix: Put before the metrics' names, with "-" between; "" leaves them as they are.
        artifact_location: Where a new experiment keeps artifacts; None lets the store choose.
        run_id: A run to continue, whatever its experiment is; None starts a new one.
        synchronous: If false, metrics and parameters are sent by a thread of MLflow's; `save` and `finalize` wait for
            it.

    Raises:
        ModuleNotFoundError: If mlflow, or what its database needs, is not installed.
    """

    def __init__(
        self,
        experiment_name: str = "camshaft_logs",
        run_name: str | None = None,
        tracking_uri: str | None = None,
        tags: Mapping[str, Any] | None = None,
        save_dir: str | os.PathLike[str] = "./mlruns",
        *,
        log_model: LogModel = False,
        prefix: str = "",
        artifact_location: str | None = None,
        run_id: str | None = None,
        synchronous: bool = True,
    ) -> None:
        check_installed("mlflow", "mlflow", type(self).__name__)
        uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or Path(save_dir).absolute().as_uri()
        check_database(uri, type(self).__name__)
        self.tracking_uri = uri
        self.tags = {name: str(value) for name, value in (tags or {}).items()}
        self.prefix = prefix
        self.synchronous = synchronous
        self._experiment_name = experiment_name
        self._run_name = run_name
        self._artifact_location = artifact_location
        self._run_id = run_id
        self._run: Run | None = None
        self._client: MlflowClient | None = None
        self._is_running = False
        self._params: dict[str, str] = {}
        self._held: list[Metric] = []
        self._held_since = 0.0
        self._unanswered: deque[Any] = deque()
        self._names = MLflowNames()
        self._newest_step = 0
        self._checkpoints = CheckpointLog(log_model, type(self).__name__)

    @property
    def save_dir(self) -> str | None:
        """Folder of all experiments; None if they are not kept in files."""
        return local_path(self.tracking_uri)

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self._experiment_name

    @property
    def version(self) -> str:
        """The run's id; reading it makes the run."""
        return self.run_id

    @property
    def log_dir(self) -> str | None:
        """Folder of the run, beside its artifacts; None if they are not kept in files. Reading it makes the run."""
        artifacts = local_path(self._connected.info.artifact_uri)
        return None if artifacts is None else os.path.dirname(artifacts.rstrip("/"))

    @property
    def experiment(self) -> MlflowClient:
        """The client; reading it makes the run."""
        if self._client is None:
            _ = self._connected
        assert self._client is not None
        return self._client

    @property
    def run_id(self) -> str:
        """The run's id; reading it makes the run."""
        run_id: str = self._connected.info.run_id
        return run_id

    @property
    def experiment_id(self) -> str:
        """The experiment's id; reading it makes the run."""
        experiment_id: str = self._connected.info.experiment_id
        return experiment_id

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Send a row; values are taken as they are now, those of tensors by waiting for their device.

        Args:
            metrics: Numbers or scalar tensors by name. Characters that MLflow does not take become "_", with a warning.
            step: Number of optimizer updates; None means the newest one that was logged.

        Raises:
            InvalidArgumentError: If a value is no number.
            MlflowException: If the store refuses what is sent; that is not tried again.
        """
        from mlflow.entities import Metric

        numbers = numbers_by_name(metrics, self.prefix, type(self).__name__)
        if not numbers:
            return
        if step is not None:
            self._newest_step = step
        now = time.time()
        if not self._held:
            self._held_since = now
        self._held += [
            Metric(self._metric_name(name), float(number), int(now * 1000), self._newest_step)
            for name, number in numbers.items()
        ]
        if len(self._held) >= _NUM_HELD or now - self._held_since >= _HELD_SECONDS:
            self._send_held()

    def log_hyperparams(self, params: Hyperparameters) -> None:
        """Add parameters to the run.

        Args:
            params: Values by name, nested as they are; what is no plain value is written as its `str`.
        """
        from mlflow.entities import Param
        from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH

        _ = self._connected  # knows the parameters of a run that is continued
        new: dict[str, str] = {}
        for name, value in flat(named(params)).items():
            key, text = self._names.allowed(name), str(value)
            if len(text) > MAX_PARAM_VAL_LENGTH:
                warn_user(f"Parameter {name!r} has {len(text)} characters; MLflow keeps {MAX_PARAM_VAL_LENGTH}.")
                text = text[:MAX_PARAM_VAL_LENGTH]
            if self._params.get(key, text) != text:
                warn_user(
                    f"Parameter {name!r} stays {self._params[key]!r} in the MLflow run {self.run_id}, as MLflow never "
                    f"changes one; {text!r} is not written."
                )
            elif key not in self._params:
                new[key] = text
        self._send(params=[Param(key, text) for key, text in new.items()])
        self._params |= new

    def after_save_checkpoint(self, checkpoint_callback: ModelCheckpoint) -> None:
        """Log the checkpoint that has become durable, or remember that there are some."""
        for checkpoint in self._checkpoints.after_save(checkpoint_callback):
            self._log_checkpoint(checkpoint)

    def save(self) -> None:
        """Send what is held back, and wait until it is written.

        Raises:
            MlflowException: If the store refuses something.
        """
        self._send_held()
        while self._unanswered:
            self._unanswered.popleft().wait()

    def finalize(self, status: str) -> None:
        """Send what is held back, log checkpoints that are to be, and end the run, as FINISHED or FAILED.

        Logging may go on: it is RUNNING again then.

        Args:
            status: "success" or "failed".
        """
        checkpoints = self._checkpoints.at_end()
        if self._client is None and not self._held and not checkpoints:
            return
        try:
            self.save()
            for checkpoint in checkpoints:
                self._log_checkpoint(checkpoint)
        finally:
            if self._client is not None and self._is_running:
                self._client.set_terminated(self.run_id, "FINISHED" if status == "success" else "FAILED")
                self._is_running = False

    @property
    def _connected(self) -> Run:
        """The run; made, or looked for, when first read."""
        if self._run is None:
            from mlflow import MlflowClient

            if local_path(self.tracking_uri) is not None:
                os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            client = MlflowClient(self.tracking_uri)
            if self._run_id is None:
                run = start_run(client, self._experiment_name, self._artifact_location, self._run_name, self.tags)
            else:
                run = adopt_run(client, self._run_id, self._run_name, self.tags)
                self._experiment_name = client.get_experiment(run.info.experiment_id).name
            self._params = dict(run.data.params)
            self._run_id, self._run, self._client, self._is_running = run.info.run_id, run, client, True
        return self._run

    def _send_held(self) -> None:
        held, self._held = self._held, []
        self._send(metrics=held)

    def _send(self, **entries: Any) -> None:
        """Write metrics or parameters, in as few requests as MLflow allows."""
        if not any(entries.values()):
            return
        client = self.experiment
        if not self._is_running:
            client.update_run(self.run_id, status="RUNNING")
            self._is_running = True
        answer = client.log_batch(self.run_id, **entries, synchronous=self.synchronous)
        if answer is not None:
            self._unanswered.append(answer)
            if len(self._unanswered) > _NUM_UNANSWERED:
                self._unanswered.popleft().wait()

    def _log_checkpoint(self, checkpoint: LoggedCheckpoint) -> None:
        client, path = self.experiment, checkpoint.path
        if path.is_dir():
            client.log_artifacts(self.run_id, str(path), f"{checkpoint.name}/{path.name}")
        else:
            client.log_artifact(self.run_id, str(path), checkpoint.name)
        client.log_dict(self.run_id, checkpoint.metadata, f"{checkpoint.name}/metadata.yaml")
        for alias in checkpoint.aliases[1:]:
            client.set_tag(self.run_id, f"{alias}_checkpoint", f"{checkpoint.name}/{path.name}")

    def _metric_name(self, name: str) -> str:
        known = self._names.known_metric(name)
        if known is None:
            existing = self._connected.data.metrics
            known = self._names.metric(name, existing, in_files=local_path(self.tracking_uri) is not None)
        return known

    def __getstate__(self) -> dict[str, Any]:
        """Without the client and what is under way: a copy continues the same run, if there is one already."""
        return {**vars(self), "_client": None, "_run": None, "_held": [], "_unanswered": deque(), "_is_running": False}
