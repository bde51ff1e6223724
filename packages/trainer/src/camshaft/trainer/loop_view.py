"""What a trainer shows of its fit loop: progress, limits, optimizers, and the data of every loop."""

from __future__ import annotations

from typing import Any

from camshaft.hooks_core.messages import must_be
from camshaft.loops import FitLoop, PredictLoop, Run, TestLoop, ValidationLoop


class LoopView:
    """The attributes of a trainer that are kept in its loops."""

    fit_loop: FitLoop
    validate_loop: ValidationLoop
    test_loop: TestLoop
    predict_loop: PredictLoop
    fast_dev_run: bool | int
    _run: Run | None

    # progress and limits

    @property
    def current_epoch(self) -> int:
        """Index of the training epoch; after it has ended, of the next."""
        return self.fit_loop.current_epoch

    @property
    def global_step(self) -> int:
        """Number of optimizer updates so far, whatever the number of optimizers."""
        return self.fit_loop.progress.global_step

    @property
    def max_epochs(self) -> int | None:
        """The largest number of epochs; None if there is no limit. Set it to train on in the next fit."""
        return self.fit_loop.max_epochs

    @max_epochs.setter
    def max_epochs(self, value: int | None) -> None:
        self.fit_loop.max_epochs = value

    @property
    def min_epochs(self) -> int | None:
        """Epochs that `should_stop` cannot cut short."""
        return self.fit_loop.min_epochs

    @min_epochs.setter
    def min_epochs(self, value: int | None) -> None:
        self.fit_loop.min_epochs = value

    @property
    def max_steps(self) -> int:
        """The largest number of updates; -1 if there is no limit."""
        return self.fit_loop.max_steps

    @max_steps.setter
    def max_steps(self, value: int) -> None:
        self.fit_loop.max_steps = value

    @property
    def min_steps(self) -> int | None:
        """Updates that `should_stop` cannot cut short."""
        return self.fit_loop.min_steps

    @min_steps.setter
    def min_steps(self, value: int | None) -> None:
        self.fit_loop.min_steps = value

    @property
    def should_stop(self) -> bool:
        """Whether training is to stop at the next opportunity; set it to true from anywhere."""
        return self.fit_loop.should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self.fit_loop.should_stop = value

    @property
    def is_preempted(self) -> bool:
        """Whether the current or latest fit ends because `preempt` asked all processes to save and leave."""
        return self.fit_loop.is_preempted

    @property
    def accumulate_grad_batches(self) -> int:
        """Batches whose gradients make one update.

        What is set in `on_train_epoch_start` or before counts from the epoch's first batch on, what is set later from
        the next epoch on. Set it in every process alike.

        Raises:
            TypeError, ValueError: On setting what is no positive int, or what the fit that runs cannot do.
        """
        return self.fit_loop.accumulate_grad_batches

    @accumulate_grad_batches.setter
    def accumulate_grad_batches(self, value: int) -> None:
        self.fit_loop.accumulate_grad_batches = value

    @property
    def gradient_clip_val(self) -> float | None:
        """The largest norm or absolute value of the gradients; None if nothing is clipped.

        What is set while a fit runs counts from its next update on.
        """
        return self.fit_loop.settings.gradient_clip_val

    @gradient_clip_val.setter
    def gradient_clip_val(self, value: float | None) -> None:
        self.fit_loop.set_clipping(value, self.gradient_clip_algorithm)

    @property
    def gradient_clip_algorithm(self) -> str:
        """ "norm" or "value"; set as `gradient_clip_val`."""
        return self.fit_loop.settings.gradient_clip_algorithm

    @gradient_clip_algorithm.setter
    def gradient_clip_algorithm(self, value: str | None) -> None:
        self.fit_loop.set_clipping(self.gradient_clip_val, value)

    # what is set of the following while a fit runs counts from the next time that loaders are asked for

    @property
    def limit_train_batches(self) -> int | float:
        """How much of a training epoch is taken: an int is a number of batches, a float a share."""
        return self.fit_loop.limits.train_limit[0]

    @limit_train_batches.setter
    def limit_train_batches(self, value: int | float) -> None:
        self._set_limit("limit_train_batches", value)

    @property
    def limit_val_batches(self) -> int | float:
        """Likewise of each validation loader, in fit and in `validate`.

        In a fit that runs 0 ends validation at once, and another number after 0 begins it with the next epoch.
        """
        return self.validate_loop.limit_batches

    @limit_val_batches.setter
    def limit_val_batches(self, value: int | float) -> None:
        self.validate_loop.limit_batches = self.fit_loop.validation.limit_batches = value

    @property
    def limit_test_batches(self) -> int | float:
        """Likewise of each test loader."""
        return self.test_loop.limit_batches

    @limit_test_batches.setter
    def limit_test_batches(self, value: int | float) -> None:
        self.test_loop.limit_batches = value

    @property
    def limit_predict_batches(self) -> int | float:
        """Likewise of each prediction loader."""
        return self.predict_loop.limit_batches

    @limit_predict_batches.setter
    def limit_predict_batches(self, value: int | float) -> None:
        self.predict_loop.limit_batches = value

    @property
    def overfit_batches(self) -> int | float:
        """How much of an epoch is taken again and again; 0 if it is not about overfitting."""
        return self.fit_loop.limits.overfit_batches

    @overfit_batches.setter
    def overfit_batches(self, value: int | float) -> None:
        self._set_limit("overfit_batches", value)

    @property
    def val_check_interval(self) -> int | float:
        """How often validation runs within an epoch."""
        return self.fit_loop.limits.val_check_interval

    @val_check_interval.setter
    def val_check_interval(self, value: int | float) -> None:
        self._set_limit("val_check_interval", value)

    # what is set of the following while a fit runs counts at once

    @property
    def check_val_every_n_epoch(self) -> int | None:
        """In which epochs validation runs."""
        return self.fit_loop.limits.check_val_every_n_epoch

    @check_val_every_n_epoch.setter
    def check_val_every_n_epoch(self, value: int | None) -> None:
        self._set_limit("check_val_every_n_epoch", value)

    @property
    def num_sanity_val_steps(self) -> int | float:
        """Validation batches of each loader that are tried before training; infinite if all are."""
        steps = self.fit_loop.limits.num_sanity_val_steps
        return float("inf") if steps == -1 else steps

    @num_sanity_val_steps.setter
    def num_sanity_val_steps(self, value: int | float) -> None:
        self._set_limit("num_sanity_val_steps", -1 if value == float("inf") else value)

    @property
    def reload_dataloaders_every_n_epochs(self) -> int:
        """Before every how many epochs the loaders are asked for again; 0 asks once."""
        return self.fit_loop.limits.reload_dataloaders_every_n_epochs

    @reload_dataloaders_every_n_epochs.setter
    def reload_dataloaders_every_n_epochs(self, value: int) -> None:
        self._set_limit("reload_dataloaders_every_n_epochs", value)

    def _set_limit(self, name: str, value: Any) -> None:
        self.fit_loop.limits = self.fit_loop.limits.with_number(name, value)

    # data

    @property
    def is_last_batch(self) -> bool:
        """Whether the training batch is known to be its epoch's last."""
        return self.fit_loop.is_last_batch

    @property
    def num_training_batches(self) -> int | float:
        """Batches of a training epoch; infinite if unknown."""
        return self.fit_loop.num_batches

    @property
    def num_val_batches(self) -> list[int | float]:
        """Batches of each validation loader."""
        return self._validation_loop.num_batches

    @property
    def num_sanity_val_batches(self) -> list[int | float]:
        """Batches that the sanity check takes of each validation loader."""
        return self.fit_loop.num_sanity_batches

    @property
    def num_test_batches(self) -> list[int | float]:
        """Batches of each test loader."""
        return self.test_loop.num_batches

    @property
    def num_predict_batches(self) -> list[int | float]:
        """Batches of each prediction loader."""
        return self.predict_loop.num_batches

    @property
    def train_dataloader(self) -> Any:
        """The training loader of the fit that runs or ran last, as it was given: one loader, a list, a dictionary.

        None before fit has asked for it, and from another verb on. Of several processes each has its share in a
        loader's place; see `use_distributed_sampler`.
        """
        return self.fit_loop.given_loader if self._verb == "fit" else None

    @property
    def val_dataloaders(self) -> Any:
        """The validation loaders as they were given, likewise; None if there are none."""
        return self._validation_loop.given_loaders if self._verb in ("fit", "validate") else None

    @property
    def test_dataloaders(self) -> Any:
        """The test loaders as they were given, likewise."""
        return self.test_loop.given_loaders if self._verb == "test" else None

    @property
    def predict_dataloaders(self) -> Any:
        """The prediction loaders as they were given, likewise."""
        return self.predict_loop.given_loaders if self._verb == "predict" else None

    # optimization

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Number of updates that the whole fit will make, for schedulers; infinite if nothing limits it.

        Every epoch counts with the `accumulate_grad_batches` of now. Where it is not known how many updates an epoch
        makes, of a stream or of batches that are split, it is `max_steps`.

        Raises:
            RuntimeError: Before `configure_optimizers`, when the training loader is not known yet.
        """
        loop = self.fit_loop
        if loop.loader is None:
            rule = "read from configure_optimizers on, when the training loader is known"
            action = "Move what needs it there."
            raise RuntimeError(must_be("estimated_stepping_batches", rule, None, "Trainer", action))
        limits, num_batches = loop.limits, loop.num_batches
        if num_batches == float("inf") or self._splits_batches:
            return limits.step_limit if limits.epoch_limit else 0
        per_epoch = -(-num_batches // loop.accumulate_grad_batches)
        in_epochs = limits.epoch_limit * per_epoch if per_epoch else 0
        return min(in_epochs, limits.step_limit)

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers of the current or last fit."""
        return self.fit_loop.optimization.optimizers

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        """The schedulers of the current or last fit, each with its settings."""
        return self.fit_loop.optimization.schedulers

    @property
    def _splits_batches(self) -> bool:
        module = None if self._run is None else self._run.module
        return bool(self.fit_loop.settings.truncated_bptt_steps or getattr(module, "truncated_bptt_steps", None))

    @property
    def _validation_loop(self) -> ValidationLoop:
        return self.validate_loop if self._verb == "validate" else self.fit_loop.validation

    @property
    def _verb(self) -> str | None:
        return None if self._run is None else self._run.verb
