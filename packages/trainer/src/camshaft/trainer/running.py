"""The surroundings of a verb: module, data and loggers are attached, a run is made, everything is closed at the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from camshaft.hooks_core import is_overridden
from camshaft.hooks_core.protocols import PendingSave
from camshaft.hooks_core.spec import Verb
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.processes import OrderlyExit
from camshaft.loops import FitLoop, Run, SaveRequest
from camshaft.loops.evaluation.loops import ModuleModes
from camshaft.loops.metrics import MetricLog, StandaloneLog
from camshaft.loops.state.metric_state import metric_states, restore_metric_states
from camshaft.strategies import ObjectsInPlace
from camshaft.trainer.checkpoints import best_of_last_fit, checkpoint_of, note_left_out, read_requested
from camshaft.trainer.hyperparameters import HyperparametersMixin
from camshaft.trainer.loggers import end_dumps, finalize_loggers, share_log_dir
from camshaft.trainer.states import TrainerStatus

_fit_idxs = count()
"""Index of the next fit of this process, over all trainers: the same where a script runs again."""


@attrs.frozen(eq=False, repr=False)
class VerbCall:
    """Arguments of one call of a verb.

    Attributes:
        verb: Verb.
        model: Module; None takes the one of the verb before.
        loaders: Loaders by stage.
        datamodule: Data module, if any.
        ckpt_path: Path of a checkpoint, "best", "last" or None.
        weights_only: False unpickles the objects in the checkpoint.
    """

    verb: Verb
    model: Any
    loaders: Mapping[str, Any]
    datamodule: Any = None
    ckpt_path: str | os.PathLike[str] | None = None
    weights_only: bool | None = None


@attrs.define(eq=False, repr=False)
class VerbState:
    """State of the verb of a trainer that runs, or ran last.

    Attributes:
        run: Its run; None before the first verb.
        status: Whether it runs, and how it ended.
        fitted: Module of the last fit.
        fit_idx: Index of the last fit among those of the process.
        log_dir: Directory of rank 0's logs, with several processes.
        ckpt_path: The checkpoint that it began with, if any.
        chosen_ckpt_path: The checkpoint that verbs without `ckpt_path` begin with, if the user chose one.
        is_replaying: Whether a fit is made again, which writes nothing.
        is_continuing: Whether the verb goes on with an earlier run, which may have saved no checkpoint yet.
    """

    run: Run | None = None
    status: TrainerStatus = TrainerStatus.INITIALIZING
    fitted: nn.Module | None = None
    fit_idx: int = 0
    log_dir: str | None = None
    ckpt_path: str | os.PathLike[str] | None = None
    chosen_ckpt_path: str | os.PathLike[str] | None = None
    is_replaying: bool = False
    is_continuing: bool = False

    @property
    def is_running(self) -> bool:
        """True while a verb runs."""
        return self.status is TrainerStatus.RUNNING


@contextmanager
def running(trainer: Any, call: VerbCall) -> Iterator[Run]:
    """Attach module, data and loggers to a trainer for a verb, and close the loggers at its end. Collective.

    Objects of another trainer that runs are given back to it afterwards.

    Args:
        trainer: The trainer.
        call: Arguments of the verb.

    Yields:
        The run, which `run_verb` takes.

    Raises:
        RuntimeError: If a verb of the trainer is running already.
        TypeError, ValueError: If module, loaders or data module are not valid.
    """
    state = trainer.verb_state
    if state.is_running:
        of_run = state.run and state.run.verb
        raise RuntimeError(
            f"`{call.verb}` cannot be called while `{of_run}` runs. Use another trainer inside of hooks."
        )
    module = choose_module(call.verb, call.model, trainer.model)
    with _borrowed(module, trainer, is_trained=call.verb == "fit") as lent:
        run: Run | None = None
        raised: BaseException | None = None
        try:
            run = _attach(trainer, call, module, lent)
            yield run
        except OrderlyExit:
            raise
        except BaseException as error:
            raised = error
            state.status = TrainerStatus.INTERRUPTED
            if isinstance(error, KeyError) and run is not None and run.checkpoint is not None:
                note_left_out(error, run.checkpoint)
            raise
        finally:
            end_dumps(state.log_dir)
            if run is not None:
                state.status = TrainerStatus.INTERRUPTED
                run.stage = None
                run.forget_saves()  # of a verb that failed before it could begin
                finalize_loggers(trainer.loggers, raised)
                state.status = TrainerStatus.FINISHED if raised is None else TrainerStatus.INTERRUPTED


def _attach(trainer: Any, call: VerbCall, module: nn.Module, lent: list[tuple[Any, Any]]) -> Run:
    """Make the run of a verb, and let the trainer, the module and the data module know each other."""
    state, metric_log = trainer.verb_state, trainer.metric_log
    attach_module(module, trainer, metric_log)  # before `connect`, which modules of others may override
    trainer.connect(module)
    state.log_dir = share_log_dir(trainer.strategy, trainer.loggers, trainer.find_log_dir)
    run = _new_run(trainer, call, module)
    state.run, state.status = run, TrainerStatus.RUNNING
    data: Any = run.data
    if _is_attachable(data):
        if _is_of_another(data, trainer):
            lent.append((data, data.trainer))
        data.trainer = trainer
    if metric_log is not None:
        metric_log.clear(run.module)
    return run


def attach_module(module: nn.Module, trainer: Any, metric_log: MetricLog | None) -> None:
    """Give a module, and every training module in it, its trainer and its log.

    Args:
        module: Any module; one without training modules is left alone.
        trainer: The trainer.
        metric_log: Its metric log; None lets modules keep the last values by themselves.
    """
    warning = "Values that are logged go nowhere with barebones=True. Leave it out to log them."
    log = StandaloneLog(warning) if metric_log is None else metric_log
    for part in filter(_is_attachable, module.modules()):
        part.__dict__.update(_trainer=trainer, _metric_log=log)


def _is_attachable(one: Any) -> bool:
    """Return whether an object is a training module or a data module."""
    return isinstance(one, HyperparametersMixin) and hasattr(one, "_trainer")


def _new_run(trainer: Any, call: VerbCall, module: nn.Module) -> Run:
    state, verb, ckpt_path = trainer.verb_state, call.verb, choose_ckpt_path(trainer.verb_state, call)
    previous_data = trainer.datamodule if module is trainer.model else None
    loaders, data = choose_data(verb, call.loaders, call.datamodule, previous_data)
    if call.model is None and ckpt_path is None and verb != "fit" and module is state.fitted:
        ckpt_path = best_of_last_fit(trainer, verb)
    if verb == "fit":
        state.fit_idx = next(_fit_idxs)
    start = read_requested(trainer, ckpt_path, verb, state.fit_idx, call.weights_only)
    state.ckpt_path, state.is_continuing = start.path, start.is_continuing
    run = run_of(
        trainer,
        verb,
        module,
        data=data,
        loaders=loaders,
        metrics=None if verb == "predict" else trainer.metric_log,  # logging is an error there
        checkpoint=start.checkpoint,
        ckpt_path=start.path,
        checkpoint_adapter=start.adapter,
        write_checkpoint=partial(write_checkpoint, trainer),
    )
    trainer.extend_run(run)
    return run


def run_of(trainer: Any, verb: Verb, module: nn.Module, **further: Any) -> Run:
    """Return a run with what a trainer has for all of its runs.

    Args:
        trainer: The trainer.
        verb: The verb.
        module: The module.
        **further: Further arguments of `Run`.
    """
    return Run(
        verb=verb,
        module=module,
        strategy=trainer.strategy,
        trainer=trainer,
        callbacks=trainer.callbacks,
        strict_hooks=trainer.strict_hooks,
        catalogue=trainer.catalogue,
        save_only=trainer.save_only,
        epoch=trainer.fit_loop.progress.current_epoch,
        is_connected=True,
        **further,
    )


def choose_ckpt_path(state: VerbState, call: VerbCall) -> str | os.PathLike[str] | None:
    """Return the checkpoint that a verb was called with, else the one that the user chose for all verbs."""
    if call.ckpt_path is None or state.chosen_ckpt_path is None:
        return state.chosen_ckpt_path if call.ckpt_path is None else call.ckpt_path
    warn_user(
        f"`{call.verb}` got ckpt_path={os.fspath(call.ckpt_path)!r}, which overrides `trainer.ckpt_path = "
        f"{os.fspath(state.chosen_ckpt_path)!r}` from now on. Pass one of them only."
    )
    state.chosen_ckpt_path = None
    return call.ckpt_path


def write_checkpoint(trainer: Any, request: SaveRequest) -> PendingSave | None:
    """Write a checkpoint of the trainer's run. Collective.

    Returns:
        The save that is still under way; None if it is done.
    """
    state = trainer.verb_state
    assert state.run is not None
    for logger in trainer.loggers:
        getattr(logger, "sync", logger.save)()  # a run that resumes from the checkpoint does not write its rows again
    checkpoint = checkpoint_of(
        state.run,
        trainer.fit_loop,
        was_fitted=state.run.module is state.fitted,
        weights_only=request.weights_only,
        fit_idx=state.fit_idx,
    )
    if trainer.objects_in_place:
        checkpoint = ObjectsInPlace(checkpoint)
    pending: PendingSave | None = trainer.strategy.save_checkpoint(checkpoint, request.path)
    return pending


def warn_if_done(loop: FitLoop, checkpoint: dict[str, Any] | None) -> None:
    """Warn if a limit is reached before training begins.

    Args:
        loop: The loop that is to train.
        checkpoint: Checkpoint to resume from, if any.
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
                "new trainer to start from scratch."
            )
            return


@contextmanager
def _borrowed(module: nn.Module, trainer: Any, *, is_trained: bool) -> Iterator[list[tuple[Any, Any]]]:
    """Give a module and a data module of another trainer that runs back to it afterwards.

    A hook of a fit may let a second trainer validate or test the fit's module on other data, as a probe does while a
    representation is learned. Afterwards the module has the fit's trainer and log again; its modes, the states of its
    metrics, and device and dtype of its parameters and buffers are as before. A module that no running trainer has is
    left as the verb leaves it.

    Args:
        module: The module, before the second trainer is attached to it.
        trainer: The second trainer.
        is_trained: True if the verb changes the weights, which then stay changed.

    Yields:
        A list for data modules, each with the trainer that it is given back to.
    """
    lent: list[tuple[Any, Any]] = []
    parts: list[tuple[Any, dict[str, Any]]] = [
        (part, {name: getattr(part, name) for name in ("_trainer", "_metric_log")})
        for part in module.modules()
        if _is_attachable(part) and _is_of_another(part, trainer)
    ]
    if parts:
        modes, metrics = ModuleModes(module), metric_states(module)
        tensors = [  # each parameter and buffer, with its submodule, its name there and its values
            (owner, name, tensor, tensor.data)
            for owner in module.modules()
            for name, tensor in (*owner.named_parameters(recurse=False), *owner.named_buffers(recurse=False))
        ]
    try:
        yield lent
    finally:
        for data, other in lent:
            data.trainer = other
        for part, attached in parts:
            part.__dict__.update(attached)
        if parts:
            modes.restore()
            for owner, name, tensor, values in tensors:
                _put_back(owner, name, tensor, values, is_trained=is_trained)
            restore_metric_states(module, metrics)


def _is_of_another(one: Any, trainer: Any) -> bool:
    """Return whether an object is attached to another trainer, which runs."""
    return one._trainer is not None and one._trainer is not trainer and one._trainer.is_running


def _put_back(owner: nn.Module, name: str, tensor: Tensor, values: Tensor, *, is_trained: bool) -> None:
    """Move a parameter or a buffer to its former device and number format."""
    now = getattr(owner, name)
    if not isinstance(now, Tensor) or (now.device, now.dtype) == (values.device, values.dtype):
        return
    with torch.no_grad():
        if is_trained:
            values.copy_(now)
        if now is tensor:
            tensor.data = values
        else:
            setattr(owner, name, tensor)


_LOADER_HOOKS = ("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")


def choose_module(verb: Verb, given: Any, previous: Any) -> nn.Module:
    """Return the module that was given, else the one of the verb before.

    Of what `torch.compile(module)` returned it is the module itself. What its steps may call, as by
    `Trainer(compile=True)`, is compiled from then on, with that call's backend and options.

    Args:
        given: What the verb was called with, or None.
        previous: The module of the verb before, or None.

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
    """Return the module that `torch.compile` wrapped, since the wrapper has no hooks; anything else as it is."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")  # slow to import, so only if it is there
    if dynamo is None or not isinstance(given, dynamo.OptimizedModule):
        return given
    from camshaft.strategies.compilation import CompiledParts, parts_to_compile  # slow to import

    module = given._orig_mod
    CompiledParts(given.dynamo_ctx).compile_calls(parts_to_compile(module))
    return module


def choose_data(
    verb: Verb, loaders: Mapping[str, Any], datamodule: Any, previous: Any
) -> tuple[Mapping[str, Any], Any]:
    """Return the loaders by stage and the data module, which may have been passed as the first loader.

    Args:
        loaders: The loaders that were passed, by stage.
        datamodule: The data module that was passed.
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
    where = f"Trainer.{verb}"
    if has_loaders:
        raise ValueError(must_be("datamodule", "None if loaders are passed", datamodule, where, "Pass one of the two."))
    if not _provides_loaders(datamodule):
        rule = f"an object with at least one of {', '.join(_LOADER_HOOKS)}"
        action = "Pass a data module, or loaders by their own arguments."
        raise TypeError(must_be("datamodule", rule, datamodule, where, action))
    return loaders, datamodule


def _provides_loaders(data: Any) -> bool:
    return not isinstance(data, type) and any(is_overridden(data, hook) for hook in _LOADER_HOOKS)
