"""What callbacks know of whoever runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from camshaft.hooks_core.protocols.logging import Logger
    from camshaft.hooks_core.protocols.strategy import Strategy


@runtime_checkable
class TrainerProtocol(Protocol):
    """What a callback may rely on of the trainer that it is handed.

    Attributes:
        callbacks: All callbacks, in the order in which they run.
        current_epoch: Index of the training epoch.
        global_step: Number of optimizer updates so far, whatever the number of optimizers.
        max_epochs: The limit, or None.
        should_stop: Set it to true to stop at the next opportunity.
        accumulate_grad_batches: Batches whose gradients make one update; what is set at an epoch's start, in
            `on_train_epoch_start`, counts from its first batch on.
        is_preempted: Whether the current or latest fit ends because `preempt` asked all processes to save and leave.
        sanity_checking: Whether the sanity check is running.
        fast_dev_run: Whether (or how many batches) the run is only a trial.
        is_global_zero: Whether this process is the one that writes.
        is_last_batch: Whether the training batch is known to be its epoch's last.
        default_root_dir: Where files go by default.
        log_dir: Directory of the first logger's run, or `default_root_dir`.
        logger: The first logger, or None.
        loggers: All loggers.
        callback_metrics: Every logged value by name, as tensors.
        logged_metrics: What was sent to the loggers.
        progress_bar_metrics: What a progress bar shows, as numbers; reading it may wait for the device.
        num_training_batches: Batches of a training epoch; infinite if unknown.
        num_val_batches: Batches of each validation loader; likewise the three others.
        val_check_interval: How often validation runs within an epoch.
        check_val_every_n_epoch: In which epochs it runs.
        optimizers: The optimizers of the fit.
        lr_scheduler_configs: The schedulers of the fit; each has attributes `scheduler`, `name` (None if the user gave
            none) and `interval` ("epoch" or "step").
        log_every_n_steps: Updates between two entries of step values in the loggers; 0 for none.
        train_dataloader: What training batches come from; None before fit has asked for it.
        strategy: Where the module computes; by its collectives the callbacks of all processes come to one decision.
    """

    callbacks: list[Any]
    should_stop: bool
    accumulate_grad_batches: int

    @property
    def optimizers(self) -> list[Any]: ...

    @property
    def lr_scheduler_configs(self) -> list[Any]: ...

    @property
    def log_every_n_steps(self) -> int: ...

    @property
    def train_dataloader(self) -> Any: ...

    @property
    def strategy(self) -> Strategy: ...

    @property
    def current_epoch(self) -> int: ...

    @property
    def global_step(self) -> int: ...

    @property
    def max_epochs(self) -> int | None: ...

    @property
    def is_preempted(self) -> bool: ...

    @property
    def sanity_checking(self) -> bool: ...

    @property
    def fast_dev_run(self) -> bool | int: ...

    @property
    def is_global_zero(self) -> bool: ...

    @property
    def is_last_batch(self) -> bool: ...

    @property
    def default_root_dir(self) -> str: ...

    @property
    def log_dir(self) -> str | None: ...

    @property
    def logger(self) -> Logger | None: ...

    @property
    def loggers(self) -> list[Any]: ...

    @property
    def callback_metrics(self) -> Mapping[str, Tensor]: ...

    @property
    def logged_metrics(self) -> Mapping[str, Any]: ...

    @property
    def progress_bar_metrics(self) -> Mapping[str, float | int | str]: ...

    @property
    def num_training_batches(self) -> int | float: ...

    @property
    def num_val_batches(self) -> list[int | float]: ...

    @property
    def num_sanity_val_batches(self) -> list[int | float]: ...

    @property
    def num_test_batches(self) -> list[int | float]: ...

    @property
    def num_predict_batches(self) -> list[int | float]: ...

    @property
    def val_check_interval(self) -> int | float: ...

    @property
    def check_val_every_n_epoch(self) -> int | None: ...

    def save_checkpoint(
        self, path: str, weights_only: bool = False, on_saved: Callable[[], None] | None = None
    ) -> None:
        """Save: at once outside of a run; inside, at the next save point, after which `on_saved` is called."""

    def after_batch(self, function: Callable[[], None]) -> None:
        """Call a function when the training batch and the validation that it triggers are over; else at once."""

    def at_save_point(self, function: Callable[[], None]) -> None:
        """Call a function at the next save point; what it saves there is written before `save_checkpoint` returns."""

    def preempt(self, path: str) -> None:
        """Save and end training as soon as no step is half done; one of several processes may ask for all of them."""

    def trial(self, *, reload: bool = False) -> AbstractContextManager[Iterable[Any]]:
        """A context for training steps that a callback makes by itself, before training or before an epoch. Collective.

        Inside, what is logged reaches nobody. Afterwards the place in the training data, random numbers of every kind,
        states of metrics, train/eval modes and logged values are as before. Weights, gradients, optimizers and
        schedulers are the callback's to put back.

        Args:
            reload: Whether to ask for the training loader anew. What trains then asks for its loaders again before its
                next epoch.

        Returns:
            A context that gives the training batches, on their device; each pass over them begins anew. `len` tells
            how many there are, where that is known, and their `batch_size` is that of the loader, if it has one.

        Raises:
            RuntimeError: If nothing is being trained, or a batch is.
            ValueError: If the training loader cannot be read without a trace, or not be asked for again.
        """
