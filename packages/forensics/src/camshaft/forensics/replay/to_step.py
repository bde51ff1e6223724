"""`replay`: a run is made again up to an update, whose steps are looked into."""

from __future__ import annotations

import bdb
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from torch import Tensor, nn

from camshaft.callbacks.arguments import InvalidArgumentError, check_number
from camshaft.forensics.ledger.ledger_check import LedgerCheck
from camshaft.forensics.replay.replayed_fit import Replay, beyond_the_end, ledger_check, nearest_checkpoint
from camshaft.forensics.replay.replayed_step import ReplayedStep
from camshaft.forensics.replay.step_debugger import StepDebugger
from camshaft.forensics.replay.step_inspection import StepInspection, inspect_step
from camshaft.hooks_core import Callback
from camshaft.hooks_core.messages import must_be, warn_user
from camshaft.hooks_core.spec import Receiver
from camshaft.loops.lifecycle import EndOfVerb
from camshaft.loops.optimization.update import without_graph
from camshaft.trainer.running import VerbCall

if TYPE_CHECKING:
    from camshaft.trainer import Trainer

Inspect = str | Sequence[str] | Callable[[ReplayedStep], object] | None


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
        The steps of the update: one, or one for each batch or split whose gradients were accumulated.

    Raises:
        TypeError, InvalidArgumentError: As in `Trainer.fit`; or if `to_step` is not after the checkpoint or beyond
            the end of the training, `inspect` matches nothing, this trainer has trained already without a checkpoint, or
            the ledger's run had another number of processes.
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
    debugger = StepDebugger() if debug else None
    watch = _StepWatch(to_step, check, inspect, debugger)
    Replay(call=call, before=[watch], after=[_EndOfStep(watch)], check=check).run(trainer, to_step)
    if debugger is not None and debugger.has_quit:
        raise bdb.BdbQuit
    if not watch.has_ended:
        raise beyond_the_end(to_step, trainer.global_step)
    return watch.steps


class _StepWatch(Callback):
    """Looks into the steps of an update. Runs before other callbacks.

    Attributes:
        steps: The steps of the update so far; empty before.
        has_ended: Whether the update was reached.
    """

    def __init__(
        self, to_step: int, check: LedgerCheck | None, inspect: Inspect, debugger: StepDebugger | None
    ) -> None:
        self.steps: list[ReplayedStep] = []
        self.has_ended = False
        self._to_step = to_step
        self._check = check
        self._call_inspect = inspect if callable(inspect) else None
        self._patterns = None if inspect is None or callable(inspect) else _listed(inspect)
        self._debugger = debugger
        self._trainer: Any = None
        self._module: Any = None
        self._open: _OpenStep | None = None

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Note trainer and module."""
        self._trainer, self._module = trainer, module

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

    def wrap_call(
        self, hook: str, kind: Receiver, receiver: object, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return the function; of `training_step` one that is looked into at the update."""
        return partial(self._call_step, function) if hook == "training_step" else function

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
        self._trainer = self._module = None

    @property
    def is_inside(self) -> bool:
        """True while a step of the update runs."""
        return self._open is not None

    def end(self) -> None:
        """End the replay. Collective. Raises `EndOfVerb`."""
        self._close()
        if self._check is not None:
            self._check.check_last(self._trainer, self._to_step)
        self.has_ended = True
        if self._call_inspect is not None:
            for step in self.steps:
                self._call_inspect(step)
        raise EndOfVerb

    def _call_step(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        trainer = self._trainer
        if trainer.global_step < self._to_step - 1:
            return function(*arguments, **keywords)
        self._close()
        if trainer.global_step >= self._to_step:  # made inside of the batch that runs
            self.end()
        batch, batch_idx = arguments[0], trainer.current_run.batch_idx
        step = self._open = _OpenStep(self._module, batch, trainer.current_epoch, batch_idx)
        if self._debugger is not None and not self.steps:  # the first step of the update
            function = partial(self._debugger.run_step, self._module, function)
        outputs = function(*arguments, **keywords)
        step.outputs = without_graph(outputs)
        return outputs

    def _close(self) -> None:
        step, self._open = self._open, None
        if step is not None:
            self.steps.append(step.close(self._to_step, self._patterns))


class _EndOfStep(Callback):
    """Ends the replay right before the update. Runs after all other callbacks."""

    def __init__(self, watch: _StepWatch) -> None:
        self._watch = watch

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """End, unless other optimizers may make further steps for the update."""
        if self._watch.is_inside and len(trainer.optimizers) == 1:
            self._watch.end()


class _OpenStep:
    """A step that runs, and what is known of it so far."""

    def __init__(self, module: nn.Module, batch: Any, epoch: int, batch_idx: int) -> None:
        self.loss: Tensor | None = None
        self.outputs: Any = None
        self._facts = epoch, batch_idx, batch
        self._gradients: dict[str, Tensor] = {}
        self._stack = ExitStack()
        self.inspection: StepInspection = self._stack.enter_context(inspect_step(module, batch))
        self._sharded = {name: one for name, one in module.named_parameters() if hasattr(one, "device_mesh")}
        parameters: Iterable[tuple[str, Any]] = module.named_parameters()
        for name, parameter in parameters:
            if parameter.requires_grad and name not in self._sharded:
                handle = parameter.register_hook(partial(self._add_gradient, name))
                self._stack.callback(handle.remove)

    def _add_gradient(self, name: str, gradient: Tensor) -> None:
        before, gradient = self._gradients.get(name), gradient.detach()
        self._gradients[name] = gradient if before is None else before + gradient

    def close(self, number: int, patterns: Sequence[str] | None) -> ReplayedStep:
        """Remove the hooks. Returns the step."""
        for name, parameter in self._sharded.items():
            if parameter.grad is not None:
                self._gradients[name] = parameter.grad.detach().clone()
        self._stack.close()
        found = self.inspection
        if patterns is not None:
            found.calls = [call for call in found.calls if _matches(call.name, patterns)]
            found.parameters = {
                name: one for name, one in found.parameters.items() if _matches(name.rpartition(".")[0], patterns)
            }
        epoch, batch_idx, batch = self._facts
        return ReplayedStep(number, epoch, batch_idx, batch, self.outputs, self.loss, found, self._gradients)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _listed(patterns: str | Sequence[str]) -> list[str]:
    listed = [patterns] if isinstance(patterns, str) else list(patterns)
    for one in listed:
        if not isinstance(one, str):
            action = "Pass names such as 'encoder.*', or a function."
            raise TypeError(must_be("inspect", "names of submodules, or a function", one, "replay", action))
    return listed
