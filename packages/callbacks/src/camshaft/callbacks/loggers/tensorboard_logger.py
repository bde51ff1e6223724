"""Logger for TensorBoard."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from camshaft.callbacks.arguments import InvalidArgumentError, check_installed, check_keywords, check_local
from camshaft.callbacks.loggers.logged_values import Hyperparameters, flat, numbers_by_name
from camshaft.callbacks.loggers.run_folder import RunFolderLogger
from camshaft.callbacks.progress.example_forward import countable, example_call, reason_not_to_run, restored
from camshaft.hooks_core.support.messages import warn_user

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardLogger(RunFolderLogger):
    """Writes event files for TensorBoard and `hparams.json` to `<save_dir>/<name>/<version>`.

    `experiment` is torch's `SummaryWriter`: `self.logger.experiment.add_histogram(...)`, `add_image`, `add_figure`
    and so on. See `RunFolderLogger` for when a version is claimed. A given version is continued in a new event file;
    pass `purge_step=<first step>` to hide what a crashed run wrote from that step on.

    Hyperparameters, nested ones by their path (`optimizer/lr`), are shown in the HPARAMS tab, whose columns are the
    hyperparameters and metrics of all runs below TensorBoard's folder. All calls of `log_hyperparams` before the first
    metrics make up one set.

    Args:
        save_dir: Folder of all experiments.
        name: Folder of the experiment in it; "" and None use `save_dir` itself.
        version: Folder of the run in that: a number n is "version_n", a text is the folder's name. None is the number
            after the highest that exists when it is first read. A given version is continued if it exists.
        prefix: Prefix of the metrics' names, followed by "-"; "" adds none.
        sub_dir: Folder in that of the version for this logger's files; "~" and variables are expanded.
        log_graph: Whether to write the graph of the module, traced with its `example_input_array`, before the first
            metrics of a fit. A module that cannot be traced, or is sharded, gets none, with a warning.
        default_hp_metric: Whether hyperparameters without metrics get a metric "hp_metric" of -1, which logging that
            name replaces.
        **kwargs: Further arguments of `SummaryWriter`: `max_queue`, `flush_secs`, `purge_step`, `filename_suffix`.

    Raises:
        ModuleNotFoundError: If tensorboard is not installed.
        TypeError: If `SummaryWriter` does not accept one of `kwargs`.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str | None = "camshaft_logs",
        version: int | str | None = None,
        *,
        log_graph: bool = False,
        prefix: str = "",
        sub_dir: str | os.PathLike[str] | None = None,
        default_hp_metric: bool = True,
        **kwargs: Any,
    ) -> None:
        check_local("save_dir", os.fspath(save_dir), self)  # the writer cannot replace a file of a store
        super().__init__(save_dir, name, version)
        check_installed("tensorboard", "tensorboard", self)
        if kwargs.get("comment") == "":
            del kwargs["comment"]  # the default of `SummaryWriter`, which a command line passes
        if kwargs:
            from torch.utils.tensorboard import SummaryWriter

            check_keywords(kwargs, SummaryWriter, ("log_dir", "comment"), self)
        self.prefix = prefix
        self.sub_dir = None if sub_dir is None else os.path.expanduser(os.path.expandvars(sub_dir))
        self._logs_graph = log_graph
        self._graph_module: weakref.ref[nn.Module] | None = None
        self._default_hp_metric = default_hp_metric
        self._kwargs = kwargs
        self._writer: SummaryWriter | None = None
        self._newest_step = 0
        self._shown_hparams: dict[str, Any] | None = None
        self._has_metrics = False
        self._is_ended = False

    @property
    def log_dir(self) -> str:
        """Folder of the run, with `sub_dir`."""
        folder = super().log_dir
        return folder if self.sub_dir is None else os.path.join(folder, self.sub_dir)

    @property
    def experiment(self) -> SummaryWriter:
        """The writer; created, with its file, when first read."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._has_metrics |= any(Path(self.log_dir).glob("events.out.tfevents.*"))  # of a continued run
            self._writer = SummaryWriter(self.log_dir, **self._kwargs)
        return self._writer

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write scalars. Tensors are read now, which waits for their device.

        Args:
            metrics: Numbers or scalar tensors by name; a dictionary of them becomes curves in one chart.
            step: Number of optimizer updates; None is the newest that was logged.

        Raises:
            InvalidArgumentError: If a value is not a number.
        """
        if not metrics:
            return
        numbers: dict[str, Any] = {}
        for name, value in metrics.items():
            if isinstance(value, Mapping):
                numbers[self._names_start + name] = numbers_by_name(value, "", self)
            else:
                numbers |= numbers_by_name({name: value}, self._names_start, self)
        if self._graph_module is not None:
            self._write_graph()
        self._has_metrics = True
        self._show_hparams()
        if step is not None:
            self._newest_step = step
        writer, now = self.experiment, time.time()
        for name, number in numbers.items():
            write = writer.add_scalars if isinstance(number, Mapping) else writer.add_scalar
            write(name, number, self._newest_step, now)

    def log_hyperparams(
        self,
        params: Hyperparameters | None = None,
        metrics: Mapping[str, float] | float | None = None,
        step: int | None = None,
    ) -> None:
        """Add hyperparameters to `hparams.json` and to the HPARAMS tab, and log metrics that belong to them.

        The tab keeps the first set of a run, which is written with the first metrics, or by `save` or `finalize`. A
        later change is only in `hparams.json`, with a warning.

        Args:
            params: Values by name, which may be nested.
            metrics: Numbers to compare runs by, by name; a number alone is called "hp_metric".
            step: Number of optimizer updates for them.
        """
        super().log_hyperparams(params)
        if self._shown_hparams not in (None, flat(self.hparams)):
            warn_user(
                "TensorBoard's HPARAMS tab keeps the first hyperparameters that a run wrote: later changes are only in "
                f"{self.HPARAMS_FILE}. Log all of them before the first metrics."
            )
        if metrics is not None:
            self.log_metrics(metrics if isinstance(metrics, Mapping) else {"hp_metric": metrics}, step)

    def begin_fit(self, module: nn.Module) -> None:
        """Set the module whose graph `log_graph=True` writes; called by the trainer before fit begins."""
        self._graph_module = weakref.ref(module) if self._logs_graph else None

    def log_graph(self, model: nn.Module, input_array: Tensor | tuple[Any, ...] | None = None) -> None:
        """Write the graph of a model, traced in evaluation mode; the model is unchanged afterwards.

        Args:
            input_array: Input of its `forward`, a tuple for several. None is the model's `example_input_array`.

        Raises:
            InvalidArgumentError: If there is no input.
        """
        example = getattr(model, "example_input_array", None) if input_array is None else input_array
        if not isinstance(example, Tensor | tuple):
            rule = "a tensor or a tuple of inputs, or the model's attribute `example_input_array`"
            action = "Pass an input, or set the attribute."
            raise InvalidArgumentError("input_array", rule, example, self, action)
        with _readable(model), restored(model), countable(model):
            self.experiment.add_graph(model, example_call(model, example)[0])

    def save(self) -> None:
        """Write everything that is buffered."""
        self._write_graph()
        self._show_hparams()
        if self._writer is not None:
            self._writer.flush()

    def finalize(self, status: str) -> None:
        """Write everything that is buffered, mark a success in the HPARAMS tab, and close the file."""
        self.save()
        if self._writer is None:
            super().finalize(status)
            return
        if self._shown_hparams is not None and status == "success" and not self._is_ended:
            from torch.utils.tensorboard.summary import hparams

            self._add_summary(hparams({}, {})[2])  # type: ignore[no-untyped-call]
            self._is_ended = True
        self._writer.close()

    def _write_graph(self) -> None:
        """Write the graph of the module, if that is still to be done."""
        module = None if self._graph_module is None else self._graph_module()
        self._graph_module = None
        if module is None:
            return
        reason = reason_not_to_run(module)
        if reason is None:
            try:
                self.log_graph(module)
            except Exception as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())
        if reason is not None:
            warn_user(
                f"TensorBoard gets no graph of {type(module).__name__}: {reason}. Call the logger's `log_graph` with "
                "inputs that `forward` takes, or leave out `log_graph=True`."
            )

    def _show_hparams(self) -> None:
        """Write the hyperparameters for the HPARAMS tab, once per run."""
        if self._shown_hparams is not None or not self.hparams:
            return
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # type: ignore[import-untyped]

        self._shown_hparams = flat(self.hparams)
        writer = self.experiment
        values = {name: "None" if value is None else value for name, value in self._shown_hparams.items()}
        self._add_summary(hparams_pb(values, trial_id=self.log_dir))
        if self._default_hp_metric and not self._has_metrics:
            writer.add_scalar("hp_metric", -1, 0)

    def _add_summary(self, summary: Any) -> None:
        # SummaryWriter has no public method for a ready-made summary
        self.experiment._get_file_writer().add_summary(summary)  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the writer, which has a thread: a copy writes its own file."""
        return {**vars(self), "_writer": None, "_graph_module": None}


@contextmanager
def _readable(model: nn.Module) -> Iterator[None]:
    """Give parts that raise for want of a trainer a placeholder: torch reads all attributes of what it traces."""
    parts: list[Any] = []
    for part in model.modules():
        try:
            getattr(part, "trainer", None)
        except RuntimeError:
            parts.append(part)
            parts[-1].trainer = object()
    try:
        yield
    finally:
        for part in parts:
            part.trainer = None
