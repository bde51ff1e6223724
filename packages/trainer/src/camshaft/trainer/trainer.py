"""The trainer: puts loops, strategy, callbacks, loggers and metric log together, and runs the four verbs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

import camshaft.callbacks as stock  # imports its exports on access
from camshaft.callbacks.arguments import usable_path
from camshaft.hooks_core import Hooks, is_overridden
from camshaft.hooks_core.known_attributes import check_attribute
from camshaft.hooks_core.messages import must_be, warn_user
from camshaft.hooks_core.remote_files import absolute, join
from camshaft.hooks_core.spec import ZeroGrad
from camshaft.loops import (
    EvaluationLoop,
    FitLimits,
    FitLoop,
    PredictLoop,
    Run,
    SaveRequest,
    StatelessLoaders,
    TestLoop,
    ValidationLoop,
    run_verb,
)
from camshaft.loops.metrics import EpochEndReduction, MetricLog
from camshaft.strategies import SingleDeviceStrategy
from camshaft.trainer.checkpoints import CheckpointFormat
from camshaft.trainer.configuration import (
    check_barebones,
    check_fast_dev_run,
    choose_callbacks,
    choose_evaluation_loops,
    choose_hook_comparison,
    choose_log_interval,
    choose_profiler,
    choose_strategy,
    device_ids_of,
    limits_of_trial,
    listed,
    num_devices_of,
    num_nodes_of,
    precision_of,
    switches,
    with_profiler,
)
from camshaft.trainer.forwarding import forwarded
from camshaft.trainer.hyperparameters import DATA_PREFIX, hyperparameters_for_checkpoints
from camshaft.trainer.loggers import SilentLogger, begin_verb, choose_loggers, log_hyperparameters
from camshaft.trainer.results import fit_summary, print_results
from camshaft.trainer.running import VerbCall, VerbState, running, warn_if_done
from camshaft.trainer.states import RunningStage, TrainerFn, TrainerState, TrainerStatus

if TYPE_CHECKING:
    from camshaft.callbacks import Checkpoint, EarlyStopping, ProgressBar
    from camshaft.trainer.replay.replayed_step import ReplayedStep

_SET_BY_CONSTRUCTOR = frozenset({"strategy", "fast_dev_run", "barebones"})


def _fit_limit(name: str, doc: str) -> Any:
    """Return a property for a number in `fit_loop.limits`, which are replaced when it is set."""

    def set_(trainer: Trainer, value: Any) -> None:
        trainer.fit_loop.limits = trainer.fit_loop.limits.with_number(name, value)

    return property(attrgetter(f"fit_loop.limits.{name}"), set_, doc=doc)


def _in_stage(stage: RunningStage, doc: str) -> Any:
    """Return a property that is true while a stage runs."""
    return property(lambda trainer: trainer._stage is stage, doc=doc)


def _of_strategy(read: Callable[[Any], Any], doc: str) -> Any:
    """Return a property for what a function reads of the strategy."""
    return property(lambda trainer: read(trainer.strategy), doc=doc)


def _is_property_of_ours(kind: type, name: str) -> bool:
    owner = next((one for one in kind.__mro__ if name in vars(one)), None)
    return owner is not None and owner.__module__.startswith("camshaft.") and isinstance(vars(owner)[name], property)


class Trainer:
    """Trains, validates, tests and predicts with a module.

    Names and meanings follow Lightning 2.x wherever the concept is the same. Every argument is keyword-only.

    A subclass may override `connect`, `extend_run`, `checkpoint_formats`, `objects_in_place` and `checkpoint_facts` to
    run modules and read checkpoints that were written for something else, and `make_default_logger`, `begin_logging`,
    `loop_classes` and `saves_each_row`.

    Args:
        accelerator: "cpu", "cuda", "mps", "gpu" (CUDA or MPS) or "auto", the best there is.
        strategy: A strategy object; or "single_device", "ddp", "ddp_find_unused_parameters_true", "sharded" or "fsdp"
            (the same), with its defaults; or "auto": one device, or DDP where there are more or where several
            processes were started.
        devices: Number of processes per machine, each with a device; or a list of the devices' indexes; -1 for all.
            "auto" is as many as were started; without a launcher, all GPUs or one CPU. More than were started
            are started by the first verb, which runs the script once for each and then leaves it.
        num_nodes: Number of machines; each needs torchrun, or SLURM, to start processes.
        precision: "32-true", "16-mixed", "bf16-mixed", "bf16-true", "16-true" or "64-true"; None means 32-true, or
            that of the strategy object.
        use_distributed_sampler: If true, several processes share the samples of every `DataLoader`; if false each
            takes its loaders as they are.
        sync_batchnorm: If true, batch normalisation is over the batches of all processes.
        agree_every_n_batches: Batches after which several processes agree on stopping; None agrees a few times per
            second.
        logger: A logger, a list of them, None or True for a CSV logger, False for none. With several
            processes those of rank 0 write; other ranks have loggers that ignore every call.
        callbacks: A callback or a list of them, in the order in which they run.
        max_epochs: Epochs to train in all; -1 for no limit. None means 1000, or no limit if `max_steps` sets one.
        min_epochs: Epochs that `should_stop` cannot cut short.
        max_steps: Optimizer updates to train in all; -1 for no limit.
        min_steps: Updates that `should_stop` cannot cut short.
        max_time: Time to train in all, resumed parts included: "DD:HH:MM:SS", a `timedelta`, or a dictionary of its
            arguments. When it is over training stops after the batch.
        fast_dev_run: Trial run: True takes one batch of every loader, an int so many, in one epoch without a
            sanity check. Loggers write nothing, callbacks neither stop nor save. Replaces all limits.
        limit_train_batches: Part of an epoch to take: an int is a number of batches, a float a share.
        limit_val_batches: Likewise of each validation loader; 0 trains without validation.
        limit_test_batches: Likewise of each test loader.
        limit_predict_batches: Likewise of each prediction loader.
        overfit_batches: If not 0, part of a training epoch to take instead of `limit_train_batches`: the same
            batches in every epoch, without shuffling; validation takes as much instead of `limit_val_batches`, without
            shuffling within fit.
        val_check_interval: Interval between validations: a float is a share of an epoch, an int a number of batches;
            a duration, in a form of `max_time`, is the time from the end of a validation to the next, across epochs.
        check_val_every_n_epoch: Epochs from one with validation to the next; None counts
            `val_check_interval` across epochs.
        num_sanity_val_steps: Validation batches to try before training (None means 2); -1 tries all.
        reload_dataloaders_every_n_epochs: Epochs after which module or data module are asked for the loaders again,
            for those of validation when they are used; 0 asks once.
        log_every_n_steps: Updates between two entries of step values in the loggers (None means 50).
        enable_checkpointing: If true or None, a `ModelCheckpoint` is added unless one was passed.
        enable_progress_bar: If true or None, a `RichProgressBar` is added unless one was passed. With a progress bar,
            fit ends with a summary of a few lines.
        enable_model_summary: If true, a `ModelSummary` is added unless one was passed; None adds it where there is a
            progress bar. One that was passed is printed in any case.
        accumulate_grad_batches: Batches whose gradients make one update.
        gradient_clip_val: The largest norm or absolute value of the gradients; None clips nothing.
        gradient_clip_algorithm: "norm" (None means the same) or "value".
        zero_grad: Moment when gradients are zeroed: "before_backward" after `training_step`, "before_training_step", or
            "after_optimizer_step". None means the first.
        truncated_bptt_steps: Time steps of the splits of a batch, for truncated backpropagation through time; None
            takes the module's attribute of that name, if it has one, and else leaves batches whole.
        stateless_loaders: Resume inside an epoch with a training loader that has no state, or one that does not restore
            it exactly: "refuse" it, or "fast_forward": read the batches that were used and drop them.
        deterministic: If true, operations without a deterministic algorithm raise; "warn" lets them warn; see
            `camshaft.trainer.TorchSwitches`, as for the next two. None leaves it as the process has it.
        benchmark: If true, cuDNN searches for the fastest algorithm; None leaves it as the process has it.
        detect_anomaly: If true, backward names the operation whose gradient is NaN; slow.
        profiler: "simple" times hooks, "advanced" runs them under cProfile, "pytorch" under torch's profiler; see
            `SimpleProfiler`, `AdvancedProfiler` and `PyTorchProfiler`. Or an object of such a class, or a callback that
            measures, such as `HookTimeline`.
        inference_mode: If true, evaluation runs under `torch.inference_mode`, else under `torch.no_grad`, as always
            inside fit.
        report: A folder for curves of everything that is logged, as PNG files, drawn when a verb ends; see
            `camshaft.callbacks.CurveReport`. None draws nothing.
        enable_autolog_hparams: If true, loggers get the hyperparameters of module and data module when a verb begins.
        default_root_dir: Directory of files by default, "~" being the home directory, or its URL ("s3://bucket/run");
            None means the working directory.
        barebones: If true, nothing is attached: no logger, checkpoint, progress bar, sanity check or metric
            log. Values that a module logs are then in its `logged_metrics` only.
        compare_hooks_every_n_steps: Updates after which several processes compare the hooks that they have called, and
            name the first that differs. None compares nothing, at no cost.
        strict_hooks: If true, a method that looks like a hook and is none, or a hook of the wrong arity, is an error;
            if false it is a warning and left out.

    Attributes:
        strategy, callbacks, barebones, strict_hooks: As passed, or chosen from the arguments.
        fast_dev_run: Number of batches of a trial run, or True for one; False without.
        fit_loop, validate_loop, test_loop, predict_loop: Loops of the verbs.
        profiler: The callback of the argument `profiler`; None without.
        enable_autolog_hparams: As passed.
        metric_log: The metric log; None with `barebones`.
        verb_state: State of the verb that runs, or ran last.

    Raises:
        TypeError, ValueError: If an argument is of the wrong type, out of range, contradicts another, or asks for
            something that is not supported.
    """

    checkpoint_formats: ClassVar[tuple[CheckpointFormat, ...]] = ()
    """Formats of others that `ckpt_path` may have, beside ours."""

    objects_in_place: ClassVar[bool] = False
    """If true, `torch.load(path, weights_only=False)` gives the objects in its checkpoints; see `ObjectsInPlace`."""

    loop_classes: ClassVar[tuple[type[FitLoop], type[ValidationLoop], type[TestLoop], type[PredictLoop]]] = (
        FitLoop,
        ValidationLoop,
        TestLoop,
        PredictLoop,
    )
    """Classes of the loops of fit, of validation, test and prediction."""

    saves_each_row: ClassVar[bool] = False
    """Whether loggers are told to save after each row of metrics, rather than at the ends of epochs."""

    callbacks: list[Any]
    strategy: Any
    _is_sealed: bool = False

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
        val_check_interval: int | float | str | timedelta | Mapping[str, float] | None = None,
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
        enable_autolog_hparams: bool = True,
        default_root_dir: str | os.PathLike[str] | None = None,
        barebones: bool = False,
        compare_hooks_every_n_steps: int | None = None,
        strict_hooks: bool = True,
    ) -> None:
        super().__init__()
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
                profiler=profiler,
                report=report,
            )
            logger = enable_checkpointing = enable_progress_bar = enable_model_summary = False
            num_sanity_val_steps = log_every_n_steps = 0
        self.barebones, self.strict_hooks = barebones, strict_hooks
        self.verb_state = VerbState()
        self._default_root_dir = absolute(usable_path("default_root_dir", default_root_dir or os.curdir, "Trainer"))
        self.strategy = choose_strategy(
            strategy,
            accelerator=accelerator,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            sync_batchnorm=bool(sync_batchnorm),
        )
        self.fast_dev_run = check_fast_dev_run(fast_dev_run)
        self.enable_autolog_hparams = enable_autolog_hparams
        self._profiler = choose_profiler(profiler)
        self._loggers = self._writing(choose_loggers(logger, self.make_default_logger, report))
        self.callbacks = choose_callbacks(
            [
                *with_profiler(listed(callbacks), self._profiler, self.strategy),
                *switches(deterministic, benchmark, detect_anomaly),
            ],
            enable_progress_bar=enable_progress_bar,
            enable_model_summary=enable_model_summary,
            enable_checkpointing=enable_checkpointing,
        )
        limits = FitLimits(
            max_epochs=max_epochs,
            min_epochs=min_epochs,
            max_steps=max_steps,
            min_steps=min_steps,
            max_time=max_time,
            limit_train_batches=1.0 if limit_train_batches is None else limit_train_batches,
            overfit_batches=overfit_batches,
            val_check_interval=1.0 if val_check_interval is None else val_check_interval,
            check_val_every_n_epoch=check_val_every_n_epoch,
            num_sanity_val_steps=2 if num_sanity_val_steps is None else num_sanity_val_steps,
            reload_dataloaders_every_n_epochs=reload_dataloaders_every_n_epochs,
        )
        if self.fast_dev_run:
            limits = limits_of_trial(limits, int(self.fast_dev_run))
        validation, self.validate_loop, self.test_loop, self.predict_loop = choose_evaluation_loops(
            limit_val_batches,
            limit_test_batches,
            limit_predict_batches,
            overfit_batches=limits.overfit_batches,
            num_trial_batches=int(self.fast_dev_run),
            classes=self.loop_classes[1:],
            inference_mode=inference_mode,
            use_distributed_sampler=use_distributed_sampler,
        )
        self.fit_loop = self.loop_classes[0](
            limits,
            validation,
            accumulate_grad_batches=accumulate_grad_batches,
            gradient_clip_val=gradient_clip_val,
            gradient_clip_algorithm=gradient_clip_algorithm,
            zero_grad=zero_grad,
            truncated_bptt_steps=truncated_bptt_steps,
            stateless_loaders=stateless_loaders,
            use_distributed_sampler=use_distributed_sampler,
            agree_every_n_batches=agree_every_n_batches,
        )
        self._log_every_n_steps = choose_log_interval(log_every_n_steps)
        self.metric_log: MetricLog | None = None
        if not barebones:
            self.metric_log = MetricLog(
                loggers=self._loggers,
                log_every_n_steps=self._log_every_n_steps,
                progress=self.fit_loop.progress,
                strategy=self.strategy,
                saves_each_row=self.saves_each_row,
            )
            if self.world_size > 1:
                self.callbacks.insert(0, EpochEndReduction(self.metric_log))
        self.callbacks += choose_hook_comparison(compare_hooks_every_n_steps, self.world_size)
        self._is_sealed = True

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a name that resembles a setting's is refused, with the setting's name.

        Other names are free to use, and all are in a subclass.

        Raises:
            AttributeError: If it is misspelt, or set by the constructor only.
            RuntimeError: If `callbacks` are replaced while a verb runs, once its `setup` is over.
        """
        if not self._is_sealed and _is_property_of_ours(type(self), name):
            return  # of a subclass before it calls the constructor, whose argument counts
        if self._is_sealed:
            if name in _SET_BY_CONSTRUCTOR:
                rule = "set by the constructor, which other parts have taken it from"
                action = "Make another trainer."
                raise AttributeError(must_be(name, rule, value, type(self).__qualname__, action), name=name, obj=self)
            if name == "callbacks" and self.is_running:
                if getattr(self.current_run, "takes_callbacks", False):
                    self.callbacks[:] = value  # the list that the run has as well
                    return
                action = "Set them before, or let `configure_callbacks` of the module return them."
                raise RuntimeError(must_be(name, "set while no verb runs", value, type(self).__qualname__, action))
            check_attribute(self, name, takes_own=True)
        object.__setattr__(self, name, value)

    # seams for subclasses

    def connect(self, module: nn.Module) -> None:
        """Join the processes that train together, before a verb begins. Override it to do more. Collective.

        Args:
            module: The module of the verb, which has the trainer by now.
        """
        self.strategy.connect()

    def extend_run(self, run: Run) -> None:
        """Override it to add to a run: readers of receivers, adapters, a factory for the optimization; see `Run`.

        Nothing by default. It is called once for each verb, before the hooks of the run are resolved.

        Args:
            run: The run that is to begin.
        """

    def checkpoint_facts(self, run: Run) -> dict[str, Any]:
        """Return what checkpoints say of module and data module: their hyperparameters. Override it to say more."""
        return hyperparameters_for_checkpoints(run.module) | hyperparameters_for_checkpoints(run.data, DATA_PREFIX)

    def begin_logging(self, run: Run) -> None:
        """Give the loggers hyperparameters and module when a verb begins. Override it to do more."""
        if self.enable_autolog_hparams:
            log_hyperparameters(self.loggers, run.module, run.data)
        begin_verb(self.loggers, run.module, run.verb)

    def make_default_logger(self) -> Any:
        """Return the logger for `logger=True`: a `CSVLogger` in `default_root_dir`. Override it to return another."""
        return stock.CSVLogger(self.default_root_dir)

    # verbs

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
                checkpoint; or if that is from inside an epoch and a training loader has no state.
            RuntimeError: If a verb of this trainer is running already.
            FileNotFoundError, CheckpointError: If the checkpoint is not there or cannot be read.
        """
        loaders = {"train": train_dataloaders, "validate": val_dataloaders}
        with running(self, VerbCall("fit", model, loaders, datamodule, ckpt_path, weights_only)) as run:
            self.verb_state.fitted = run.module
            if self.is_global_zero:
                warn_if_done(self.fit_loop, run.checkpoint)
            self.begin_logging(run)
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
            ckpt_path: A checkpoint to load, with states of callbacks and data module: a path, "best" or "last".
            verbose: If true, the results are printed.
            datamodule: A data module.
            weights_only: As in `fit`.

        Returns:
            The logged epoch values, a dictionary per loader.
        """
        call = VerbCall("validate", model, {"validate": dataloaders}, datamodule, ckpt_path, weights_only)
        with running(self, call) as run:
            self.begin_logging(run)
            results: list[dict[str, float]] = run_verb(run, self.validate_loop)
        if verbose and self.is_global_zero:
            print_results(results, "validate")
        return results

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
        call = VerbCall("test", model, {"test": dataloaders}, datamodule, ckpt_path, weights_only)
        with running(self, call) as run:
            self.begin_logging(run)
            results: list[dict[str, float]] = run_verb(run, self.test_loop)
        if verbose and self.is_global_zero:
            print_results(results, "test")
        return results

    def predict(
        self,
        model: Any = None,
        dataloaders: Any = None,
        datamodule: Any = None,
        return_predictions: bool | None = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        weights_only: bool | None = None,
        *,
        gather: bool = False,
    ) -> Any:
        """Predict every batch. Collective.

        Args:
            model: The module; None as in `validate`.
            dataloaders: A loader, or a list of them; None asks the data module, then the module.
            datamodule: A data module.
            return_predictions: If true or None, predictions are kept and returned; if false, memory does not grow.
            ckpt_path: A checkpoint to load, with states of callbacks and data module: a path, "best" or "last".
            weights_only: As in `fit`.
            gather: If true, each of several processes returns the predictions of all, in the order of the dataset,
                instead of those of its own batches.

        Returns:
            The predictions on the CPU: a list with an item per batch, or a list of such lists for several loaders; None
            if they are not wanted.
        """
        self.predict_loop.return_predictions = return_predictions is None or return_predictions
        self.predict_loop.gather = gather
        call = VerbCall("predict", model, {"predict": dataloaders}, datamodule, ckpt_path, weights_only)
        with running(self, call) as run:
            self.begin_logging(run)
            return run_verb(run, self.predict_loop)

    # going back to a step

    def replay(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        *,
        to_step: int,
        inspect: str | Sequence[str] | Callable[[ReplayedStep], object] | None = None,
        ledger: str | os.PathLike[str] | None = None,
        debug: bool = False,
        weights_only: bool | None = None,
    ) -> list[ReplayedStep]:
        """Make a fit again up to an update, and look into the training steps of that update. Collective.

        Module, loaders and trainer are made as for the fit, with the same arguments. The fit is repeated to the bit:
        every batch, hook and validation, from a checkpoint or from the start. It ends right before update `to_step`, so
        module, optimizers and random numbers have the state that the update finds, and the `grad` of parameters is what
        it would have used. With several optimizers it ends after the batch of the update.

        Nothing is written: loggers are silent, `save_checkpoint` does nothing, and callbacks that declare
        `only_observes`, as those that save, log, show or measure do, are left out. All other callbacks run, with
        `is_replaying` true, since they may influence training. `max_time` does not count.

        Args:
            model: The module. Without `ckpt_path` as it was when the fit began, right after the same seeding.
            train_dataloaders: As in `fit`.
            val_dataloaders: As in `fit`; validation is repeated too.
            datamodule: As in `fit`.
            ckpt_path: A checkpoint of the run, of an earlier update; or a folder, of which the nearest one is taken; or
                None, which begins at the start.
            to_step: Number of the update, counted from 1, as ledgers count: `global_step` is `to_step - 1` before it.
            inspect: Names of the submodules whose statistics are kept, with wildcards as in "encoder.*" ("" is the
                module itself); None keeps all. Or a function that is called with each step that is returned, while
                module and trainer are still set up.
            ledger: The ledger that the replay is checked against, update by update. None takes that of the trainer's
                `RunLedger`, if there is one.
            debug: If true, Python's debugger stops in `training_step`, in the first step of the update.
            weights_only: As in `fit`.

        Returns:
            The steps of the update: one, or one for each batch or split whose gradients were accumulated.

        Raises:
            TypeError, ValueError: As in `fit`; or if `to_step` is not after the checkpoint or beyond the end of the
                training, `inspect` matches nothing, this trainer has trained already and there is no checkpoint, or
                the ledger's run had another number of processes.
            FileNotFoundError: If there is no checkpoint, none in the folder that is early enough, or no ledger.
            LedgerError: If the ledger is damaged, or not of the run that the checkpoint is from.
            DepartureError: At the first update that is not as the ledger has it; it tells the cause.
            BdbQuit: If the user left the debugger.
        """
        from camshaft.trainer.replay.to_step import replay_step  # rarely needed

        loaders = {"train": train_dataloaders, "validate": val_dataloaders}
        call = VerbCall("fit", model, loaders, datamodule, ckpt_path, weights_only)
        return replay_step(self, call, to_step=to_step, inspect=inspect, ledger=ledger, debug=debug)

    def bisect(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        *,
        good: str | os.PathLike[str],
        bad: str | os.PathLike[str],
        when: Callable[[Any], bool],
        ledger: str | os.PathLike[str] | None = None,
        weights_only: bool | None = None,
    ) -> int:
        """Find the first update after which something holds of the module. Collective.

        It replays half of the distance between two checkpoints, as `replay` does, looks, and goes on in the half where
        the change is, from a state that it keeps in a temporary folder; so all replays together are as long as the
        distance at most. If the answer changes more often than once, the step that is found is one at which it turns.
        Afterwards the module has the state in which the last replay ended.

        Args:
            model: The module.
            train_dataloaders: As in `fit`.
            val_dataloaders: As in `fit`.
            datamodule: As in `fit`.
            good: A checkpoint of the run at which `when` is false.
            bad: A later one at which it is true.
            when: A function of the module. It is called without gradients, with its random numbers, logs and metrics
                undone, where a checkpoint could be saved. True in one process counts for all.
            ledger: As in `replay`.
            weights_only: As in `fit`.

        Returns:
            The number of the update, counted from 1.

        Raises:
            TypeError, ValueError: As in `replay`; or if `when` is true at `good` or false at `bad`, or `bad` is not
                later.
            RuntimeError: If the replays do not come to what `bad` is.
            FileNotFoundError, LedgerError, DepartureError: As in `replay`.
        """
        from camshaft.trainer.replay.bisection import bisect_run  # rarely needed

        loaders = {"train": train_dataloaders, "validate": val_dataloaders}
        call = VerbCall("fit", model, loaders, datamodule, None, weights_only)
        return bisect_run(self, call, good=good, bad=bad, when=when, ledger=ledger)

    # saving and stopping

    def save_checkpoint(
        self,
        filepath: str | os.PathLike[str],
        weights_only: bool | None = None,
        on_saved: Callable[[], None] | None = None,
    ) -> None:
        """Save a checkpoint. Collective.

        While batches run this is a request: it is carried out at the next save point, after every hook of the batch and
        the validation that it triggered, or of the epoch's end. Otherwise it is carried out at once. In a replay
        nothing is saved.

        Args:
            filepath: The file, or its URL in a store that fsspec reaches; a directory if the state is sharded.
            weights_only: If true, everything that only matters for resuming is left out.
            on_saved: Function to call when the checkpoint is durable.

        Raises:
            RuntimeError: If this trainer has no module yet.
        """
        run = self._started_run("save_checkpoint")
        if self.is_replaying:
            return
        run.request_save(
            SaveRequest(usable_path("filepath", filepath, "save_checkpoint"), bool(weights_only), on_saved)
        )
        if not self.is_running:
            run.finish_saving()  # no verb does it

    def after_batch(self, function: Callable[[], None]) -> None:
        """Call a function when the training batch and the validation that it triggers are over; see `Run.after_batch`.

        Args:
            function: Function to call. `save_checkpoint` in it asks for a checkpoint of that batch.

        Raises:
            RuntimeError: If this trainer has no module yet.
        """
        self._started_run("after_batch").after_batch(function)

    def at_save_point(self, function: Callable[[], None]) -> None:
        """Call a function where a checkpoint that is asked for now would be written. Collective.

        Args:
            function: Function to call. A checkpoint that it saves is written before `save_checkpoint` returns, so that
                the function may change weights for it and put them back.

        Raises:
            RuntimeError: If this trainer has no module yet.
        """
        self._started_run("at_save_point").at_save_point(function)

    def preempt(self, path: str | os.PathLike[str]) -> None:
        """Save everything and end training as soon as no step is half done, whatever minimum is set.

        A validation that is due by then runs first, so that what goes on has missed nothing; no other does.

        Any one process may call it at any time, as in a handler of SIGTERM; all of them follow at their next agreement,
        a moment later. Where nothing is being trained, it warns.

        Args:
            path: The checkpoint to write; `fit(ckpt_path=path)` goes on from it as if nothing had happened.
        """
        run = self.current_run
        if run is None or not self.is_running or run.verb != "fit":
            warn_user(
                f"Nothing is being trained, so there is nothing to save to {os.fspath(path)!r} and to stop. Call it "
                "during fit."
            )
            return
        run.preempt(usable_path("path", path, "preempt"))

    @contextmanager
    def trial(self, *, reload: bool = False) -> Iterator[Iterable[Any]]:
        """Yield training batches for steps that a callback makes; see `TrainerProtocol.trial`. Collective.

        Raises:
            RuntimeError: If no fit runs whose loaders are there, or a batch is being trained.
        """
        run = self.current_run
        if run is None or not self.is_running or run.verb != "fit" or run.batch_idx is not None:
            rule = "used in fit, once the loaders are there and while no batch is trained"
            action = "Use it in `on_fit_start`, `on_train_start` or `on_train_epoch_start`."
            where = "nothing" if run is None or not self.is_running else run.position()
            raise RuntimeError(must_be("trial", rule, where, "Trainer", action))
        with self.silenced(), self.fit_loop.trial(run, reload=reload) as batches:
            yield batches

    def follow_samples(self) -> Callable[[], Any]:
        """Record which samples training batches hold; see `camshaft.hooks_core.protocols.SampleSource`.

        Returns:
            A function that tells the samples of the current batch.

        Raises:
            RuntimeError: If no fit runs whose loaders are there.
        """
        data = self.fit_loop.data if self.is_running else None
        if data is None or data.loader is None:
            action = "Use it in `on_fit_start`."
            rule = "used in fit, once the loaders are there"
            raise RuntimeError(must_be("follow_samples", rule, None, type(self).__qualname__, action))
        return data.follow_samples()

    @contextmanager
    def trial_step(self) -> Iterator[None]:
        """Undo what a callback's steps with the waiting batch change; see `TrainerProtocol.trial_step`. Collective.

        Raises:
            RuntimeError: If no fit runs.
        """
        run = self.current_run
        if run is None or not self.is_running or run.verb != "fit":
            action = "Use it in `on_train_batch_start`."
            raise RuntimeError(must_be("trial_step", "used in fit, while a batch waits", None, "Trainer", action))
        with self.silenced(), self.fit_loop.trial_step(run):
            yield

    @contextmanager
    def silenced(self) -> Iterator[None]:
        """Replace the loggers by ones that write nothing, for the length of a `with` statement."""
        loggers, self._loggers = self._loggers, [SilentLogger() for _ in self._loggers]
        try:
            yield
        finally:
            self._loggers = loggers

    def _started_run(self, method: str) -> Run:
        if self.current_run is None:
            rule = "attached by fit, validate, test or predict"
            raise RuntimeError(must_be("model", rule, None, f"Trainer.{method}", "Run one of them first."))
        if not (self.is_running or self.current_run.has_hooks):  # of a trainer that was copied or unpickled
            self.extend_run(self.current_run)
            self.current_run.resolve_hooks(())
            self.current_run.release_callbacks()
        return self.current_run

    # progress

    @property
    def current_epoch(self) -> int:
        """Index of the training epoch; after it has ended, of the next."""
        return self.fit_loop.current_epoch

    global_step: int = forwarded("fit_loop.progress.global_step", "Updates so far, whatever the number of optimizers.")
    should_stop: bool = forwarded(
        "fit_loop.should_stop", "True if training is to stop at the next opportunity; set it anywhere.", settable=True
    )
    is_preempted: bool = forwarded("fit_loop.is_preempted", "True if the fit ends, or ended, because of `preempt`.")

    @property
    def received_sigterm(self) -> bool:
        """True if the last fit got a SIGTERM that a `PreemptionCheckpoint` caught; without one SIGTERM ends it."""
        return any(getattr(callback, "received_sigterm", False) for callback in self.callbacks)

    is_last_batch: bool = forwarded(
        "fit_loop.is_last_batch", "True in the last batch of an epoch, where that is known."
    )

    # limits of fit; set them to train on in the next fit

    max_epochs: int | None = forwarded("fit_loop.max_epochs", "Epochs to train in all; -1 if unlimited.", settable=True)
    min_epochs: int | None = forwarded("fit_loop.min_epochs", "Epochs before `should_stop` counts.", settable=True)
    max_steps: int = forwarded("fit_loop.max_steps", "Maximum number of updates; -1 if unlimited.", settable=True)
    min_steps: int | None = forwarded("fit_loop.min_steps", "Updates before `should_stop` counts.", settable=True)

    # changes during a fit count at once

    check_val_every_n_epoch: int | None = _fit_limit("check_val_every_n_epoch", "Epochs between validations.")
    reload_dataloaders_every_n_epochs: int = _fit_limit(
        "reload_dataloaders_every_n_epochs", "Epochs after which loaders are asked for again; 0 asks once."
    )

    @property
    def num_sanity_val_steps(self) -> int | float:
        """Validation batches per loader of the sanity check; inf for all."""
        steps = self.fit_loop.limits.num_sanity_val_steps
        return float("inf") if steps == -1 else steps

    @num_sanity_val_steps.setter
    def num_sanity_val_steps(self, value: int | float) -> None:
        steps = -1 if value == float("inf") else value
        self.fit_loop.limits = self.fit_loop.limits.with_number("num_sanity_val_steps", steps)

    # changes during a fit count from the next time that loaders are asked for

    overfit_batches: int | float = _fit_limit("overfit_batches", "Part of an epoch that is repeated; 0 if none is.")
    val_check_interval: Any = _fit_limit("val_check_interval", "Interval of validations within an epoch.")
    limit_test_batches: int | float = forwarded(
        "test_loop.limit_batches", "Part of each test loader to take, as `limit_train_batches`.", settable=True
    )
    limit_predict_batches: int | float = forwarded(
        "predict_loop.limit_batches", "Part of each prediction loader to take, as `limit_train_batches`.", settable=True
    )

    @property
    def limit_train_batches(self) -> int | float:
        """Part of a training epoch to take: an int is a number of batches, a float a share."""
        return self.fit_loop.limits.train_limit[0]

    @limit_train_batches.setter
    def limit_train_batches(self, value: int | float) -> None:
        self.fit_loop.limits = self.fit_loop.limits.with_number("limit_train_batches", value)

    @property
    def limit_val_batches(self) -> int | float:
        """Part of each validation loader to take, in fit and in `validate`.

        In a fit that runs 0 ends validation at once, and another number after 0 begins it with the next epoch.
        """
        return self.validate_loop.limit_batches

    @limit_val_batches.setter
    def limit_val_batches(self, value: int | float) -> None:
        self.validate_loop.limit_batches = self.fit_loop.validation.limit_batches = value

    # optimization

    @property
    def optimizers(self) -> list[Any]:
        """Optimizers of the current or last fit. Set others in a fit that runs; see `FitLoop.replace_optimizers`."""
        optimizers: list[Any] = self.fit_loop.optimization.optimizers
        return optimizers

    @optimizers.setter
    def optimizers(self, optimizers: Sequence[Any]) -> None:
        self.fit_loop.replace_optimizers(optimizers)

    lr_scheduler_configs: list[Any] = forwarded(
        "fit_loop.optimization.schedulers", "Schedulers of the current or last fit, each with its settings."
    )

    accumulate_grad_batches: int = forwarded(
        "fit_loop.accumulate_grad_batches",
        """Batches whose gradients make one update.

        Set until `on_train_epoch_start`, it counts from the epoch's first batch on, else from the next epoch on. Set it
        in every process alike.

        Raises:
            TypeError, ValueError: On setting anything but a positive int, or a number that the running fit cannot have.
        """,
        settable=True,
    )

    @property
    def gradient_clip_val(self) -> float | None:
        """Maximum norm or absolute value of the gradients; None clips nothing. Changes count from the next update."""
        return self.fit_loop.settings.gradient_clip_val

    @gradient_clip_val.setter
    def gradient_clip_val(self, value: float | None) -> None:
        self.fit_loop.set_clipping(value, self.gradient_clip_algorithm)

    @property
    def gradient_clip_algorithm(self) -> str:
        """Algorithm of gradient clipping, "norm" or "value"; set as `gradient_clip_val`."""
        return self.fit_loop.settings.gradient_clip_algorithm

    @gradient_clip_algorithm.setter
    def gradient_clip_algorithm(self, value: str | None) -> None:
        self.fit_loop.set_clipping(self.gradient_clip_val, value)

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Number of updates of the whole fit, for schedulers; inf if it is unlimited.

        Every epoch counts with the current `accumulate_grad_batches`. Where the number of updates per epoch is unknown,
        as with a stream or batches that are split, it is `max_steps`.

        Raises:
            RuntimeError: Before `configure_optimizers`, when the training loader is not known yet.
        """
        loop = self.fit_loop
        if loop.loader is None:
            rule = "read from configure_optimizers on, when the training loader is known"
            action = "Move the code that needs it there."
            raise RuntimeError(must_be("estimated_stepping_batches", rule, None, "Trainer", action))
        limits, num_batches = loop.limits, loop.num_batches
        splits_batches = loop.settings.truncated_bptt_steps or getattr(self.model, "truncated_bptt_steps", None)
        if num_batches == float("inf") or splits_batches:
            return limits.step_limit if limits.epoch_limit else 0
        per_epoch = -(-num_batches // loop.accumulate_grad_batches)
        in_epochs = limits.epoch_limit * per_epoch if per_epoch else 0
        return min(in_epochs, limits.step_limit)

    @property
    def scaler(self) -> Any:
        """Gradient scaler with the methods of torch's `GradScaler`; None unless precision is mixed."""
        from camshaft.trainer.gradient_scaler import scaler_of  # rarely needed

        return scaler_of(self.strategy)

    # data

    num_training_batches: int | float = forwarded("fit_loop.num_batches", "Batches per training epoch; inf if unknown.")
    val_check_batch: int | float | None = forwarded(
        "fit_loop.num_batches_between_validations",
        "Batches between validations of fit, inf for an epoch of unknown length; None before loaders are there, and "
        "where time counts.",
    )
    num_val_batches: list[int | float] = forwarded("_validation_loop.num_batches", "Batches per validation loader.")
    num_sanity_val_batches: list[int | float] = forwarded(
        "fit_loop.num_sanity_batches", "Batches per validation loader that the sanity check takes."
    )
    num_test_batches: list[int | float] = forwarded("test_loop.num_batches", "Batches per test loader.")
    num_predict_batches: list[int | float] = forwarded("predict_loop.num_batches", "Batches per prediction loader.")

    @property
    def train_dataloader(self) -> Any:
        """Training loader of the current or last verb as it was given: one loader, a list or a dictionary.

        None before fit has asked for it, and in other verbs. With several processes each loader is replaced by this
        process's share of it; see `use_distributed_sampler`.
        """
        return self.fit_loop.given_loader if self._verb == "fit" else None

    @property
    def val_dataloaders(self) -> Any:
        """Validation loaders, as `train_dataloader`; None without any."""
        return self._validation_loop.given_loaders if self._verb in ("fit", "validate") else None

    @property
    def test_dataloaders(self) -> Any:
        """Test loaders, as `train_dataloader`."""
        return self.test_loop.given_loaders if self._verb == "test" else None

    @property
    def predict_dataloaders(self) -> Any:
        """Prediction loaders, as `train_dataloader`."""
        return self.predict_loop.given_loaders if self._verb == "predict" else None

    # the current or last run

    current_run: Run | None = forwarded("verb_state.run", "Current or last run; None before the first verb.")
    is_running: bool = forwarded("verb_state.is_running", "True while a verb runs.")
    is_replaying: bool = forwarded("verb_state.is_replaying", "True while a fit is made again; see `replay`.")
    model: Any = forwarded("current_run.module", "Module of the current or last verb, or None.", default=None)
    datamodule: Any = forwarded("current_run.data", "Data module of the current or last verb, or None.", default=None)
    _verb: str | None = forwarded("current_run.verb", "Current or last verb.", default=None)

    @property
    def state(self) -> TrainerState:
        """State of the trainer now: verb, stage, and how the last verb ended. Its parts equal strings such as "fit"."""
        return TrainerState(self.verb_state.status, TrainerFn(self._verb) if self._verb else None, self._stage)

    @property
    def interrupted(self) -> bool:
        """True if the last verb ended by an error, or because the user interrupted it."""
        return self.verb_state.status is TrainerStatus.INTERRUPTED

    @property
    def ckpt_path(self) -> str | os.PathLike[str] | None:
        """Path of the checkpoint that the current or last verb began with; None if with none.

        Set it, and every verb that is called without `ckpt_path` begins with that checkpoint, until it is set to None.
        """
        return self.verb_state.ckpt_path

    @ckpt_path.setter
    def ckpt_path(self, ckpt_path: str | os.PathLike[str] | None) -> None:
        self.verb_state.ckpt_path = self.verb_state.chosen_ckpt_path = ckpt_path

    # Set-up and end of a verb count to its stage, as do the hooks of fit between batches and validations.

    training: bool = _in_stage(RunningStage.TRAINING, doc="True in fit, but for sanity check and validation.")
    validating: bool = _in_stage(RunningStage.VALIDATING, doc="True in validation, within fit or by itself.")
    testing: bool = _in_stage(RunningStage.TESTING, doc="True in a test.")
    predicting: bool = _in_stage(RunningStage.PREDICTING, doc="True in prediction.")
    sanity_checking: bool = forwarded("fit_loop.sanity_checking", "True while the sanity check runs.")

    @property
    def evaluating(self) -> bool:
        """True in validation, test and the sanity check."""
        return self._stage is not None and self._stage.evaluating

    @property
    def _stage(self) -> RunningStage | None:
        run = self.current_run
        if run is None or not self.is_running:
            return None
        if self.sanity_checking:
            return RunningStage.SANITY_CHECKING
        return RunningStage(run.stage or ("train" if run.verb == "fit" else run.verb))

    @property
    def enable_validation(self) -> bool:
        """True if fit validates."""
        has_step = self.model is not None and is_overridden(self.model, "validation_step")
        return has_step and bool(self._validation_loop.loaders) and self.limit_val_batches != 0

    @property
    def hooks(self) -> Hooks:
        """The resolved hooks of the current run.

        Raises:
            RuntimeError: Before the first verb.
        """
        if self.current_run is None:
            raise RuntimeError(must_be("run", "started", None, "Trainer.hooks", "Call fit or another verb first."))
        return self.current_run.hooks

    @property
    def _validation_loop(self) -> EvaluationLoop:
        return self.validate_loop if self._verb == "validate" else self.fit_loop.validation

    # processes

    world_size: int = forwarded("strategy.world_size", "Number of processes.")
    global_rank: int = forwarded("strategy.global_rank", "Index of this process among all.")
    local_rank: int = forwarded("strategy.local_rank", "Index of this process on its machine.")

    num_nodes: int = _of_strategy(num_nodes_of, "Number of machines.")
    num_devices: int = _of_strategy(num_devices_of, "Number of processes per machine, each with a device.")
    device_ids: list[int] = _of_strategy(
        device_ids_of, "Index of each device of this machine that is used, from 0 where devices have no index."
    )
    precision: str | None = _of_strategy(
        precision_of, 'Name of the number format, such as "32-true"; None for a strategy of others that does not tell.'
    )

    @property
    def node_rank(self) -> int:
        """Index of this machine."""
        return self.global_rank // self.num_devices

    @property
    def is_global_zero(self) -> bool:
        """True on rank 0, which writes files."""
        return self.global_rank == 0

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int] | None:
        """Arguments of torch's `DistributedSampler` for this process's share of data; None on a single device."""
        if isinstance(self.strategy, SingleDeviceStrategy):
            return None
        return {"num_replicas": self.strategy.num_data_ranks, "rank": self.strategy.data_rank}

    @contextmanager
    def init_module(self, empty_init: bool | None = None) -> Iterator[None]:
        """Create tensors on the trainer's device and in its precision, for the length of a `with` statement.

        Args:
            empty_init: If true, functions of `torch.nn.init` leave memory as it is, for weights that are loaded
                afterwards.
        """
        from camshaft.trainer.init_module import tensors_created_for  # rarely needed

        with tensors_created_for(self.strategy, empty_init=bool(empty_init)):
            yield

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the first process of each machine, above the progress bar if there is one; arguments as Python's."""
        if self.local_rank != 0:
            return
        bar = self.progress_bar_callback
        if bar is not None and bar.is_enabled:
            bar.print(*args, **kwargs)
        else:
            print(*args, **kwargs)

    # metrics, loggers, files

    @property
    def callback_metrics(self) -> Mapping[str, Tensor]:
        """Every logged value by name."""
        return {} if self.metric_log is None else self.metric_log.callback_metrics

    @property
    def logged_metrics(self) -> Mapping[str, Any]:
        """Values that were last sent to the loggers."""
        return {} if self.metric_log is None else self.metric_log.logged_metrics

    @property
    def progress_bar_metrics(self) -> Mapping[str, float | int | str]:
        """Values that a progress bar shows; reading them waits for the device."""
        return {} if self.metric_log is None else self.metric_log.progress_bar_metrics

    @property
    def logger(self) -> Any:
        """The first logger, or None. Setting it replaces all, as setting `loggers` does."""
        return self._loggers[0] if self._loggers else None

    @logger.setter
    def logger(self, logger: Any) -> None:
        self.loggers = logger

    @property
    def loggers(self) -> list[Any]:
        """All loggers. Assign a logger, a list, True or False as to the constructor; None means none here.

        Raises:
            TypeError: On setting anything else.
        """
        return self._loggers

    @loggers.setter
    def loggers(self, loggers: Any) -> None:
        self._loggers = self._writing(choose_loggers(loggers or False, self.make_default_logger))
        if self.metric_log is not None:
            self.metric_log.write_to(self._loggers)

    def _writing(self, loggers: list[Any]) -> list[Any]:
        """Return the loggers; in a trial, and on all ranks but 0, as many that write nothing."""
        if self.fast_dev_run or not self.is_global_zero:
            return [SilentLogger() for _ in loggers]
        return loggers

    @property
    def log_every_n_steps(self) -> int:
        """Updates between two entries of step values in the loggers; 0 for none. Changes count at once.

        Raises:
            TypeError, ValueError: On setting anything but an int of at least 0.
        """
        return self._log_every_n_steps

    @log_every_n_steps.setter
    def log_every_n_steps(self, value: int) -> None:
        self._log_every_n_steps = choose_log_interval(value)
        if self.metric_log is not None:
            self.metric_log.send_every(self._log_every_n_steps)

    default_root_dir: str = forwarded("_default_root_dir", "Directory of files by default.")

    @property
    def log_dir(self) -> str:
        """Directory of the first logger's run; the default directory if no logger writes to disk.

        With several processes that of rank 0, once a verb has begun.
        """
        if self.verb_state.log_dir is not None:
            return self.verb_state.log_dir
        return self.find_log_dir()

    @property
    def checkpoint_dir(self) -> str:
        """Directory of checkpoints whose callback has no `dirpath`: "checkpoints" in `log_dir`."""
        return join(self.log_dir, "checkpoints")

    def find_log_dir(self) -> str:
        """Return the directory of the first logger's run, else the default directory; `log_dir` on one process."""
        return getattr(self.logger, "log_dir", None) or self._default_root_dir

    @property
    def profiler(self) -> Any:
        """The profiler, whose `profile("name")` measures a part of a step; without one it is one that does nothing."""
        if not isinstance(self._profiler, stock.ActionProfiler):
            return stock.PassThroughProfiler()
        return self._profiler

    # callbacks

    @property
    def checkpoint_callback(self) -> Checkpoint | None:
        """The first callback that saves checkpoints, such as a `ModelCheckpoint`, or None."""
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def checkpoint_callbacks(self) -> list[Checkpoint]:
        """Every callback that saves checkpoints: whose base class is `Checkpoint`, as that of `ModelCheckpoint`."""
        return [callback for callback in self.callbacks if isinstance(callback, stock.Checkpoint)]

    @property
    def early_stopping_callback(self) -> EarlyStopping | None:
        """The first `EarlyStopping`, or None."""
        return next(iter(self.early_stopping_callbacks), None)

    @property
    def early_stopping_callbacks(self) -> list[EarlyStopping]:
        """Every `EarlyStopping`."""
        return [callback for callback in self.callbacks if isinstance(callback, stock.EarlyStopping)]

    @property
    def progress_bar_callback(self) -> ProgressBar | None:
        """The first progress bar, or None."""
        return next((callback for callback in self.callbacks if isinstance(callback, stock.ProgressBar)), None)
