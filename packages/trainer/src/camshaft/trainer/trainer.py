"""The trainer: puts loops, strategy, callbacks, loggers and metric log together, and runs the four verbs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.spec import Verb
from camshaft.loops import (
    EvaluationLoop,
    FitLimits,
    FitLoop,
    PredictLoop,
    Run,
    SaveRequest,
    TestLoop,
    ValidationLoop,
    collect,
    run_verb,
)
from camshaft.trainer.checkpoints import read_requested
from camshaft.trainer.data_module import DataModule, attach_data_module
from camshaft.trainer.defaults import check_barebones, choose_callbacks, choose_loggers, choose_strategy
from camshaft.trainer.module import attach_module
from camshaft.trainer.results import print_results
from camshaft.trainer.view import TrainerView


class Trainer(TrainerView):
    """Trains, validates, tests and predicts with a module.

    Names and meanings follow Lightning 2.x wherever the concept is the same. Every argument is keyword-only.

    Args:
        accelerator: "cpu", "cuda", "mps", "gpu" (CUDA or MPS) or "auto", the best there is.
        strategy: A strategy object, or "auto" for one device.
        devices: "auto" or 1 for the first device, a list with one index for that one.
        precision: "32-true".
        logger: A logger, a list of them, None or True for a CSV logger, False for none.
        callbacks: A callback or a list of them, in the order in which they run.
        max_epochs: Epochs to train in all; -1 for no limit. None means 1000, or no limit if `max_steps` sets one.
        min_epochs: Epochs that `should_stop` cannot cut short.
        max_steps: Optimizer updates to train in all; -1 for no limit.
        min_steps: Updates that `should_stop` cannot cut short.
        limit_train_batches: How much of an epoch to take: an int is a number of batches, a float a share.
        limit_val_batches: Likewise of each validation loader; 0 trains without validation.
        limit_test_batches: Likewise of each test loader.
        limit_predict_batches: Likewise of each prediction loader.
        val_check_interval: How often to validate: a float is a share of an epoch, an int a number of batches.
        check_val_every_n_epoch: In which epochs to validate; None counts `val_check_interval` across epochs.
        num_sanity_val_steps: Validation batches to try before training (None means 2); -1 tries all.
        log_every_n_steps: Updates between two entries of step values in the loggers (None means 50).
        enable_checkpointing: Whether a `ModelCheckpoint` is added if none was passed; None means true.
        enable_progress_bar: Whether a `RichProgressBar` is added if none was passed; None means true.
        accumulate_grad_batches: Batches whose gradients make one update.
        gradient_clip_val: The largest norm or absolute value of the gradients; None clips nothing.
        gradient_clip_algorithm: "norm" (None means the same) or "value".
        inference_mode: Whether evaluation runs under `torch.inference_mode`, else under `torch.no_grad`.
        default_root_dir: Where files go by default; None means the working directory.
        barebones: Whether to run with nothing attached: no logger, checkpoint, progress bar, sanity check or metric
            log. What a module logs is then kept in its `logged_metrics` and nowhere else.
        strict_hooks: Whether a method that looks like a hook and is none, or a hook of the wrong arity, is an error;
            if false it is a warning and left out.

    Raises:
        TypeError, ValueError: If an argument is of the wrong type, out of range, contradicts another, or asks for what
            is not there yet.
    """

    def __init__(
        self,
        *,
        accelerator: str = "auto",
        strategy: Any = "auto",
        devices: Any = "auto",
        precision: Any = "32-true",
        logger: Any = None,
        callbacks: Any = None,
        max_epochs: int | None = None,
        min_epochs: int | None = None,
        max_steps: int = -1,
        min_steps: int | None = None,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        limit_predict_batches: int | float | None = None,
        val_check_interval: int | float | None = None,
        check_val_every_n_epoch: int | None = 1,
        num_sanity_val_steps: int | None = None,
        log_every_n_steps: int | None = None,
        enable_checkpointing: bool | None = None,
        enable_progress_bar: bool | None = None,
        accumulate_grad_batches: int = 1,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
        inference_mode: bool = True,
        default_root_dir: str | os.PathLike[str] | None = None,
        barebones: bool = False,
        strict_hooks: bool = True,
    ) -> None:
        if barebones:
            check_barebones(
                logger=logger,
                enable_checkpointing=enable_checkpointing,
                enable_progress_bar=enable_progress_bar,
                num_sanity_val_steps=num_sanity_val_steps,
                log_every_n_steps=log_every_n_steps,
            )
            logger = enable_checkpointing = enable_progress_bar = False
            num_sanity_val_steps = 0
        self.barebones = barebones
        self.strict_hooks = strict_hooks
        self._default_root_dir = os.path.abspath(default_root_dir if default_root_dir is not None else os.curdir)
        self.strategy = choose_strategy(strategy, accelerator, devices, precision)
        self._loggers = choose_loggers(logger, self._default_root_dir)
        self.callbacks = choose_callbacks(
            callbacks, enable_progress_bar=enable_progress_bar, enable_checkpointing=enable_checkpointing
        )

        def evaluation(limit: int | float | None) -> dict[str, Any]:
            return {"limit_batches": 1.0 if limit is None else limit, "inference_mode": inference_mode}

        limits = FitLimits(
            max_epochs=max_epochs,
            min_epochs=min_epochs,
            max_steps=max_steps,
            min_steps=min_steps,
            limit_train_batches=1.0 if limit_train_batches is None else limit_train_batches,
            val_check_interval=1.0 if val_check_interval is None else val_check_interval,
            check_val_every_n_epoch=check_val_every_n_epoch,
            num_sanity_val_steps=2 if num_sanity_val_steps is None else num_sanity_val_steps,
        )
        self.fit_loop = FitLoop(
            limits,
            ValidationLoop(**evaluation(limit_val_batches)),
            accumulate_grad_batches=accumulate_grad_batches,
            gradient_clip_val=gradient_clip_val,
            gradient_clip_algorithm=gradient_clip_algorithm,
        )
        self.validate_loop = ValidationLoop(**evaluation(limit_val_batches))
        self.test_loop = TestLoop(**evaluation(limit_test_batches))
        self.predict_loop = PredictLoop(**evaluation(limit_predict_batches))
        self.log_every_n_steps = 50 if log_every_n_steps is None else log_every_n_steps
        self._metric_log = None if barebones else self._new_metric_log()
        self._run: Run | None = None

    def fit(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Train a module until a limit is reached. Collective.

        Args:
            model: The module.
            train_dataloaders: A loader of training batches, or a data module; None asks the data module, then the
                module.
            val_dataloaders: A loader of validation batches, or a list of them; None asks likewise.
            datamodule: A data module.
            ckpt_path: A checkpoint to resume from; "best" and "last" find one that this trainer's callback saved.

        Raises:
            HookFaultError: If a hook is faulty or a required one is missing; nothing was run then.
            ValueError: If an argument contradicts the module or the data.
        """
        loaders = {"train": train_dataloaders, "validate": val_dataloaders}
        with self._running("fit", model, loaders, datamodule, ckpt_path) as run:
            run_verb(run, self.fit_loop)

    def validate(
        self,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        verbose: bool = True,
        datamodule: Any = None,
    ) -> list[dict[str, float]]:
        """Run validation once. Collective.

        Args:
            model: The module; None takes the one of the last verb.
            dataloaders: A loader of validation batches, or a list of them; None asks the data module, then the module.
            ckpt_path: A checkpoint whose weights to use.
            verbose: Whether to print the results.
            datamodule: A data module.

        Returns:
            The logged epoch values, a dictionary per loader.
        """
        return self._evaluate("validate", self.validate_loop, model, dataloaders, ckpt_path, verbose, datamodule)

    def test(
        self,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        verbose: bool = True,
        datamodule: Any = None,
    ) -> list[dict[str, float]]:
        """Run the test once; arguments and result are those of `validate`, with test loaders. Collective."""
        return self._evaluate("test", self.test_loop, model, dataloaders, ckpt_path, verbose, datamodule)

    def predict(
        self,
        model: Any = None,
        dataloaders: Any = None,
        datamodule: Any = None,
        return_predictions: bool = True,
        ckpt_path: str | os.PathLike[str] | None = None,
    ) -> Any:
        """Predict every batch. Collective.

        Args:
            model: The module; None takes the one of the last verb.
            dataloaders: A loader, or a list of them; None asks the data module, then the module.
            datamodule: A data module.
            return_predictions: Whether to keep and return the predictions; if false, memory does not grow.
            ckpt_path: A checkpoint whose weights to use.

        Returns:
            The predictions on the CPU: a list with an item per batch, or a list of such lists for several loaders; None
            if they are not wanted.
        """
        self.predict_loop.return_predictions = return_predictions
        with self._running("predict", model, {"predict": dataloaders}, datamodule, ckpt_path) as run:
            return run_verb(run, self.predict_loop)

    def save_checkpoint(
        self, path: str | os.PathLike[str], weights_only: bool = False, on_saved: Callable[[], None] | None = None
    ) -> None:
        """Save a checkpoint. Collective.

        While batches run this is a request: it is carried out at the next save point, after every hook of the batch and
        the validation that it triggered, or of the epoch's end. Otherwise it is carried out at once.

        Args:
            path: The file.
            weights_only: Whether to leave out what only matters for resuming.
            on_saved: Called when the file is durable.

        Raises:
            RuntimeError: If this trainer has no module yet.
        """
        if self._run is None:
            rule = "attached by fit, validate, test or predict"
            raise RuntimeError(must_be("model", rule, None, "Trainer.save_checkpoint", "Run one of them first."))
        self._run.request_save(SaveRequest(os.fspath(path), weights_only, on_saved))

    def _evaluate(
        self,
        verb: Verb,
        loop: EvaluationLoop,
        model: Any,
        dataloaders: Any,
        ckpt_path: str | os.PathLike[str] | None,
        verbose: bool,
        datamodule: Any,
    ) -> list[dict[str, float]]:
        with self._running(verb, model, {verb: dataloaders}, datamodule, ckpt_path) as run:
            results: list[dict[str, float]] = run_verb(run, loop)
        if verbose and self.is_global_zero:
            print_results(results, verb)
        return results

    @contextmanager
    def _running(
        self,
        verb: Verb,
        model: Any,
        loaders: dict[str, Any],
        datamodule: Any,
        ckpt_path: str | os.PathLike[str] | None,
    ) -> Iterator[Run]:
        """Everything attached for one verb; loggers are closed at its end."""
        run = self._new_run(verb, model, loaders, datamodule, ckpt_path)
        self._run = run
        attach_module(run.module, self, self._metric_log)
        if isinstance(run.data, DataModule):
            attach_data_module(run.data, self)
        if self._metric_log is not None:
            self._metric_log.clear()
        status = "failed"
        try:
            if verb == "fit":
                self._log_hyperparameters(run.module)
            yield run
            status = "success"
        finally:
            for logger in self.loggers:
                logger.finalize(status)

    def _new_run(
        self,
        verb: Verb,
        model: Any,
        loaders: dict[str, Any],
        datamodule: Any,
        ckpt_path: str | os.PathLike[str] | None,
    ) -> Run:
        if model is None and self._run is not None:
            model = self._run.module
        if not isinstance(model, nn.Module):
            rule = "a module (torch.nn.Module), or None after an earlier verb"
            raise TypeError(must_be("model", rule, model, f"Trainer.{verb}", "Pass a module."))
        stage, given = next(iter(loaders.items()))
        if isinstance(given, DataModule):
            loaders, datamodule = {**loaders, stage: None}, given
        if datamodule is not None and any(loader is not None for loader in loaders.values()):
            rule = "None if loaders are passed"
            raise ValueError(must_be("datamodule", rule, datamodule, f"Trainer.{verb}", "Pass one of the two."))
        if datamodule is None and self._run is not None and all(loader is None for loader in loaders.values()):
            datamodule = self._run.data if self._run.module is model else None
        return Run(
            verb=verb,
            module=model,
            strategy=self.strategy,
            trainer=self,
            callbacks=self.callbacks,
            data=datamodule,
            loaders=loaders,
            metrics=self._metric_log,
            checkpoint=read_requested(self, ckpt_path, verb),
            write_checkpoint=self._write_checkpoint,
            strict_hooks=self.strict_hooks,
        )

    def _write_checkpoint(self, request: SaveRequest) -> None:
        assert self._run is not None
        loop = self.fit_loop
        checkpoint = collect(self._run, loop.optimization, loop.progress, request.weights_only)
        hparams = getattr(self._run.module, "hparams", None)
        if hparams:
            checkpoint["hyper_parameters"] = dict(hparams)
        self.strategy.save_checkpoint(checkpoint, request.path)

    def _log_hyperparameters(self, module: Any) -> None:
        hparams = getattr(module, "hparams", None)
        for logger in self.loggers if hparams else ():
            logger.log_hyperparams(hparams)
