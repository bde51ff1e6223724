"""Logging to TensorBoard."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from camshaft.callbacks.arguments import InvalidArgumentError, check_installed, check_keywords
from camshaft.callbacks.loggers.logged_values import Hyperparameters, flat, numbers_by_name
from camshaft.callbacks.loggers.run_folder import RunFolderLogger
from camshaft.callbacks.progress.example_forward import example_call, plainly, reason_not_to_run, without_trace
from camshaft.hooks_core.user_warnings import warn_user

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardLogger(RunFolderLogger):
    """Writes event files for TensorBoard and `hparams.json` to `<save_dir>/<name>/<version>`.

    `experiment` is torch's `SummaryWriter`: `self.logger.experiment.add_histogram(...)`, `add_image`, `add_figure`
    and so on. See `RunFolderLogger` for when a version is claimed. A version that is given is continued in a new event
    file; pass `purge_step=<first step>` to hide what a run that crashed wrote from that step on.

    Hyperparameters, nested ones by their path (`optimizer/lr`), are shown in the HPARAMS tab, whose columns TensorBoard
    takes from all runs below its folder: every hyperparameter and every metric. What `log_hyperparams` is told before
    metrics are logged is one set.

    Args:
        save_dir: Folder of all experiments.
        name: Folder of the experiment in it; "" and None use `save_dir` itself.
        version: Folder of the run in that: a number n stands for "version_n", a text for itself. None takes the number
            after the highest there is when it is first asked for. A version that is given is continued if it exists.
        prefix: Put before the metrics' names, with "-" between; "" leaves them as they are.
        sub_dir: Folder inside that of the version for what this logger writes; "~" and variables are expanded.
        log_graph: Whether to write the graph of the module that is trained, with its `example_input_array`, before the
            first metrics of a fit. What cannot be traced, or is sharded, has none, with a warning.
        default_hp_metric: Whether hyperparameters that come without metrics get a metric "hp_metric" of -1, to be
            replaced by logging that name.
        **kwargs: Further arguments of `SummaryWriter`: `max_queue`, `flush_secs`, `purge_step`, `filename_suffix`.

    Raises:
        ModuleNotFoundError: If tensorboard is not installed.
        TypeError: If `SummaryWriter` does not take one of `kwargs`.
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
        super().__init__(save_dir, name, version)
        check_installed("tensorboard", "tensorboard", type(self).__name__)
        if kwargs:
            from torch.utils.tensorboard import SummaryWriter

            check_keywords(kwargs, SummaryWriter, ("log_dir", "comment"), type(self).__name__)
        self.prefix = prefix
        self.sub_dir = None if sub_dir is None else os.path.expanduser(os.path.expandvars(sub_dir))
        self._logs_graph = log_graph
        self._to_draw: weakref.ref[nn.Module] | None = None
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
        """The writer; made, with its file, when first read."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._has_metrics |= any(Path(self.log_dir).glob("events.out.tfevents.*"))  # of the run that is continued
            self._writer = SummaryWriter(self.log_dir, **self._kwargs)
        return self._writer

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write scalars; values are taken as they are now, those of tensors by waiting for their device.

        Args:
            metrics: Numbers or scalar tensors by name.
            step: Number of optimizer updates; None means the newest one that was logged.

        Raises:
            InvalidArgumentError: If a value is no number.
        """
        numbers = numbers_by_name(metrics, self.prefix, type(self).__name__)
        if not numbers:
            return
        if self._to_draw is not None:
            self._draw()
        self._has_metrics = True
        self._show_hparams()
        if step is not None:
            self._newest_step = step
        writer, now = self.experiment, time.time()
        for name, number in numbers.items():
            writer.add_scalar(name, number, self._newest_step, now)

    def log_hyperparams(
        self, params: Hyperparameters, metrics: Mapping[str, float] | None = None, step: int | None = None
    ) -> None:
        """Add to `hparams.json` and to what the HPARAMS tab shows, and log metrics that belong to them.

        The tab keeps the first set that was written to a run: it is written with the first metrics, or by `save` or
        `finalize`. A change after that is in `hparams.json` alone, with a warning.

        Args:
            params: Values by name, nested as they are.
            metrics: Numbers to compare runs by, by name.
            step: Number of optimizer updates for them.
        """
        super().log_hyperparams(params)
        shown = self._shown_hparams
        if shown is not None and flat(self.hparams) != shown:
            warn_user(
                "TensorBoard's HPARAMS tab keeps the first hyperparameters that a run wrote: what changed since is in "
                f"{self.HPARAMS_FILE} alone. Log all of them before the first metrics."
            )
        if metrics:
            self.log_metrics(metrics, step)

    def begin_fit(self, module: nn.Module) -> None:
        """Learn which module is trained, for `log_graph=True`; a trainer says so before fit begins."""
        self._to_draw = weakref.ref(module) if self._logs_graph else None

    def log_graph(self, model: nn.Module, input_array: Tensor | tuple[Any, ...] | None = None) -> None:
        """Write the graph of a model, which is traced for it in evaluation mode; it is as before afterwards.

        Args:
            model: The model.
            input_array: Input of its `forward`, a tuple for several. None takes the model's `example_input_array`.

        Raises:
            InvalidArgumentError: If there is no input.
        """
        example = getattr(model, "example_input_array", None) if input_array is None else input_array
        if not isinstance(example, Tensor | tuple):
            rule = "a tensor or a tuple of inputs, or the model's attribute `example_input_array`"
            action = "Pass an input, or set the attribute."
            raise InvalidArgumentError("input_array", rule, example, type(self).__name__, action)
        with without_trace(model), plainly(model):
            self.experiment.add_graph(model, example_call(model, example)[0])

    def save(self) -> None:
        """Write what is held back."""
        self._draw()
        self._show_hparams()
        if self._writer is not None:
            self._writer.flush()

    def finalize(self, status: str) -> None:
        """Write what is held back and close the file; after a success the HPARAMS tab tells that. Logging may go on."""
        self.save()
        if self._writer is None:
            super().finalize(status)
            return
        if self._shown_hparams is not None and status == "success" and not self._is_ended:
            from torch.utils.tensorboard.summary import hparams

            self._add_summary(hparams({}, {})[2])  # type: ignore[no-untyped-call]
            self._is_ended = True
        self._writer.close()

    def _draw(self) -> None:
        """Write the graph of the module that is trained, if it is to be written and was not."""
        to_draw, self._to_draw = self._to_draw, None
        module = None if to_draw is None else to_draw()
        if module is None:
            return
        reason = reason_not_to_run(module)
        if reason is None:
            try:
                self.log_graph(module)
            except Exception as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())
        if reason is not None:
            warn_user(f"TensorBoard gets no graph of {type(module).__name__}: {reason}")

    def _show_hparams(self) -> None:
        """Write the hyperparameters for the HPARAMS tab, once: it takes the first ones of a run."""
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
        # SummaryWriter has no method of its own for a summary that is made already
        self.experiment._get_file_writer().add_summary(summary)  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        """Without the writer, which has a thread: a copy writes a file of its own."""
        return {**vars(self), "_writer": None, "_to_draw": None}
