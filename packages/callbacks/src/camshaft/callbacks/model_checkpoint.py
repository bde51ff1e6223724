"""Saving checkpoints while training, and keeping the best."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from camshaft.callbacks.agreement import from_rank_zero
from camshaft.callbacks.checkpoint_arguments import check_arguments
from camshaft.callbacks.checkpoint_memory import CheckpointMemory
from camshaft.callbacks.checkpoint_names import DEFAULT_TEMPLATE, NameTemplate, first_free_path
from camshaft.callbacks.errors import InvalidArgumentError
from camshaft.callbacks.kept_checkpoints import SavePlan
from camshaft.callbacks.monitoring import checked_mode, is_due_at_train_epoch_end, read_metric, validates
from camshaft.callbacks.save_requests import PendingSaves
from camshaft.callbacks.top_k import TopK
from camshaft.hooks_core.user_warnings import warn_user

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import Strategy, TrainerProtocol


class ModelCheckpoint(CheckpointMemory):
    """Decides when to save a checkpoint and which ones to keep; the trainer does the saving.

    A save is asked for at its due time and carried out at the trainer's next save point. A checkpoint that a new
    one displaces is removed, and "last" moves, only when the new one is durable. Its memory inside a checkpoint
    counts that checkpoint already, and those that were still to be written at the same save point: a run that goes on
    from there writes them first if it does not find them. Nothing happens in the sanity check, with `fast_dev_run`,
    outside fit, or a second time at the same step. The folder comes from `dirpath`, else "checkpoints" in the
    trainer's `log_dir`, else in its `default_root_dir`. Rank 0 decides for all ranks; hooks that save are collective.

    Args:
        dirpath: Folder of the checkpoints; None chooses as told above when fit begins.
        filename: Name without extension, with places such as {epoch}, {step} (both zero-based counts as the trainer
            has them) and {val_loss:.2f}. None is "{epoch}-{step}".
        monitor: Name of the logged scalar that ranks checkpoints; None keeps the newest.
        verbose: Whether rank 0 prints each decision.
        save_last: Whether every due time also updates "last.ckpt", whatever `save_top_k` keeps. Where the checkpoint
            is kept, it is a second name for the same data and takes no room.
        save_top_k: How many of the best to keep; -1 all, 0 none. Without a `monitor`: -1, 0 or 1.
        save_weights_only: Whether to leave out optimizers, loops and callbacks.
        mode: "min" where a lower metric is better, "max" where a higher one is. NaN is the worst value.
        auto_insert_metric_name: Whether {epoch} in `filename` becomes "epoch=3" rather than "3".
        every_n_train_steps: Number of optimizer updates between due times; excludes `every_n_epochs`. Where `monitor`
            comes from a validation that follows, the due time is that validation's end.
        every_n_epochs: Number of epochs between due times; 1 if neither rhythm is given, 0 is never.
        save_on_train_epoch_end: Whether epochs are due at the end of the training epoch (True) or of validation
            (False). None: the former where validation runs once per epoch or not at all.
        enable_version_counter: Whether a name that is taken by a file of someone else gets "-v1", "-v2", ...;
            otherwise that file is replaced.

    Raises:
        InvalidArgumentError: If arguments are out of range or exclude each other; at setup, if another
            ModelCheckpoint of the trainer has the same `state_key`.
        MissingMetricError: At the first due time, if `monitor` or a metric in `filename` has not been logged.
    """

    monitors: ClassVar[bool] = True
    CHECKPOINT_NAME_LAST: ClassVar[str] = "last"
    FILE_EXTENSION: ClassVar[str] = ".ckpt"

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        monitor: str | None = None,
        *,
        verbose: bool = False,
        save_last: bool | None = None,
        save_top_k: int = 1,
        save_weights_only: bool = False,
        mode: str = "min",
        auto_insert_metric_name: bool = True,
        every_n_train_steps: int | None = None,
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
        )
        self.filename = filename
        self.monitor = monitor
        self.verbose = verbose
        self.save_last = bool(save_last)
        self.save_top_k = save_top_k
        self.save_weights_only = save_weights_only
        self.mode = checked_mode(mode, where)
        self.auto_insert_metric_name = auto_insert_metric_name
        self.every_n_train_steps = every_n_train_steps or 0
        is_rhythm_given = every_n_epochs is not None or every_n_train_steps is not None
        self.every_n_epochs = (every_n_epochs or 0) if is_rhythm_given else 1
        self.save_on_train_epoch_end = save_on_train_epoch_end
        self.enable_version_counter = enable_version_counter
        self.dirpath: str | None = None if dirpath is None else _absolute(dirpath)
        self._dirpath_argument = self.dirpath
        self._name = NameTemplate(filename or DEFAULT_TEMPLATE, auto_insert_metric_name, where)
        self._last_name = NameTemplate(self.CHECKPOINT_NAME_LAST, auto_insert_metric_name, where)
        super().__init__(TopK(save_top_k, self.mode))
        self._step_saved_at = 0  # before the first update there is nothing worth saving
        self._num_intervals = 0  # of `every_n_train_steps` that have passed
        self._is_deferred = False
        self._is_fitting = False
        self._has_validated = False
        self._pending: PendingSaves | None = None
        self._unwritten: list[dict[str, Any]] = []
        self._dirpath_of_memory: str | None = None
        self._strategy: Strategy | None = None

    @property
    def state_key(self) -> str:
        """Class name and the arguments that say which checkpoints are meant."""
        fields = ("monitor", "mode", "every_n_train_steps", "every_n_epochs", "filename", "save_weights_only")
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in fields)})"

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Find the folder. Collective in fit."""
        self._is_fitting = stage == "fit"
        if not self._is_fitting:
            return
        self._strategy = trainer.strategy
        for other in self._siblings(trainer):
            if other.state_key == self.state_key:
                action = "Tell them apart by `filename`, `monitor`, `mode` or rhythm."
                rule = "different for each ModelCheckpoint of a trainer"
                raise InvalidArgumentError("state_key", rule, self.state_key, "Trainer(callbacks=...)", action)

        def folder() -> str:
            root = trainer.log_dir or trainer.default_root_dir
            return self._dirpath_argument or _absolute(os.path.join(root, "checkpoints"))

        self.dirpath = from_rank_zero(trainer.strategy, folder)
        self._has_validated = False
        self._pending = PendingSaves(Path(self.dirpath), self.state_dict(), trainer.is_global_zero)
        self._warn_if_moved()

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Forget saves that never became durable, such as one cut off by an exception."""
        if self._pending:
            self._restore(self._pending.give_up())
        self._strategy = None

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Write what the run before was killed before it wrote; count steps from where training begins or goes on."""
        self._write_missing(trainer)
        if self.every_n_train_steps:
            self._num_intervals = trainer.global_step // self.every_n_train_steps

    def on_train_batch_end(
        self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save if a step of this batch was due; a batch that is split makes several. Collective then."""
        if not self.every_n_train_steps:
            return
        num_intervals = trainer.global_step // self.every_n_train_steps
        if num_intervals == self._num_intervals:
            return
        self._num_intervals = num_intervals
        if not self._may_save(trainer):
            return
        if from_rank_zero(trainer.strategy, lambda: self._awaits_validation(trainer)):
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

    def state_dict(self) -> dict[str, Any]:
        """Kept checkpoints with their scores, "last", and where in the rhythm it is."""
        return {
            **self._kept.state_dict(),
            "best_model_score": self.best_model_score,
            "kth_best_model_path": self.kth_best_model_path,
            "dirpath": self.dirpath,
            "step_saved_at": self._step_saved_at,
            "is_deferred": self._is_deferred,
            "pending": [] if self._pending is None else self._pending.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, with those of its checkpoints that still exist; warns of the others.

        Collective in fit: rank 0 looks for the files.
        """
        self._restore(state_dict)
        look = partial(self._look_for_files, state_dict)
        self._unwritten, missing = look() if self._strategy is None else from_rank_zero(self._strategy, look)
        self._kept.forget(missing)
        self._dirpath_of_memory = state_dict["dirpath"]
        self._warn_if_moved()
        if self._pending is not None:
            self._pending.durable_memory = self.state_dict()

    def _may_save(self, trainer: TrainerProtocol) -> bool:
        return self._is_fitting and not trainer.fast_dev_run and trainer.global_step != self._step_saved_at

    def _is_epoch_due(self, trainer: TrainerProtocol) -> bool:
        return self.every_n_epochs > 0 and (trainer.current_epoch + 1) % self.every_n_epochs == 0

    def _is_due_at_train_epoch_end(self, trainer: TrainerProtocol) -> bool:
        if self.save_on_train_epoch_end is not None:
            return self.save_on_train_epoch_end
        return from_rank_zero(trainer.strategy, lambda: is_due_at_train_epoch_end(trainer))

    def _awaits_validation(self, trainer: TrainerProtocol) -> bool:
        """Whether a validation to come brings `monitor` for the first time, or anew before the epoch ends."""
        if self.monitor is None or not self.save_top_k or not validates(trainer):
            return False
        if self.monitor not in trainer.callback_metrics:
            return not self._has_validated
        every_n = trainer.check_val_every_n_epoch
        return trainer.is_last_batch and every_n is not None and (trainer.current_epoch + 1) % every_n == 0

    def _save(self, trainer: TrainerProtocol) -> None:
        """Decide, remember, ask for the save. Collective."""
        assert self._pending is not None
        plan = from_rank_zero(trainer.strategy, lambda: self._plan(trainer))
        superfluous = self._kept.follow(plan)
        self._step_saved_at = trainer.global_step
        self._is_deferred = False
        self._tell(trainer, plan)
        path = plan.path or plan.last_path
        if path is not None:
            self._request(trainer, path, superfluous, plan.last_path)

    def _request(
        self, trainer: TrainerProtocol, path: str, superfluous: tuple[str, ...], last_path: str | None
    ) -> None:
        assert self._pending is not None
        request = self._pending.add(path, self.state_dict(), superfluous, last_path)
        trainer.save_checkpoint(path, self.save_weights_only, on_saved=partial(self._pending.settle, request))

    def _look_for_files(self, state_dict: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
        """The saves that were to come when a state was taken, and did not; and the checkpoints that are gone."""
        unwritten = [
            save
            for save in state_dict.get("pending", [])
            if os.path.dirname(save["path"]) == self.dirpath and not os.path.exists(save["path"])
        ]
        missing = self._kept.missing(besides=[save["path"] for save in unwritten])
        if missing:
            warn_user(f"ModelCheckpoint forgets checkpoints that no longer exist: {missing}.")
        return unwritten, missing

    def _write_missing(self, trainer: TrainerProtocol) -> None:
        unwritten, self._unwritten = self._unwritten, []
        for save in unwritten:
            self._request(trainer, save["path"], tuple(save["displaced"]), save["last_path"])

    def _plan(self, trainer: TrainerProtocol) -> SavePlan:
        """Where to save and what for; rank 0's plan counts, since others may not see the files or have the metric."""
        is_ranked = self.monitor is not None and self.save_top_k != 0
        score = read_metric(trainer, self.monitor, type(self).__name__) if self.monitor and is_ranked else None
        metrics = {**trainer.callback_metrics, "epoch": trainer.current_epoch, "step": trainer.global_step}
        siblings = self._siblings(trainer)

        def free_path(name: NameTemplate, reusable: tuple[str, ...], taken: str | None = None) -> str:
            def is_taken(path: str) -> bool:
                if path == taken:
                    return True
                if path in reusable or not self.enable_version_counter:
                    return False
                return os.path.lexists(path) or any(one._claims(path) for one in (self, *siblings))

            stem = os.path.join(self.dirpath or "", name.render(metrics))
            return first_free_path(stem, self.FILE_EXTENSION, is_taken)

        def last_path(new_path: str | None) -> str | None:
            return free_path(self._last_name, (self.last_model_path,), new_path) if self.save_last else None

        return self._kept.plan(score, partial(free_path, self._name), last_path)

    def _claims(self, path: str) -> bool:
        return path == self.last_model_path or (self._pending is not None and self._pending.holds(path))

    def _siblings(self, trainer: TrainerProtocol) -> list[ModelCheckpoint]:
        return [one for one in trainer.callbacks if isinstance(one, ModelCheckpoint) and one is not self]

    def _restore(self, memory: dict[str, Any]) -> None:
        self._kept.load_state_dict(memory)
        self._step_saved_at = memory["step_saved_at"]
        self._is_deferred = memory["is_deferred"]

    def _warn_if_moved(self) -> None:
        former = self._dirpath_of_memory
        if self.dirpath is None or former is None:
            return
        self._dirpath_of_memory = None
        if former != self.dirpath and (self._strategy is None or self._strategy.global_rank == 0):
            warn_user(
                f"ModelCheckpoint now saves in {self.dirpath!r}; checkpoints of the resumed run in {former!r} still"
                " count for the ranking, and are never removed."
            )

    def _tell(self, trainer: TrainerProtocol, plan: SavePlan) -> None:
        if not (self.verbose and trainer.is_global_zero):
            return
        moment = f"epoch {trainer.current_epoch}, step {trainer.global_step}"
        shown = "" if plan.score is None else f"{self.monitor} is {float(plan.score):.6g}, "
        kept = f"saving {plan.path}" if plan.path else f"not among the best {self.save_top_k}"
        print(f"ModelCheckpoint, {moment}: {shown}{kept}", flush=True)


def _absolute(path: str | os.PathLike[str]) -> str:
    return os.path.abspath(os.path.expanduser(path))
