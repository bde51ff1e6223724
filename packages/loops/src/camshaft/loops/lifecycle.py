"""The life cycle of a verb, from set-up to tear-down, also after errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from camshaft.hooks_core import no_op
from camshaft.hooks_core.protocols import check_strategy
from camshaft.hooks_core.support.messages import describe, note_position
from camshaft.hooks_core.support.processes import OrderlyExit, make_forks_safe, track_run
from camshaft.loops.evaluation.loops import ModuleModes
from camshaft.loops.fit.resume import restore_receivers
from camshaft.loops.state.run import Run


class EndOfVerb(BaseException):
    """Raised in a hook by all processes alike, it ends the verb there, in the midst of a step.

    Everything is torn down as at the verb's end; `on_exception` is not called, and what waits to be saved is dropped.
    It is no `Exception`, so that code of users does not take it for an error.
    """


class Loop(Protocol):
    """A loop that `run_verb` can run.

    It may have a method `begin` as well, called without arguments before any hook is.

    Attributes:
        required: Names of the module's steps without which the loop makes no sense.
        defers_saves: Whether it has save points of its own, for which checkpoints wait that are asked for before.
    """

    @property
    def required(self) -> tuple[str, ...]: ...

    @property
    def defers_saves(self) -> bool: ...

    def run(self, run: Run) -> Any:
        """Run to the end. Returns the verb's result."""


def run_verb(run: Run, loop: Loop) -> Any:
    """Run a loop with everything around it: preparation, set-up, weights, device, tear-down. Collective.

    Hooks: configure_callbacks, prepare_data, setup, configure_sharded_model, configure_model,
    on_load_checkpoint, load_state_dict of the data module and of callbacks, then the loop's, then teardown;
    on_exception if anything raises.

    Args:
        run: The receivers and what they run on.
        loop: The loop.

    Returns:
        The result of the loop; None if a hook raised `EndOfVerb`.

    Raises:
        TypeError: If the strategy lacks something of the protocol.
        HookFaultError: If receivers' hooks are faulty or a step is missing; no hook was called then.
        Exception: Whatever was raised inside, with a note that says where; or what an adapter of the run raises.
    """
    check_strategy(run.strategy, run.verb)
    begin = getattr(loop, "begin", None)
    if begin is not None:
        begin()
    run.resolve_hooks(loop.required)
    hooks, strategy = run.hooks, run.strategy
    if not run.is_connected:
        strategy.connect()
    if strategy.world_size > 1:
        make_forks_safe()
    has_logical_ranks = getattr(strategy, "num_logical_ranks", None) is not None
    with track_run(run.place), TeardownContext(run):
        if has_logical_ranks:
            from camshaft.loops.fit.logical_ranks import begin_logical_ranks, follow_module, share_numbers

            begin_logical_ranks(run)
        prepare_data(run)
        if has_logical_ranks:
            share_numbers(run)
        hooks.setup(run.verb)
        run.follow_callbacks(loop.required)
        hooks = run.hooks
        with strategy.model_context(run.module):
            hooks.configure_sharded_model()
            hooks.configure_model()
        if run.checkpoint is not None:
            hooks.on_load_checkpoint(run.checkpoint)
        strategy.setup_module(run.module)
        if has_logical_ranks:
            follow_module(run)
        if run.checkpoint is not None:
            restore_receivers(run, run.checkpoint)
        if not loop.defers_saves:
            run.save_at_once()
        result = loop.run(run)
        run.finish_saving()
        return result
    return None


def prepare_data(run: Run) -> None:
    """Prepare the data on one process, while the others wait. Collective.

    That is the first process of each machine, or of all if the attribute `prepare_data_per_node` of data module or
    module is false. Hooks: prepare_data.
    """
    if run.hooks.prepare_data is no_op:
        return
    strategy = run.strategy
    asked = {getattr(receiver, "prepare_data_per_node", None) for receiver in (run.data, run.module)} - {None}
    if (strategy.local_rank if any(asked) or not asked else strategy.global_rank) == 0:
        run.hooks.prepare_data()
    if strategy.world_size > 1:
        strategy.barrier()


class TeardownContext:
    """Tears a run down once at its end; after an error, restores the modes and calls `on_exception` first.

    Every `on_exception` and every `teardown` runs once, even if others raise; what they raise is noted on the original
    error. Gradient mode is restored always, each submodule's train/eval mode after an error. It is a class because a
    generator would turn a `StopIteration` that `teardown` raises into another error.

    Args:
        run: The run, with its hooks resolved.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._modes = ModuleModes(run.module)
        self._grad_enabled = torch.is_grad_enabled()

    def __enter__(self) -> None:
        torch.set_grad_enabled(True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> bool:
        try:
            if error is None:
                self._tear_down()
            elif isinstance(error, EndOfVerb):
                self._run.forget_saves()
                try:
                    self._tear_down()
                finally:
                    self._run.stop_workers()
                return True
            else:
                self._report(error)
                _attempt(error, "teardown", partial(_tear_down, self._run))
                # not before: `on_exception` may save, and other processes are notified first
                _attempt(error, "stopping the loader's workers", self._run.stop_workers)
        finally:
            torch.set_grad_enabled(self._grad_enabled)
            self._run.release_callbacks()
        return False

    def _tear_down(self) -> None:
        try:
            _tear_down(self._run)
        except OrderlyExit:
            raise
        except BaseException as error:
            self._report(error)
            raise

    def _report(self, error: BaseException) -> None:
        if self._run.stage is not None and self._run.batch_idx is not None:
            note_position(error, self._run.position())  # outside of hooks, as in the backward pass
        self._run.strategy.note_failure(error)
        self._run.forget_saves()
        torch.set_grad_enabled(self._grad_enabled)
        self._modes.restore()
        _attempt(error, "on_exception", partial(self._run.hooks.on_exception, error))


def _tear_down(run: Run) -> None:
    try:
        run.hooks.teardown(run.verb)
    finally:
        if run.logical is not None and run.logical.metrics is not None:
            run.logical.metrics.uninstall()
        run.strategy.teardown()


def _attempt(original: BaseException, what: str, action: Callable[[], object]) -> None:
    """Do something after an error; if it raises as well, note that on the original error."""
    try:
        action()
    except BaseException as further:
        original.add_note(f"Afterwards, {what} raised {describe(further)}")
