"""Training, from the first epoch to the last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from camshaft.hooks_core.messages import must_be
from camshaft.loops.batches import generators_of, set_epoch
from camshaft.loops.evaluation_loops import ValidationLoop
from camshaft.loops.fit_data import FitData, load_fit_data
from camshaft.loops.fit_limits import FitLimits
from camshaft.loops.optimization_mode import OptimizationMode, choose_mode
from camshaft.loops.optimizers import Optimization, read_configuration
from camshaft.loops.progress import FitProgress
from camshaft.loops.random_state import isolated_randomness, restore_random_state
from camshaft.loops.resume import restore_training
from camshaft.loops.run import Run
from camshaft.loops.schedulers import SchedulerSteps
from camshaft.loops.training_epoch import TrainingEpoch


class FitLoop:
    """Trains a module: sanity check, epochs, validation within them, optimization.

    It owns its progress: run it again with higher limits and it goes on after the last complete epoch; one that was
    stopped inside begins anew.

    Args:
        limits: How long to train and how often to validate.
        validation: The loop that validates; its limit of 0 batches trains without.
        accumulate_grad_batches: Batches whose gradients make one update.
        gradient_clip_val: The largest norm or absolute value of the gradients; None clips nothing.
        gradient_clip_algorithm: "norm" or "value"; None means "norm".

    Raises:
        ValueError: If a number is out of range.
    """

    required: tuple[str, ...] = ("training_step", "configure_optimizers")

    def __init__(
        self,
        limits: FitLimits | None = None,
        validation: ValidationLoop | None = None,
        *,
        accumulate_grad_batches: int = 1,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        where = "FitLoop"
        if isinstance(accumulate_grad_batches, bool) or not isinstance(accumulate_grad_batches, int):
            raise TypeError(
                must_be("accumulate_grad_batches", "an int", accumulate_grad_batches, where, "Pass an int.")
            )
        if accumulate_grad_batches < 1:
            action = "Pass 1 for no accumulation."
            raise ValueError(must_be("accumulate_grad_batches", "at least 1", accumulate_grad_batches, where, action))
        if gradient_clip_val is not None and not isinstance(gradient_clip_val, (int, float)):
            raise TypeError(
                must_be("gradient_clip_val", "a number or None", gradient_clip_val, where, "Pass a number.")
            )
        if gradient_clip_val is not None and not gradient_clip_val >= 0:
            action = "Pass None to clip nothing."
            raise ValueError(must_be("gradient_clip_val", "at least 0 or None", gradient_clip_val, where, action))
        if gradient_clip_algorithm not in (None, "norm", "value"):
            rule = "'norm', 'value' or None"
            raise ValueError(
                must_be("gradient_clip_algorithm", rule, gradient_clip_algorithm, where, "Pass one of them.")
            )
        self.limits = limits if limits is not None else FitLimits()
        self.validation = validation if validation is not None else ValidationLoop()
        self.accumulate_grad_batches = accumulate_grad_batches
        self.gradient_clip_val = gradient_clip_val
        self.gradient_clip_algorithm = gradient_clip_algorithm or "norm"
        self.progress = FitProgress()
        self.sanity_checking = False
        self.optimization = Optimization([], [])
        self._data = FitData()
        self._batches: TrainingEpoch | None = None
        self._schedulers: SchedulerSteps

    @property
    def loader(self) -> Iterable[Any] | None:
        """The training loader, once the fit has asked for it."""
        return self._data.loader

    @property
    def generators(self) -> list[torch.Generator]:
        """The generators of the loaders' own, from which they draw their order."""
        loaders = [loader for loader in (self.loader, *self.validation.loaders) if loader is not None]
        return [generator for loader in loaders for generator in generators_of(loader)]

    @property
    def num_batches(self) -> int | float:
        """Batches of a training epoch; infinite if unknown."""
        return self._data.num_batches

    @property
    def should_stop(self) -> bool:
        """Whether training is to stop at the next opportunity; set it to true from anywhere."""
        return self.progress.should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self.progress.should_stop = value

    @property
    def is_last_batch(self) -> bool:
        """Whether the batch that runs is known to be its epoch's last."""
        return self._batches is not None and self._batches.is_last_batch

    @property
    def num_sanity_batches(self) -> list[int | float]:
        """How many batches of each validation loader the sanity check takes."""
        steps = self.limits.num_sanity_val_steps
        available = self.validation.num_batches
        return [num_batches if steps == -1 else min(steps, num_batches) for num_batches in available]

    def run(self, run: Run) -> None:
        """Train until a limit is reached or something sets `should_stop`. Collective.

        Hooks: train_dataloader, val_dataloader, configure_optimizers, on_fit_start, on_sanity_check_start, those of
        validation, on_sanity_check_end, on_train_start, those of the epochs, on_train_end, on_fit_end.
        """
        mode: OptimizationMode | None = None
        run.defers_saves = True
        try:
            mode = self._set_up(run)
            if mode is not None:
                epoch = self._start(run, mode)
                is_first = True
                while not self._is_done():
                    self._start_epoch(run, is_first)
                    is_first = False
                    is_complete = epoch.run()
                    self._end_epoch(run, is_complete)
                self._end(run)
            run.save_point()
        finally:
            run.save_requests.clear()  # after an error: what they waited for does not come any more
            run.defers_saves = False
            if mode is not None:
                mode.close()
        run.hooks.on_fit_end()

    def _set_up(self, run: Run) -> OptimizationMode | None:
        """Configure, load and restore. Returns how batches become updates, or None if there is nothing to train."""
        self.progress.should_stop = False
        self._data = load_fit_data(run, self.limits, self.validation)
        self.optimization = self._configure_optimizers(run)
        run.hooks.on_fit_start()
        if run.checkpoint is not None:
            restore_training(run, run.checkpoint, self.optimization, self.progress)
        run.epoch = self.progress.current_epoch
        if not self.num_batches or self._is_done():
            return None
        return choose_mode(
            run,
            self.optimization.optimizers,
            self.progress,
            self.limits,
            num_batches=self.num_batches,
            accumulate_grad_batches=self.accumulate_grad_batches,
            gradient_clip_val=self.gradient_clip_val,
            gradient_clip_algorithm=self.gradient_clip_algorithm,
        )

    def _start(self, run: Run, mode: OptimizationMode) -> TrainingEpoch:
        assert self.loader is not None
        self._schedulers = SchedulerSteps(run, self.optimization.schedulers)
        self._batches = TrainingEpoch(
            run,
            self.progress,
            mode,
            self._schedulers,
            loader=self.loader,
            num_batches=self.num_batches,
            validates=self._data.validates,
            validation_due=self._validation_due,
            validate=lambda: self._validate(run, mode),
            step_limit=self.limits.step_limit,
            may_stop=self._may_stop,
        )
        if run.checkpoint is None:
            self._sanity_check(run)
        else:
            restore_random_state(run.checkpoint["rng"], self.generators)
        run.stage = "train"
        if run.metrics is not None:
            run.metrics.start_epoch("train")
        run.hooks.on_train_start()
        return self._batches

    def _end(self, run: Run) -> None:
        if run.metrics is not None:
            run.metrics.moment = None
        run.hooks.on_train_end()
        run.stage = None

    def _start_epoch(self, run: Run, is_first: bool) -> None:
        run.epoch, run.batch_idx = self.progress.current_epoch, None
        self.progress.num_batches = 0
        set_epoch(self.loader, self.progress.current_epoch)
        if run.metrics is not None and not is_first:  # what `on_train_start` logs belongs to the first epoch
            run.metrics.start_epoch("train")
        run.hooks.on_train_epoch_start()
        if run.metrics is not None:
            run.metrics.moment = "batch"

    def _end_epoch(self, run: Run, is_complete: bool) -> None:
        progress, metrics = self.progress, run.metrics
        run.batch_idx = None
        if metrics is not None:
            metrics.moment = "epoch"
        run.hooks.on_train_epoch_end()
        if metrics is not None:
            metrics.end_epoch()
        if is_complete:
            self._schedulers.step("epoch", progress.current_epoch + 1)
            progress.current_epoch += 1
            progress.num_batches = 0
        run.save_point()

    def _configure_optimizers(self, run: Run) -> Optimization:
        assert run.hooks.configure_optimizers is not None
        optimization = read_configuration(run.hooks.configure_optimizers())
        optimization.optimizers = run.strategy.setup_optimizers(optimization.optimizers)
        return optimization

    def _sanity_check(self, run: Run) -> None:
        if not self._data.validates or self.limits.num_sanity_val_steps == 0:
            return
        self.sanity_checking = True
        try:
            with isolated_randomness(self.generators):
                run.hooks.on_sanity_check_start()
                self.validation.run_epoch(run, self.num_sanity_batches, discard=True)
                run.hooks.on_sanity_check_end()
        finally:
            self.sanity_checking = False

    def _validate(self, run: Run, mode: OptimizationMode) -> None:
        zero_grad = run.hooks.on_validation_model_zero_grad
        if zero_grad is None and getattr(run.module, "automatic_optimization", True):
            zero_grad = run.module.zero_grad  # a module that optimizes by hand may still need its gradients
        if zero_grad is not None and not mode.holds_gradients:
            zero_grad()
        self.validation.run_epoch(run)
        if run.metrics is not None:
            run.metrics.enter("train", "batch")

    def _validation_due(self, batch_idx: int, is_last: bool) -> bool:
        every = self.limits.check_val_every_n_epoch
        if every is not None and (self.progress.current_epoch + 1) % every:
            return False
        if self.progress.should_stop and self._may_stop():
            return True
        if self._data.validation_interval == float("inf"):
            return is_last
        done = self.progress.total_batches if every is None else batch_idx + 1
        return done % self._data.validation_interval == 0

    def _is_done(self) -> bool:
        """Whether no further epoch is to begin."""
        progress, limits = self.progress, self.limits
        return (
            progress.current_epoch >= limits.epoch_limit
            or progress.global_step >= limits.step_limit
            or (progress.should_stop and self._may_stop())
        )

    def _may_stop(self) -> bool:
        """Whether `should_stop` is obeyed already."""
        epochs, steps = self.limits.min_epochs, self.limits.min_steps
        return (epochs is None or self.progress.current_epoch >= epochs) and (
            steps is None or self.progress.global_step >= steps
        )
