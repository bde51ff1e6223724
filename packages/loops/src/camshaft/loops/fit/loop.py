"""The loop that trains: its arguments, its run, and its attributes for users and callbacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import attrs

from camshaft.hooks_core.support.messages import must_be
from camshaft.loops.data.fit_data import FitData, LoaderSettings
from camshaft.loops.data.loaders import parts_of
from camshaft.loops.evaluation.loops import ValidationLoop
from camshaft.loops.evaluation.sanity_check import num_sanity_batches
from camshaft.loops.fit.fit_run import FitRun, state_outside_of_fit
from camshaft.loops.fit.limits import FitLimits, StoppingRules, check_equal_arguments
from camshaft.loops.fit.trial import in_trial, rollback
from camshaft.loops.optimization.configuration import ConfiguredOptimizers
from camshaft.loops.optimization.mode import UpdateMode
from camshaft.loops.optimization.settings import OptimizationSettings
from camshaft.loops.state.progress import FitProgress
from camshaft.loops.state.run import Run


class FitLoop:
    """Trains a module: sanity check, epochs, validation within them, optimization.

    It owns its progress: run it again with higher limits and it goes on after the last complete epoch; one that was
    stopped inside begins anew, unless a checkpoint says where to go on.

    Args:
        limits: Length of the fit, and when to validate; None takes the defaults.
        settings: Settings of the updates; None takes the defaults.
        loader_settings: Settings of the training loaders; None takes the defaults.
        validation: The loop that validates; its limit of 0 batches trains without.

    Raises:
        ValueError: When it runs, if several processes were given different settings.

    Attributes:
        progress: The counters of training; every checkpoint holds them.
        loader_settings: As passed. Changes count from the next fit on.
        validation: The loop that validates.
    """

    __slots__ = ("__weakref__", "_fit", "_settings", "_stopping", "loader_settings", "progress", "validation")

    required: ClassVar[tuple[str, ...]] = ("training_step", "configure_optimizers")
    defers_saves: ClassVar[bool] = True

    data_class: ClassVar[type[FitData]] = FitData
    """Class of the loaders of a fit; a subclass may ask for them, or begin them, in another way."""

    def __init__(
        self,
        limits: FitLimits | None = None,
        settings: OptimizationSettings | None = None,
        loader_settings: LoaderSettings | None = None,
        validation: ValidationLoop | None = None,
    ) -> None:
        self.loader_settings = loader_settings or LoaderSettings()
        shares = self.loader_settings.use_distributed_sampler
        self.validation = validation or ValidationLoop(use_distributed_sampler=shares)
        self.progress = FitProgress()
        self._settings = settings or OptimizationSettings()
        self._stopping = StoppingRules(limits or FitLimits(), self.progress)
        self._fit: FitRun | None = None  # the current or latest run

    def run(self, run: Run) -> None:
        """Train until a limit is reached or something sets `should_stop`. Collective.

        Hooks: train_dataloader, val_dataloader, configure_optimizers, on_fit_start, on_sanity_check_start, those of
        validation, on_sanity_check_end, on_train_start, those of the epochs, on_train_end, on_fit_end.
        """
        stopping = self._stopping
        data = self.data_class(run, self.limits, self.validation, self.progress, self.loader_settings)
        final_state = None if self._fit is None else self._fit.final_state
        fit = self._fit = FitRun(run, data, self.validation, stopping, self.optimization, final_state)
        try:
            self.limits.check_together()
            check_equal_arguments(self.arguments, run.strategy, "fit")
            fit.set_up()
            if data.num_batches and not stopping.is_done():
                epoch = fit.start(self.settings)
                while not stopping.is_done():
                    fit.start_epoch()
                    is_complete = epoch.run()
                    fit.end_epoch(is_complete=is_complete)
                fit.end()
            elif run.checkpoint is not None:
                fit.restore_finished(run.checkpoint)
            else:
                data.prepare_first_epoch(is_read=False)
            run.save_point()
            fit.finish()
        finally:
            self._settings = self.settings
            fit.close()
        run.save_at_once()
        run.hooks.on_fit_end()

    def begin(self) -> None:
        """Forget that an earlier fit was asked to stop; requests from here on count."""
        self._stopping.reset()

    def progress_state(self) -> dict[str, Any]:
        """Return the counters of training and of the last validation, as plain values; in every checkpoint."""
        self._stopping.note_time()
        return {"fit": self.progress.state_dict(), "validate": self.validation.progress.state_dict()}

    def trial(self, run: Run, *, reload: bool = False) -> AbstractContextManager[Iterable[Any]]:
        """Return a context with batches for steps that leave no trace but in weights and optimizers. Collective.

        The state of a dataset or a sampler is restored if it has `state_dict` and `load_state_dict`.

        Args:
            run: The fit that runs, while no batch is trained.
            reload: If true, the training loader is asked for anew, and again before the next epoch.

        Raises:
            RuntimeError: If the training loader was not asked for yet.
            ValueError: If it cannot be read without a trace, or not be asked for again.
        """
        return in_trial(run, self.data, reload=reload)

    def trial_step(self, run: Run) -> AbstractContextManager[None]:
        """Return a context for steps with the batch that waits in `on_train_batch_start`; else as `trial`.

        Args:
            run: The fit that runs.

        Raises:
            RuntimeError: If no batch waits.
        """
        batches = self.progress.batches
        if self.data is None or batches.ready == batches.started:
            rule, action = "used while a batch waits", "Use it in `on_train_batch_start`."
            raise RuntimeError(must_be("trial_step", rule, run.position(), "fit", action))
        return rollback(run, self.data)

    def state_dict(self, run: Run) -> dict[str, Any]:
        """Return the state beside weights, optimizers, progress and callbacks; see `FitRun.state_dict`."""
        return state_outside_of_fit(run) if self._fit is None else self._fit.state_dict(run)

    @property
    def current_epoch(self) -> int:
        """Index of the epoch; that of the one that has ended until the checkpoints of its end are written."""
        return self.progress.current_epoch - (self._fit is not None and self._fit.shows_ended_epoch)

    @property
    def limits(self) -> FitLimits:
        """Limits of the fit, which say how long to train and how often to validate.

        Limits that are set while a fit runs count at once, except that `limit_train_batches`, `overfit_batches` and
        `val_check_interval` count from the next time that loaders are asked for.
        """
        return self._stopping.limits

    @limits.setter
    def limits(self, limits: FitLimits) -> None:
        self._stopping.follow(limits)
        if self._fit is not None:
            self._fit.data.limits = limits

    @property
    def max_epochs(self) -> int:
        """The largest number of epochs; -1 if there is no limit. Set it to train on in the next fit."""
        limit = self.limits.epoch_limit
        return -1 if limit == float("inf") else int(limit)

    @max_epochs.setter
    def max_epochs(self, value: int | None) -> None:
        self.limits = self.limits.with_number("max_epochs", value)

    @property
    def settings(self) -> OptimizationSettings:
        """Settings of the updates; while a fit runs, those in force."""
        mode = self._mode
        return self._settings if mode is None else mode.settings

    @property
    def _mode(self) -> UpdateMode | None:
        return self._fit.mode if self._fit is not None and self._fit.is_active else None

    def set_clipping(self, gradient_clip_val: float | None, gradient_clip_algorithm: str | None) -> None:
        """Change how gradients are clipped, from the next update on. Set it in every process alike.

        Args:
            gradient_clip_val: The largest norm or absolute value; None clips nothing.
            gradient_clip_algorithm: "norm" or "value"; None means "norm".

        Raises:
            TypeError, ValueError: If an argument is of the wrong type or out of range, or the module optimizes by hand.
        """
        self._change_settings(gradient_clip_val=gradient_clip_val, gradient_clip_algorithm=gradient_clip_algorithm)

    @property
    def accumulate_grad_batches(self) -> int:
        """Batches whose gradients make one update; splits, if batches are split.

        A value that is set in `on_train_epoch_start` or before counts from the epoch's first batch on, a later one from
        the next epoch on. Set it in every process alike.

        Raises:
            TypeError, ValueError: On setting a value that is no positive int, or that the running fit cannot do.
        """
        return self.settings.accumulate_grad_batches

    @accumulate_grad_batches.setter
    def accumulate_grad_batches(self, value: int) -> None:
        self._change_settings(accumulate_grad_batches=value)

    def _change_settings(self, **changes: Any) -> None:
        settings = attrs.evolve(self.settings, **changes)
        if self._mode is not None:
            self._mode.follow(settings)
        self._settings = settings

    def replace_optimizers(self, optimizers: Sequence[Any]) -> None:
        """Train on with other optimizers, from the next batch on. Do it in every process alike. Collective.

        Gradients that wait for an update are kept. Schedulers stay with the optimizers that they were made for: set
        `scheduler` of `optimization.schedulers` for others.

        Args:
            optimizers: The optimizers; under automatic optimization as many as before.

        Raises:
            RuntimeError: If no fit runs, or a batch is being computed.
            TypeError: If one of them is no optimizer.
            ValueError: If their number is another one, or they cannot do what the settings ask for.
        """
        if self._fit is None:
            action = "Return them from `configure_optimizers`."
            raise RuntimeError(must_be("optimizers", "set while a fit runs", optimizers, "FitLoop", action))
        self._fit.replace_optimizers(optimizers)

    @property
    def optimization(self) -> ConfiguredOptimizers:
        """The optimizers and schedulers of the current or last fit; empty before the first."""
        return ConfiguredOptimizers([], []) if self._fit is None else self._fit.configured

    @property
    def sanity_checking(self) -> bool:
        """True while the sanity check runs."""
        return self._fit is not None and self._fit.sanity_checking

    @property
    def has_ended(self) -> bool:
        """True if the latest fit has come to the end of its training."""
        return self._fit is not None and self._fit.has_ended

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that must be the same in all processes, by name.

        The time limit is left out: each process may have its own, and all stop with the first.
        """
        arguments = attrs.asdict(self.limits) | attrs.asdict(self.settings)
        del arguments["max_time"]
        return arguments | {"limit_val_batches": self.validation.limit_batches}

    @property
    def data(self) -> FitData | None:
        """The loaders of the current or last fit; None before the first."""
        return None if self._fit is None else self._fit.data

    @property
    def loader(self) -> Any:
        """The training loader, a `CombinedLoader` if there are several; None before the fit has asked for it."""
        return None if self.data is None else self.data.loader

    @property
    def given_loader(self) -> Any:
        """The training loader in the structure in which it was given, one loader, or a collection of several."""
        return parts_of(self.loader)

    @property
    def num_batches(self) -> int | float:
        """Batches of a training epoch; infinite if unknown, and before the fit has asked for the loader."""
        return float("inf") if self.data is None else self.data.num_batches

    @property
    def num_batches_between_validations(self) -> int | float | None:
        """Batches from one validation to the next, infinite if that is the end of an epoch of unknown length.

        None before the fit has asked for the loaders, and where time counts.
        """
        if self.loader is None or self.data is None or self.limits.validation_seconds is not None:
            return None
        interval = self.data.validation_interval
        return self.num_batches if interval == float("inf") else interval

    @property
    def should_stop(self) -> bool:
        """True if training is to stop at the next opportunity; set it from anywhere."""
        return self.progress.should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self.progress.should_stop = value

    @property
    def is_preempted(self) -> bool:
        """True if the current or latest fit ends because of `Run.preempt`."""
        return self._stopping.is_preempted

    @property
    def stop_reason(self) -> str | None:
        """The reason why the latest fit ended; None while it runs, and after an error."""
        return self._stopping.reason

    @property
    def is_last_batch(self) -> bool:
        """True if the batch that runs is known to be its epoch's last."""
        epoch = None if self._fit is None else self._fit.epoch
        return epoch is not None and epoch.is_last_batch

    @property
    def num_sanity_batches(self) -> list[int | float]:
        """Number of batches of each validation loader that the sanity check takes."""
        return num_sanity_batches(self.validation, self.limits.num_sanity_val_steps)
