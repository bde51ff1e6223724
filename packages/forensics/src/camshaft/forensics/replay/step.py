"""`replay`: a run is made again up to an update, whose steps are looked into."""

from __future__ import annotations

import bdb
import inspect as inspection_of_code
import os
import pdb
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import partial
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import attrs
from torch import Tensor

from camshaft.callbacks.arguments import InvalidArgumentError, check_number
from camshaft.forensics.ledger.ledger_check import LedgerCheck
from camshaft.forensics.replay.fit import Observer, Replay, beyond_the_end, ledger_check, nearest_checkpoint
from camshaft.forensics.replay.step_capture import loss_in
from camshaft.forensics.replay.step_inspection import StepInspection, inspect_step
from camshaft.hooks_core import Callback
from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.loops.lifecycle import EndOfVerb
from camshaft.loops.optimization.update import without_graph
from camshaft.trainer.running import VerbCall

if TYPE_CHECKING:
    from camshaft.trainer import Trainer

Inspect = str | Sequence[str] | Callable[["ReplayedStep"], object] | None


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
        rule, action = "False with several processes, which share a terminal", "Replay without it."
        raise InvalidArgumentError("debug", rule, debug, "replay", action)
    call = attrs.evolve(call, ckpt_path=nearest_checkpoint(call.ckpt_path, to_step - 1))
    check = ledger_check(trainer, ledger)
    watch = StepWatch(to_step, check, inspect, StepDebugger() if debug else None)
    Replay(call=call, before=[watch], after=[EndOfStep(watch)], check=check).run(trainer, to_step)
    if not watch.has_ended:
        raise beyond_the_end(to_step, trainer.global_step)
    return watch.steps


class StepWatch(Observer):
    """Looks into the steps of an update. Runs before other callbacks.

    Args:
        to_step: Number of the update.
        check: The check against a ledger, if there is one.
        inspect: As in `replay`.
        debugger: Stops in a step; None stops in none.
        debugged_idx: Index of that step among those of the update.

    Attributes:
        steps: The steps of the update so far; empty before.
        has_ended: Whether the update was reached.
    """

    def __init__(
        self,
        to_step: int,
        check: LedgerCheck | None = None,
        inspect: Inspect = None,
        debugger: StepDebugger | None = None,
        debugged_idx: int = 0,
    ) -> None:
        self.steps: list[ReplayedStep] = []
        self.has_ended = False
        self._to_step, self._check = to_step, check
        self._call_inspect = inspect if callable(inspect) else None
        self._patterns = None if inspect is None or callable(inspect) else _listed(inspect)
        self._debugger, self._debugged_idx = debugger, debugged_idx
        self._open: ReplayedStep | None = None
        self._stack = ExitStack()

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Check the patterns, now that the submodules are there."""
        names = [name for name, _ in module.named_modules()]
        for pattern in self._patterns or ():
            if not any(fnmatchcase(name, pattern) for name in names):
                action = f"Pass one that does, such as {next((name for name in names if name), '')!r}."
                raise InvalidArgumentError(
                    "inspect", "patterns that match submodules' names", pattern, "replay", action
                )

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Warn if the checkpoint lies inside of the update."""
        checkpoint = trainer.current_run.checkpoint
        is_automatic = getattr(module, "automatic_optimization", True)
        if checkpoint is None or trainer.global_step != self._to_step - 1 or not is_automatic:
            return
        if checkpoint["fit"].get("gradients") and trainer.is_global_zero:
            warn_user(
                f"The checkpoint lies inside of the accumulation window of step {self._to_step:,}: the batches before "
                "it are in the gradients, but are not handed over. Begin with an earlier checkpoint to have them."
            )

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """Forget batches whose gradients were dropped at the end of the epoch before."""
        self.steps.clear()

    def on_before_backward(self, trainer: Any, module: Any, loss: Tensor) -> None:
        """Note the loss."""
        if self._open is not None:
            self._open.loss = loss.detach()
            self._open.inspection.add_loss(loss)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End the step, and the replay if the update was made, as where there are several optimizers."""
        self._close()
        if trainer.global_step >= self._to_step:
            self.end()

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

    @property
    def is_inside(self) -> bool:
        """True while a step of the update runs."""
        return self._open is not None

    def end(self) -> None:
        """End the replay. Collective. Raises `EndOfVerb`."""
        self._close()
        if self._check is not None:
            self._check.check_last(self.trainer, self._to_step)
        self.has_ended = True
        if self._call_inspect is not None:
            for step in self.steps:
                self._call_inspect(step)
        raise EndOfVerb

    def call_step(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Look into a step of the update, and end the replay after the last one."""
        trainer = self.trainer
        if trainer.global_step < self._to_step - 1:
            return function(*arguments, **keywords)
        self._close()
        if trainer.global_step >= self._to_step:  # made inside of the batch that runs
            self.end()
        batch, gradients = arguments[0], dict[str, Tensor]()
        inspection = self._stack.enter_context(inspect_step(self.module, batch, gradients))
        place = self._to_step, trainer.current_epoch, trainer.current_run.batch_idx
        step = self._open = ReplayedStep(*place, batch, None, None, inspection, gradients)
        if self._debugger is not None and len(self.steps) == self._debugged_idx:
            function = partial(self._debugger.run_step, self.module, function)
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
            owners = {name: name.rpartition(".")[0] for name in found.parameters}
            found.parameters = {name: one for name, one in found.parameters.items() if _matches(owners[name], patterns)}
        self.steps.append(step)


class EndOfStep(Callback):
    """Ends the replay right before the update. Runs after all other callbacks.

    Args:
        watch: What looks into the steps.
    """

    def __init__(self, watch: StepWatch) -> None:
        self._watch = watch

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """End, unless other steps may be made for the update."""
        if self._watch.is_inside and len(trainer.optimizers) == 1:
            self._watch.end()


class StepDebugger(pdb.Pdb):
    """Python's debugger, which first stops in the `training_step` of a module."""

    def __init__(self) -> None:
        super().__init__()
        self._code: CodeType | None = None
        self._is_there = self._has_quit = False

    def run_step(self, module: Any, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Return what a function returns that calls a module's `training_step`.

        Raises:
            BdbQuit: If the user leaves.
        """
        step: Any = implementation(module, "training_step")
        self._code = inspection_of_code.unwrap(getattr(step, "__func__", step)).__code__
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


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _listed(patterns: str | Sequence[str]) -> list[str]:
    listed = [patterns] if isinstance(patterns, str) else list(patterns)
    for one in listed:
        if not isinstance(one, str):
            action = "Pass names such as 'encoder.*', or a function."
            raise TypeError(must_be("inspect", "names of submodules, or a function", one, "replay", action))
    return listed
