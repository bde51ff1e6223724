"""Callback that saves checkpoints while training, and keeps the best."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.checkpoints.checkpoint import Checkpoint
from camshaft.callbacks.checkpoints.files import (
    TimeInterval,
    can_save_alone,
    default_folder,
    point_last_at,
    remove_abandoned,
)
from camshaft.callbacks.checkpoints.names import NameTemplate, absolute_folder, check_arguments
from camshaft.callbacks.checkpoints.state import (
    KeptCheckpoints,
    PendingSave,
    PendingSaves,
    unfinished_saves,
    unwritten_saves,
)
from camshaft.callbacks.monitoring import (
    check_mode,
    from_rank_zero,
    is_due_at_train_epoch_end,
    read_scalar,
    validates,
)
from camshaft.hooks_core.support.messages import warn_user
from camshaft.hooks_core.support.remote_files import absolute, exists, join, lies_in, local_path, remove, replace_file

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import Strategy, TrainerProtocol


def _of_kept(name: str, doc: str) -> Any:
    """Return a property for an attribute of the kept checkpoints."""
    return property(attrgetter(f"_kept.{name}"), lambda self, value: setattr(self._kept, name, value), doc=doc)


class ModelCheckpoint(Checkpoint):
    """Decides when to save a checkpoint and which ones to keep; the trainer does the saving.

    A save is requested at its due time and carried out at the trainer's next save point. A checkpoint that a new one
    displaces is removed, and "last" moves, only when the new one is durable; then rank 0 calls
    `after_save_checkpoint(checkpoint_callback)` of the loggers that have it. The callback's state inside a checkpoint
    includes that checkpoint and the others of the same save point: a run that resumes from it first writes those that
    are missing. Nothing is saved in the sanity check, with `fast_dev_run`, outside fit, or twice at the same step. A
    fit in which nothing was due writes "last" at its end, if `save_last` asks for it, and so does one with
    `save_top_k=0` whose last epoch was not due. The folder is `dirpath`, else "checkpoints" in the trainer's `log_dir`,
    else in its `default_root_dir`; unfinished files that killed processes left there are removed when fit begins. Rank
    0 decides for all ranks; hooks that save are collective.

    Args:
        dirpath: Folder of the checkpoints, or its URL in a store that fsspec reaches ("s3://bucket/run"); None chooses
            it when fit begins, as described above.
        filename: Name without extension, with places such as {epoch}, {step} (both zero-based counts as the trainer
            has them) and {val_loss:.2f}; it may lead to folders in `dirpath`. None is "{epoch}-{step}".
        monitor: Name of the logged scalar that ranks checkpoints; None ranks them by age, the newest first.
        verbose: Whether rank 0 prints each decision.
        save_last: Whether every due time also updates "last.ckpt", whatever `save_top_k` keeps. Where the checkpoint
            is kept, it is a second name for the same data and takes no room; "link" makes it a symbolic link. In a
            store it is a copy.
        save_top_k: How many of the best to keep, of the newest without a `monitor`; -1 all, 0 none.
        save_on_exception: Whether an exception in training, `KeyboardInterrupt` too, also saves a checkpoint, named
            by `filename` and never removed; "exception-{epoch}-{step}" if a metric in `filename` is not logged yet.
            "last" moves to it, unless it is written asynchronously. Several processes save nothing then, and warn.
        save_weights_only: Whether to leave out optimizers, loops and callbacks.
        mode: "min" where a lower metric is better, "max" where a higher one is. NaN is the worst value.
        auto_insert_metric_name: Whether {epoch} in `filename` becomes "epoch=3" rather than "3", and {val/loss}
            "val_loss=0.5": `CHECKPOINT_SLASH_CHAR` of the class stands for slashes, which would make folders.
        every_n_train_steps: Number of optimizer updates between due times; excludes the two other intervals. With a
            `monitor` the due time is the end of the validation that follows the batch, if one does; while there is no
            value yet, the end of the first validation.
        train_time_interval: Time between due times, by the clock of rank 0, from the start of training, also after a
            resume; a batch is never interrupted. Otherwise like `every_n_train_steps`.
        every_n_epochs: Number of epochs between due times; 1 if no interval is given, 0 is never.
        save_on_train_epoch_end: Whether epochs are due at the end of the training epoch (True) or of validation
            (False). None: the former where validation runs once per epoch or not at all.
        enable_version_counter: Whether a name that is taken by another file gets "-v1", "-v2", ...; otherwise that file
            is replaced.

    Attributes:
        kept_paths: Paths of the kept checkpoints, oldest first; without a `monitor` and with `save_top_k=-1` the newest
            alone.
        best_model_path: Path of the best kept checkpoint, of the newest without a `monitor`; "" if there is none.
        last_model_path: Path of "last"; "" if there is none.
        current_score: Score of the newest kept checkpoint, a scalar on the CPU; None before it.
        best_model_score: Score of the best kept checkpoint, a scalar on the CPU; None without a `monitor`.
        kth_best_model_path: Path of the worst kept checkpoint; "" while fewer than `save_top_k` are kept.
        kth_value: Its score; an infinity where there is none.
        saved_path: Path of the newest checkpoint that has become durable in this process; "" before the first.

    Raises:
        InvalidArgumentError: If arguments are out of range or exclude each other; at setup, if another
            ModelCheckpoint of the trainer has the same `state_key`, or would replace this one's files.
        MissingMetricError: At the first due time, if `monitor` or a metric in `filename` has not been logged. At the
            end of an epoch without validation, before the first one, a missing `monitor` is a warning.
    """

    CHECKPOINT_JOIN_CHAR: ClassVar[str] = "-"
    CHECKPOINT_EQUALS_CHAR: ClassVar[str] = "="
    CHECKPOINT_SLASH_CHAR: ClassVar[str] = "_"
    CHECKPOINT_NAME_LAST: ClassVar[str] = "last"
    _writes_last: bool = False  # where a checkpoint that is kept is there for "last" to share

    FILE_EXTENSION: ClassVar[str] = ".ckpt"
    STARTING_VERSION: ClassVar[int] = 1
    save_top_k: int = _of_kept("save_top_k", "How many of the best to keep.")
    mode: str = _of_kept("mode", "The better direction of the metric.")
    best_k_models: dict[str, Tensor] = _of_kept("best_k_models", "Scores by path, oldest first.")
    best_model_path: str = _of_kept("best_model_path", "Path of the best kept checkpoint.")
    last_model_path: str = _of_kept("last_model_path", 'Path of "last".')
    current_score: Tensor | None = _of_kept("current_score", "Score of the newest kept checkpoint.")
    best_model_score: Tensor | None = _of_kept("best_model_score", "Score of the best kept checkpoint.")
    kth_best_model_path: str = _of_kept("kth_best_model_path", "Path of the worst kept checkpoint.")
    kth_value: Tensor = _of_kept("kth_value", "Score of the worst kept checkpoint.")

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        monitor: str | None = None,
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
        super().__init__()
        where = type(self).__name__
        counts = {"every_n_epochs": every_n_epochs, "every_n_train_steps": every_n_train_steps}
        check_arguments(where, monitor, save_top_k, save_last, train_time_interval, counts, save_on_train_epoch_end)
        self._kept = KeptCheckpoints(save_top_k, check_mode(mode, where))
        self.verbose = verbose
        self.save_weights_only = save_weights_only
        self.saved_path = ""
        self.filename = filename
        self.monitor = monitor
        self.save_last = save_last or False
        self.save_on_exception = save_on_exception
        self.auto_insert_metric_name = auto_insert_metric_name
        self.every_n_train_steps = every_n_train_steps or 0
        self.train_time_interval = train_time_interval
        has_interval = (train_time_interval, every_n_epochs, every_n_train_steps) != (None, None, None)
        self.every_n_epochs = every_n_epochs or 0 if has_interval else 1
        self.save_on_train_epoch_end = save_on_train_epoch_end
        self.enable_version_counter = enable_version_counter
        self.dirpath: str | None = absolute_folder(dirpath, where) if dirpath else None
        self._found_folder: str | None = None  # where `dirpath` is left out
        self._templates = self._make_templates()
        self._counted_step = 0  # up to which `every_n_train_steps` has been looked at
        self._pending: PendingSaves | None = None
        self._unwritten: list[dict[str, Any]] = []
        self._unfinished: list[dict[str, Any]] = []
        self._last_global_step_saved = 0  # before the first update there is nothing worth saving
        self._decided_step = 0  # of the latest due time
        self._is_deferred = False
        self._loaded_dirpath: str | None = None
        self._strategy: Strategy | None = None
        self._is_fitting = self._has_begun = self._has_validated = False
        self._newest: PendingSave | None = None  # of the due time that is being followed

    @property
    def state_key(self) -> str:
        """Class name and the arguments that tell two of these in one trainer apart."""
        fields = ["monitor", "mode", "every_n_train_steps", "every_n_epochs", "train_time_interval"]
        fields += [name for name in ("filename", "save_weights_only") if getattr(self, name)]
        return f"{type(self).__qualname__}{ {name: getattr(self, name) for name in fields}!r}"

    @property
    def kept_paths(self) -> list[str]:
        """Paths of the kept checkpoints, oldest first; see the class."""
        return self._kept.paths

    @property
    def train_time_interval(self) -> timedelta | None:
        """The argument of this name; a new one begins when it is set."""
        return self._interval

    @train_time_interval.setter
    def train_time_interval(self, interval: timedelta | None) -> None:
        self._interval = interval
        self._time = None if interval is None else TimeInterval(interval.total_seconds())

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Find the folder, and remove unfinished files of killed processes in it. Collective in fit."""
        self._is_fitting, self._has_begun = stage == "fit", False
        if not self._is_fitting:
            return
        self._strategy = trainer.strategy
        self._templates = self._make_templates()
        self.dirpath = self._choose_folder(trainer)
        for other in self._siblings(trainer):
            self._check_distinct(other)
        if trainer.is_global_zero and not trainer.fast_dev_run:
            remove_abandoned(self.dirpath, self.FILE_EXTENSION, self._templates[0].template.count("/"))
        self._has_validated = False
        self._pending = PendingSaves(
            self.dirpath,
            self.state_dict(),
            point_last=partial(self._point_last, trainer),
            remove_checkpoint=partial(self._remove_checkpoint, trainer),
        )
        self._warn_if_moved()

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Drop saves that never became durable, such as one that an exception interrupted."""
        if self._pending:
            self._restore(self._pending.drop_all())
        self._strategy, self._has_begun = None, False

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Write what the resumed run was killed before writing, and start counting."""
        self._has_begun = True
        self._write_missing(trainer)
        self._counted_step = trainer.global_step
        if self._time is not None:
            self._time.start()

    def on_train_batch_end(
        self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save if a step of this batch was due; a batch that is split makes several. Collective then.

        With `train_time_interval` collective now and then.
        """
        counted, self._counted_step = self._counted_step, trainer.global_step
        every, time = self.every_n_train_steps, self._time  # which a subclass may change as it trains
        is_due = counted // every != self._counted_step // every if every else time is not None
        if not is_due or self._should_skip_saving_checkpoint(trainer):
            return
        if not every and time is not None and not time.is_over(trainer.strategy):
            return
        if self._waits_for_validation:
            trainer.after_batch(partial(self._save_after_batch, trainer))
        else:
            self._save(trainer, self._monitor_candidates(trainer))

    def on_validation_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Save if a step waited for this, or if epochs are due here. Collective."""
        if not self._is_fitting or trainer.sanity_checking:
            return
        self._has_validated = True
        is_due = self._is_epoch_due(trainer) and not self._should_save_on_train_epoch_end(trainer)
        if (is_due or self._is_deferred) and not self._should_skip_saving_checkpoint(trainer):
            self._save(trainer, self._monitor_candidates(trainer))

    def on_train_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Save if epochs are due here, or if a step waited for a validation that did not come. Collective."""
        is_due = self._is_epoch_due(trainer) and self._should_save_on_train_epoch_end(trainer)
        if not (is_due or self._is_deferred) or self._should_skip_saving_checkpoint(trainer):
            return
        candidates = self._monitor_candidates(trainer)
        if is_due or from_rank_zero(trainer.strategy, lambda: self.monitor in candidates):
            self._save(trainer, candidates)

    def on_train_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Write "last" if it is asked for and no due time has come, or epochs keep nothing else. Collective then."""
        is_newer = trainer.global_step != self._last_global_step_saved
        is_missing = not self.last_model_path or (self.save_top_k == 0 and self.every_n_epochs > 0 and is_newer)
        # A preempted run is resumed from the checkpoint that preemption saves.
        is_kept = self._is_fitting and not trainer.fast_dev_run and not trainer.is_preempted
        if self.save_last and is_missing and is_kept:
            self._decide(trainer, self._monitor_candidates(trainer), is_last_alone=True)

    def on_fit_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Write missing checkpoints where nothing was left to train."""
        self._write_missing(trainer)

    def on_exception(self, trainer: TrainerProtocol, module: Any, exception: BaseException) -> None:
        """Save after an exception, if that is asked for and there were updates since the latest save."""
        if not (self.save_on_exception and self._has_begun):
            return
        if self._pending:
            self._restore(self._pending.drop_all())  # the trainer has dropped its requests
        if self._should_save_on_exception(trainer) and can_save_alone(trainer, exception, type(self).__name__):
            candidates = self._monitor_candidates(trainer)
            is_logged = self._templates[0].metrics <= candidates.keys()
            by_default = f"exception{self.CHECKPOINT_JOIN_CHAR}{self._default_name}"
            path = self._free_path(trainer, candidates, None if is_logged else by_default)
            last_path, superfluous = self._move_last(trainer, candidates, path) if self.save_last else (None, ())
            self._print_decision(trainer, path, None, None)
            self._request_save(trainer, path, superfluous, last_path)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without what belongs to a run in progress, so that copies can be made at any time."""
        return {**vars(self), "_pending": None, "_strategy": None, "_newest": None}

    def state_dict(self) -> dict[str, Any]:
        """Return the kept checkpoints with their scores, "last", and when the latest save was."""
        return {
            **self._kept.state_dict(),
            "monitor": self.monitor,
            "dirpath": self.dirpath,
            "step_saved_at": self._last_global_step_saved,
            "is_deferred": self._is_deferred,
            "pending": [] if self._pending is None else self._pending.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state with those of its checkpoints that still exist; warn of the others.

        Collective in fit: rank 0 looks for the files.
        """
        self._restore(state_dict)

        def look() -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
            pending, folder = state_dict.get("pending", []), self.dirpath or ""
            unwritten, unfinished = unwritten_saves(pending, folder), unfinished_saves(pending, folder)
            expected = [one[name] for one in (*unwritten, *unfinished) for name in ("path", "last_path")]
            return unwritten, unfinished, self._kept.missing_files(expected)

        found = look() if self._strategy is None else from_rank_zero(self._strategy, look)
        self._unwritten, self._unfinished, missing = found
        self._kept.forget(missing)
        self._loaded_dirpath = state_dict["dirpath"]
        self._warn_if_moved()
        if self._pending is not None:
            self._pending.durable_state = self.state_dict()

    def to_yaml(self, filepath: str | os.PathLike[str] | None = None) -> None:
        """Write the paths of the kept checkpoints with their scores to a YAML file.

        Args:
            filepath: The file; None is "best_k_models.yaml" in `dirpath`.
        """
        path = join(self.dirpath or "", "best_k_models.yaml") if filepath is None else local_path(filepath)
        with replace_file(path) as fresh:
            lines = (f"{json.dumps(kept)}: {float(score)!r}\n" for kept, score in self.best_k_models.items())
            fresh.write_text("".join(lines) or "{}\n", encoding="utf-8")

    def format_checkpoint_name(
        self, metrics: dict[str, Any], filename: str | None = None, ver: int | None = None, prefix: str | None = None
    ) -> str:
        """Return the path of a checkpoint: in `dirpath`, if that is known, and with the extension.

        Args:
            metrics: Values for the name, "epoch" and "step" among them.
            filename: The template of the name; None is that of the kept checkpoints.
            ver: A version to be put behind the name.
            prefix: What the name begins with.

        Raises:
            MissingMetricError: If the template names a metric that is not in `metrics`.
            InvalidArgumentError: If the template is malformed.
        """
        name = self._format_checkpoint_name(
            filename or self.filename, metrics, prefix=prefix, auto_insert_metric_name=self.auto_insert_metric_name
        )
        name = name if ver is None else f"{name}{self.CHECKPOINT_JOIN_CHAR}v{ver}"
        return join(self.dirpath or "", f"{name}{self.FILE_EXTENSION}")

    def file_exists(self, filepath: str | os.PathLike[str], trainer: TrainerProtocol) -> bool:
        """Return whether rank 0 finds a file or folder at a path. Collective.

        Args:
            filepath: The path or URL.
            trainer: The trainer.
        """
        path = local_path(filepath)
        return from_rank_zero(trainer.strategy, lambda: exists(path) or os.path.islink(path))

    def check_monitor_top_k(self, trainer: TrainerProtocol, current: Tensor | None = None) -> bool:
        """Return whether a score is good enough to be kept; all ranks have to return the same.

        Args:
            trainer: The trainer.
            current: The score; None is good enough for nothing.
        """
        return current is not None and self._kept.takes(current)

    def _format_checkpoint_name(
        self,
        filename: str | None,
        metrics: dict[str, Any],
        prefix: str | None = None,
        auto_insert_metric_name: bool = True,
    ) -> str:
        template = self._template(filename or self._default_name, auto_insert_metric_name)
        name = template.render(metrics)
        return name if prefix is None else f"{prefix}{self.CHECKPOINT_JOIN_CHAR}{name}"

    def _monitor_candidates(self, trainer: TrainerProtocol) -> dict[str, Tensor]:
        """Return a copy of the logged values, with "epoch" and "step"; what ranks and names checkpoints."""
        logged = trainer.callback_metrics.items()
        candidates = {name: one.detach().clone() if isinstance(one, Tensor) else one for name, one in logged}
        for name, count in (("epoch", trainer.current_epoch), ("step", trainer.global_step)):
            known = candidates.get(name)
            candidates[name] = known.int() if isinstance(known, Tensor) else torch.tensor(count)
        return candidates

    def _should_skip_saving_checkpoint(self, trainer: TrainerProtocol) -> bool:
        return (
            not self._is_fitting
            or bool(trainer.fast_dev_run)
            or trainer.sanity_checking
            or trainer.global_step == self._last_global_step_saved
        )

    def _should_save_on_exception(self, trainer: TrainerProtocol) -> bool:
        return self.save_on_exception and self._has_begun and not self._should_skip_saving_checkpoint(trainer)

    def _should_save_on_train_epoch_end(self, trainer: TrainerProtocol) -> bool:
        if self.save_on_train_epoch_end is not None:
            return self.save_on_train_epoch_end
        return from_rank_zero(trainer.strategy, lambda: is_due_at_train_epoch_end(trainer))

    def _save_topk_checkpoint(self, trainer: TrainerProtocol, monitor_candidates: dict[str, Tensor]) -> None:
        if self.save_top_k == 0:
            self._print_decision(trainer, None, None, None)
        elif self.monitor is None:
            self._keep(trainer, monitor_candidates, None)
        else:
            self._save_monitor_checkpoint(trainer, monitor_candidates)

    def _save_monitor_checkpoint(self, trainer: TrainerProtocol, monitor_candidates: dict[str, Tensor]) -> None:
        name, where = self.monitor or "", type(self).__name__

        def read() -> Tensor | None:
            every = trainer.check_val_every_n_epoch
            is_later = validates(trainer) and every is not None and (trainer.current_epoch + 1) % every != 0
            if name not in monitor_candidates and not self._has_validated and is_later:
                return None
            return read_scalar(monitor_candidates, name, where, trainer.callback_metrics)

        current = from_rank_zero(trainer.strategy, read)
        if current is None:
            warn_user(f"{where} keeps nothing before the first validation has logged {name!r}. Check `monitor`.")
            return
        if self.check_monitor_top_k(trainer, current):
            self._keep(trainer, monitor_candidates, current)
        else:
            self._print_decision(trainer, None, current, name)

    def _save_last_checkpoint(self, trainer: TrainerProtocol, monitor_candidates: dict[str, Tensor]) -> None:
        """Point "last" at the checkpoint of this due time, or write it if there is none. Collective."""
        if not self.save_last or self._pending is None:
            return
        newest = self._newest if self._last_global_step_saved == trainer.global_step else None
        taken = None if newest is None else newest.path
        path, superfluous = self._move_last(trainer, monitor_candidates, taken)
        if newest is None or self._writes_last:
            self._request_save(trainer, path, superfluous, path)
            return
        newest.last_path = path
        newest.displaced = (*(one for one in newest.displaced if one != path), *superfluous)
        newest.state = self.state_dict()
        if newest not in self._pending:  # it is durable already
            self._pending.reopen(newest)
            self._pending.finish(newest)

    def _should_remove_checkpoint(self, trainer: TrainerProtocol, previous: str, current: str) -> bool:
        """Return whether a checkpoint goes when another displaces it; not if the run was resumed from it."""
        resumed = getattr(trainer, "ckpt_path", None)
        if resumed is not None and absolute(resumed) == absolute(previous):
            return False
        return previous != current and self.dirpath is not None and lies_in(previous, self.dirpath)

    def _remove_checkpoint(self, trainer: TrainerProtocol, filepath: str) -> None:
        """Remove a checkpoint; called on all ranks."""
        if trainer.is_global_zero:
            remove(filepath)

    def _point_last(self, trainer: TrainerProtocol, path: str, last_path: str) -> None:
        from_rank_zero(trainer.strategy, lambda: point_last_at(path, last_path, by_link=self.save_last == "link"))

    def _keep(self, trainer: TrainerProtocol, candidates: dict[str, Tensor], score: Tensor | None) -> None:
        """Rank a checkpoint, displace others, and request it. Collective."""
        displaced = self._kept.displaced_by(score)
        path = self._new_path(trainer, candidates, displaced)
        others = self._kept.add(path, score, displaced)
        self._print_decision(trainer, path, score, self.monitor)
        superfluous = tuple(one for one in others if self._should_remove_checkpoint(trainer, one, path))
        self._request_save(trainer, path, superfluous)

    def _new_path(self, trainer: TrainerProtocol, candidates: dict[str, Tensor], displaced: tuple[str, ...]) -> str:
        """Return the path for a new checkpoint, which may be that of one it displaces. Collective."""
        return self._free_path(trainer, candidates, None, displaced)

    def _move_last(
        self, trainer: TrainerProtocol, candidates: dict[str, Tensor], taken: str | None
    ) -> tuple[str, tuple[str, ...]]:
        """Choose the path of "last". Return it, and what to remove once it is there. Collective."""
        former = self.last_model_path
        path = self.last_model_path = self._free_path(trainer, candidates, self.CHECKPOINT_NAME_LAST, (former,), taken)
        is_gone = former not in ("", taken) and self._should_remove_checkpoint(trainer, former, path)
        return path, (former,) if is_gone else ()

    @property
    def _waits_for_validation(self) -> bool:
        """True if a due step is followed after the validation of its batch, which may change the values."""
        return self._is_ranked or any(template.metrics for template in self._templates)

    @property
    def _is_ranked(self) -> bool:
        return self.monitor is not None and self.save_top_k != 0

    def _is_epoch_due(self, trainer: TrainerProtocol) -> bool:
        return self.every_n_epochs > 0 and (trainer.current_epoch + 1) % self.every_n_epochs == 0

    def _save_after_batch(self, trainer: TrainerProtocol) -> None:
        """Save unless the validation after the batch already did, or defer to the first validation. Collective."""
        if trainer.global_step == self._decided_step or self._should_skip_saving_checkpoint(trainer):
            return
        candidates = self._monitor_candidates(trainer)
        self._is_deferred = self._is_ranked and from_rank_zero(
            trainer.strategy,
            lambda: self.monitor not in candidates and not self._has_validated and validates(trainer),
        )
        if not self._is_deferred:
            self._save(trainer, candidates)

    def _save(self, trainer: TrainerProtocol, candidates: dict[str, Tensor]) -> None:
        """Save for a due time. Collective."""
        self._decided_step = trainer.global_step
        self._is_deferred = False
        self._decide(trainer, candidates)

    def _decide(self, trainer: TrainerProtocol, candidates: dict[str, Tensor], *, is_last_alone: bool = False) -> None:
        self._newest = None
        if not is_last_alone:
            self._save_topk_checkpoint(trainer, candidates)
        self._save_last_checkpoint(trainer, candidates)

    def _request_save(
        self, trainer: TrainerProtocol, path: str, superfluous: tuple[str, ...], last_path: str | None = None
    ) -> None:
        pending = self._pending
        assert pending is not None
        self._last_global_step_saved = trainer.global_step  # which is part of the state
        save = self._newest = pending.add(path, self.state_dict(), superfluous, last_path)
        self._write(trainer, path, partial(self._finish_save, trainer, pending, save))

    def _write(self, trainer: TrainerProtocol, path: str, on_saved: Callable[[], None] | None) -> None:
        """Have the trainer write a checkpoint. Collective."""
        trainer.save_checkpoint(path, self.save_weights_only, on_saved)

    def _write_missing(self, trainer: TrainerProtocol) -> None:
        """Do what a crash kept the resumed run from doing. Collective."""
        unfinished, self._unfinished = self._unfinished, []
        pending = self._pending
        if pending is not None:
            for save in unfinished:
                displaced = tuple(save["displaced"])
                pending.finish(pending.add(save["path"], self.state_dict(), displaced, save["last_path"]))
        unwritten, self._unwritten = self._unwritten, []
        for save in unwritten:
            self._request_save(trainer, save["path"], tuple(save["displaced"]), save["last_path"])

    def _free_path(
        self,
        trainer: TrainerProtocol,
        candidates: dict[str, Tensor],
        filename: str | None,
        reusable: tuple[str, ...] = (),
        taken: str | None = None,
    ) -> str:
        """Return a path that no other checkpoint has. Collective.

        Args:
            trainer: The trainer.
            candidates: Values for the name.
            filename: Template of the name; None is that of the kept checkpoints.
            reusable: Paths that may be reused.
            taken: A path that may not.
        """
        others = [self, *self._siblings(trainer)]

        def is_taken(path: str) -> bool:
            if path in reusable or not self.enable_version_counter:
                return path == taken
            return path == taken or self.file_exists(path, trainer) or any(one._claims(path) for one in others)

        def path_of(**version: Any) -> str:
            # only what is needed, since an override may take no more
            given = () if filename is None else (filename,)
            return from_rank_zero(trainer.strategy, lambda: self.format_checkpoint_name(candidates, *given, **version))

        path, version = path_of(), self.STARTING_VERSION
        while is_taken(path):
            before, path = path, path_of(ver=version)
            if path == before:
                raise RuntimeError(
                    f"`format_checkpoint_name` must give each version a distinct path, but got {path!r} (str) for "
                    f"version {version} as well in {type(self).__name__}. Put `ver` into the name, or pass "
                    "enable_version_counter=False."
                )
            version += 1
        return path

    def _choose_folder(self, trainer: TrainerProtocol) -> str:
        """Return `dirpath` if it is given, or was set since; else the default folder of this run. Collective."""
        if self.dirpath is not None and self.dirpath != self._found_folder:
            return absolute_folder(self.dirpath, type(self).__name__)
        self._found_folder = from_rank_zero(trainer.strategy, lambda: default_folder(trainer))
        return self._found_folder

    def _claims(self, path: str) -> bool:
        return path == self.last_model_path or (self._pending is not None and self._pending.holds(path))

    @property
    def _default_name(self) -> str:
        return f"{{epoch}}{self.CHECKPOINT_JOIN_CHAR}{{step}}"

    def _template(self, text: str, is_named: bool) -> NameTemplate:
        chars = self.CHECKPOINT_EQUALS_CHAR, self.CHECKPOINT_SLASH_CHAR
        return NameTemplate(text, is_named, type(self).__name__, *chars)

    def _make_templates(self) -> list[NameTemplate]:
        """Return the templates of kept checkpoints and of "last", by attributes that may have been set since."""
        texts = [self.filename or self._default_name, *([self.CHECKPOINT_NAME_LAST] if self.save_last else [])]
        return [self._template(text, self.auto_insert_metric_name) for text in texts]

    def _check_distinct(self, other: ModelCheckpoint) -> None:
        """Check that another callback of the trainer has another `state_key`, and warn if the two share files."""
        where = "Trainer(callbacks=...)"
        if self.state_key == other.state_key:
            rule = "different for each ModelCheckpoint of a trainer"
            action = "Distinguish them by `filename`, `monitor`, `mode` or interval."
            raise InvalidArgumentError("state_key", rule, self.state_key, where, action)
        names, others = ({template.template for template in one._templates} for one in (self, other))
        has_versions = self.enable_version_counter and other.enable_version_counter
        places = [(one.dirpath, one.FILE_EXTENSION) for one in (self, other)]
        if names & others and places[0] == places[1] and not has_versions:
            warn_user(
                f"Two ModelCheckpoints in {where} use the same names in one folder, one with "
                "enable_version_counter=False, which replaces files of the other. Give one another `dirpath`."
            )

    def _print_decision(
        self, trainer: TrainerProtocol, path: str | None, score: Tensor | None, monitor: str | None
    ) -> None:
        if not (self.verbose and trainer.is_global_zero):
            return
        moment = f"epoch {trainer.current_epoch}, step {trainer.global_step}"
        shown = "" if score is None else f"{monitor} is {float(score):.6g}, "
        kept = f"saving {path}" if path else f"not among the best {self.save_top_k}"
        print(f"ModelCheckpoint, {moment}: {shown}{kept}", flush=True)

    def _finish_save(self, trainer: TrainerProtocol, pending: PendingSaves, save: PendingSave) -> None:
        """Finish a durable save, and notify the loggers that have `after_save_checkpoint`."""
        if not pending.finish(save):
            return
        self.saved_path = save.path
        for logger in trainer.loggers if trainer.is_global_zero else ():
            if hasattr(logger, "after_save_checkpoint"):
                logger.after_save_checkpoint(self)

    def _restore(self, memory: dict[str, Any]) -> None:
        self._kept.load_state_dict(memory)
        self._last_global_step_saved = memory["step_saved_at"]
        self._is_deferred = memory["is_deferred"]

    def _warn_if_moved(self) -> None:
        former = self._loaded_dirpath
        if self.dirpath is None or former is None:
            return
        self._loaded_dirpath = None
        if former != self.dirpath:
            warn_user(
                f"ModelCheckpoint now saves in {self.dirpath!r}; checkpoints of the resumed run in {former!r} still"
                f" count in the ranking, and are never removed. Pass dirpath={former!r} to go on there."
            )

    def _siblings(self, trainer: TrainerProtocol) -> list[ModelCheckpoint]:
        return [one for one in trainer.callbacks if isinstance(one, ModelCheckpoint) and one is not self]
