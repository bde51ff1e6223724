"""Logger for MLflow."""

from __future__ import annotations

import os
import posixpath
import random
import re
import time
from collections import deque
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from camshaft.callbacks.arguments import check_installed, check_local, usable_path
from camshaft.callbacks.loggers.checkpoint_log import CheckpointLogger, LoggedCheckpoint, LogModel
from camshaft.callbacks.loggers.logged_values import Hyperparameters, flat, named, numbers_by_name
from camshaft.hooks_core.support.messages import warn_user

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run
    from mlflow.tracking import MlflowClient


_MAX_BUFFERED = 1000  # metrics that MLflow takes in one request
_MAX_BUFFER_SECONDS = 2.0
_MAX_UNANSWERED = 1000  # requests that are not waited for


class MLFlowLogger(CheckpointLogger):
    """Logs to a run of MLflow: to a server, to a database, or by default to files in `save_dir`.

    `experiment` is the `MlflowClient`, to be used with `run_id`:
    `logger.experiment.log_figure(logger.run_id, figure, "curve.png")`. The run is created when it is first written to
    or read.

    Metrics are sent in batches, of 1000 metrics or two seconds; `save` and `finalize` send the rest. Hyperparameters
    become parameters, nested ones by their path (`optimizer/lr`). MLflow never changes a parameter: a new value for an
    existing one is dropped, and one that is too long is cut, each with a warning.

    With `log_model`, checkpoints become artifacts: `<name>/<name>.ckpt` with `<name>/metadata.yaml`, where the name is
    the checkpoint's without extension. The run's tags "best_checkpoint" and "last_checkpoint" name the best and last
    ones of the `ModelCheckpoint` that saved last.

    Newer versions of MLflow refuse file stores unless `MLFLOW_ALLOW_FILE_STORE` is "true": the logger sets it in this
    process if it is unset and such a store is used. `mlflow ui --backend-store-uri <save_dir>` needs it, too. A
    database (`tracking_uri="sqlite:///mlflow.db"`) needs sqlalchemy and alembic, which `mlflow-skinny` leaves out.

    Args:
        experiment_name: Name of the experiment, which is created if it does not exist.
        run_name: Name of the run; None lets MLflow generate one.
        tracking_uri: URI of the store. None is the environment variable `MLFLOW_TRACKING_URI`, or if it is unset files
            in `save_dir`.
        tags: Tags of the run.
        save_dir: Folder of all experiments if there is no tracking URI.
        log_model: Whether to log the checkpoints that are kept when a verb of the trainer ends; "all" logs each once
            saved, and so does True for a `ModelCheckpoint(save_top_k=-1)`. Training waits while it is copied.
        prefix: Prefix of the metrics' names, followed by "-"; "" adds none.
        artifact_location: Location of a new experiment's artifacts; None lets the store choose.
        run_id: Run to continue, of any experiment; None starts a new one.
        synchronous: If false, a thread of MLflow sends metrics and parameters; `save` and `finalize` wait for it.

    Raises:
        ModuleNotFoundError: If mlflow, or a library for its database, is not installed.
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
        super().__init__(log_model)
        check_installed("mlflow", "mlflow", self)
        check_local("save_dir", os.fspath(save_dir), self)
        save_dir = usable_path("save_dir", save_dir, self)
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
        self._buffer: list[Metric] = []
        self._buffered_since = 0.0
        self._unanswered: deque[Any] = deque()
        self._renamed: set[str] = set()
        self._metric_names: dict[str, str] = {}
        self._newest_step = 0

    @property
    def save_dir(self) -> str | None:
        """Folder of all experiments; None if they are not in files."""
        return local_path(self.tracking_uri)

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self._experiment_name

    @property
    def version(self) -> str:
        """The run's id; reading it creates the run."""
        return self.run_id

    @property
    def log_dir(self) -> str | None:
        """Folder of the run, beside its artifacts; None if they are not in files. Reading it creates the run."""
        artifacts = local_path(self._connected.info.artifact_uri)
        return None if artifacts is None else os.path.dirname(artifacts.rstrip("/"))

    @property
    def experiment(self) -> MlflowClient:
        """The client; reading it creates the run."""
        _ = self._connected
        assert self._client is not None
        return self._client

    @property
    def run_id(self) -> str:
        """The run's id; reading it creates the run."""
        return str(self._connected.info.run_id)

    @property
    def experiment_id(self) -> str:
        """The experiment's id; reading it creates the run."""
        return str(self._connected.info.experiment_id)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log metrics. Tensors are read now, which waits for their device.

        Args:
            metrics: Numbers or scalar tensors by name. Characters that MLflow refuses become "_", with a warning.
            step: Number of optimizer updates; None is the newest that was logged.

        Raises:
            InvalidArgumentError: If a value is not a number.
            MlflowException: If the store refuses the request, which is not repeated.
        """
        from mlflow.entities import Metric

        numbers = numbers_by_name(metrics, self._names_start, self)
        if not numbers:
            return
        if step is not None:
            self._newest_step = step
        now = time.time()
        self._buffered_since = self._buffered_since if self._buffer else now
        for name, number in numbers.items():
            self._buffer.append(Metric(self._metric_name(name), float(number), int(now * 1000), self._newest_step))
        if len(self._buffer) >= _MAX_BUFFERED or now - self._buffered_since >= _MAX_BUFFER_SECONDS:
            self._send_buffer()

    def log_hyperparams(self, params: Hyperparameters) -> None:
        """Add parameters to the run.

        Args:
            params: Values by name, which may be nested; objects are written as their `str`.
        """
        from mlflow.entities import Param
        from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH

        _ = self._connected  # reads the parameters of a continued run
        new: dict[str, str] = {}
        for name, value in flat(named(params)).items():
            key, text = self._allowed_name(name), str(value)
            if len(text) > MAX_PARAM_VAL_LENGTH:
                warn_user(
                    f"Parameter {name!r} is cut from {len(text)} to {MAX_PARAM_VAL_LENGTH} characters. Shorten it."
                )
                text = text[:MAX_PARAM_VAL_LENGTH]
            if self._params.get(key, text) != text:
                warn_user(
                    f"Parameter {name!r} stays {self._params[key]!r} in the MLflow run {self.run_id}, as MLflow never "
                    f"changes a parameter; {text!r} is not written. Start a new run for it."
                )
            elif key not in self._params:
                new[key] = text
        self._send(params=[Param(key, text) for key, text in new.items()])
        self._params |= new

    def save(self) -> None:
        """Send the buffered metrics, and wait until they are written.

        Raises:
            MlflowException: If the store refuses a request.
        """
        self._send_buffer()
        while self._unanswered:
            self._unanswered.popleft().wait()

    def finalize(self, status: str) -> None:
        """Send the buffered metrics, log kept checkpoints, and end the run as FINISHED or FAILED.

        Logging may continue, which makes the run RUNNING again.

        Args:
            status: "success" or "failed".
        """
        try:
            self.save()
            self._log_kept()
        finally:
            if self._client is not None and self._is_running:
                self._client.set_terminated(self.run_id, "FINISHED" if status == "success" else "FAILED")
                self._is_running = False

    @property
    def _connected(self) -> Run:
        """The run; created, or looked up, when first read."""
        if self._run is None:
            from mlflow.tracking import MlflowClient

            if local_path(self.tracking_uri) is not None:
                os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            client = MlflowClient(self.tracking_uri)
            if self._run_id is None:
                run = self._create_run(client)
            else:  # an existing run continues
                client.update_run(self._run_id, status="RUNNING", name=self._run_name)
                for name, value in self.tags.items():
                    client.set_tag(self._run_id, name, value)
                run = client.get_run(self._run_id)
                self._experiment_name = client.get_experiment(run.info.experiment_id).name
            self._params = dict(run.data.params)
            self._run_id, self._run, self._client, self._is_running = run.info.run_id, run, client, True
        return self._run

    def _create_run(self, client: MlflowClient) -> Run:
        """Create a run, in an experiment that is created if it does not exist."""
        from mlflow.tracking.context.registry import resolve_tags

        # MLflow draws names from a fresh seed: training's random numbers stay the same, and runs with equal seeds get
        # different names.
        state = random.getstate()
        random.seed()
        try:
            experiment_id = _experiment_id(client, self._experiment_name, self._artifact_location)
            return client.create_run(experiment_id, run_name=self._run_name, tags=resolve_tags(dict(self.tags)))
        finally:
            random.setstate(state)

    def _send_buffer(self) -> None:
        held, self._buffer = self._buffer, []
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
            if len(self._unanswered) > _MAX_UNANSWERED:
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
        """Return the name of a metric in MLflow; chosen, with a warning if it has to be another, at the first use."""
        if name not in self._metric_names:
            free = allowed = self._allowed_name(name)
            # Each metric is a file, so that no name can be a folder in another's path.
            is_in_files = local_path(self.tracking_uri) is not None
            taken = {*self._connected.data.metrics, *self._metric_names.values()} if is_in_files else set()
            while any(one.startswith(f"{free}/") or free.startswith(f"{one}/") for one in taken):
                free = free.replace("/", "-") if "/" in free else f"{free}-"
            if free != allowed:
                warn_user(
                    f"{name!r} is called {free!r} in MLflow, whose files cannot hold it beside the others. Log it "
                    "under another name, or pass a database as `tracking_uri`."
                )
            self._metric_names[name] = free
        return self._metric_names[name]

    def _allowed_name(self, name: str) -> str:
        """Return a name as a path of letters, digits and _ - . only; warn once if it has to be changed."""
        allowed = posixpath.normpath(re.sub(r"[^/\w.\- ]", "_", name)).strip("/")
        if allowed != name and name not in self._renamed:
            self._renamed.add(name)
            warn_user(f"{name!r} is called {allowed!r} in MLflow. Use paths of letters, digits and _ - . only.")
        return allowed

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the client and unsent metrics: a copy continues the same run, if it exists already."""
        of_process: dict[str, Any] = {
            "_client": None,
            "_run": None,
            "_buffer": [],
            "_unanswered": deque(),
            "_is_running": False,
        }
        return {**super().__getstate__(), **of_process}


def _experiment_id(client: MlflowClient, name: str, artifact_location: str | None) -> str:
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return str(client.create_experiment(name, artifact_location))
        except MlflowException:
            experiment = client.get_experiment_by_name(name)  # another process may have created it
            if experiment is None:
                raise
    if artifact_location not in (None, experiment.artifact_location):
        warn_user(
            f"The MLflow experiment {name!r} exists already and keeps artifacts in {experiment.artifact_location!r}, "
            f"not in artifact_location={artifact_location!r}. Pass another `experiment_name` to keep them there."
        )
    return str(experiment.experiment_id)


_DATABASES = ("sqlite", "mysql", "postgresql", "mssql")


def local_path(uri: str) -> str | None:
    """Return the path in a URI; None if it is not one of local files."""
    parts = urlparse(uri)
    if parts.scheme == "":
        return uri
    return unquote(parts.path) if parts.scheme == "file" and parts.netloc in ("", "localhost") else None


def check_database(uri: str, where: str) -> None:
    """Raise `ModuleNotFoundError` if a URI is that of a database, and a library that MLflow needs is missing."""
    if urlparse(uri).scheme.partition("+")[0] not in _DATABASES:
        return
    for library in ("sqlalchemy", "alembic"):
        if find_spec(library) is None:
            action = "Install it: `pip install sqlalchemy alembic`, or leave `tracking_uri` out to write files."
            raise ModuleNotFoundError(
                f"{where}(tracking_uri={uri!r}) needs `{library}`, which is not installed. {action}", name=library
            )
