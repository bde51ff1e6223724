"""Training, from the first epoch to the last."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import attrs

from camshaft.hooks_core.known_attributes import check_known
from camshaft.hooks_core.messages import warn_user
from camshaft.hooks_core.spec import ZeroGrad
from camshaft.loops.arguments import check_one_of
from camshaft.loops.data.fit_data import FitData
from camshaft.loops.data.loaders import parts_of, set_epoch
from camshaft.loops.data.resumable_loader import STATELESS_LOADERS, StatelessLoaders
from camshaft.loops.evaluation.loops import ValidationLoop
from camshaft.loops.evaluation.sanity_check import check_sanity
from camshaft.loops.fit.epoch import TrainingEpoch, ValidationSchedule
from camshaft.loops.fit.lightning_views import EpochLoopView, EpochProgressView
from camshaft.loops.fit.limits import FitLimits, StoppingRules, check_equal_arguments
from camshaft.loops.fit.resume import (
    check_resumable,
    classes_of,
    gradients_of,
    of_this_rank,
    restore_data_module,
    restore_gradients,
    restore_training,
)
from camshaft.loops.optimization.configuration import Optimization, OptimizationSettings
from camshaft.loops.optimization.mode import OptimizationMode, StandardOptimization
from camshaft.loops.optimization.schedulers import SchedulerSteps
from camshaft.loops.state.metric_state import metric_states, restore_metric_states
from camshaft.loops.state.progress import FitProgress
from camshaft.loops.state.random_state import random_state, restore_random_state
from camshaft.loops.state.run import EpochState, Run


class FitView:
    """The attributes of a fit loop that are kept in its parts."""

    progress: FitProgress
    optimization: Optimization
    sanity_checking: bool
    settings: OptimizationSettings
    validation: ValidationLoop
    _data: FitData | None
    _epoch: TrainingEpoch | None
    _mode: OptimizationMode | None
    _stopping: StoppingRules
    _shows_ended_epoch: bool

    @property
    def current_epoch(self) -> int:
        """Index of the epoch; that of the one that has ended until the checkpoints of its end are written."""
        return self.progress.current_epoch - self._shows_ended_epoch

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; one that the loop does not have is refused, with the closest that it has."""
        check_known(self, name)
        object.__setattr__(self, name, value)

    @property
    def limits(self) -> FitLimits:
        """How long to train and how often to validate.

        What is set while a fit runs counts at once, but for what the loaders were counted by: `limit_train_batches`,
        `overfit_batches` and `val_check_interval` count from the next time that loaders are asked for.
        """
        return self._stopping.limits

    @limits.setter
    def limits(self, limits: FitLimits) -> None:
        self._stopping.follow(limits)
        if self._data is not None:
            self._data.limits = limits

    @property
    def max_epochs(self) -> int | None:
        """The largest number of epochs; None if there is no limit. -1 sets none. Set it to train on in the next fit."""
        limit = self.limits.epoch_limit
        return None if limit == float("inf") else int(limit)

    @max_epochs.setter
    def max_epochs(self, value: int | None) -> None:
        self.limits = self.limits.with_number("max_epochs", value)

    @property
    def min_epochs(self) -> int | None:
        """Epochs that `should_stop` cannot cut short."""
        return self.limits.min_epochs

    @min_epochs.setter
    def min_epochs(self, value: int | None) -> None:
        self.limits = self.limits.with_number("min_epochs", value)

    @property
    def max_steps(self) -> int:
        """The largest number of updates; -1 if there is no limit."""
        return self.limits.max_steps

    @max_steps.setter
    def max_steps(self, value: int) -> None:
        self.limits = self.limits.with_number("max_steps", value)

    @property
    def min_steps(self) -> int | None:
        """Updates that `should_stop` cannot cut short."""
        return self.limits.min_steps

    @min_steps.setter
    def min_steps(self, value: int | None) -> None:
        self.limits = self.limits.with_number("min_steps", value)

    @property
    def max_batches(self) -> int | float:
        """Batches of a training epoch, as `num_batches`."""
        return self.num_batches

    @property
    def epoch_loop(self) -> EpochLoopView:
        """Limits in steps, batches and validation, which Lightning keeps in a loop of its own."""
        return EpochLoopView(self)

    @property
    def epoch_progress(self) -> EpochProgressView:
        """How many epochs are over; setting it before a fit lets that one begin there."""
        return EpochProgressView(self.progress)

    def set_clipping(self, gradient_clip_val: float | None, gradient_clip_algorithm: str | None) -> None:
        """Clip gradients otherwise from the next update on. Set it in every process alike.

        Args:
            gradient_clip_val: The largest norm or absolute value; None clips nothing.
            gradient_clip_algorithm: "norm" or "value"; None means "norm".

        Raises:
            TypeError, ValueError: If an argument is of the wrong type or out of range, or the module optimizes by hand.
        """
        settings = attrs.evolve(
            self.settings, gradient_clip_val=gradient_clip_val, gradient_clip_algorithm=gradient_clip_algorithm
        )
        if self._mode is not None:
            self._mode.set_clipping(settings.gradient_clip_val, settings.gradient_clip_algorithm)
        self.settings = settings

    @property
    def accumulate_grad_batches(self) -> int:
        """Batches whose gradients make one update; splits, if batches are split.

        What is set in `on_train_epoch_start` or before counts from the epoch's first batch on, what is set after it
        from the next epoch on. Set it in every process alike.

        Raises:
            TypeError, ValueError: On setting what is no positive int, or what the fit that runs cannot do.
        """
        return self.settings.accumulate_grad_batches

    @accumulate_grad_batches.setter
    def accumulate_grad_batches(self, value: int) -> None:
        settings = attrs.evolve(self.settings, accumulate_grad_batches=value)
        if self._mode is not None:
            self._mode.accumulate_grad_batches = value
        self.settings = settings

    @property
    def arguments(self) -> dict[str, Any]:
        """What all processes must have been given alike, by name.

        The time is not among it: each process may have found out how much it has left, and all stop with the first.
        """
        arguments = attrs.asdict(self.limits) | attrs.asdict(self.settings)
        del arguments["max_time"], arguments["max_seconds"]
        arguments["limit_val_batches"] = self.validation.limit_batches
        arguments["agree_every_n_batches"] = self._stopping.agree_every_n_batches
        return arguments

    @property
    def data(self) -> FitData | None:
        """What the current or last fit iterates over; None before the first."""
        return self._data

    @property
    def loader(self) -> Any:
        """The training loader, a `CombinedLoader` if there are several; None before the fit has asked for it."""
        return None if self._data is None else self._data.loader

    @property
    def given_loader(self) -> Any:
        """The training loader in the structure in which it was given: one loader, or a collection of several."""
        return parts_of(self.loader)

    @property
    def num_batches(self) -> int | float:
        """Batches of a training epoch; infinite if unknown, 0 before the fit has asked for the loader."""
        return 0 if self._data is None else self._data.num_batches

    @property
    def should_stop(self) -> bool:
        """Whether training is to stop at the next opportunity; set it to true from anywhere."""
        return self.progress.should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self.progress.should_stop = value

    @property
    def is_preempted(self) -> bool:
        """Whether the current or latest fit ends because `Run.preempt` asked all processes to save and leave."""
        return self._stopping.is_preempted

    @property
    def stop_reason(self) -> str | None:
        """Why the latest fit ended, in words; None while it runs, and if an error ended it."""
        return self._stopping.reason

    @property
    def is_last_batch(self) -> bool:
        """Whether the batch that runs is known to be its epoch's last."""
        return self._epoch is not None and self._epoch.is_last_batch

    @property
    def num_sanity_batches(self) -> list[int | float]:
        """How many batches of each validation loader the sanity check takes."""
        steps = self.limits.num_sanity_val_steps
        available = self.validation.num_batches
        return [num_batches if steps == -1 else min(steps, num_batches) for num_batches in available]


class FitLoop(FitView):
    """Trains a module: sanity check, epochs, validation within them, optimization.

    It owns its progress: run it again with higher limits and it goes on after the last complete epoch; one that was
    stopped inside begins anew, unless a checkpoint says where to go on.

    Args:
        limits: How long to train and how often to validate.
        validation: The loop that validates; its limit of 0 batches trains without.
        accumulate_grad_batches: Batches whose gradients make one update; splits, if batches are split.
        gradient_clip_val: The largest norm or absolute value of the gradients; None clips nothing.
        gradient_clip_algorithm: "norm" or "value"; None means "norm".
        zero_grad: Where gradients are zeroed: "before_backward" after `training_step`, "before_training_step", or
            "after_optimizer_step"; None means "before_backward", unless the run's `optimization_factory` has another.
        truncated_bptt_steps: Time steps of a split of a batch, for truncated backpropagation through time; None takes
            the module's attribute of that name, if it has one, and else leaves batches whole.
        stateless_loaders: What a resume inside an epoch does with a training loader that has no state: "refuse" it, or
            "fast_forward": read the batches that were used and drop them.
        use_distributed_sampler: Whether several processes share the data of a `DataLoader` out among them.
        agree_every_n_batches: Batches after which several processes ask each other whether to stop; None asks about
            four times per second, see `Agreement`. Fewer let a `should_stop` within an epoch take effect sooner.

    Raises:
        TypeError, ValueError: If an argument is of the wrong type or out of range; when it runs, if several processes
            were given different ones.
    """

    required: tuple[str, ...] = ("training_step", "configure_optimizers")
    defers_saves = True
    _schedulers: SchedulerSteps

    def __init__(
        self,
        limits: FitLimits | None = None,
        validation: ValidationLoop | None = None,
        *,
        accumulate_grad_batches: int = 1,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
        zero_grad: ZeroGrad | None = None,
        truncated_bptt_steps: int | None = None,
        stateless_loaders: StatelessLoaders = "refuse",
        use_distributed_sampler: bool = True,
        agree_every_n_batches: int | None = None,
    ) -> None:
        check_one_of("stateless_loaders", stateless_loaders, STATELESS_LOADERS)
        self.validation = validation or ValidationLoop(use_distributed_sampler=use_distributed_sampler)
        self.settings = OptimizationSettings(
            accumulate_grad_batches=accumulate_grad_batches,
            gradient_clip_val=gradient_clip_val,
            gradient_clip_algorithm=gradient_clip_algorithm,
            zero_grad=zero_grad,
            truncated_bptt_steps=truncated_bptt_steps,
        )
        self.stateless_loaders = stateless_loaders
        self.use_distributed_sampler = use_distributed_sampler
        self.progress = FitProgress()
        self.sanity_checking = False
        self.has_ended = False
        self._shows_ended_epoch = False
        self.optimization = Optimization([], [])
        self._state = FitState()
        self._data: FitData | None = None
        self._epoch: TrainingEpoch | None = None
        self._mode: OptimizationMode | None = None
        self._has_epoch_ended = False  # whether the hooks of the epoch's end were called
        limits = limits if limits is not None else FitLimits()
        self._stopping = StoppingRules(limits, self.progress, agree_every_n_batches)
        self._is_sealed = True

    def begin(self) -> None:
        """Forget that a fit before was asked to stop; what asks from here on is heeded."""
        self._stopping.reset()

    def progress_state(self) -> dict[str, Any]:
        """The counters of training and of the last validation, as plain values; in every checkpoint."""
        self._stopping.note_time()
        return {"fit": self.progress.state_dict(), "validate": self.validation.progress.state_dict()}

    def state_dict(self, run: Run) -> dict[str, Any]:
        """What a resumed run needs beside weights, optimizers, progress and callbacks; see `FitState.state_dict`."""
        state = self._state.state_dict(run)
        state = {**state, "fit": state["fit"] | {"optimizer_classes": classes_of(self.optimization.optimizers)}}
        if self._epoch is not None and self.progress.is_inside_epoch:
            state["fit"] |= {key: part.state_dict() for key, part in run.epoch_state.items()}
        return state

    def run(self, run: Run) -> None:
        """Train until a limit is reached or something sets `should_stop`. Collective.

        Hooks: train_dataloader, val_dataloader, configure_optimizers, on_fit_start, on_sanity_check_start, those of
        validation, on_sanity_check_end, on_train_start, those of the epochs, on_train_end, on_fit_end.
        """
        stopping = self._stopping
        try:
            data = self._set_up(run)
            if self.num_batches and not stopping.is_done():
                factory = run.optimization_factory or StandardOptimization()
                mode = factory.make_mode(run, self.optimization, self.progress, self.limits, self.settings)
                self._mode = mode
                epoch = self._start(run, data, mode)
                stopping.agree()
                is_first = True
                while not stopping.is_done():
                    self._start_epoch(run, data, mode, is_first)
                    is_first = False
                    is_complete = epoch.run()
                    self._end_epoch(run, data, is_complete)
                self.has_ended = True
                self._end(run)
            elif run.checkpoint is not None:
                self._state.stay(run, run.checkpoint)
            run.save_point()
            self._state.let_go(run)
            data.let_go()
        finally:
            self._close()
        run.save_at_once()
        run.hooks.on_fit_end()

    def _set_up(self, run: Run) -> FitData:
        """Load, configure and restore."""
        checkpoint, progress = run.checkpoint, self.progress
        self.has_ended = False
        self.limits.check_together()
        check_equal_arguments(self.arguments, run.strategy, "fit")
        self._stopping.begin(run)
        if checkpoint is not None:
            check_resumable(checkpoint)
            checkpoint = run.checkpoint = of_this_rank(checkpoint, run.strategy)
            restore_data_module(run, checkpoint)  # its loaders may depend on it
        elif progress.is_inside_epoch:
            progress.end_epoch()
        run.epoch = progress.current_epoch
        self._data = data = FitData(
            run, self.limits, self.validation, progress, self.stateless_loaders, self.use_distributed_sampler
        )
        run.stop_workers = data.stop_workers
        if checkpoint is not None and "loaders" in checkpoint["fit"]:
            data.load_as(checkpoint["fit"]["loaders"])
        else:
            data.load()
        self._state = FitState(data)
        self._epoch, self._has_epoch_ended = None, False
        self.optimization = (run.optimization_factory or StandardOptimization()).configure(run)
        self.optimization.take(run.strategy.setup_optimizers(self.optimization.optimizers))
        run.hooks.on_fit_start()
        data.reload_if_asked()
        if checkpoint is not None:
            progress.load_state_dict(checkpoint["loops"]["fit"])
            self.validation.progress.load_state_dict(checkpoint["loops"]["validate"])
            run.epoch = progress.current_epoch
            restore_training(run, checkpoint, self.optimization)
        progress.should_stop |= self._stopping.time_is_over()
        self._stopping.agree()
        return data

    def _start(self, run: Run, data: FitData, mode: OptimizationMode) -> TrainingEpoch:
        """Everything between set-up and the first epoch."""
        self._stopping.start_clock()
        self._schedulers = SchedulerSteps(run, self.optimization)
        self._epoch = TrainingEpoch(
            run,
            self.progress,
            mode,
            self._schedulers,
            data=data,
            validation_due=ValidationSchedule(data, self.progress, self._stopping).is_due,
            validate=lambda: self._validate(run, data, mode),
            stopping=self._stopping,
        )
        self._state = FitState(data, mode)
        if run.order.train_start_first:
            self._begin_training(run)
        if run.checkpoint is not None:
            self._state.load_state_dict(run, run.checkpoint, self.progress)
            self.accumulate_grad_batches = mode.accumulate_grad_batches  # set, perhaps, in the run that was saved
            if self.progress.is_inside_epoch:
                for key, part in run.epoch_state.items():
                    part.load_state_dict(run.checkpoint["fit"].get(key))
        elif data.has_validation_batches and self.limits.num_sanity_val_steps:
            self._check_sanity(run, data)
        if not run.order.train_start_first:
            self._begin_training(run)
        elif run.metrics is not None:
            run.metrics.enter("train", "epoch")
        if run.checkpoint is not None:
            self._state.restore_moment(run, run.checkpoint, is_inside_epoch=self.progress.is_inside_epoch)
        run.save_point()
        return self._epoch

    def _begin_training(self, run: Run) -> None:
        run.stage = "train"
        if run.metrics is not None:
            run.metrics.start_epoch("train")
        run.hooks.on_train_start()

    def _check_sanity(self, run: Run, data: FitData) -> None:
        self.sanity_checking = True
        try:
            check_sanity(run, self.validation, self.num_sanity_batches, data.generators)
        finally:
            self.sanity_checking = False

    def _end(self, run: Run) -> None:
        if run.metrics is not None:
            run.metrics.moment = None
        run.hooks.on_train_end()
        run.stage = None

    def _close(self) -> None:
        self._stopping.end()
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.close()
        self.optimization.toggle.untoggle()

    def _start_epoch(self, run: Run, data: FitData, mode: OptimizationMode, is_first: bool) -> None:
        """Begin an epoch, or go on inside one."""
        progress, metrics = self.progress, run.metrics
        run.epoch, run.batch_idx = progress.current_epoch, None
        self._stopping.start_epoch(is_new=not progress.is_inside_epoch)
        if not progress.is_inside_epoch:
            data.reload_if_due()
            mode.num_batches = data.num_batches
            mode.start_epoch()
            self._has_epoch_ended = False
            _reset(run.epoch_state)
            progress.epochs.ready += 1
            set_epoch(data.loader, progress.current_epoch)
            if metrics is not None and not is_first:  # what `on_train_start` logs belongs to the first epoch
                metrics.start_epoch("train")
            run.hooks.on_train_epoch_start()
            data.follow_validation_limit()
            mode.begin_steps()
            progress.epochs.started += 1
            self._stopping.agree()
        if metrics is not None:
            metrics.moment = "batch"

    def _end_epoch(self, run: Run, data: FitData, is_complete: bool) -> None:
        progress, metrics = self.progress, run.metrics
        run.end_batch()
        if not is_complete:
            self._stopping.save()  # before the hooks of an end that the epoch will have again when it goes on
            self._state.keep_metrics(run)
        run.batch_idx = None
        if metrics is not None:
            metrics.moment = "epoch"
        if is_complete:
            progress.epochs.processed += 1
        if not self._has_epoch_ended:
            run.hooks.on_train_epoch_end()
        if metrics is not None:
            metrics.end_epoch()
        has_run = is_complete and progress.batches.processed > 0
        if is_complete:
            self._schedulers.step("epoch", progress.current_epoch, progress.current_epoch + 1)
            progress.epochs.completed += 1
            progress.end_epoch()
            data.batches.end_epoch()
            _reset(run.epoch_state)
        self._stopping.agree()
        self._shows_ended_epoch = is_complete
        try:
            self._stopping.save()
        finally:
            self._shows_ended_epoch = False
        if has_run:
            self._stopping.check_can_end(run)

    def _validate(self, run: Run, data: FitData, mode: OptimizationMode) -> None:
        if not data.validates:  # `limit_val_batches` was set to 0
            return
        if run.order.epoch_end_first and self.is_last_batch:
            self._end_before_validation(run)
        zero_grad = run.hooks.on_validation_model_zero_grad
        if zero_grad is None and not mode.keeps_gradients:
            zero_grad = run.module.zero_grad  # a module that optimizes by hand may still need its gradients
        if zero_grad is not None and not mode.holds_gradients:
            zero_grad()
        data.reload_validation_if_due()
        if data.has_validation_batches:
            self.validation.run_epoch(run)
        if run.metrics is not None:
            run.metrics.enter("train", "batch")

    def _end_before_validation(self, run: Run) -> None:
        self._has_epoch_ended = True
        batch_idx, run.batch_idx = run.batch_idx, None
        if run.metrics is not None:
            run.metrics.moment = "epoch"
        run.hooks.on_train_epoch_end()
        run.batch_idx = batch_idx


def _reset(epoch_state: Mapping[str, EpochState]) -> None:
    for part in epoch_state.values():
        part.reset()


class FitState:
    """The position in the data, the accumulation window, metrics in flight and random numbers of a fit.

    Args:
        data: What it iterates over.
        mode: How its batches become updates; None while nothing is trained.
    """

    def __init__(self, data: FitData | None = None, mode: OptimizationMode | None = None) -> None:
        self._data = data
        self._mode = mode
        self._metrics: dict[str, Any] | None = None  # of an epoch that ended early, as they were before its end
        self._kept: dict[str, Any] | None = None

    def state_dict(self, run: Run) -> dict[str, Any]:
        """The state now, or when the fit ended.

        Returns:
            "fit" (the position in the data and how its loaders came about, the accumulation window with its gradients,
            metrics) and "rng".
        """
        if self._kept is not None:
            return self._kept
        data, mode = self._data, self._mode
        fit = dict(self._metrics if self._metrics is not None else _metrics_of(run))
        if data is not None and mode is not None:
            fit["loaders"] = data.origin
            fit["batches"] = data.batches.state_dict()
            fit["optimization"] = mode.state_dict()
            fit["gradients"] = gradients_of(run.module) if mode.keeps_gradients else {}
        return {"fit": fit, "rng": random_state(() if data is None else data.generators)}

    def keep_metrics(self, run: Run) -> None:
        """Remember the metrics in flight: the end of the epoch resets them, but it may go on in another run."""
        self._metrics = _metrics_of(run)

    def let_go(self, run: Run) -> None:
        """Keep the state that the fit ended with, but not its loaders with their worker processes."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of loaders without state: nobody has asked for a checkpoint yet
            self._kept = self.state_dict(run)
        self._data = self._mode = None

    def load_state_dict(self, run: Run, checkpoint: dict[str, Any], progress: FitProgress) -> None:
        """Go to the checkpoint's place in the data and in the accumulation window.

        Raises:
            ValueError: If a loader cannot go on there.
        """
        data, mode, fit = self._data, self._mode, checkpoint["fit"]
        if data is None or mode is None or "batches" not in fit:
            return
        batches = progress.batches
        if batches.ready != batches.completed:
            warn_user(
                f"The checkpoint was taken inside of batch {batches.ready - 1} of epoch {progress.current_epoch}, as "
                "after an error: that batch is left out, so the run differs from one that was not stopped."
            )
        set_epoch(data.loader, progress.current_epoch)
        data.batches.load_state_dict(fit["batches"], batches.ready)
        if progress.is_inside_epoch:
            mode.num_batches = data.num_batches
            mode.load_state_dict(fit["optimization"])
        else:
            mode.load_accumulation(fit["optimization"])
        restore_gradients(run, fit["gradients"])

    def stay(self, run: Run, checkpoint: dict[str, Any]) -> None:
        """Be what a checkpoint is after which there is nothing left to train."""
        if run.metrics is not None:
            run.metrics.start_epoch("train")
        self.restore_moment(run, checkpoint, is_inside_epoch=False)
        if run.metrics is not None:
            run.metrics.moment = None
        self._kept = {"fit": checkpoint["fit"], "rng": checkpoint["rng"]}

    def restore_moment(self, run: Run, checkpoint: dict[str, Any], *, is_inside_epoch: bool) -> None:
        """Take metrics and random numbers back, right before training goes on."""
        fit = checkpoint["fit"]
        if run.metrics is not None and fit["metrics"] is not None:
            run.metrics.load_state_dict(fit["metrics"])
            run.metrics.moment = "batch" if is_inside_epoch else "epoch"
        restore_metric_states(run.module, fit["metric_states"])
        restore_random_state(checkpoint["rng"], () if self._data is None else self._data.generators)


def _metrics_of(run: Run) -> dict[str, Any]:
    """Logged values, and the states of the module's metrics."""
    return {
        "metrics": None if run.metrics is None else run.metrics.state_dict(),
        "metric_states": metric_states(run.module),
    }
