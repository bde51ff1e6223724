"""The trainer: puts loops, strategy, callbacks, loggers and metric log together, and runs the four verbs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

from camshaft.callbacks.arguments import check_local
from camshaft.hooks_core.spec import ZeroGrad
from camshaft.loops import EvaluationLoop, StatelessLoaders, run_verb
from camshaft.trainer.checkpoints import CheckpointFormat
from camshaft.trainer.configuration import (
    check_barebones,
    check_fast_dev_run,
    choose_callbacks,
    choose_log_interval,
    choose_loops,
    choose_metric_log,
    choose_strategy,
    listed,
    switching,
)
from camshaft.trainer.hook_comparison import choose_hook_comparison
from camshaft.trainer.loggers import begin_fit, choose_loggers, log_hyperparameters
from camshaft.trainer.results import fit_summary
from camshaft.trainer.running import Predicting, warn_if_done


class Trainer(Predicting):
    """Trains, validates, tests and predicts with a module.

    Names and meanings follow Lightning 2.x wherever the concept is the same. Every argument is keyword-only.

    A subclass may override `connect`, `extend_run` and `checkpoint_formats` to run modules and read checkpoints that
    were written for something else.

    Args:
        accelerator: "cpu", "cuda", "mps", "gpu" (CUDA or MPS) or "auto", the best there is.
        strategy: A strategy object; or "single_device", "ddp", "ddp_find_unused_parameters_true", "sharded" or "fsdp"
            (the same), with its defaults; or "auto": one device, or DDP where there are more or where several
            processes were started.
        devices: How many processes a machine, each with a device; or a list of the devices' indexes; -1 for all.
            "auto" is as many as were started; if nobody started several, all GPUs or one CPU. More than were started
            are started by the first verb, which runs the script once for each and then leaves it.
        num_nodes: How many machines; each needs torchrun, or SLURM, to start processes.
        precision: "32-true", "16-mixed", "bf16-mixed", "bf16-true", "16-true" or "64-true"; None means 32-true, or
            that of the strategy object.
        use_distributed_sampler: Whether several processes share the samples of every `DataLoader` out; if false each
            takes its loaders as they are.
        sync_batchnorm: Whether batch normalisation is over the batches of all processes.
        agree_every_n_batches: After how many batches several processes ask each other whether to stop; None asks a few
            times per second.
        logger: A logger, a list of them, None or True for a CSV logger, False for none. Of several processes the first
            one's write; on others something takes every call and does nothing.
        callbacks: A callback or a list of them, in the order in which they run.
        max_epochs: Epochs to train in all; -1 for no limit. None means 1000, or no limit if `max_steps` sets one.
        min_epochs: Epochs that `should_stop` cannot cut short.
        max_steps: Optimizer updates to train in all; -1 for no limit.
        min_steps: Updates that `should_stop` cannot cut short.
        max_time: How long to train in all, resumed parts included: "DD:HH:MM:SS", a `timedelta`, or a dictionary of its
            arguments. When it is over training stops after the batch.
        fast_dev_run: Try everything out: True takes one batch of every loader, an int so many, in one epoch without a
            sanity check. Loggers write nothing, callbacks neither stop nor save. Takes the place of all limits.
        limit_train_batches: How much of an epoch to take: an int is a number of batches, a float a share.
        limit_val_batches: Likewise of each validation loader; 0 trains without validation.
        limit_test_batches: Likewise of each test loader.
        limit_predict_batches: Likewise of each prediction loader.
        overfit_batches: If not 0, how much of a training epoch to take instead of `limit_train_batches`: the same
            batches in every epoch, without shuffling; validation takes as much instead of `limit_val_batches`, without
            shuffling within fit.
        val_check_interval: How often to validate: a float is a share of an epoch, an int a number of batches.
        check_val_every_n_epoch: In which epochs to validate; None counts `val_check_interval` across epochs.
        num_sanity_val_steps: Validation batches to try before training (None means 2); -1 tries all.
        reload_dataloaders_every_n_epochs: Ask module or data module for the loaders again every so many epochs, those
            of validation when they are used; 0 asks once.
        log_every_n_steps: Updates between two entries of step values in the loggers (None means 50).
        enable_checkpointing: Whether a `ModelCheckpoint` is added if none was passed; None means true.
        enable_progress_bar: Whether a `RichProgressBar` is added if none was passed; None means true. Where there is a
            progress bar, fit ends with a few lines about what it came to.
        enable_model_summary: Whether a `ModelSummary` is added if none was passed; None means where there is a progress
            bar.
        accumulate_grad_batches: Batches whose gradients make one update.
        gradient_clip_val: The largest norm or absolute value of the gradients; None clips nothing.
        gradient_clip_algorithm: "norm" (None means the same) or "value".
        zero_grad: Where gradients are zeroed: "before_backward" after `training_step`, "before_training_step", or
            "after_optimizer_step". None means the first.
        truncated_bptt_steps: Time steps of the splits of a batch, for truncated backpropagation through time; None
            takes the module's attribute of that name, if it has one, and else leaves batches whole.
        stateless_loaders: What a resume inside an epoch does with a training loader that cannot tell where it was:
            "refuse" it, or "fast_forward": read the batches that were used and drop them.
        deterministic: Whether operations without a deterministic algorithm raise, or warn with "warn"; see
            `TorchSwitches`, as for the next two. None leaves it as the process has it.
        benchmark: Whether cuDNN tries out which algorithm is fastest; None likewise.
        detect_anomaly: Whether backward names the operation whose gradient is NaN; slow.
        profiler: "simple" adds a `HookTimeline`, "pytorch" a `Profiler`; a callback is added as it is.
        inference_mode: Whether evaluation runs under `torch.inference_mode`, else under `torch.no_grad`, as always
            inside fit.
        report: A folder for curves of everything that is logged, as PNG files, drawn when a verb ends; see
            `camshaft.callbacks.CurveReport`. None draws nothing.
        default_root_dir: Where files go by default, "~" being the home directory; None means the working directory.
        barebones: Whether to run with nothing attached: no logger, checkpoint, progress bar, sanity check or metric
            log. What a module logs is then kept in its `logged_metrics` and nowhere else.
        compare_hooks_every_n_steps: To find out where several processes part: after every so many updates they compare
            which hooks they have called, and name the first that differs. None compares nothing, at no cost.
        strict_hooks: Whether a method that looks like a hook and is none, or a hook of the wrong arity, is an error;
            if false it is a warning and left out.

    Raises:
        TypeError, ValueError: If an argument is of the wrong type, out of range, contradicts another, or asks for what
            is not there yet.
    """

    checkpoint_formats: ClassVar[tuple[CheckpointFormat, ...]] = ()
    """Formats of others that `ckpt_path` may have, beside ours."""

    def __init__(
        self,
        *,
        accelerator: str = "auto",
        strategy: Any = "auto",
        devices: Any = "auto",
        num_nodes: int = 1,
        precision: Any = None,
        use_distributed_sampler: bool = True,
        sync_batchnorm: bool = False,
        agree_every_n_batches: int | None = None,
        logger: Any = None,
        callbacks: Any = None,
        max_epochs: int | None = None,
        min_epochs: int | None = None,
        max_steps: int = -1,
        min_steps: int | None = None,
        max_time: str | timedelta | Mapping[str, float] | None = None,
        fast_dev_run: bool | int = False,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        limit_predict_batches: int | float | None = None,
        overfit_batches: int | float = 0.0,
        val_check_interval: int | float | None = None,
        check_val_every_n_epoch: int | None = 1,
        num_sanity_val_steps: int | None = None,
        reload_dataloaders_every_n_epochs: int = 0,
        log_every_n_steps: int | None = None,
        enable_checkpointing: bool | None = None,
        enable_progress_bar: bool | None = None,
        enable_model_summary: bool | None = None,
        accumulate_grad_batches: int = 1,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
        zero_grad: ZeroGrad | None = None,
        truncated_bptt_steps: int | None = None,
        stateless_loaders: StatelessLoaders = "refuse",
        deterministic: bool | str | None = None,
        benchmark: bool | None = None,
        detect_anomaly: bool = False,
        profiler: Any = None,
        inference_mode: bool = True,
        report: str | os.PathLike[str] | None = None,
        default_root_dir: str | os.PathLike[str] | None = None,
        barebones: bool = False,
        compare_hooks_every_n_steps: int | None = None,
        strict_hooks: bool = True,
    ) -> None:
        if barebones:
            check_barebones(
                callbacks,
                logger=logger,
                enable_checkpointing=enable_checkpointing,
                enable_progress_bar=enable_progress_bar,
                enable_model_summary=enable_model_summary,
                num_sanity_val_steps=num_sanity_val_steps,
                log_every_n_steps=log_every_n_steps,
                fast_dev_run=fast_dev_run,
                report=report,
            )
            logger = enable_checkpointing = enable_progress_bar = enable_model_summary = False
            num_sanity_val_steps = log_every_n_steps = 0
        self.barebones = barebones
        self.strict_hooks = strict_hooks
        check_local("default_root_dir", os.fspath(default_root_dir or ""), "Trainer")
        self._default_root_dir = os.path.abspath(os.path.expanduser(default_root_dir or os.curdir))
        self.strategy = choose_strategy(
            strategy,
            accelerator=accelerator,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            sync_batchnorm=bool(sync_batchnorm),
        )
        self.fast_dev_run = check_fast_dev_run(fast_dev_run)
        self._loggers = self._writing(choose_loggers(logger, self._default_root_dir, report))
        self.callbacks = choose_callbacks(
            [*listed(callbacks), *switching(profiler, deterministic, benchmark, detect_anomaly)],
            enable_progress_bar=enable_progress_bar,
            enable_model_summary=enable_model_summary,
            enable_checkpointing=enable_checkpointing,
        )
        loops = choose_loops(
            num_trial_batches=int(self.fast_dev_run),
            limits={
                "max_epochs": max_epochs,
                "min_epochs": min_epochs,
                "max_steps": max_steps,
                "min_steps": min_steps,
                "max_time": max_time,
                "limit_train_batches": limit_train_batches,
                "overfit_batches": overfit_batches,
                "val_check_interval": val_check_interval,
                "check_val_every_n_epoch": check_val_every_n_epoch,
                "num_sanity_val_steps": num_sanity_val_steps,
                "reload_dataloaders_every_n_epochs": reload_dataloaders_every_n_epochs,
            },
            evaluation_limits={
                "validate": limit_val_batches,
                "test": limit_test_batches,
                "predict": limit_predict_batches,
            },
            inference_mode=inference_mode,
            use_distributed_sampler=use_distributed_sampler,
            agree_every_n_batches=agree_every_n_batches,
            accumulate_grad_batches=accumulate_grad_batches,
            gradient_clip_val=gradient_clip_val,
            gradient_clip_algorithm=gradient_clip_algorithm,
            zero_grad=zero_grad,
            truncated_bptt_steps=truncated_bptt_steps,
            stateless_loaders=stateless_loaders,
        )
        self.fit_loop, self.validate_loop = loops.fit, loops.validate
        self.test_loop, self.predict_loop = loops.test, loops.predict
        self._log_every_n_steps = choose_log_interval(log_every_n_steps)
        self._metric_log = None if barebones else choose_metric_log(self)
        comparison = choose_hook_comparison(compare_hooks_every_n_steps, self.world_size)
        if comparison is not None:
            self.callbacks.append(comparison)
        self._run = None
        self._is_running = False
        self._fitted = None
        self._fit_idx = 0
        self._is_sealed = True

    def fit(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Train a module until a limit is reached. Collective.

        Args:
            model: The module.
            train_dataloaders: A loader of training batches, or a data module. A list, tuple or dictionary of loaders
                becomes a `CombinedLoader` in mode "max_size_cycle". None asks the data module, then the module.
            val_dataloaders: A loader of validation batches, or a list of them; None asks likewise.
            datamodule: A data module.
            ckpt_path: A checkpoint to resume from; "best" and "last" find one that this trainer's callback saved. One
                from inside an epoch goes on there; if it was taken inside a batch, as after an error, that batch is
                left out, with a warning.
            weights_only: False unpickles the objects in the checkpoint, which may run any code: pass it for files that
                you trust. Otherwise they are left out, with a warning where they may be missed.

        Raises:
            HookFaultError: If a hook is faulty or a required one is missing; nothing was run then.
            TypeError, ValueError: If an argument is of the wrong type, or contradicts the module, the data or the
                checkpoint; or if that is from inside an epoch and a training loader cannot tell where it was.
            RuntimeError: If a verb of this trainer is running already.
            FileNotFoundError, CheckpointError: If the checkpoint is not there or cannot be read.
        """
        loaders = {"train": train_dataloaders, "validate": val_dataloaders}
        with self._running("fit", model, loaders, datamodule, ckpt_path, weights_only) as run, self._noting_interrupt():
            self._fitted = run.module
            if self.is_global_zero:
                warn_if_done(self.fit_loop, run.checkpoint)
            log_hyperparameters(self.loggers, run.module, run.data)
            begin_fit(self.loggers, run.module)
            run_verb(run, self.fit_loop)
        if self.is_global_zero and self.progress_bar_callback is not None and not self.fast_dev_run:
            print(fit_summary(self))

    def validate(
        self,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        verbose: bool = True,
        datamodule: Any = None,
        weights_only: bool | None = None,
    ) -> list[dict[str, float]]:
        """Run validation once. Collective.

        Args:
            model: The module, with the weights that it has. None takes the one of the last verb; if that was trained,
                with the weights of the best checkpoint that its fit kept, and a warning that says so.
            dataloaders: A loader of validation batches, or a list of them; None asks the data module, then the module.
            ckpt_path: A checkpoint whose weights to use: a path, "best" or "last".
            verbose: Whether to print the results.
            datamodule: A data module.
            weights_only: As in `fit`.

        Returns:
            The logged epoch values, a dictionary per loader.
        """
        with self._running("validate", model, {"validate": dataloaders}, datamodule, ckpt_path, weights_only) as run:
            loop: EvaluationLoop = self.validate_loop
            results: list[dict[str, float]] = run_verb(run, loop)
        return self._shown(results, "validate", verbose)

    def test(
        self,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        verbose: bool = True,
        datamodule: Any = None,
        weights_only: bool | None = None,
    ) -> list[dict[str, float]]:
        """Run the test once; arguments and result are those of `validate`, with test loaders. Collective."""
        with self._running("test", model, {"test": dataloaders}, datamodule, ckpt_path, weights_only) as run:
            loop: EvaluationLoop = self.test_loop
            results: list[dict[str, float]] = run_verb(run, loop)
        return self._shown(results, "test", verbose)
