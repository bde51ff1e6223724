"""Saving checkpoints while training, and keeping the best."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from camshaft.callbacks.agreement import from_rank_zero
from camshaft.callbacks.checkpoints.checkpoint_arguments import check_arguments, checked_folder
from camshaft.callbacks.checkpoints.checkpoint_folder import default_folder, remove_abandoned
from camshaft.callbacks.checkpoints.checkpoint_memory import CheckpointMemory
from camshaft.callbacks.checkpoints.checkpoint_names import NameTemplate
from camshaft.callbacks.checkpoints.checkpoint_paths import CheckpointPaths, check_apart
from camshaft.callbacks.checkpoints.checkpoint_rescue import can_rescue
from camshaft.callbacks.checkpoints.checkpoint_time import TimeRhythm, awaits_validation
from camshaft.callbacks.checkpoints.kept_checkpoints import SavePlan
from camshaft.callbacks.checkpoints.save_requests import PendingSaves
from camshaft.callbacks.checkpoints.top_k import TopK
from camshaft.callbacks.monitoring import checked_mode, is_due_at_train_epoch_end, read_metric

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


class ModelCheckpoint(CheckpointMemory):
    """Decides when to save a checkpoint and which ones to keep; the trainer does the saving.

    A save is asked for at its due time and carried out at the trainer's next save point. A checkpoint that a new one
    displaces is removed, and "last" moves, only when the new one is durable; then rank 0 calls
    `after_save_checkpoint(checkpoint_callback)` of the loggers that have it. Its memory inside a checkpoint counts that
    checkpoint already, and those that were still to be written at the same save point: a run that goes on from there
    writes them first if it does not find them. Nothing happens in the sanity check, with `fast_dev_run`, outside fit,
    or a second time at the same step. The folder comes from `dirpath`, else "checkpoints" in the trainer's `log_dir`,
    else in its `default_root_dir`; what killed processes left unfinished in it is removed when fit begins. Rank 0
    decides for all ranks; hooks that save are collective.

    Args:
        dirpath: Folder of the checkpoints; None chooses as told above when fit begins.
        filename: Name without extension, with places such as {epoch}, {step} (both zero-based counts as the trainer
            has them) and {val_loss:.2f}; it may lead to folders in `dirpath`. None is "{epoch}-{step}".
        monitor: Name of the logged scalar that ranks checkpoints; None keeps the newest.
        verbose: Whether rank 0 prints each decision.
        save_last: Whether every due time also updates "last.ckpt", whatever `save_top_k` keeps. Where the checkpoint
            is kept, it is a second name for the same data and takes no room; "link" makes it a symbolic link.
        save_top_k: How many of the best to keep; -1 all, 0 none. Without a `monitor`: -1, 0 or 1.
        save_on_exception: Whether an exception in training, `KeyboardInterrupt` too, also saves a checkpoint, named
            "exception-{epoch}-{step}" and never removed. "last" moves to it, unless it is written asynchronously.
            Several processes save nothing then, with a warning.
        save_weights_only: Whether to leave out optimizers, loops and callbacks.
        mode: "min" where a lower metric is better, "max" where a higher one is. NaN is the worst value.
        auto_insert_metric_name: Whether {epoch} in `filename` becomes "epoch=3" rather than "3".
        every_n_train_steps: Number of optimizer updates between due times; excludes the two other rhythms. Where
            `monitor` comes from a validation that follows, the due time is that validation's end.
        train_time_interval: Time between due times, by the clock of rank 0, from where training begins or goes on; a
            batch is never cut short. It is like `every_n_train_steps` otherwise.
        every_n_epochs: Number of epochs between due times; 1 if no rhythm is given, 0 is never.
        save_on_train_epoch_end: Whether epochs are due at the end of the training epoch (True) or of validation
            (False). None: the former where validation runs once per epoch or not at all.
        enable_version_counter: Whether a name that is taken by a file of someone else gets "-v1", "-v2", ...;
            otherwise that file is replaced.

    Raises:
        InvalidArgumentError: If arguments are out of range or exclude each other; at setup, if another
            ModelCheckpoint of the trainer has the same `state_key`, or would replace this one's files.
        MissingMetricError: At the first due time, if `monitor` or a metric in `filename` has not been logged.
    """

    monitors: ClassVar[bool] = True
    CHECKPOINT_JOIN_CHAR: ClassVar[str] = "-"
    CHECKPOINT_EQUALS_CHAR: ClassVar[str] = "="
    CHECKPOINT_NAME_LAST: ClassVar[str] = "last"
    FILE_EXTENSION: ClassVar[str] = ".ckpt"
    STARTING_VERSION: ClassVar[int] = 1

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        monitor: str | None = None,
        *,
        verbose: bool = False,
        save_last: bool | Literal["link"] | None = None,
        save_top_k: int = 1,
        save_on_exception: bool = False,
        save_weights_only: bool = False,
        mode: str = "min",
        auto_insert_metric_name: bool = True,
        every_n_train_steps: int | None = None,
        train_time_interval: timedelta | None = None,
        every_n_epochs: int | None = None,
        save_on_train_epoch_end: bool | None = None,
        enable_version_counter: bool = True,
    ) -> None:
        where = type(self).__name__
        check_arguments(
            where=where,
            monitor=monitor,
            save_top_k=save_top_k,
            save_last=save_last,
            every_n_epochs=every_n_epochs,
            every_n_train_steps=every_n_train_steps,
            train_time_interval=train_time_interval,
            save_on_train_epoch_end=save_on_train_epoch_end,
        )
        super().__init__(TopK(save_top_k, checked_mode(mode, where)), save_weights_only, verbose)
        self.filename = filename
        self.monitor = monitor
        self.save_last = save_last or False
        self.save_top_k = save_top_k
        self.save_on_exception = save_on_exception
        self.mode = mode
        self.auto_insert_metric_name = auto_insert_metric_name
        self.every_n_train_steps = every_n_train_steps or 0
        self.train_time_interval = train_time_interval
        rhythms = (every_n_epochs, every_n_train_steps, train_time_interval)
        self.every_n_epochs = 1 if all(rhythm is None for rhythm in rhythms) else every_n_epochs or 0
        self.save_on_train_epoch_end = save_on_train_epoch_end
        self.enable_version_counter = enable_version_counter
        self.dirpath = self._dirpath_argument = None if dirpath is None else checked_folder(dirpath, where)
        self._paths = self._read_paths()
        self._time = None if train_time_interval is None else TimeRhythm(train_time_interval.total_seconds())
        self._num_intervals = 0  # of `every_n_train_steps` that have passed
        self._is_fitting = self._has_begun = self._has_validated = False

    @property
    def state_key(self) -> str:
        """Class name and the arguments that say which checkpoints are meant."""
        fields = ["monitor", "mode", "every_n_train_steps", "every_n_epochs", "filename", "save_weights_only"]
        if self.train_time_interval is not None:
            fields.append("train_time_interval")
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in fields)})"

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Find the folder, and remove what killed processes left unfinished in it. Collective in fit."""
        self._is_fitting, self._has_begun = stage == "fit", False
        if not self._is_fitting:
            return
        self._strategy = trainer.strategy
        self._paths = self._read_paths()
        self.dirpath = self._dirpath_argument or from_rank_zero(trainer.strategy, lambda: default_folder(trainer))
        for other in self._siblings(trainer):
            shares_folder = self.dirpath == other.dirpath
            check_apart(self.state_key, other.state_key, self._paths, other._paths if shares_folder else None)
        if trainer.is_global_zero and not trainer.fast_dev_run:
            remove_abandoned(Path(self.dirpath), self.FILE_EXTENSION, self._paths.depth)
        self._has_validated = False
        links_last = self.save_last == "link"
        self._pending = PendingSaves(Path(self.dirpath), self.state_dict(), trainer.is_global_zero, links_last)
        self._warn_if_moved()

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Forget saves that never became durable, such as one cut off by an exception."""
        if self._pending:
            self._restore(self._pending.give_up())
        self._strategy = None
        self._has_begun = False

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Write what the run before was killed before it wrote; count from where training begins or goes on."""
        self._has_begun = True
        self._write_missing(trainer)
        if self.every_n_train_steps:
            self._num_intervals = trainer.global_step // self.every_n_train_steps
        if self._time is not None:
            self._time.start()

    def on_train_batch_end(
        self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save if a step of this batch was due; a batch that is split makes several. Collective then.

        With `train_time_interval` collective now and then.
        """
        if self.every_n_train_steps:
            num_intervals = trainer.global_step // self.every_n_train_steps
            if num_intervals == self._num_intervals:
                return
            self._num_intervals = num_intervals
            if not self._may_save(trainer):
                return
        elif self._time is None or not self._may_save(trainer) or not self._time.is_over(trainer.strategy):
            return
        monitor = self.monitor if self.save_top_k else None
        if from_rank_zero(trainer.strategy, lambda: awaits_validation(trainer, monitor, self._has_validated)):
            self._is_deferred = True
        else:
            self._save(trainer)

    def on_validation_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Save if a step waited for this, or if epochs are due here. Collective."""
        if not self._is_fitting or trainer.sanity_checking:
            return
        self._has_validated = True
        is_due = self._is_epoch_due(trainer) and not self._is_due_at_train_epoch_end(trainer)
        if (is_due or self._is_deferred) and self._may_save(trainer):
            self._save(trainer)

    def on_train_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Save if epochs are due here, or if a step waited for a validation that did not come. Collective."""
        is_due = self._is_epoch_due(trainer) and self._is_due_at_train_epoch_end(trainer)
        has_waited = self._is_deferred and from_rank_zero(
            trainer.strategy, lambda: self.monitor in trainer.callback_metrics
        )
        if (is_due or has_waited) and self._may_save(trainer):
            self._save(trainer)

    def on_fit_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Write likewise what is missing if there was nothing left to train."""
        self._write_missing(trainer)

    def on_exception(self, trainer: TrainerProtocol, module: Any, exception: BaseException) -> None:
        """Save what an exception interrupted, if that is asked for and nothing newer than the latest save is lost."""
        if not (self.save_on_exception and self._has_begun):
            return
        if self._pending:
            self._restore(self._pending.give_up())  # the trainer has dropped them
        if self._may_save(trainer) and can_rescue(trainer, exception, type(self).__name__):
            plan = self._plan_rescue(trainer)
            superfluous = self._kept.follow(plan._replace(path=None))
            self._step_saved_at = trainer.global_step
            self._tell(trainer, plan, self.monitor)
            self._request(trainer, str(plan.path), superfluous, plan.last_path)

    def _may_save(self, trainer: TrainerProtocol) -> bool:
        return self._is_fitting and not trainer.fast_dev_run and trainer.global_step != self._step_saved_at

    def _is_epoch_due(self, trainer: TrainerProtocol) -> bool:
        return self.every_n_epochs > 0 and (trainer.current_epoch + 1) % self.every_n_epochs == 0

    def _is_due_at_train_epoch_end(self, trainer: TrainerProtocol) -> bool:
        if self.save_on_train_epoch_end is not None:
            return self.save_on_train_epoch_end
        return from_rank_zero(trainer.strategy, lambda: is_due_at_train_epoch_end(trainer))

    def _save(self, trainer: TrainerProtocol) -> None:
        """Decide, remember, ask for the save. Collective."""
        plan = from_rank_zero(trainer.strategy, lambda: self._plan(trainer))
        superfluous = self._kept.follow(plan)
        self._step_saved_at = trainer.global_step
        self._is_deferred = False
        self._tell(trainer, plan, self.monitor)
        path = plan.path or plan.last_path
        if path is not None:
            self._request(trainer, path, superfluous, plan.last_path)

    def _plan(self, trainer: TrainerProtocol) -> SavePlan:
        """Where to save and what for; rank 0's plan counts, since others may not see the files or have the metric."""
        is_ranked = self.monitor is not None and self.save_top_k != 0
        score = read_metric(trainer, self.monitor, type(self).__name__) if self.monitor and is_ranked else None
        new_path = partial(self._free_path, trainer, self._paths.name)
        return self._kept.plan(score, new_path, partial(self._free_last_path, trainer))

    def _plan_rescue(self, trainer: TrainerProtocol) -> SavePlan:
        path = self._free_path(trainer, self._paths.rescue, ())
        return SavePlan(path, self.current_score, (), self._free_last_path(trainer, path))

    def _free_last_path(self, trainer: TrainerProtocol, new_path: str | None) -> str | None:
        last = self._paths.last
        return None if last is None else self._free_path(trainer, last, (self.last_model_path,), new_path)

    def _free_path(
        self, trainer: TrainerProtocol, template: NameTemplate, reusable: tuple[str, ...], taken: str | None = None
    ) -> str:
        others = [self, *self._siblings(trainer)]
        return self._paths.free_path(
            template,
            self.dirpath or "",
            {**trainer.callback_metrics, "epoch": trainer.current_epoch, "step": trainer.global_step},
            is_claimed=lambda path: any(one._claims(path) for one in others),
            reusable=reusable,
            taken=taken,
        )

    def _claims(self, path: str) -> bool:
        return path == self.last_model_path or (self._pending is not None and self._pending.holds(path))

    def _read_paths(self) -> CheckpointPaths:
        """By the class's attributes, or an object's own."""
        where, join_char = type(self).__name__, self.CHECKPOINT_JOIN_CHAR

        def template(text: str) -> NameTemplate:
            return NameTemplate(text, self.auto_insert_metric_name, where, self.CHECKPOINT_EQUALS_CHAR)

        default = f"{{epoch}}{join_char}{{step}}"
        return CheckpointPaths(
            name=template(self.filename or default),
            last=template(self.CHECKPOINT_NAME_LAST) if self.save_last else None,
            rescue=template(f"exception{join_char}{default}"),
            extension=self.FILE_EXTENSION,
            join_char=join_char,
            first_version=self.STARTING_VERSION,
            has_versions=self.enable_version_counter,
        )

    def _siblings(self, trainer: TrainerProtocol) -> list[ModelCheckpoint]:
        return [one for one in trainer.callbacks if isinstance(one, ModelCheckpoint) and one is not self]
