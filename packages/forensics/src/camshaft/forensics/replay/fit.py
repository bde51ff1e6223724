"""A fit that is made again and writes nothing: what `replay` and `bisect` share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.forensics.ledger.ledger_check import LedgerCheck
from camshaft.forensics.ledger.run_ledger import RunLedger
from camshaft.hooks_core import Callback, Receiver, no_op
from camshaft.hooks_core.protocols import PendingSave
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.remote_files import local_path
from camshaft.loops import Run, SaveRequest
from camshaft.loops.lifecycle import run_verb
from camshaft.loops.state.callback_state import state_key
from camshaft.strategies import CheckpointError, read_checkpoint
from camshaft.trainer.checkpoints import checkpoints_in, is_folder_of_checkpoints
from camshaft.trainer.running import VerbCall, running, write_checkpoint

if TYPE_CHECKING:
    from camshaft.trainer import Trainer


@attrs.frozen(kw_only=True)
class Replay:
    """A fit that is made again, until an observer raises `EndOfVerb` or it ends.

    Callbacks that only observe are left out, and the check against the ledger takes the place of `RunLedger`. Loggers
    are silent, `Trainer.save_checkpoint` does nothing, and `Trainer.is_replaying` is true.

    Attributes:
        call: Arguments of the fit; its checkpoint is the one to begin with.
        before: Observers that run before all callbacks.
        after: Observers that run after them.
        check: The check against the ledger, if there is one.
        saved_path: The only checkpoint that may be written; None if there is none.
    """

    call: VerbCall
    before: Sequence[Callback] = ()
    after: Sequence[Callback] = ()
    check: LedgerCheck | None = None
    saved_path: str | None = None

    def run(self, trainer: Trainer, to_step: int | None) -> None:
        """Run it. Callbacks, loggers and limits of the trainer are as before afterwards. Collective.

        Args:
            trainer: The trainer.
            to_step: The update to come to; the checkpoint must be of an earlier one. None if it comes to none.

        Raises:
            RuntimeError: If a verb of the trainer is running already.
            ValueError: If the checkpoint is of a later update, or there is none and the trainer has trained already.
        """
        own = trainer.callbacks
        with _silent(trainer, self._callbacks(own)), running(trainer, self.call) as run:
            if to_step is not None:
                _check_start(trainer, run, to_step)
            trainer.verb_state.fitted = run.module
            run.write_checkpoint = partial(self._write, trainer)
            _forget(run, [one for one in own if _only_observes(one) and one not in run.callbacks])
            run_verb(run, trainer.fit_loop)

    def _callbacks(self, own: Sequence[Any]) -> list[Any]:
        """Return the callbacks of the replay, given those of the trainer."""
        check = self.check
        replaced = next((one for one in own if isinstance(one, RunLedger)), None)
        kept = [check if one is replaced else one for one in own if one is replaced or not _only_observes(one)]
        if replaced is None:
            kept.append(check)
        return [_LeftOut(), *self.before, *(one for one in kept if one is not None), *self.after]

    def _write(self, trainer: Trainer, request: SaveRequest) -> PendingSave | None:
        return write_checkpoint(trainer, request) if request.path == self.saved_path else None


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


def step_of(run: Run) -> int:
    """Return the number of updates that a run begins with."""
    return 0 if run.checkpoint is None else int(run.checkpoint["global_step"])


class Observer(Callback):
    """Base class of what looks into a replay: it knows trainer and module, and makes the calls of `training_step`."""

    trainer: Any = None
    module: Any = None

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Note trainer and module."""
        self.trainer, self.module = trainer, module

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        """Forget trainer and module."""
        self.trainer = self.module = None

    def wrap_call(
        self, hook: str, kind: Receiver, receiver: object, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return the function; for `training_step` its call by `call_step`."""
        return partial(self.call_step, function) if hook == "training_step" else function

    def call_step(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Return what `training_step` returns."""
        return function(*arguments, **keywords)


class _LeftOut(Callback):
    """Leaves out the callbacks of a module that only observe; those of the trainer are not there."""

    def wrap_call(
        self, hook: str, kind: Receiver, receiver: object, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return the function, or one that does nothing."""
        is_left_out = kind == Receiver.CALLBACK and _only_observes(receiver) and not isinstance(receiver, LedgerCheck)
        return no_op if is_left_out else function


def _only_observes(callback: object) -> bool:
    return bool(getattr(callback, "only_observes", False))


@contextmanager
def _silent(trainer: Trainer, callbacks: list[Any]) -> Iterator[None]:
    """Let a trainer have some callbacks, no time limit and silent loggers, for the length of a `with` statement."""
    state, loop, log = trainer.verb_state, trainer.fit_loop, trainer.metric_log
    if state.is_running:
        rule = "called when no verb of the trainer is running"
        action = "Use another trainer inside of hooks."
        raise RuntimeError(must_be("replay", rule, state.run and state.run.verb, "Trainer", action))
    own, limits, loggers = trainer.callbacks, loop.limits, trainer.loggers
    try:
        with trainer.silenced():
            if log is not None:
                log.write_to(trainer.loggers)
            trainer.callbacks, state.is_replaying = callbacks, True
            loop.limits = attrs.evolve(limits, max_time=None)
            yield
    finally:
        trainer.callbacks, state.is_replaying, loop.limits = own, False, limits
        if log is not None:
            log.write_to(loggers)


def _check_start(trainer: Trainer, run: Run, to_step: int) -> None:
    """Raise `ValueError` if a run does not begin before a step; warn if it may differ from the one before."""
    if run.checkpoint is None and trainer.global_step:
        rule = "a checkpoint, as this trainer has trained already"
        action = "Pass one, or make module and trainer anew with the same seed to begin at the start."
        raise InvalidArgumentError("ckpt_path", rule, None, "replay", action)
    if step_of(run) >= to_step:
        rule = f"greater than the number of updates of the checkpoint ({step_of(run):,})"
        action = "Pass a previous checkpoint, or a folder of which the nearest is taken."
        raise InvalidArgumentError("to_step", rule, to_step, "replay", action)
    step_limit = trainer.fit_loop.limits.step_limit
    if to_step > step_limit:
        raise beyond_the_end(to_step, int(step_limit))
    if trainer.fit_loop.limits.validation_seconds is not None and trainer.is_global_zero:
        warn_user(
            "`val_check_interval` is a time, so a replay validates after other batches than the run did. Where "
            "validation changes what follows, the replay differs. Give the interval in batches for exact replays."
        )


def beyond_the_end(to_step: int, last: int) -> InvalidArgumentError:
    """Return the error about a step that training does not come to."""
    rule = f"at most the number of updates of the training ({last:,})"
    return InvalidArgumentError("to_step", rule, to_step, "replay", "Pass a step that was made.")


def _forget(run: Run, callbacks: Sequence[Any]) -> None:
    """Take the states of callbacks from a checkpoint, so that nothing warns of their absence."""
    if run.checkpoint is not None and "callbacks" in run.checkpoint:
        present, absent = ({state_key(one) for one in some} for some in (run.callbacks, callbacks))
        states = run.checkpoint["callbacks"]
        run.checkpoint["callbacks"] = {key: state for key, state in states.items() if key not in absent - present}
