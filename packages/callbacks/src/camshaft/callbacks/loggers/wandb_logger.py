"""Logging to Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

from torch import nn

from camshaft.callbacks.arguments import InvalidArgumentError, check_installed, check_keywords
from camshaft.callbacks.loggers.checkpoint_log import CheckpointLog, LoggedCheckpoint, LogModel
from camshaft.callbacks.loggers.logged_values import Hyperparameters, jsonable, named, numbers_by_name

if TYPE_CHECKING:
    from wandb import Run

    from camshaft.callbacks.checkpoints.model_checkpoint import ModelCheckpoint


class WandbMedia:
    """Logs values of W&B's own kinds, over the number of optimizer updates; the base of `WandbLogger`.

    Attributes:
        prefix: Put before the names, with "-" between, unless it is empty.
    """

    STEP_NAME = "trainer/global_step"

    prefix: str

    @property
    def experiment(self) -> Run:
        """The run."""
        raise NotImplementedError

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
            key: Its name.
            columns: Names of its columns.
            data: Its rows; cells may be text, numbers, and media of wandb.
            dataframe: A pandas `DataFrame` in place of both.
            step: Number of optimizer updates; None means the newest one that was logged.
        """
        import wandb

        self._log({self._prefixed(key): wandb.Table(columns=columns, data=data, dataframe=dataframe)}, step)

    def log_text(
        self,
        key: str,
        columns: list[str | int] | None = None,
        data: list[list[str]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
    ) -> None:
        """Log text, as a table: arguments are those of `log_table`."""
        self.log_table(key, columns, data, dataframe, step)

    def log_image(self, key: str, images: Sequence[Any], step: int | None = None, **kwargs: Sequence[Any]) -> None:
        """Log images.

        Args:
            key: Their name.
            images: Tensors, arrays, figures, PIL images or paths.
            step: Number of optimizer updates; None means the newest one that was logged.
            **kwargs: Further arguments of `wandb.Image`, such as `caption`: of each a list with an item per image.

        Raises:
            InvalidArgumentError: If such a list has another length, or `images` is no list.
        """
        import wandb

        if not isinstance(images, list | tuple):
            self._refuse("images", "a list of images", images, "Put it into a list.")
        for name, values in kwargs.items():
            if len(values) != len(images):
                self._refuse(name, f"a list of {len(images)}, one for each image", values, "Add what is missing.")
        arguments = [{name: values[idx] for name, values in kwargs.items()} for idx in range(len(images))]
        media = [wandb.Image(image, **each) for image, each in zip(images, arguments, strict=True)]
        self._log({self._prefixed(key): media}, step)

    def _log(self, values: dict[str, Any], step: int | None) -> None:
        self.experiment.log(values if step is None else {**values, self.STEP_NAME: step})

    def _prefixed(self, key: str) -> str:
        return f"{self.prefix}-{key}" if self.prefix else key

    def _refuse(self, field: str, rule: str, value: Any, action: str) -> None:
        raise InvalidArgumentError(field, rule, value, type(self).__name__, action)


_runs_of_loggers: WeakSet[Any] = WeakSet()
"""Runs that loggers of this process started, to tell them from those that the script started."""

_PASSED = ("project", "name", "id", "dir")


class WandbLogger(WandbMedia):
    """Writes a run of Weights & Biases.

    `experiment` is the run: `self.logger.experiment.log({"curve": wandb.Image(figure)})`. It is started when something
    is first written, or when `experiment` is first read. If the script has started one itself with `wandb.init` by
    then, and `version` names no other, that one is used, as it is; else the run is the logger's own.

    The x axis of every chart is "trainer/global_step", the number of optimizer updates. Hyperparameters become the
    run's config, nested as they are. A run of the logger's own stays open after a success, so that a test can follow
    the training; it ends with the script, with `wandb.finish()` or `experiment.finish()`. After a failure it is ended
    as failed, and what is logged then continues it.

    With `log_model`, checkpoints are logged as versions of one artifact of type "model", in which the checkpoint is
    called "model.ckpt". The aliases "best" and "last" move to what the `ModelCheckpoint` that saved last calls so.

    A process of W&B's does the writing. Offline it writes to `<save_dir>/wandb/offline-run-*`, a few times a minute and
    at the run's end; `wandb sync` uploads that.

    Args:
        name: Name of the run; None lets W&B invent one.
        save_dir: Folder in which W&B keeps its files.
        version: Id of the run; None makes one. Online, an id that exists is continued.
        offline: Whether to write files only, without network. If false `mode` and `WANDB_MODE` decide.
        dir: The same as `save_dir`, and goes before it.
        id: The same as `version`.
        project: Name of the project; None means the environment variable `WANDB_PROJECT`, or "camshaft_logs".
        log_model: Whether to log the checkpoints that are kept when a verb of the trainer ends; "all" logs each when it
            is saved, and so does True for a `ModelCheckpoint(save_top_k=-1)`.
        checkpoint_name: Name of the artifact; None means "model-" and the run's id.
        add_file_policy: "mutable" copies a checkpoint before it is uploaded. "immutable" does not: it must stay where
            it is until then, so keep all of them.
        experiment: A run that is there already, to be used as it is.
        prefix: Put before the metrics' names, with "-" between; "" leaves them as they are.
        **kwargs: Further arguments of `wandb.init`, such as `entity`, `tags`, `group`, `mode`, `settings`.

    Raises:
        ModuleNotFoundError: If wandb is not installed.
        TypeError: If `wandb.init` does not take one of `kwargs`.
        InvalidArgumentError: If `version` and `id`, or `offline` and `mode`, contradict each other.
    """

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
        check_installed("wandb", "wandb", type(self).__name__)
        if kwargs:
            import wandb

            check_keywords(kwargs, wandb.init, _PASSED, type(self).__name__)
        if None not in (version, id) and version != id:
            self._refuse("id", f"left out, or the same as version={version!r}", id, "Pass one of the two.")
        if offline and kwargs.get("mode", "offline") != "offline":
            self._refuse("mode", 'left out, or "offline", with offline=True', kwargs["mode"], "Pass one of the two.")
        if add_file_policy not in ("mutable", "immutable"):
            self._refuse("add_file_policy", '"mutable" or "immutable"', add_file_policy, "Pass one of the two.")
        self.prefix = prefix
        self._checkpoint_name = checkpoint_name
        self._add_file_policy = add_file_policy
        self._checkpoints = CheckpointLog(log_model, type(self).__name__)
        self._save_dir = os.fspath(save_dir if dir is None else dir)
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
        """Id of the run; reading it starts nothing."""
        run = self._open_run
        if run is not None:
            return run.id
        if self._id is None:
            from wandb.sdk.lib.runid import generate_id

            self._id = generate_id()
        return self._id

    @property
    def log_dir(self) -> str:
        """Folder for what belongs to the run and is not uploaded with it, such as checkpoints: by project and id."""
        return os.path.join(self._save_dir, self.name, self.version)

    @property
    def experiment(self) -> Run:
        """The run; started when first read."""
        run = self._open_run
        if run is None:
            run = self._own = self._start()
        elif self._given is None and self._own is None:
            self._given = run  # the script's: it stays this logger's when the script starts another one
        return run

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Send a row; values are taken as they are now, those of tensors by waiting for their device.

        Args:
            metrics: Numbers or scalar tensors by name; without any, there is no row.
            step: Number of optimizer updates; None means the newest one that was logged.

        Raises:
            InvalidArgumentError: If a value is no number.
        """
        numbers = numbers_by_name(metrics, self.prefix, type(self).__name__)
        if numbers:
            self._log(numbers, step)

    def log_hyperparams(self, params: Hyperparameters) -> None:
        """Add to the run's config; a name that is there already gets the new value.

        Args:
            params: Values by name, nested as they are; what JSON does not know is written as its `str`.
        """
        config: Any = self.experiment.config
        config.update(jsonable(named(params)), allow_val_change=True)

    def watch(
        self,
        model: nn.Module,
        log: Literal["gradients", "parameters", "all"] | None = "gradients",
        log_freq: int = 100,
        log_graph: bool = True,
    ) -> None:
        """Log histograms of a model's gradients or parameters, as `wandb.Run.watch` does.

        Args:
            model: The model.
            log: What to log of it; None nothing but the graph.
            log_freq: After how many backward passes.
            log_graph: Whether to log its structure.
        """
        self.experiment.watch(model, log=log, log_freq=log_freq, log_graph=log_graph)

    def after_save_checkpoint(self, checkpoint_callback: ModelCheckpoint) -> None:
        """Log the checkpoint that has become durable, or remember that there are some."""
        for checkpoint in self._checkpoints.after_save(checkpoint_callback):
            self._log_checkpoint(checkpoint)

    def save(self) -> None:
        """Nothing: W&B's process has been told everything, and writes when it will."""

    def finalize(self, status: str) -> None:
        """Log checkpoints that are to be; end a run of the logger's own as failed after a failure, else it stays open.

        Args:
            status: "success" or "failed".
        """
        try:
            for checkpoint in self._checkpoints.at_end():
                self._log_checkpoint(checkpoint)
        finally:
            if status != "success" and self._own is not None:
                self._own.finish(exit_code=1)
                self._own = None  # logging may go on, under the same id

    @property
    def _open_run(self) -> Run | None:
        """The logger's run if there is one, else the one that the script started, if it fits."""
        run = self._own if self._given is None else self._given
        if run is not None:
            return run
        import wandb

        active = wandb.run
        if active is None or active in _runs_of_loggers or self._id not in (None, active.id):
            return None
        return active

    def _start(self) -> Run:
        import wandb

        os.makedirs(self._save_dir, exist_ok=True)  # else W&B would take a temporary folder
        arguments: dict[str, Any] = {"resume": "allow", **self._kwargs}
        if wandb.run is not None:
            arguments.setdefault("reinit", "create_new")  # else W&B would return that of another logger
        run = wandb.init(project=self._project, name=self._run_name, id=self.version, dir=self._save_dir, **arguments)
        _runs_of_loggers.add(run)
        run.define_metric(self.STEP_NAME)
        run.define_metric("*", step_metric=self.STEP_NAME, step_sync=True)
        return run

    def _log_checkpoint(self, checkpoint: LoggedCheckpoint) -> None:
        import wandb

        name = self._checkpoint_name or f"model-{self.experiment.id}"
        artifact = wandb.Artifact(name, "model", metadata=checkpoint.metadata)
        add = artifact.add_dir if checkpoint.path.is_dir() else artifact.add_file
        add(str(checkpoint.path), name="model.ckpt", policy=self._add_file_policy)
        self.experiment.log_artifact(artifact, aliases=list(checkpoint.aliases))

    def __getstate__(self) -> dict[str, Any]:
        """Without a run of its own: a copy starts one with the same id."""
        return {**vars(self), "_own": None}
