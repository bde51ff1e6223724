"""Logger for Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from weakref import WeakSet

from torch import nn

from camshaft.callbacks.arguments import (
    InvalidArgumentError,
    check_installed,
    check_keywords,
    check_local,
    check_one_of,
    usable_path,
)
from camshaft.callbacks.loggers.checkpoint_log import CheckpointLogger, LoggedCheckpoint, LogModel
from camshaft.callbacks.loggers.logged_values import Hyperparameters, jsonable, named, numbers_by_name

if TYPE_CHECKING:
    from wandb import Run


_runs_of_loggers: WeakSet[Any] = WeakSet()
"""Runs that loggers of this process started, as opposed to the script."""


class WandbLogger(CheckpointLogger):
    """Logs to a run of Weights & Biases.

    `experiment` is the run: `self.logger.experiment.log({"curve": wandb.Image(figure)})`. It is started at the first
    write, or when `experiment` is first read. A run that the script itself started before with `wandb.init` is used as
    it is, unless `version` names another; otherwise the logger starts its own.

    The x axis of every chart is "trainer/global_step", the number of optimizer updates. Hyperparameters become the
    run's config, nested ones too. The logger's own run stays open after a success, so that a test can follow training;
    it ends with the script, with `wandb.finish()` or `experiment.finish()`. After a failure it is ended as failed, and
    further logging continues it.

    With `log_model`, checkpoints are logged as versions of one artifact of type "model", in which the checkpoint is
    called "model.ckpt". The aliases "best" and "last" are those of the `ModelCheckpoint` that saved last.

    A process of W&B writes the data. Offline it writes to `<save_dir>/wandb/offline-run-*`, a few times a minute and at
    the run's end; `wandb sync` uploads that.

    Args:
        name: Name of the run; None lets W&B generate one.
        save_dir: Folder of W&B's files.
        version: Id of the run; None generates one. Online, an existing id is continued.
        offline: Whether to write only files, without network. If false, `mode` and `WANDB_MODE` decide.
        dir: Alias of `save_dir`, which it overrides.
        id: Alias of `version`.
        project: Name of the project; None is the environment variable `WANDB_PROJECT`, or "camshaft_logs".
        log_model: Whether to log the checkpoints that are kept when a verb of the trainer ends; "all" logs each once
            saved, and so does True for a `ModelCheckpoint(save_top_k=-1)`.
        checkpoint_name: Name of the artifact; None is "model-" and the run's id.
        add_file_policy: "mutable" copies a checkpoint before it is uploaded. "immutable" does not: the file must not
            change until then, so keep all checkpoints.
        experiment: An existing run, used as it is.
        prefix: Prefix of the metrics' names, followed by "-"; "" adds none.
        **kwargs: Further arguments of `wandb.init`, such as `entity`, `tags`, `group`, `mode`, `settings`.

    Raises:
        ModuleNotFoundError: If wandb is not installed.
        TypeError: If `wandb.init` does not accept one of `kwargs`.
        InvalidArgumentError: If `version` and `id`, or `offline` and `mode`, contradict each other.
    """

    STEP_NAME: ClassVar[str] = "trainer/global_step"

    def __init__(
        self,
        name: str | None = None,
        save_dir: str | os.PathLike[str] = ".",
        version: str | None = None,
        offline: bool = False,
        dir: str | os.PathLike[str] | None = None,
        id: str | None = None,
        *,
        project: str | None = None,
        log_model: LogModel = False,
        experiment: Run | None = None,
        prefix: str = "",
        checkpoint_name: str | None = None,
        add_file_policy: Literal["mutable", "immutable"] = "mutable",
        **kwargs: Any,
    ) -> None:
        super().__init__(log_model)
        where, action = type(self).__name__, "Pass one of the two."
        check_installed("wandb", "wandb", where)
        if kwargs:
            import wandb

            check_keywords(kwargs, wandb.init, ("project", "name", "id", "dir"), where)
        if None not in (version, id) and version != id:
            raise InvalidArgumentError("id", f"left out, or the same as version={version!r}", id, where, action)
        if offline and kwargs.get("mode", "offline") != "offline":
            rule = 'left out, or "offline", with offline=True'
            raise InvalidArgumentError("mode", rule, kwargs["mode"], where, action)
        check_one_of(where, ("mutable", "immutable"), add_file_policy=add_file_policy)
        self.prefix = prefix
        self._checkpoint_name = checkpoint_name
        self.add_file_policy = add_file_policy
        folder = save_dir if dir is None else dir
        check_local("save_dir", os.fspath(folder), where)
        self._save_dir = usable_path("save_dir", folder, where)
        self._project = project or os.environ.get("WANDB_PROJECT") or "camshaft_logs"
        self._run_name = name
        self._id = version if version is not None else id
        self._kwargs = {**kwargs, "mode": "offline"} if offline else kwargs
        self._given = experiment
        self._own: Run | None = None

    @property
    def save_dir(self) -> str:
        """Folder in which W&B keeps its files."""
        return self._save_dir

    @property
    def name(self) -> str:
        """Name of the project."""
        run = self._open_run
        return self._project if run is None else run.project

    @property
    def version(self) -> str:
        """Id of the run; reading it does not start the run."""
        run = self._open_run
        if run is not None:
            return run.id
        if self._id is None:
            from wandb.sdk.lib.runid import generate_id

            self._id = generate_id()
        return self._id

    @property
    def log_dir(self) -> str:
        """Folder for files of the run that are not uploaded with it, such as checkpoints; named by project and id."""
        return os.path.join(self._save_dir, self.name, self.version)

    @property
    def experiment(self) -> Run:
        """The run; started when first read."""
        run = self._open_run
        if run is None:
            run = self._own = self._start()
        elif self._own is None:
            self._given = run  # also the script's run: kept even when the script starts another one
        return run

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log metrics. Tensors are read now, which waits for their device.

        Args:
            metrics: Numbers or scalar tensors by name; if empty, nothing is logged.
            step: Number of optimizer updates; None is the newest that was logged.

        Raises:
            InvalidArgumentError: If a value is not a number.
        """
        if metrics:
            self._log(numbers_by_name(metrics, self._names_start, self), step)

    def log_hyperparams(self, params: Hyperparameters) -> None:
        """Add hyperparameters to the run's config; an existing name gets the new value.

        Args:
            params: Values by name, which may be nested; objects that JSON cannot hold are written as their `str`.
        """
        config: Any = self.experiment.config
        config.update(jsonable(named(params)), allow_val_change=True)

    def log_table(
        self,
        key: str,
        columns: list[str | int] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
    ) -> None:
        """Log a table.

        Args:
            key: Name of the table.
            columns: Names of its columns.
            data: Its rows; cells may be text, numbers, and media of wandb.
            dataframe: A pandas `DataFrame` instead of both.
            step: Number of optimizer updates; None is the newest that was logged.
        """
        import wandb

        table = wandb.Table(columns=columns, data=data, dataframe=dataframe)
        self._log({self._names_start + key: table}, step)

    log_text = log_table
    """Log text, as a table."""

    def log_image(self, key: str, images: Sequence[Any], step: int | None = None, **kwargs: Sequence[Any]) -> None:
        """Log images.

        Args:
            key: Name of the images.
            images: Tensors, arrays, figures, PIL images or paths.
            step: Number of optimizer updates; None is the newest that was logged.
            **kwargs: Further arguments of `wandb.Image`, such as `caption`: each a list with a value per image.

        Raises:
            InvalidArgumentError: If such a list has another length, or `images` is not a list.
        """
        self._log_media("Image", key, "images", images, step, kwargs)

    def log_audio(self, key: str, audios: Sequence[Any], step: int | None = None, **kwargs: Sequence[Any]) -> None:
        """Log sounds; arguments as those of `log_image`, for `wandb.Audio`."""
        self._log_media("Audio", key, "audios", audios, step, kwargs)

    def log_video(self, key: str, videos: Sequence[Any], step: int | None = None, **kwargs: Sequence[Any]) -> None:
        """Log videos; arguments as those of `log_image`, for `wandb.Video`."""
        self._log_media("Video", key, "videos", videos, step, kwargs)

    def _log_media(
        self, kind: str, key: str, field: str, items: Any, step: int | None, further: Mapping[str, Sequence[Any]]
    ) -> None:
        import wandb

        if not isinstance(items, list | tuple):
            raise InvalidArgumentError(field, f"a list of {field}", items, self, "Pass a list.")
        for name, values in further.items():
            if len(values) != len(items):
                rule, action = f"a list of {len(items)}, one for each {field[:-1]}", "Pass as many values."
                raise InvalidArgumentError(name, rule, values, self, action)
        make = getattr(wandb, kind)
        media = [
            make(item, **{name: values[idx] for name, values in further.items()}) for idx, item in enumerate(items)
        ]
        self._log({self._names_start + key: media}, step)

    @staticmethod
    def download_artifact(
        artifact: str,
        save_dir: str | os.PathLike[str] | None = None,
        artifact_type: str | None = None,
        use_artifact: bool = True,
    ) -> str:
        """Download an artifact.

        Args:
            artifact: Its name with its version or alias, such as "entity/project/model-abc:best".
            save_dir: Folder to download it to; None lets W&B choose.
            artifact_type: Its type, as a check; None accepts any.
            use_artifact: Whether the script's run, if there is one, is noted as one that uses it.

        Returns:
            The folder with its files.

        Raises:
            TypeError: If the run is to note it, and is offline (from W&B).
        """
        import wandb

        if wandb.run is not None and use_artifact:
            found = wandb.run.use_artifact(artifact, type=artifact_type)
        else:
            found = wandb.Api().artifact(artifact, type=artifact_type)
        return str(found.download(root=None if save_dir is None else os.fspath(save_dir)))

    def use_artifact(self, artifact: str, artifact_type: str | None = None) -> Any:
        """Return an artifact, and note that the run uses it; arguments and errors as those of `download_artifact`."""
        return self.experiment.use_artifact(artifact, type=artifact_type)

    def watch(
        self,
        model: nn.Module,
        log: Literal["gradients", "parameters", "all"] | None = "gradients",
        log_freq: int = 100,
        log_graph: bool = True,
    ) -> None:
        """Log histograms of a model's gradients or parameters, as `wandb.Run.watch` does.

        Args:
            log: What to log; None logs only the graph.
            log_freq: Number of backward passes between two histograms.
            log_graph: Whether to log the model's structure.
        """
        self.experiment.watch(model, log=log, log_freq=log_freq, log_graph=log_graph)

    def save(self) -> None:
        """Do nothing: W&B's process has all data already, and writes by itself."""

    def finalize(self, status: str) -> None:
        """Log kept checkpoints; after a failure, end the logger's own run as failed.

        Args:
            status: "success" or "failed".
        """
        try:
            self._log_kept()
        finally:
            if status != "success" and self._own is not None:
                self._own.finish(exit_code=1)
                self._own = None  # logging may continue, under the same id

    @property
    def _open_run(self) -> Run | None:
        """The logger's run if there is one, else that of the script if its id fits."""
        run = self._own if self._given is None else self._given
        if run is None:
            import wandb

            active = wandb.run
            if active is not None and active not in _runs_of_loggers and self._id in (None, active.id):
                return active
        return run

    def _start(self) -> Run:
        import wandb

        os.makedirs(self._save_dir, exist_ok=True)  # W&B would use a temporary folder otherwise
        arguments: dict[str, Any] = {"resume": "allow", **self._kwargs}
        if wandb.run is not None:
            arguments.setdefault("reinit", "create_new")  # W&B would return another logger's run otherwise
        run = wandb.init(project=self._project, name=self._run_name, id=self.version, dir=self._save_dir, **arguments)
        _runs_of_loggers.add(run)
        run.define_metric(self.STEP_NAME)
        run.define_metric("*", step_metric=self.STEP_NAME, step_sync=True)
        return run

    def _log(self, values: dict[str, Any], step: int | None) -> None:
        self.experiment.log(values if step is None else {**values, self.STEP_NAME: step})

    def _log_checkpoint(self, checkpoint: LoggedCheckpoint) -> None:
        import wandb

        name = self._checkpoint_name or f"model-{self.experiment.id}"
        artifact = wandb.Artifact(name, "model", metadata=checkpoint.metadata)
        add = artifact.add_dir if checkpoint.path.is_dir() else artifact.add_file
        add(str(checkpoint.path), name="model.ckpt", policy=self.add_file_policy)
        self.experiment.log_artifact(artifact, aliases=list(checkpoint.aliases))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the logger's own run: a copy starts one with the same id."""
        return {**super().__getstate__(), "_own": None}
