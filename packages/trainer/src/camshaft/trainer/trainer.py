"""The trainer: puts loops, strategy, callbacks, loggers and metric log together, and runs the four verbs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

import camshaft.callbacks as stock  # imports its exports on access
from camshaft.callbacks.arguments import usable_path
from camshaft.hooks_core import CATALOGUE, Catalogue, Hooks
from camshaft.hooks_core.spec import Verb, ZeroGrad
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.remote_files import absolute, join, replace_file
from camshaft.loops import (
    EvaluationLoop,
    FitLimits,
    FitLoop,
    LoaderSettings,
    OptimizationSettings,
    PredictLoop,
    Run,
    SaveOnly,
    SaveRequest,
    StatelessLoaders,
    TestLoop,
    ValidationLoop,
    run_verb,
)
from camshaft.loops.data.fit_data import FitData
from camshaft.loops.metrics import EpochEndReduction, MetricLog
from camshaft.trainer.checkpoints import CheckpointFormat
from camshaft.trainer.configuration import (
    check_barebones,
    check_fast_dev_run,
    check_save_only,
    choose_callbacks,
    choose_evaluation_loops,
    choose_log_interval,
    choose_profiler,
    choose_strategy,
    limits_of_trial,
    made_callbacks,
    num_devices_of,
    num_nodes_of,
    precision_of,
    settings_of,
    switches,
    with_profiler,
)
from camshaft.trainer.forwarding import forwarded, with_arguments_of
from camshaft.trainer.hyperparameters import DATA_PREFIX, hyperparameters_for_checkpoints
from camshaft.trainer.loggers import SilentLogger, begin_verb, choose_loggers, log_hyperparameters
from camshaft.trainer.results import fit_summary, print_results
from camshaft.trainer.running import VerbCall, VerbState, running, warn_if_done
from camshaft.trainer.states import RunningStage, TrainerFn, TrainerState, TrainerStatus

if TYPE_CHECKING:
    from camshaft.callbacks import Checkpoint, EarlyStopping, ProgressBar
    from camshaft.trainer.preflight import Report


@with_arguments_of(FitLimits, OptimizationSettings, LoaderSettings)
class Trainer:
    """Trains, validates, tests and predicts with a module.

    Names and meanings follow Lightning 2.x wherever the concept is the same. Every argument is keyword-only.

    A subclass may override `connect`, `extend_run`, `checkpoint_formats`, `objects_in_place` and `checkpoint_facts` to
    run modules and read checkpoints that were written for something else, and `make_default_logger`, `begin_logging`,
    `loop_classes` and `saves_each_row`.

    Args:
        accelerator: Kind of device: "cpu", a type of `torch.accelerator` such as "cuda", "mps" or "xpu", "gpu" (that of
            this machine) or "auto", the best there is.
        strategy: Strategy, by name or as object: "single_device", "ddp", "ddp_find_unused_parameters_true", "ddp_fork"
            or "ddp_notebook" (DDP whose processes are forks), "sharded" or "fsdp" (the same), with its defaults; or
            "auto": one device, or DDP where there are more or where several processes were started. Other names, here
            and for `precision`, `logger` and `callbacks`, are those that installed distributions register;
            `python -m camshaft.trainer plugins` lists them.
        devices: Devices per machine; each has a process. Or a list of their indexes; -1 for all. "auto" is as many as
            processes were started; without a launcher, all GPUs or one CPU. More than were started are started by the
            first verb, which runs the script once for each and then leaves it. In a notebook, and with "ddp_fork", each
            verb runs in forks instead, see `camshaft.strategies.ParallelStrategy.run_in_forks`, and comes back with the
            weights, metrics, progress and states of callbacks of rank 0.
        num_nodes: Number of machines; each needs torchrun, or SLURM, to start processes.
        precision: Number format: "32-true", "16-mixed", "bf16-mixed", "bf16-true", "16-true" or "64-true"; None means
            32-true, or that of the strategy object.
        compile: Compile the modules that steps call, by `torch.compile`: the module itself, its children and members of
            lists, or the blocks that are sharded. True, or a dictionary of arguments of `torch.compile` and perhaps
            "policy"; see `camshaft.strategies.TorchStrategy`. None means that of the strategy object, or nothing.
        sync_batchnorm: Synchronize batch norm; statistics are of the batches of all processes.
        logical_ranks: Number of data-parallel ranks that the run is defined on, a power of two. Any number of processes
            that divides it plays them, with the same bits; hooks of batches are called for each. None trains as many
            ranks as there are processes.
        fast_dev_run: Trial run of one or n batches; True takes one batch of every loader, an int so many, in one epoch
            without a sanity check. Loggers write nothing, callbacks neither stop nor save. Replaces all limits.
        limit_val_batches: Validation batches: an int is a number per loader, a float a share; 0 trains without
            validation.
        limit_test_batches: Test batches: as `limit_val_batches`.
        limit_predict_batches: Prediction batches: as `limit_val_batches`.
        inference_mode: Use `torch.inference_mode`; if false, evaluation runs under `torch.no_grad`, as always inside
            fit.
        logger: Loggers: one, a list of them, None or True for a CSV logger, False for none; a name stands for a stock
            logger, by its class, or a registered one. With several processes those of rank 0 write; other ranks have
            loggers that ignore every call.
        callbacks: Callbacks: one or a list of them, in the order in which they run; a name stands for a stock callback,
            by its class, or a registered one, made without arguments.
        log_every_n_steps: Updates between logged steps; 0 logs the values of epochs only. None means 50.
        enable_checkpointing: Save checkpoints; if true or None, a `ModelCheckpoint` is added unless one was passed.
        enable_progress_bar: Show a progress bar; if true or None, a `RichProgressBar` is added unless one was passed.
            With a progress bar, fit ends with a summary of a few lines.
        enable_model_summary: Show a model summary; if true, a `ModelSummary` is added unless one was passed; None adds
            it where there is a progress bar. One that was passed is printed in any case.
        save_only: Parameters that checkpoints hold: "trainable" for those that require gradients or that an optimizer
            holds, such as adapters over a frozen base, or a function that is true of the names to keep. Loading such a
            checkpoint leaves the others as the module made them. Buffers are always kept; None keeps all.
        report: Folder for curves; all logged values are drawn there as PNG files when a verb ends, see
            `camshaft.callbacks.CurveReport`. None draws nothing.
        enable_autolog_hparams: Log hyperparameters; loggers get those of module and data module when a verb begins.
        default_root_dir: Default folder or URL ("s3://bucket/run") of files; "~" is the home directory, None the
            working directory.
        deterministic: Deterministic algorithms; if true, operations without one raise; "warn" lets them warn; see
            `camshaft.trainer.TorchSwitches`, as for the next two. None leaves it as the process has it.
        benchmark: Let cuDNN search algorithms; it takes the fastest. None leaves it as the process has it.
        detect_anomaly: Find the cause of NaN; backward names the operation whose gradient is NaN; slow.
        profiler: Profiler: "simple" times hooks, "advanced" runs them under cProfile, "pytorch" under torch's profiler;
            or an object such as `PyTorchProfiler`, or a callback that measures, such as `HookTimeline`.
        barebones: Attach nothing; no logger, checkpoint, progress bar, sanity check or metric log. Values that a module
            logs are then in its `logged_metrics` only.
        strict_hooks: Refuse faulty hooks; a method that looks like a hook and is none, or a hook of the wrong arity, is
            an error; if false it is a warning and left out.
        catalogue: Hooks that there are: a copy of `camshaft.hooks_core.CATALOGUE` in which further hooks were
            registered; `trainer.hooks` calls them. None means those of the process.

    Attributes:
        fit_loop, validate_loop, test_loop, predict_loop: Loops of the verbs.
        metric_log: The metric log; None with `barebones`.
        verb_state: State of the verb that runs, or ran last.
        given_arguments: Arguments of the constructor by name, by which `preflight` makes the trainer of another rank.

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
    """If true, loggers save after each row of metrics, rather than at the ends of epochs."""

    __slots__ = (
        *("__weakref__", "_barebones", "_callbacks", "_default_root_dir", "_fast_dev_run", "_log_every_n_steps"),
        *("_loggers", "_profiler", "_strategy", "enable_autolog_hparams", "fit_loop", "given_arguments", "metric_log"),
        *("catalogue", "predict_loop", "save_only", "strict_hooks", "test_loop", "validate_loop", "verb_state"),
    )

    strategy: Any = forwarded("_strategy", "The strategy, as passed or chosen from the arguments.")
    fast_dev_run: bool | int = forwarded(
        "_fast_dev_run", "Number of batches of a trial run, or True for one; False without."
    )
    barebones: bool = forwarded("_barebones", "True if nothing is attached.")

    def __init__(
        self,
        *,
        accelerator: str = "auto",
        strategy: Any = "auto",
        devices: Any = "auto",
        num_nodes: int = 1,
        precision: Any = None,
        compile: bool | Mapping[str, Any] | None = None,
        use_distributed_sampler: bool = True,
        sync_batchnorm: bool = False,
        logical_ranks: int | None = None,
        agree_every_n_batches: int | None = None,
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
        inference_mode: bool = True,
        accumulate_grad_batches: int = 1,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
        zero_grad: ZeroGrad | None = None,
        truncated_bptt_steps: int | None = None,
        reload_dataloaders_every_n_epochs: int = 0,
        stateless_loaders: StatelessLoaders = "refuse",
        logger: Any = None,
        callbacks: Any = None,
        log_every_n_steps: int | None = None,
        enable_checkpointing: bool | None = None,
        enable_progress_bar: bool | None = None,
        enable_model_summary: bool | None = None,
        save_only: SaveOnly | None = None,
        report: str | os.PathLike[str] | None = None,
        enable_autolog_hparams: bool = True,
        default_root_dir: str | os.PathLike[str] | None = None,
        deterministic: bool | str | None = None,
        benchmark: bool | None = None,
        detect_anomaly: bool = False,
        profiler: Any = None,
        barebones: bool = False,
        strict_hooks: bool = True,
        catalogue: Catalogue | None = None,
    ) -> None:
        self.given_arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        callbacks = made_callbacks(callbacks)
        if barebones:
            check_barebones(locals())
            logger = enable_checkpointing = enable_progress_bar = enable_model_summary = False
            num_sanity_val_steps = log_every_n_steps = 0
        given = locals()
        self._barebones, self.strict_hooks = barebones, strict_hooks
        self.save_only = check_save_only(save_only)
        self.catalogue = CATALOGUE if catalogue is None else catalogue
        self.verb_state = VerbState()
        self._default_root_dir = absolute(usable_path("default_root_dir", default_root_dir or os.curdir, "Trainer"))
        self._strategy = choose_strategy(
            strategy,
            accelerator=accelerator,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            compile=compile,
            sync_batchnorm=bool(sync_batchnorm),
            logical_ranks=logical_ranks,
        )
        self._fast_dev_run = check_fast_dev_run(fast_dev_run)
        self.enable_autolog_hparams = enable_autolog_hparams
        self._profiler = choose_profiler(profiler)
        self._loggers = self._writing(choose_loggers(logger, self.make_default_logger, self._default_root_dir, report))
        self._callbacks = choose_callbacks(
            [
                *with_profiler(callbacks, self._profiler, self.strategy),
                *switches(deterministic, benchmark, detect_anomaly),
            ],
            enable_progress_bar=enable_progress_bar,
            enable_model_summary=enable_model_summary,
            enable_checkpointing=enable_checkpointing,
            catalogue=self.catalogue,
        )
        limits = settings_of(FitLimits, given)
        if self.fast_dev_run:
            limits = limits_of_trial(limits, int(self.fast_dev_run))
        validation, self.validate_loop, self.test_loop, self.predict_loop = choose_evaluation_loops(
            given,
            overfit_batches=limits.overfit_batches,
            num_trial_batches=int(self.fast_dev_run),
            classes=self.loop_classes[1:],
        )
        self.fit_loop = self.loop_classes[0](
            limits, settings_of(OptimizationSettings, given), settings_of(LoaderSettings, given), validation
        )
        self._log_every_n_steps = choose_log_interval(log_every_n_steps)
        self.metric_log: MetricLog | None = None
        if not barebones:
            log_class: type[MetricLog] = MetricLog
            if self.num_logical_ranks is not None:
                from camshaft.loops.metrics.logical_ranks import LogicalMetricLog

                log_class = LogicalMetricLog
            self.metric_log = log_class(
                loggers=self._loggers,
                log_every_n_steps=self._log_every_n_steps,
                progress=self.fit_loop.progress,
                strategy=self.strategy,
                saves_each_row=self.saves_each_row,
            )
            if self.world_size > 1 or self.num_logical_ranks is not None:
                self.callbacks.insert(0, EpochEndReduction(self.metric_log))

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
        step = (run.checkpoint or {}).get("global_step", 0)
        is_resumed = run.verb == "fit" and self.verb_state.is_continuing
        begin_verb(self.loggers, run.module, run.verb, int(step) if is_resumed else None)

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
        if self._starts_by_forks:
            self._run_in_forks("fit", locals())
            return
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
        if self._starts_by_forks:
            results: list[dict[str, float]] = self._run_in_forks("validate", locals())
            return results
        call = VerbCall("validate", model, {"validate": dataloaders}, datamodule, ckpt_path, weights_only)
        with running(self, call) as run:
            self.begin_logging(run)
            results = run_verb(run, self.validate_loop)
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
        if self._starts_by_forks:
            results: list[dict[str, float]] = self._run_in_forks("test", locals())
            return results
        call = VerbCall("test", model, {"test": dataloaders}, datamodule, ckpt_path, weights_only)
        with running(self, call) as run:
            self.begin_logging(run)
            results = run_verb(run, self.test_loop)
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
            The predictions on the CPU, as a list with an item per batch, or a list of such lists for several loaders;
            None if they are not wanted.
        """
        if self._starts_by_forks:
            return self._run_in_forks("predict", locals())
        self.predict_loop.return_predictions = return_predictions is None or return_predictions
        self.predict_loop.gather = gather
        call = VerbCall("predict", model, {"predict": dataloaders}, datamodule, ckpt_path, weights_only)
        with running(self, call) as run:
            self.begin_logging(run)
            return run_verb(run, self.predict_loop)

    @property
    def _starts_by_forks(self) -> bool:
        """True if verbs run in forks of this process, which are the ranks, as in a notebook."""
        return getattr(self.strategy, "start_method", None) == "fork"

    def _run_in_forks(self, verb: Verb, arguments: Mapping[str, Any]) -> Any:
        from camshaft.trainer.forks import run_in_forks  # rarely needed

        return run_in_forks(self, verb, arguments)

    def preflight(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        *,
        world_size: int = 1,
        devices_per_node: int = 8,
        device: str = "h100",
        verbose: bool = True,
        json: str | os.PathLike[str] | None = None,
    ) -> Report:
        """Find out what a fit with these arguments needs on many devices, without them.

        The fit runs for two updates, a validation and a save in this process, as the first of many ranks: on fake
        tensors, which have no memory, and a fake process group. Module, data and trainer stay as they are, and loggers
        and checkpoint callbacks write nothing; copies of all callbacks run.

        Args:
            model: The module, or a function that makes it on fake tensors, for one that is too large for this machine.
            train_dataloaders, val_dataloaders, datamodule: As for `fit`; some batches of theirs are read.
            world_size: The number of ranks, each with a device.
            devices_per_node: The number of devices of a machine.
            device: The kind of device, whose memory and speed count; one of `camshaft.trainer.preflight.DEVICES`.
            verbose: If true, the report is printed.
            json: A file for the report as JSON, or its URL; None for none.

        Returns:
            The report. `str()` is the page, `as_json()` and `as_dict()` give its values.

        Raises:
            TypeError: If the strategy is none of `camshaft.strategies`.
            ValueError: If a number is out of range, the device is unknown, or the strategy does not fit the ranks.
            RuntimeError: If this process has joined a process group.
        """
        from camshaft.trainer.preflight import preflight  # slow to import

        numbers: Any = {"world_size": world_size, "devices_per_node": devices_per_node, "device": device}
        report = preflight(self, model, train_dataloaders, val_dataloaders, datamodule, **numbers)
        if verbose:
            print(report)
        if json is not None:
            with replace_file(usable_path("json", json, "preflight")) as fresh:
                fresh.write_text(report.as_json(), encoding="utf-8")
        return report

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

        A validation that is due by then runs first; no other does.

        Any one process may call it at any time, as in a handler of SIGTERM; all of them follow at their next agreement,
        a moment later. Where nothing is being trained, it warns.

        Args:
            path: The checkpoint to write; `fit(ckpt_path=path)` resumes from it exactly.
        """
        run = self.current_run
        if run is None or not self.is_running or run.verb != "fit":
            warn_user(f"`preempt` has no effect, as no fit runs: {os.fspath(path)!r} is not saved. Call it during fit.")
            return
        run.preempt(usable_path("path", path, "preempt"))

    @contextmanager
    def trial(self, *, reload: bool = False) -> Iterator[Iterable[Any]]:
        """Yield training batches for steps that a callback makes; see `TrainerProtocol.trial`. Collective.

        Raises:
            RuntimeError: If no fit runs whose loaders are there, or a batch is being trained.
        """
        run = self._running_fit("trial", "Use it in `on_fit_start`, `on_train_start` or `on_train_epoch_start`.")
        if run.batch_idx is not None:
            rule, action = "used while no batch is trained", "Use it in `on_train_epoch_start`."
            raise RuntimeError(must_be("trial", rule, run.position(), "Trainer", action))
        with self.silenced(), self.fit_loop.trial(run, reload=reload) as batches:
            yield batches

    def follow_samples(self) -> Callable[[], Any]:
        """Record which samples training batches hold; see `camshaft.hooks_core.protocols.SampleSource`.

        Returns:
            A function that tells the samples of the current batch.

        Raises:
            RuntimeError: If no fit runs whose loaders are there.
        """
        return self._loaded_data("follow_samples").follow_samples()

    def watch_data(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Call functions around the wait for each training batch; see `camshaft.hooks_core.protocols.DataSource`.

        Raises:
            RuntimeError: If no fit runs whose loaders are there.
        """
        self._loaded_data("watch_data").watch_data(before, after)

    @contextmanager
    def trial_step(self) -> Iterator[None]:
        """Undo what a callback's steps with the waiting batch change; see `TrainerProtocol.trial_step`. Collective.

        Raises:
            RuntimeError: If no fit runs.
        """
        run = self._running_fit("trial_step", "Use it in `on_train_batch_start`.")
        with self.silenced(), self.fit_loop.trial_step(run):
            yield

    @contextmanager
    def silenced(self) -> Iterator[None]:
        """Replace the loggers by ones that write nothing, for the length of a `with` statement."""
        loggers = self._loggers
        self._log_to([SilentLogger() for _ in loggers])
        try:
            yield
        finally:
            self._log_to(loggers)

    def _loaded_data(self, method: str) -> FitData:
        action, data = "Use it in `on_fit_start`.", self.fit_loop.data
        self._running_fit(method, action)
        if data is None or data.loader is None:
            raise RuntimeError(must_be(method, "used once the loaders are there", None, "Trainer", action))
        return data

    def _running_fit(self, method: str, action: str) -> Run:
        run = self.current_run
        if run is None or not self.is_running or run.verb != "fit":
            verb = run.verb if run is not None and self.is_running else None
            raise RuntimeError(must_be(method, "used during fit", verb, "Trainer", action))
        return run

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

    is_last_batch: bool = forwarded(
        "fit_loop.is_last_batch", "True in the last batch of an epoch, where that is known."
    )

    # limits of fit; set them to train on in the next fit

    max_epochs: int | None = forwarded("fit_loop.max_epochs", "Maximum epochs; -1 if unlimited.", settable=True)
    min_epochs: int | None = forwarded("fit_loop.limits.min_epochs", "Minimum epochs.", settable=True)
    max_steps: int = forwarded("fit_loop.limits.max_steps", "Maximum updates; -1 if unlimited.", settable=True)
    min_steps: int | None = forwarded("fit_loop.limits.min_steps", "Minimum updates.", settable=True)

    # changes during a fit count at once

    check_val_every_n_epoch: int | None = forwarded(
        "fit_loop.limits.check_val_every_n_epoch", "Epochs between validations.", settable=True
    )
    reload_dataloaders_every_n_epochs: int = forwarded(
        "fit_loop.limits.reload_dataloaders_every_n_epochs",
        "Epochs between requests for loaders; 0 requests them once.",
        settable=True,
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

    overfit_batches: int | float = forwarded(
        "fit_loop.limits.overfit_batches", "Part of an epoch that is repeated; 0 if none is.", settable=True
    )
    val_check_interval: Any = forwarded(
        "fit_loop.limits.val_check_interval", "Interval of validations within an epoch.", settable=True
    )
    limit_test_batches: int | float = forwarded(
        "test_loop.limit_batches", "Part of each test loader to take, as `limit_train_batches`.", settable=True
    )
    limit_predict_batches: int | float = forwarded(
        "predict_loop.limit_batches", "Part of each prediction loader to take, as `limit_train_batches`.", settable=True
    )

    @property
    def limit_train_batches(self) -> int | float:
        """Part of a training epoch to take; an int is a number of batches, a float a share."""
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
            raise RuntimeError(
                "`estimated_stepping_batches` is not known before `configure_optimizers`, when the training loader is. "
                "Move the code that needs it there."
            )
        limits, num_batches = loop.limits, loop.num_batches
        splits_batches = loop.settings.truncated_bptt_steps or getattr(self.model, "truncated_bptt_steps", None)
        if num_batches == float("inf") or splits_batches:
            return limits.step_limit if limits.epoch_limit else 0
        per_epoch = -(-num_batches // loop.accumulate_grad_batches)
        in_epochs = limits.epoch_limit * per_epoch if per_epoch else 0
        return min(in_epochs, limits.step_limit)

    # data

    num_training_batches: int | float = forwarded("fit_loop.num_batches", "Batches per training epoch; inf if unknown.")
    num_val_batches: list[int | float] = forwarded("_validation_loop.num_batches", "Batches per validation loader.")
    num_sanity_val_batches: list[int | float] = forwarded(
        "fit_loop.num_sanity_batches", "Batches per validation loader that the sanity check takes."
    )
    num_test_batches: list[int | float] = forwarded("test_loop.num_batches", "Batches per test loader.")
    num_predict_batches: list[int | float] = forwarded("predict_loop.num_batches", "Batches per prediction loader.")

    @property
    def train_dataloader(self) -> Any:
        """Training loader of the current or last verb as it was given (one loader, a list or a dictionary).

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
    is_replaying: bool = forwarded("verb_state.is_replaying", "True while a fit is made again, which writes nothing.")
    model: Any = forwarded("current_run.module", "Module of the current or last verb, or None.", default=None)
    datamodule: Any = forwarded("current_run.data", "Data module of the current or last verb, or None.", default=None)
    _verb: str | None = forwarded("current_run.verb", "Current or last verb.", default=None)

    @property
    def state(self) -> TrainerState:
        """Verb, stage, and how the last verb ended. Its parts equal strings such as "fit"."""
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

    @property
    def training(self) -> bool:
        """True in fit, but for sanity check and validation."""
        return self._stage is RunningStage.TRAINING

    @property
    def validating(self) -> bool:
        """True in validation, within fit or by itself."""
        return self._stage is RunningStage.VALIDATING

    @property
    def testing(self) -> bool:
        """True in a test."""
        return self._stage is RunningStage.TESTING

    @property
    def predicting(self) -> bool:
        """True in prediction."""
        return self._stage is RunningStage.PREDICTING

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

    @property
    def _accelerator_connector(self) -> SimpleNamespace:
        """Return what Optuna's callback for Lightning reads of the private part that has this name there."""
        return SimpleNamespace(is_distributed=self.strategy.world_size > 1)

    @property
    def num_logical_ranks(self) -> int | None:
        """Number of logical ranks that the run is defined on; None without."""
        return getattr(self.strategy, "num_logical_ranks", None)

    @property
    def logical_rank(self) -> int | None:
        """The logical rank for which a hook or step runs now; None outside of steps, and without logical ranks."""
        ranks = None if self.current_run is None else self.current_run.logical
        return None if ranks is None else ranks.current

    @property
    def num_nodes(self) -> int:
        """Number of machines."""
        return num_nodes_of(self.strategy)

    @property
    def num_devices(self) -> int:
        """Number of processes per machine, each with a device."""
        return num_devices_of(self.strategy)

    @property
    def precision(self) -> str | None:
        """Name of the number format, such as "32-true"; None for a strategy of others that does not tell."""
        return precision_of(self.strategy)

    @property
    def is_global_zero(self) -> bool:
        """True on rank 0, which writes files."""
        return self.global_rank == 0

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
        self._log_to(self._writing(choose_loggers(loggers or False, self.make_default_logger, self._default_root_dir)))

    def _log_to(self, loggers: list[Any]) -> None:
        self._loggers = loggers
        if self.metric_log is not None:
            self.metric_log.write_to(loggers)

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
        """Directory of checkpoints whose callback has no `dirpath`, which is "checkpoints" in `log_dir`."""
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
    def callbacks(self) -> list[Any]:
        """All callbacks, in the order in which they run.

        Raises:
            RuntimeError: On setting them while a verb runs, once its `setup` is over.
        """
        return self._callbacks

    @callbacks.setter
    def callbacks(self, callbacks: list[Any]) -> None:
        if not self.is_running:
            self._callbacks = callbacks
            return
        if not getattr(self.current_run, "takes_callbacks", False):
            action = "Set them before, or let `configure_callbacks` of the module return them."
            raise RuntimeError(must_be("callbacks", "set while no verb runs", callbacks, "Trainer", action))
        self._callbacks[:] = callbacks  # the list that the run has as well

    @property
    def checkpoint_callback(self) -> Checkpoint | None:
        """The first callback that saves checkpoints, such as a `ModelCheckpoint`, or None."""
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def checkpoint_callbacks(self) -> list[Checkpoint]:
        """Every callback whose base class is `Checkpoint`, as that of `ModelCheckpoint`."""
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
