"""`replay`: a fit is made again up to an update, whose steps are looked into; it writes nothing."""

from __future__ import annotations

import bdb
import os
import pdb
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import partial
from inspect import unwrap
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from torch import Tensor

from camshaft.callbacks.arguments import InvalidArgumentError, check_number
from camshaft.forensics.ledger.ledger_check import LedgerCheck
from camshaft.forensics.ledger.run_ledger import RunLedger
from camshaft.forensics.replay.step_inspection import StepInspection, inspect_step
from camshaft.hooks_core import Callback, Receiver, no_op
from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.protocols import PendingSave
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.remote_files import local_path
from camshaft.loops import Run, SaveRequest
from camshaft.loops.lifecycle import EndOfVerb, run_verb
from camshaft.loops.optimization.update import without_graph
from camshaft.loops.state.callback_state import state_key
from camshaft.strategies import CheckpointError, read_checkpoint
from camshaft.trainer.checkpoints import checkpoints_in, is_folder_of_checkpoints
from camshaft.trainer.running import VerbCall, running, write_checkpoint

if TYPE_CHECKING:
    from camshaft.trainer import Trainer


@attrs.define(eq=False)
class ReplayedStep:
    """A training step that was made again.

    Attributes:
        step: Number of the optimizer update that the step belongs to, from 1 on.
        epoch: Zero-based epoch.
        batch_idx: Zero-based index of the batch in it.
        batch: The batch, on its device.
        outputs: What `training_step` returned, without the graph.
        loss: The loss as it was differentiated, so that of an accumulation window divided by its length; else the one
            that the step returned. None if there was none.
        inspection: Statistics of the submodules' outputs and gradients, and where values ceased to be finite.
        gradients: The gradients of the parameters by name that this step gave, before clipping and scaled as
            they were; of parameters that are sharded, this process's part.
        differences: In what it differs from what was captured of it; empty if it is equal bit for bit.
    """

    step: int
    epoch: int
    batch_idx: int
    batch: Any
    outputs: Any
    loss: Tensor | None
    inspection: StepInspection
    gradients: dict[str, Tensor] = attrs.field(repr=False)
    differences: list[str] = attrs.field(factory=list)


def replay(
    trainer: Trainer,
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
        trainer: The trainer, made as for the fit.
        model: The module. Without `ckpt_path` as it was when the fit began, right after the same seeding.
        train_dataloaders: As in `Trainer.fit`.
        val_dataloaders: As in `Trainer.fit`; validation is repeated too.
        datamodule: As in `Trainer.fit`.
        ckpt_path: A checkpoint of the run, of an earlier update; or a folder, of which the nearest one is taken; or
            None, which begins at the start.
        to_step: Number of the update, counted from 1, as ledgers count: `global_step` is `to_step - 1` before it.
        inspect: Names of the submodules whose statistics are kept, with wildcards as in "encoder.*" ("" is the
            module itself); None keeps all. Or a function that is called with each step that is returned, while
            module and trainer are still set up.
        ledger: The ledger that the replay is checked against, update by update. None takes that of the trainer's
            `RunLedger`, if there is one.
        debug: If true, Python's debugger stops in `training_step`, in the first step of the update.
        weights_only: As in `Trainer.fit`.

    Returns:
        The steps of the update, one in all or one for each batch or split whose gradients were accumulated.

    Raises:
        TypeError, InvalidArgumentError: As in `Trainer.fit`; or if `to_step` is not after the checkpoint or beyond the
            end of the training, `inspect` matches nothing, this trainer has trained already and there is no
            checkpoint, or the ledger's run had another number of processes.
        FileNotFoundError: If there is no checkpoint, none in the folder that is early enough, or no ledger.
        LedgerError: If the ledger is damaged, or not of the run that the checkpoint is from.
        DepartureError: At the first update that is not as the ledger has it; it tells the cause.
        BdbQuit: If the user left the debugger.
    """
    loaders = {"train": train_dataloaders, "validate": val_dataloaders}
    call = VerbCall("fit", model, loaders, datamodule, ckpt_path, weights_only)
    check_number("replay", "Updates are counted from 1.", least=1, is_int=True, to_step=to_step)
    if debug and trainer.world_size > 1:
        rule = "False with several processes, which share a terminal"
        raise InvalidArgumentError("debug", rule, debug, "replay", "Replay without it.")
    call = attrs.evolve(call, ckpt_path=nearest_checkpoint(call.ckpt_path, to_step - 1))
    watch = StepWatch(to_step, ledger_check(trainer, ledger), inspect, debug)
    fit_again(trainer, call, watch, to_step=to_step)
    if not watch.has_ended:
        raise beyond_the_end(to_step, trainer.global_step)
    return watch.steps


class Observer(Callback):
    """Base class of what looks into a replay: it knows trainer and module, and makes the calls of `training_step`.

    Attributes:
        check: The check of the replay against a ledger, if there is one.
        has_ended: Whether the replay came to where it was to end.
    """

    trainer: Any = None
    module: Any = None
    check: LedgerCheck | None = None
    has_ended = False

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Note trainer and module."""
        self.trainer, self.module = trainer, module

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        """Forget trainer and module."""
        self.trainer = self.module = None

    def wrap_call(
        self, hook: str, kind: Receiver, receiver: object, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return the function; `call_step` for `training_step`, none for a module's callbacks that only observe."""
        if kind == Receiver.CALLBACK and _only_observes(receiver) and not isinstance(receiver, LedgerCheck):
            return no_op
        return partial(self.call_step, function) if hook == "training_step" else function

    def call_step(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Return what `training_step` returns."""
        return function(*arguments, **keywords)

    def end(self, step: int) -> None:
        """End the replay, checked up to an update. Collective. Raises `EndOfVerb`."""
        if self.check is not None:
            self.check.check_last(self.trainer, step)
        self.has_ended = True
        self.at_end()
        raise EndOfVerb

    def at_end(self) -> None:
        """Override it to do something where the replay ends, once it is checked."""


def fit_again(
    trainer: Trainer, call: VerbCall, observer: Observer, *, to_step: int | None = None, saved_path: str | None = None
) -> None:
    """Make a fit again, until an observer raises `EndOfVerb` or it ends. Collective.

    Callbacks that only observe are left out, and the check against the ledger takes the place of `RunLedger`. Loggers
    are silent, `Trainer.save_checkpoint` does nothing, and `Trainer.is_replaying` is true. Callbacks, loggers and
    limits of the trainer are as before afterwards.

    Args:
        trainer: The trainer.
        call: Arguments of the fit; its checkpoint is the one to begin with.
        observer: Runs before all callbacks.
        to_step: The update to come to; the checkpoint must be of an earlier one. None if it comes to none.
        saved_path: The only checkpoint that may be written; None if there is none.

    Raises:
        RuntimeError: If a verb of the trainer is running already.
        ValueError: If the checkpoint is of a later update, or there is none and the trainer has trained already.
    """
    state, loop, own, check = trainer.verb_state, trainer.fit_loop, trainer.callbacks, observer.check
    limits = loop.limits
    if state.is_running:
        verb, action = state.run and state.run.verb, "Use another trainer inside of hooks."
        raise RuntimeError(must_be("replay", "called when no verb of the trainer is running", verb, "Trainer", action))
    ledger = next((one for one in own if isinstance(one, RunLedger)), None)
    kept = [check if one is ledger else one for one in own if one is ledger or not _only_observes(one)]
    callbacks = [observer, *kept, *([check] if ledger is None else [])]

    def write(request: SaveRequest) -> PendingSave | None:
        return write_checkpoint(trainer, request) if request.path == saved_path else None

    try:
        with trainer.silenced():
            trainer.callbacks, state.is_replaying = [one for one in callbacks if one is not None], True
            loop.limits = attrs.evolve(limits, max_time=None)
            with running(trainer, call) as run:
                if to_step is not None:
                    _check_start(trainer, run, to_step)
                state.fitted, run.write_checkpoint = run.module, write
                _forget(run, [one for one in own if _only_observes(one) and one not in run.callbacks])
                run_verb(run, loop)
    finally:
        trainer.callbacks, state.is_replaying, loop.limits = own, False, limits


def _only_observes(callback: object) -> bool:
    return bool(getattr(callback, "only_observes", False))


def _forget(run: Run, callbacks: Sequence[Any]) -> None:
    """Take the states of callbacks from a checkpoint, so that nothing warns of their absence."""
    if run.checkpoint is not None and "callbacks" in run.checkpoint:
        present, absent = ({state_key(one) for one in some} for some in (run.callbacks, callbacks))
        states = run.checkpoint["callbacks"]
        run.checkpoint["callbacks"] = {key: state for key, state in states.items() if key not in absent - present}


class StepWatch(Observer):
    """Looks into the steps of an update.

    Args:
        to_step: Number of the update.
        check: The check against a ledger, if there is one.
        inspect: As in `replay`.
        debug: Whether Python's debugger stops in a step.
        debugged_idx: Index of that step among those of the update.

    Attributes:
        steps: The steps of the update so far; empty before.
    """

    after_module: ClassVar[frozenset[str]] = frozenset({"on_before_optimizer_step"})

    def __init__(
        self,
        to_step: int,
        check: LedgerCheck | None = None,
        inspect: str | Sequence[str] | Callable[[ReplayedStep], object] | None = None,
        debug: bool = False,
        debugged_idx: int = 0,
    ) -> None:
        self.steps: list[ReplayedStep] = []
        self.check = check
        self._to_step = to_step
        self._call_inspect = inspect if callable(inspect) else None
        self._patterns = None if inspect is None or callable(inspect) else _listed(inspect)
        self._debugged_idx = debugged_idx if debug else None
        self._open: ReplayedStep | None = None
        self._stack = ExitStack()

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Check the patterns, now that the submodules are there."""
        names = [name for name, _ in module.named_modules()]
        for pattern in self._patterns or ():
            if not any(fnmatchcase(name, pattern) for name in names):
                rule = "patterns that match submodules' names"
                action = f"Pass one that does, such as {next(filter(None, names), '')!r}."
                raise InvalidArgumentError("inspect", rule, pattern, "replay", action)

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Warn if the checkpoint lies inside of the update."""
        checkpoint = trainer.current_run.checkpoint
        is_automatic = getattr(module, "automatic_optimization", True)
        if checkpoint is None or trainer.global_step != self._to_step - 1 or not is_automatic:
            return
        if checkpoint["fit"].get("gradients"):
            warn_user(
                f"The checkpoint lies inside of the accumulation window of step {self._to_step:,}: the batches before "
                "it are in the gradients, but are not handed over. Begin with one from before the window to have them."
            )

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """Forget batches whose gradients were dropped at the end of the epoch before."""
        self.steps.clear()

    def on_before_backward(self, trainer: Any, module: Any, loss: Tensor) -> None:
        """Note the loss."""
        if self._open is not None:
            self._open.loss = loss.detach()
            self._open.inspection.add_loss(loss)

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """End right before the update, unless other steps may be made for it."""
        if self._open is not None and len(trainer.optimizers) == 1:
            self._close()
            self.end(self._to_step)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End the step, and the replay if the update was made, as where there are several optimizers."""
        self._close()
        if trainer.global_step >= self._to_step:
            self.end(self._to_step)

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Tell in which step it was raised, and where values ceased to be finite."""
        if self._open is not None:
            self._close()
            found = self.steps[-1].inspection.first_non_finite
            exception.add_note(f"Raised in the replay of step {self._to_step:,}. {found or ''}".rstrip())

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        """Remove all hooks."""
        self._close()
        super().teardown(trainer, module, stage)

    def at_end(self) -> None:
        """Call `inspect` with each step."""
        for step in self.steps:
            if self._call_inspect is not None:
                self._call_inspect(step)

    def call_step(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Look into a step of the update, and end the replay after the last one."""
        trainer = self.trainer
        if trainer.global_step < self._to_step - 1:
            return function(*arguments, **keywords)
        self._close()
        if trainer.global_step >= self._to_step:  # made inside of the batch that runs
            self.end(self._to_step)
        batch, gradients = arguments[0], dict[str, Tensor]()
        inspection = self._stack.enter_context(inspect_step(self.module, batch, gradients))
        place = self._to_step, trainer.current_epoch, trainer.current_run.batch_idx
        step = self._open = ReplayedStep(*place, batch, None, None, inspection, gradients)
        if len(self.steps) == self._debugged_idx:
            function = partial(_StepDebugger(self.module).run_step, function)
        outputs = function(*arguments, **keywords)
        step.outputs = without_graph(outputs)
        return outputs

    def _close(self) -> None:
        """End a step that runs, and remove its hooks."""
        step, self._open = self._open, None
        self._stack.close()
        if step is None:
            return
        if step.loss is None:
            step.loss = loss_in(step.outputs)
        if self._patterns is not None:
            found, patterns = step.inspection, self._patterns
            found.calls = [call for call in found.calls if _matches(call.name, patterns)]
            found.parameters = {
                name: one for name, one in found.parameters.items() if _matches(name.rpartition(".")[0], patterns)
            }
        self.steps.append(step)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _listed(patterns: str | Sequence[str]) -> list[str]:
    listed = [patterns] if isinstance(patterns, str) else list(patterns)
    for one in listed:
        if not isinstance(one, str):
            action = "Pass names such as 'encoder.*', or a function."
            raise TypeError(must_be("inspect", "names of submodules, or a function", one, "replay", action))
    return listed


class _StepDebugger(pdb.Pdb):
    """Python's debugger, which first stops in the `training_step` of a module."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        step: Any = implementation(module, "training_step")
        self._code = unwrap(getattr(step, "__func__", step)).__code__
        self._is_there = self._has_quit = False

    def run_step(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Return what a function returns that calls `training_step`. Raises `BdbQuit` if the user leaves."""
        outputs = self.runcall(function, *arguments, **keywords)
        if self._has_quit:
            raise bdb.BdbQuit
        return outputs

    def set_quit(self) -> None:
        """Note that the user leaves."""
        self._has_quit = True
        super().set_quit()

    def stop_here(self, frame: FrameType) -> bool:
        """Return whether to stop, once the step is reached."""
        self._is_there |= frame.f_code is self._code
        return self._is_there and bool(super().stop_here(frame))

    def user_call(self, frame: FrameType, argument_list: Any) -> None:
        """Stop at a call; in the step itself at its first line instead."""
        if frame.f_code is not self._code:
            super().user_call(frame, argument_list)


def ledger_check(trainer: Trainer, ledger: str | os.PathLike[str] | None) -> LedgerCheck | None:
    """Return the check of a replay against a ledger; None without one.

    Args:
        trainer: The trainer.
        ledger: The ledger. None takes that of the trainer's `RunLedger`, which need not exist.
    """
    own = next((one for one in trainer.callbacks if isinstance(one, RunLedger)), None)
    if own is None:
        return None if ledger is None else LedgerCheck(ledger)
    return LedgerCheck(own.path if ledger is None else ledger, state_key(own), is_required=ledger is not None)


def nearest_checkpoint(path: str | os.PathLike[str] | None, step: int) -> str | os.PathLike[str] | None:
    """Return a checkpoint; of a folder the one with the most updates up to a number.

    Args:
        path: A checkpoint, a folder with checkpoints in it or below it, or None, which is returned as it is.
        step: The largest number of updates.

    Raises:
        FileNotFoundError: If the folder has no checkpoint that is early enough and that training can go on from.
    """
    folder = "" if path is None else local_path(path)
    if path is None or not is_folder_of_checkpoints(folder):
        return path
    steps: dict[str, int] = {}
    for one in sorted(checkpoints_in(folder)):
        try:
            checkpoint = read_checkpoint(one, mmap=True)
        except CheckpointError as error:
            warn_user(f"{error} It is left out.")
            continue
        if "optimizer_states" in checkpoint:
            steps[one] = checkpoint["global_step"]
    early = [one for one, number in steps.items() if number <= step]
    if not early:
        rule = f"a folder with a checkpoint of step {step:,} or before, from which training can go on"
        action = "Pass another folder, or None to begin with the start of the run."
        raise FileNotFoundError(must_be("ckpt_path", rule, sorted(steps.values()), folder, action))
    return max(early, key=steps.__getitem__)


def _check_start(trainer: Trainer, run: Run, to_step: int) -> None:
    """Raise `ValueError` if a run does not begin before a step; warn if it may differ from the one before."""
    if run.checkpoint is None and trainer.global_step:
        rule = "a checkpoint, as this trainer has trained already"
        action = "Pass one, or make module and trainer anew with the same seed to begin at the start."
        raise InvalidArgumentError("ckpt_path", rule, None, "replay", action)
    start = 0 if run.checkpoint is None else int(run.checkpoint["global_step"])
    if start >= to_step:
        rule = f"greater than the number of updates of the checkpoint ({start:,})"
        action = "Pass a previous checkpoint, or a folder of which the nearest is taken."
        raise InvalidArgumentError("to_step", rule, to_step, "replay", action)
    step_limit = trainer.fit_loop.limits.step_limit
    if to_step > step_limit:
        raise beyond_the_end(to_step, int(step_limit))
    if trainer.fit_loop.limits.validation_seconds is not None:
        warn_user(
            "`val_check_interval` is a time, so a replay validates after other batches than the run did. Where "
            "validation changes what follows, the replay differs. Give the interval in batches for exact replays."
        )


def beyond_the_end(to_step: int, last: int) -> InvalidArgumentError:
    """Return the error about a step that training does not come to."""
    rule = f"at most the number of updates of the training ({last:,})"
    return InvalidArgumentError("to_step", rule, to_step, "replay", "Pass a step that was made.")


def loss_in(outputs: Any) -> Tensor | None:
    """Return the loss in what `training_step` returned, detached; None if there is none."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return loss.detach() if isinstance(loss, Tensor) else None
