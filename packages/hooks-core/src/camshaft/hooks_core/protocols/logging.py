"""Where metrics go, and who collects them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

Moment = Literal["batch", "epoch"]
"""Where a value that a module logs belongs by default: to the step, or to the epoch."""


class Logger(Protocol):
    """Where metrics and hyperparameters are written.

    `log_metrics` is called by keyword, the others by position. A logger may also have `begin_fit(module)`, called when
    a fit begins (one without it: `log_graph(module)`), and `after_save_checkpoint(callback)`, called by a callback that
    saves checkpoints once one is durable, on the first process.

    Attributes:
        name: Name of the experiment.
        version: Name or number of the run.
        save_dir: Directory that holds all experiments; None if nothing is written to disk.
        log_dir: Directory of this run; None if nothing is written to disk.
    """

    @property
    def name(self) -> str | None: ...

    @property
    def version(self) -> int | str | None: ...

    @property
    def save_dir(self) -> str | None: ...

    @property
    def log_dir(self) -> str | None: ...

    @property
    def experiment(self) -> Any:
        """The underlying library's own object."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write values for a step, counted in optimizer updates."""

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Write hyperparameters, once per run."""

    def save(self) -> None:
        """Write what is still held back."""

    def finalize(self, status: str) -> None:
        """Close; `status` is "success" or "failed"."""


class MetricSink(Protocol):
    """What loops tell whoever collects logged values. Attributes are set on the per-step path, so they stay plain.

    One may have an attribute `hook` as well: then it is told the name of the hook that runs; see `compilation.Place`.

    Attributes:
        moment: What a value logged now belongs to by default, or None where logging makes no sense.
        batch: The batch that is worked on; epoch means weigh values by its size.
        dataloader_idx: Index of the loader that is worked on.
        callback_metrics: Every value by name, those of the running epoch reduced so far; schedulers monitor them.
    """

    moment: Moment | None
    batch: Any
    dataloader_idx: int

    @property
    def callback_metrics(self) -> Mapping[str, Tensor]: ...

    def start_epoch(self, stage: str, num_dataloaders: int = 1, *, is_trial: bool = False) -> None:
        """Forget the stage's earlier values and collect for its new epoch; the moment becomes "epoch".

        Nothing of a trial, such as the sanity check, may reach loggers: `discard` ends it in place of `end_epoch`.
        """

    def enter(self, stage: str, moment: Moment | None) -> None:
        """Go on collecting for a stage, after another one ran within it."""

    def end_train_batch(self, is_update: bool) -> None:
        """Publish what the batch, or a split of it, logged; `is_update` says whether it ended with an update."""

    def end_epoch(self) -> list[dict[str, float]]:
        """Reduce and publish the values of the stage's epoch. Collective. Returns them per loader, as numbers."""

    def discard(self) -> None:
        """Forget the values of the stage's epoch unpublished: a trial leaves no trace."""

    def state_dict(self) -> dict[str, Any]:
        """What was published, and the values of the training epoch that runs: tensors and plain values only.

        Changes nothing. Taken between two batches, or between epochs; later values do not change it.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as if the run from which the state was taken had not stopped.

        Called after `start_epoch("train")`; what was logged since then is forgotten.
        """
