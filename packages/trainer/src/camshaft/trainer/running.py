"""What surrounds every verb of a trainer: its run is put together, attached, and closed whatever happens."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from camshaft.hooks_core import is_overridden
from camshaft.hooks_core.messages import must_be, warn_user
from camshaft.hooks_core.processes import OrderlyExit
from camshaft.hooks_core.protocols import PendingSave
from camshaft.hooks_core.spec import Verb
from camshaft.loops import FitLoop, Run, SaveRequest, run_verb
from camshaft.loops.evaluation.loops import ModuleModes
from camshaft.loops.state.metric_state import metric_states, restore_metric_states
from camshaft.trainer.checkpoints import best_of_last_fit, checkpoint_of, read_requested
from camshaft.trainer.data_module import DataModule, attach_data_module
from camshaft.trainer.loggers import SilentLogger, finalize_loggers, share_log_dir
from camshaft.trainer.module import TrainingModule, attach_module
from camshaft.trainer.results import print_results
from camshaft.trainer.trial_batches import in_trial
from camshaft.trainer.view import TrainerView

if TYPE_CHECKING:
    from camshaft.trainer.trainer import Trainer


_fit_idxs = count()
"""Numbers the fits of this process, whatever trainers they are of: a script that runs again has the same ones."""


class VerbRunner(TrainerView):
    """The part of a trainer that stands around its verbs."""

    strict_hooks: bool
    _is_running: bool
    _fitted: nn.Module | None
    _fit_idx: int
    _was_interrupted: bool = False

    @contextmanager
    def _running(
        self,
        verb: Verb,
        model: Any,
        loaders: dict[str, Any],
        datamodule: Any,
        ckpt_path: str | os.PathLike[str] | None,
        weights_only: bool | None,
    ) -> Iterator[Run]:
        """Everything attached for one verb, and loggers closed at its end.

        What another trainer that runs has is given back to it.
        """
        if self._is_running:
            rule = "called when no verb of the trainer is running"
            action = "Use another trainer inside of hooks."
            raise RuntimeError(must_be(verb, rule, self._run and self._run.verb, "Trainer", action))
        module, trainer = choose_module(verb, model, self.model), cast("Trainer", self)
        borrowed = Borrowed(module, trainer)
        try:
            of_call = (loaders, datamodule, ckpt_path, weights_only)
            with self._attached(verb, module, model is None, borrowed, *of_call) as run:
                yield run
        finally:
            borrowed.give_back(was_trained=verb == "fit")

    @contextmanager
    def _attached(
        self,
        verb: Verb,
        module: nn.Module,
        is_previous: bool,
        borrowed: Borrowed,
        *of_call: Any,
    ) -> Iterator[Run]:
        trainer = cast("Trainer", self)
        attach_module(module, trainer, self._metric_log)  # before it joins the processes, if it does that itself
        self.connect(module)
        self._log_dir = share_log_dir(self.strategy, self._loggers, self._default_root_dir)
        run = self._new_run(verb, module, is_previous, *of_call)
        self._run, self._is_running = run, True
        borrowed.take_data(run.data)
        if isinstance(run.data, DataModule):
            attach_data_module(run.data, trainer)
        if self._metric_log is not None:
            self._metric_log.clear(run.module)
        raised: BaseException | None = None
        try:
            yield run
        except OrderlyExit:
            raise
        except BaseException as error:
            raised = error
            raise
        finally:
            self._is_running = False
            run.stage = None
            run.forget_saves()  # of a verb that failed before it could begin
            finalize_loggers(self.loggers, raised)

    def _new_run(
        self,
        verb: Verb,
        module: nn.Module,
        is_previous: bool,
        loaders: dict[str, Any],
        datamodule: Any,
        ckpt_path: str | os.PathLike[str] | None,
        weights_only: bool | None,
    ) -> Run:
        previous_data = self.datamodule if module is self.model else None
        loaders, data = choose_data(verb, loaders, datamodule, previous_data)
        if is_previous and ckpt_path is None and verb != "fit" and module is self._fitted:
            ckpt_path = best_of_last_fit(self, verb)
        if verb == "fit":
            self._fit_idx = next(_fit_idxs)
        run = Run(
            verb=verb,
            module=module,
            strategy=self.strategy,
            trainer=self,
            callbacks=self.callbacks,
            data=data,
            loaders=loaders,
            metrics=None if verb == "predict" else self._metric_log,  # logging is an error there
            checkpoint=read_requested(self, ckpt_path, verb, self._fit_idx, weights_only),
            write_checkpoint=self._write_checkpoint,
            strict_hooks=self.strict_hooks,
            epoch=self.fit_loop.progress.current_epoch,
            is_connected=True,
        )
        self.extend_run(run)
        return run

    def connect(self, module: nn.Module) -> None:
        """Join the processes that train together, before a verb begins; override it to do more. Collective.

        Args:
            module: The module of the verb, which knows the trainer by now.
        """
        self.strategy.connect()

    def extend_run(self, run: Run) -> None:
        """Override it to add to a run: readers of receivers, adapters, a factory for the optimization; see `Run`.

        Nothing by default. It is called once for each verb, before the hooks of the run are resolved.

        Args:
            run: The run that is to begin.
        """

    @property
    def interrupted(self) -> bool:
        """Whether the user interrupted the latest fit."""
        return self._was_interrupted

    @contextmanager
    def _noting_interrupt(self) -> Iterator[None]:
        self._was_interrupted = False
        try:
            yield
        except KeyboardInterrupt:
            self._was_interrupted = True
            raise

    def _shown(self, results: list[dict[str, float]], verb: Verb, verbose: bool) -> list[dict[str, float]]:
        """What an evaluation logged, a dictionary per loader, after it is printed on the first process."""
        if verbose and self.is_global_zero:
            print_results(results, verb)
        return results

    def save_checkpoint(
        self, path: str | os.PathLike[str], weights_only: bool = False, on_saved: Callable[[], None] | None = None
    ) -> None:
        """Save a checkpoint. Collective.

        While batches run this is a request: it is carried out at the next save point, after every hook of the batch and
        the validation that it triggered, or of the epoch's end. Otherwise it is carried out at once.

        Args:
            path: The file; a directory if the state is sharded.
            weights_only: Whether to leave out what only matters for resuming.
            on_saved: Called when it is durable.

        Raises:
            RuntimeError: If this trainer has no module yet.
        """
        run = self._run_of("save_checkpoint")
        run.request_save(SaveRequest(os.fspath(path), weights_only, on_saved))
        if not self._is_running:
            run.finish_saving()  # no verb does it

    def after_batch(self, function: Callable[[], None]) -> None:
        """Call a function when the training batch and the validation that it triggers are over; see `Run.after_batch`.

        Args:
            function: What is called. `save_checkpoint` in it asks for a checkpoint of that batch.

        Raises:
            RuntimeError: If this trainer has no module yet.
        """
        self._run_of("after_batch").after_batch(function)

    def at_save_point(self, function: Callable[[], None]) -> None:
        """Call a function where a checkpoint that is asked for now would be written. Collective.

        Args:
            function: What is called. A checkpoint that it saves is written before `save_checkpoint` returns, so that
                the function may change weights for it and put them back.

        Raises:
            RuntimeError: If this trainer has no module yet.
        """
        self._run_of("at_save_point").at_save_point(function)

    def preempt(self, path: str | os.PathLike[str]) -> None:
        """Save everything and end training as soon as no step is half done, whatever minimum is set.

        A validation that is due by then runs first, so that what goes on has missed nothing; no other does.

        Any one process may call it at any time, as in a handler of SIGTERM; all of them follow at their next agreement,
        a moment later. Where nothing is being trained, it warns.

        Args:
            path: The checkpoint to write; `fit(ckpt_path=path)` goes on from it as if nothing had happened.
        """
        if self._run is None or not self._is_running or self._run.verb != "fit":
            warn_user(f"Nothing is being trained, so there is nothing to save to {os.fspath(path)!r} and to stop.")
            return
        self._run.preempt(os.fspath(path))

    @contextmanager
    def trial(self, *, reload: bool = False) -> Iterator[Iterable[Any]]:
        """A context for training steps that a callback makes by itself; see `TrainerProtocol.trial`. Collective."""
        run = self._run
        if run is None or not self._is_running or run.verb != "fit" or run.batch_idx is not None:
            rule = "used in fit, once the loaders are there and while no batch is trained"
            action = "Use it in `on_fit_start`, `on_train_start` or `on_train_epoch_start`."
            where = "nothing" if run is None or not self._is_running else run.position()
            raise RuntimeError(must_be("trial", rule, where, "Trainer", action))
        loggers, self._loggers = self._loggers, [SilentLogger() for _ in self._loggers]
        try:
            with in_trial(run, self.fit_loop.data, reload=reload) as batches:
                yield batches
        finally:
            self._loggers = loggers

    def _run_of(self, method: str) -> Run:
        if self._run is None:
            rule = "attached by fit, validate, test or predict"
            raise RuntimeError(must_be("model", rule, None, f"Trainer.{method}", "Run one of them first."))
        return self._run

    def _write_checkpoint(self, request: SaveRequest) -> PendingSave | None:
        assert self._run is not None
        for logger in self.loggers:
            logger.save()  # a run that goes on from here does not write its rows again
        was_fitted = self._run.module is self._fitted
        checkpoint = checkpoint_of(
            self._run,
            self.fit_loop,
            was_fitted=was_fitted,
            weights_only=request.weights_only,
            fit_idx=self._fit_idx,
        )
        pending: PendingSave | None = self.strategy.save_checkpoint(checkpoint, request.path)
        return pending


def warn_if_done(loop: FitLoop, checkpoint: dict[str, Any] | None) -> None:
    """Warn if a limit is reached before training begins.

    Args:
        loop: The loop that is to train.
        checkpoint: What it resumes from, if anything.
    """
    progress = loop.progress.state_dict()
    if checkpoint is not None:
        if "optimizer_states" not in checkpoint:
            return  # it will be refused
        progress |= checkpoint.get("loops", {}).get("fit", {})
    for argument, limit, done in (
        ("max_epochs", loop.limits.epoch_limit, progress["current_epoch"]),
        ("max_steps", loop.limits.step_limit, progress["global_step"]),
    ):
        if done >= limit > 0:
            source = "this trainer" if checkpoint is None else "the checkpoint"
            warn_user(
                f"fit has nothing to do: {source} has reached {argument}={limit} already. Raise the limit, or make a "
                "new trainer to start anew."
            )
            return


class Predicting(VerbRunner):
    """The part of a trainer that predicts."""

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
            return_predictions: Whether to keep and return the predictions; if false, memory does not grow. None means
                true.
            ckpt_path: A checkpoint whose weights to use: a path, "best" or "last".
            weights_only: As in `fit`.
            gather: Whether each of several processes returns the predictions of all, in the order of the dataset, and
                not those of its own batches.

        Returns:
            The predictions on the CPU: a list with an item per batch, or a list of such lists for several loaders; None
            if they are not wanted.
        """
        self.predict_loop.return_predictions = return_predictions is None or return_predictions
        self.predict_loop.gather = gather
        with self._running("predict", model, {"predict": dataloaders}, datamodule, ckpt_path, weights_only) as run:
            return run_verb(run, self.predict_loop)


class Borrowed:
    """A module, or a data module, of a trainer that runs, while another trainer has it for a verb.

    A hook of a fit may let a second trainer validate the fit's module, for instance. Afterwards the module knows the
    fit's trainer and log again, and its modes, the states of its metrics, and device and number format of its
    parameters and buffers are as before. A module that no running trainer has is left as the verb leaves it.

    Args:
        module: The module, before the second trainer is attached to it.
        trainer: The second trainer.
    """

    def __init__(self, module: nn.Module, trainer: Trainer) -> None:
        self._module = module
        self._trainer = trainer
        self._parts = [
            (part, part._trainer, part._metric_log)
            for part in module.modules()
            if isinstance(part, TrainingModule) and self._is_of_another(part)
        ]
        self._data: tuple[DataModule, Any] | None = None
        if self._parts:
            self._modes = ModuleModes(module)
            self._metrics = metric_states(module)
            self._tensors = [(owner, name, tensor, tensor.data) for owner, name, tensor in _tensors_of(module)]

    def take_data(self, data: object) -> None:
        """Remember whose a data module is; call it before the second trainer is attached to it."""
        if isinstance(data, DataModule) and self._is_of_another(data):
            self._data = data, data._trainer

    def give_back(self, *, was_trained: bool) -> None:
        """Let the trainer that runs have everything again.

        Args:
            was_trained: Whether the verb changed the weights, which then stay changed.
        """
        if self._data is not None:
            attach_data_module(*self._data)
        if not self._parts:
            return
        for part, trainer, metric_log in self._parts:
            part.__dict__["_trainer"], part.__dict__["_metric_log"] = trainer, metric_log
        self._modes.restore()
        for owner, name, tensor, values in self._tensors:
            _put_back(owner, name, tensor, values, was_trained=was_trained)
        restore_metric_states(self._module, self._metrics)

    def _is_of_another(self, part: TrainingModule | DataModule) -> bool:
        trainer = part._trainer
        return trainer is not None and trainer is not self._trainer and trainer._is_running


def _tensors_of(module: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    """Each parameter and buffer, with the submodule that has it and its name there."""
    return [
        (owner, name, tensor)
        for owner in module.modules()
        for name, tensor in (*owner.named_parameters(recurse=False), *owner.named_buffers(recurse=False))
    ]


def _put_back(owner: nn.Module, name: str, tensor: Tensor, values: Tensor, *, was_trained: bool) -> None:
    """Let a parameter or a buffer be where it was, in the number format that it had."""
    now = getattr(owner, name)
    if not isinstance(now, Tensor) or (now.device, now.dtype) == (values.device, values.dtype):
        return
    with torch.no_grad():
        if was_trained:
            values.copy_(now)
        if now is tensor:
            tensor.data = values
        else:
            setattr(owner, name, tensor)


_LOADER_HOOKS = ("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")


def choose_module(verb: Verb, given: Any, previous: Any) -> nn.Module:
    """The module that was given, else the one of the verb before.

    Of what `torch.compile(module)` returned it is the module itself, whose own calls are compiled from then on.

    Raises:
        TypeError: If it is no module, there is none, or it relies on another framework's trainer.
    """
    module = previous if given is None else _compiled_in_place(given)
    if not isinstance(module, nn.Module):
        rule = "a module (torch.nn.Module), or None after an earlier verb"
        raise TypeError(must_be("model", rule, module, f"Trainer.{verb}", "Pass a module."))
    if any(base.__name__ == "LightningModule" for base in type(module).__mro__):
        rule = "a TrainingModule or plain torch.nn.Module, as a LightningModule works with Lightning's trainer alone"
        action = "Let its class inherit from camshaft.trainer.TrainingModule."
        raise TypeError(must_be("model", rule, type(module).__qualname__, f"Trainer.{verb}", action))
    return module


def _compiled_in_place(given: Any) -> Any:
    """The module behind one that `torch.compile` wrapped, which has no hooks of its own; anything else as it is."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")  # which nobody needs who compiles nothing
    if dynamo is None or not isinstance(given, dynamo.OptimizedModule):
        return given
    module = given._orig_mod
    if module._compiled_call_impl is None:
        # what `module.compile()` does, with the backend and the options of the wrapper
        module._compiled_call_impl = given.dynamo_ctx(module._call_impl)
    return module


def choose_data(verb: Verb, loaders: dict[str, Any], datamodule: Any, previous: Any) -> tuple[dict[str, Any], Any]:
    """The loaders by stage and the data module, which may have been passed in the first loader's place.

    Args:
        verb: The verb.
        loaders: What was passed as loaders, by stage.
        datamodule: What was passed as data module.
        previous: The data module of the verb before, if it ran on the same module; it is taken if nothing was passed.

    Raises:
        TypeError: If the data module provides no loader.
        ValueError: If both were passed, so that it is not clear which to take.
    """
    stage, first = next(iter(loaders.items()))
    if datamodule is None and _provides_loaders(first) and not isinstance(first, Iterable):
        loaders, datamodule = {**loaders, stage: None}, first
    has_loaders = any(loader is not None for loader in loaders.values())
    if datamodule is None:
        return loaders, None if has_loaders else previous
    if has_loaders:
        rule = "None if loaders are passed"
        raise ValueError(must_be("datamodule", rule, datamodule, f"Trainer.{verb}", "Pass one of the two."))
    if not _provides_loaders(datamodule):
        rule = f"an object with at least one of {', '.join(_LOADER_HOOKS)}"
        action = "Pass a data module, or loaders by their own arguments."
        raise TypeError(must_be("datamodule", rule, datamodule, f"Trainer.{verb}", action))
    return loaders, datamodule


def _provides_loaders(data: Any) -> bool:
    return not isinstance(data, type) and any(is_overridden(data, hook) for hook in _LOADER_HOOKS)
