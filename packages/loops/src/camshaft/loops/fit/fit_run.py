"""One run of a fit loop: its parts, its state, and the steps around the epochs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from camshaft.hooks_core.support.messages import must_be
from camshaft.loops.data.fit_data import FitData
from camshaft.loops.evaluation.loops import ValidationLoop
from camshaft.loops.evaluation.sanity_check import check_sanity
from camshaft.loops.fit.epoch import TrainingEpoch
from camshaft.loops.fit.limits import StoppingRules
from camshaft.loops.fit.resume import (
    check_resumable,
    classes_of,
    first_settings,
    gradients_of,
    parameter_names_of,
    rank_state,
    restore_moment,
    restore_position,
    restore_training,
    settings_of,
)
from camshaft.loops.fit.save_only import check_save_only
from camshaft.loops.optimization.configuration import ConfiguredOptimizers, read_configuration
from camshaft.loops.optimization.mode import StandardOptimizationFactory, UpdateMode
from camshaft.loops.optimization.schedulers import SchedulerSteps
from camshaft.loops.optimization.settings import OptimizationSettings
from camshaft.loops.state.metric_state import metric_states
from camshaft.loops.state.random_state import random_state
from camshaft.loops.state.run import EpochState, Run


@attrs.define(eq=False, repr=False, slots=False)
class FitRun:
    """One run of a fit loop: its parts and its state. `FitLoop.run` calls its methods in order.

    Args:
        run: The run.
        data: The loaders; nothing is loaded yet.
        validation: The loop that validates.
        stopping: Decides when training ends, and knows the progress.
        configured: The optimizers and schedulers; those of the fit before until this one has its own.
        final_state: The state at the end; likewise.

    Attributes:
        data: The loaders and the batches of the epochs.
        mode: Turns batches into updates; None while nothing is trained.
        epoch: Runs the batches of the epochs; made by `start`.
        is_active: Whether `mode` is at work.
        has_ended: Whether training has come to its end.
        sanity_checking: Whether the sanity check runs.
        shows_ended_epoch: Whether an epoch has ended, but the checkpoints of its end are not written yet.
    """

    _run: Run
    data: FitData
    _validation: ValidationLoop
    _stopping: StoppingRules
    configured: ConfiguredOptimizers
    final_state: dict[str, Any] | None
    mode: UpdateMode | None = attrs.field(default=None, init=False)
    epoch: TrainingEpoch | None = attrs.field(default=None, init=False)
    is_active: bool = attrs.field(default=False, init=False)
    has_ended: bool = attrs.field(default=False, init=False)
    sanity_checking: bool = attrs.field(default=False, init=False)
    shows_ended_epoch: bool = attrs.field(default=False, init=False)
    _is_first_epoch: bool = attrs.field(default=True, init=False)
    _has_epoch_ended: bool = attrs.field(default=False, init=False)  # the hooks of the epoch's end were called
    # of the optimizers and schedulers when the run began
    _settings: list[list[Any]] = attrs.field(factory=list, init=False)
    _metrics: dict[str, Any] | None = attrs.field(default=None, init=False)  # as before the end of an epoch cut short

    def __attrs_post_init__(self) -> None:
        self._progress = self._stopping.progress
        self._factory = self._run.optimization_factory or StandardOptimizationFactory()
        self._schedulers: SchedulerSteps
        self._given_settings: OptimizationSettings

    def __getstate__(self) -> dict[str, Any]:
        """Exclude run state from pickles; optimizers and the final state are kept."""
        return {**vars(self), "mode": None, "epoch": None, "is_active": False, "_schedulers": None, "_factory": None}

    def set_up(self) -> None:
        """Load the data, configure the optimizers, and restore the checkpoint if there is one. Collective.

        Hooks: train_dataloader, val_dataloader, configure_optimizers, on_fit_start.
        """
        run, data, progress, stopping = self._run, self.data, self._progress, self._stopping
        checkpoint = run.checkpoint
        stopping.begin(run)
        if checkpoint is not None:
            check_resumable(checkpoint)
            checkpoint = run.checkpoint = rank_state(checkpoint, run.strategy)
            if run.logical is not None:
                run.logical.take(checkpoint["fit"]["logical_ranks"])
        elif progress.is_inside_epoch:
            progress.end_epoch()
        run.epoch = progress.current_epoch
        run.stop_workers = lambda: data.batches.stop_workers()
        if checkpoint is not None and "loaders" in checkpoint["fit"]:
            data.load_as(checkpoint["fit"]["loaders"])
        else:
            data.load()
        self.final_state = None
        self.configured = self._factory.configure(run)
        self._settings = settings_of(self.configured)
        self.configured.take(run.strategy.setup_optimizers(self.configured.optimizers))
        check_save_only(run, self.configured.optimizers)
        run.hooks.on_fit_start()
        data.reload_if_asked()
        if checkpoint is not None:
            progress.load_state_dict(checkpoint["loops"]["fit"])
            self._validation.progress.load_state_dict(checkpoint["loops"]["validate"])
            run.epoch = progress.current_epoch
            restore_training(run, checkpoint, self.configured)
            self._settings = first_settings(run, self._settings)
        progress.should_stop |= stopping.time_is_over()
        stopping.agree()

    def start(self, settings: OptimizationSettings) -> TrainingEpoch:
        """Run everything between set-up and the first epoch. Collective.

        Hooks: on_sanity_check_start, those of validation, on_sanity_check_end, on_train_start.

        Returns:
            The epoch, whose `run` runs the batches of one epoch each time.
        """
        run, data, stopping, progress = self._run, self.data, self._stopping, self._progress
        self._given_settings = settings
        self.mode = self._factory.make_mode(run, self.configured, progress, stopping.limits, settings)
        self.is_active = True
        stopping.start_clock()
        self._schedulers = SchedulerSteps(run, self.configured)
        epoch_class = TrainingEpoch
        if run.logical is not None:
            from camshaft.loops.fit.logical_ranks import LogicalEpoch

            epoch_class = LogicalEpoch
        self.epoch = epoch_class(run, self.mode, self._schedulers, data, stopping, self._validate)
        if run.order.train_start_first:
            self._begin_training()
        if run.checkpoint is not None:
            restore_position(run, data, self._mode, progress)
        elif data.has_validation_batches and stopping.limits.num_sanity_val_steps:
            self._check_sanity()
        if not run.order.train_start_first:
            data.prepare_first_epoch()
            self._begin_training()
        elif run.metrics is not None:
            run.metrics.enter("train", "epoch")
        if run.checkpoint is not None:
            restore_moment(run, data, is_inside_epoch=progress.is_inside_epoch)
        run.save_point()
        stopping.start_validation_clock()
        stopping.agree()
        return self.epoch

    def replace_optimizers(self, optimizers: Sequence[Any]) -> None:
        """Train on with other optimizers; see `FitLoop.replace_optimizers`."""
        configured, progress, old = self.configured, self._progress, self._mode if self.is_active else None
        where, known = type(self._run.module).__qualname__, configured.optimizers
        if self.final_state is not None:
            action = "Set them in a hook, from `on_fit_start` on."
            raise RuntimeError(must_be("optimizers", "set while a fit runs", optimizers, where, action))
        if old is not None and progress.batches.started != progress.batches.processed:
            action = "Set them in `on_train_epoch_start`, `on_train_batch_start` or `on_train_batch_end`."
            raise RuntimeError(must_be("optimizers", "set between the steps of two batches", optimizers, where, action))
        if old is not None and old.state_dict() and len(optimizers) != len(known):
            rule = f"as many as before ({len(known)}) under automatic optimization"
            raise ValueError(must_be("optimizers", rule, optimizers, where, "Set as many."))
        chosen = read_configuration(list(optimizers)).optimizers
        new = [one for one in chosen if not any(one is other for other in known)]
        set_up = dict(zip(map(id, new), self._run.strategy.setup_optimizers(new) if new else (), strict=True))
        configured.take([set_up.get(id(one), one) for one in chosen])
        if old is None or self.epoch is None:
            return
        state, settings = old.state_dict(), old.settings
        old.close()
        mode = self._factory.make_mode(self._run, configured, progress, self._stopping.limits, self._given_settings)
        mode.num_batches = old.num_batches
        mode.load_state_dict(state)
        mode.follow(settings)
        self.mode = self.epoch.mode = mode
        self.epoch.follow_mode()

    def start_epoch(self) -> None:
        """Begin an epoch, or go on inside one. Hooks: train_dataloader, val_dataloader, on_train_epoch_start."""
        run, data, mode, progress = self._run, self.data, self._mode, self._progress
        run.check_callbacks()
        metrics = run.metrics
        run.epoch, run.batch_idx = progress.current_epoch, None
        self._stopping.start_epoch(is_new=not progress.is_inside_epoch)
        if not progress.is_inside_epoch:
            data.reload_if_due()
            data.set_epoch()
            mode.num_batches = data.num_batches
            mode.start_epoch()
            self._has_epoch_ended = False
            _reset(run.epoch_state)
            progress.epochs.ready += 1
            if metrics is not None and not self._is_first_epoch:  # logs of `on_train_start` belong to the first epoch
                metrics.start_epoch("train")
            run.hooks.on_train_epoch_start()
            data.follow_validation_limit()
            mode.begin_steps()
            progress.epochs.started += 1
            self._stopping.agree()
        if metrics is not None:
            metrics.moment = "batch"
        self._is_first_epoch = False

    def end_epoch(self, *, is_complete: bool) -> None:
        """End an epoch, also if training stops inside it, and write the requested checkpoints. Collective.

        Hooks: on_train_epoch_end, lr_scheduler_step.

        Raises:
            RuntimeError: If nothing can end training, as in `StoppingRules.check_updates`.
        """
        run, progress, stopping, metrics = self._run, self._progress, self._stopping, self._run.metrics
        run.end_batch()
        if not is_complete:
            stopping.save()  # before the hooks of an end that the epoch will have again when it goes on
            self._metrics = _metrics_of(run)  # the end of the epoch resets them, but it may go on in another run
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
            if progress.batches.ready:  # an empty epoch is none for schedulers
                self._schedulers.step("epoch", progress.current_epoch, progress.current_epoch + 1)
            progress.epochs.completed += 1
            progress.end_epoch()
            self.data.end_epoch()
            _reset(run.epoch_state)
        stopping.agree()
        self.shows_ended_epoch = is_complete
        try:
            stopping.save()
        finally:
            self.shows_ended_epoch = False
        if has_run:
            stopping.check_updates(run, may_update=self._mode.has_differentiated or not self.configured.optimizers)

    def end(self) -> None:
        """End training. Hooks: on_train_end."""
        run = self._run
        self.has_ended = True
        if run.metrics is not None:
            run.metrics.moment = None
        run.hooks.on_train_end()
        run.stage = None

    def restore_finished(self, checkpoint: dict[str, Any]) -> None:
        """Restore a finished run, which has nothing left to train."""
        run = self._run
        if run.metrics is not None:
            run.metrics.start_epoch("train")
        restore_moment(run, self.data, is_inside_epoch=False)
        if run.metrics is not None:
            run.metrics.moment = None
        fit = checkpoint["fit"] if run.logical is None else run.logical.own_part(checkpoint["fit"])
        self.final_state = {"fit": fit, "rng": checkpoint["rng"]}

    def finish(self) -> None:
        """Keep the final state, and release the loaders with their worker processes."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of loaders without state: no checkpoint has been requested yet
            self.final_state = self._state(self._run)
        self.data.release()

    def close(self) -> None:
        """Leave clock and optimizers as they were, also after an error; the state stays, for a checkpoint of it."""
        self._stopping.end()
        if self.is_active:
            self._mode.close()
        self.is_active = False
        self.configured.toggle.untoggle()

    def state_dict(self, run: Run) -> dict[str, Any]:
        """Return the state now, or that at the end of the fit.

        Args:
            run: The run that is saved: this one, or a later one of another verb.

        Returns:
            "fit" (the position in the data and the origin of its loaders, the accumulation window with its gradients,
            metrics, classes and first settings of optimizers and schedulers, names of parameters) and "rng".
        """
        state = self._state(run)
        schedulers = [config.scheduler for config in self.configured.schedulers]
        classes = {
            "optimizer_classes": classes_of(self.configured.optimizers),
            "optimizer_parameters": parameter_names_of(self.configured.optimizers, self._run.module),
            "scheduler_classes": classes_of(schedulers),
        }
        state = {**state, "fit": state["fit"] | classes | {"settings": self._settings}}
        if self.epoch is not None and self._progress.is_inside_epoch:
            state["fit"] |= {key: part.state_dict() for key, part in run.epoch_state.items()}
        return state

    @property
    def _mode(self) -> UpdateMode:
        assert self.mode is not None
        return self.mode

    def _state(self, run: Run) -> dict[str, Any]:
        if self.final_state is not None:
            return self.final_state
        state = state_outside_of_fit(run, self.data)
        if self._metrics is not None:
            state["fit"] |= self._metrics
        if self.mode is not None:
            state["fit"] |= {"loaders": self.data.origin, "batches": self.data.batches.state_dict()}
            gradients = gradients_of(run) if self.mode.keeps_gradients else {}
            state["fit"] |= {"optimization": self.mode.state_dict(), "gradients": gradients}
        return state

    def _begin_training(self) -> None:
        run = self._run
        run.stage = "train"
        if run.metrics is not None:
            run.metrics.start_epoch("train")
        run.hooks.on_train_start()

    def _check_sanity(self) -> None:
        self.sanity_checking = True
        try:
            with self.data.isolated():
                check_sanity(self._run, self._validation, self._stopping.limits.num_sanity_val_steps)
        finally:
            self.sanity_checking = False

    def _validate(self) -> None:
        """Validate within an epoch. Hooks: on_validation_model_zero_grad, val_dataloader, those of validation."""
        run, data, mode = self._run, self.data, self._mode
        if not data.validates:  # `limit_val_batches` was set to 0
            return
        if run.order.epoch_end_first and self.epoch is not None and self.epoch.is_last_batch:
            self._has_epoch_ended = True
            batch_idx, run.batch_idx = run.batch_idx, None
            if run.metrics is not None:
                run.metrics.moment = "epoch"
            run.hooks.on_train_epoch_end()
            run.batch_idx = batch_idx
        zero_grad = run.hooks.on_validation_model_zero_grad
        if zero_grad is None and not mode.keeps_gradients:
            zero_grad = run.module.zero_grad  # a module that optimizes by hand may still need its gradients
        if zero_grad is not None and not mode.holds_gradients:
            zero_grad()
        data.reload_validation_if_due()
        if data.has_validation_batches:
            self._validation.run_epoch(run)
        self._stopping.note_validation()
        if run.metrics is not None:
            run.metrics.enter("train", "batch")


def state_outside_of_fit(run: Run, data: FitData | None = None) -> dict[str, Any]:
    """Return the state of a run as it is where nothing is trained: metrics, as "fit", and random numbers, as "rng"."""
    generators = () if data is None else data.generators
    if run.logical is None:
        return {"fit": _metrics_of(run), "rng": random_state(generators)}
    facts = {"logical_ranks": run.logical.facts()}
    return {"fit": _metrics_of(run) | facts, "rng": run.logical.common_numbers(generators)}


def _metrics_of(run: Run) -> dict[str, Any]:
    """Return the logged values, and the states of the module's metrics."""
    logged = None if run.metrics is None else run.metrics.state_dict()
    if run.logical is None or run.logical.metrics is None:
        return {"metrics": logged, "metric_states": metric_states(run.module)}
    return {"metrics": logged, "metric_states": run.logical.metrics.state_dict()}


def _reset(epoch_state: Mapping[str, EpochState]) -> None:
    for part in epoch_state.values():
        part.reset()
