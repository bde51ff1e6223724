"""The life of a verb from set-up to tear-down, whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch

from camshaft.hooks_core.notes import describe
from camshaft.loops.modes import ModuleModes
from camshaft.loops.resume import restore_module
from camshaft.loops.run import Run


class Loop(Protocol):
    """What `run_verb` runs.

    Attributes:
        required: Names of the module's steps without which the loop makes no sense.
    """

    required: tuple[str, ...]

    def run(self, run: Run) -> Any:
        """Run to the end. Returns the verb's result."""


def run_verb(run: Run, loop: Loop) -> Any:
    """Run a loop with everything around it: preparation, set-up, weights, device, tear-down. Collective.

    Hooks: configure_callbacks, prepare_data, setup, configure_sharded_model, configure_model, on_load_checkpoint,
    then the loop's, then teardown; on_exception if anything raises.

    Args:
        run: The receivers and what they run on.
        loop: The loop.

    Returns:
        What the loop returns.

    Raises:
        HookFaultError: If receivers' hooks are faulty or a step is missing; no hook was called then.
        Exception: Whatever was raised inside, with a note that says where.
    """
    run.resolve_hooks(loop.required)
    hooks = run.hooks
    with guarded(run):
        hooks.prepare_data()
        hooks.setup(run.verb)
        hooks.configure_sharded_model()
        hooks.configure_model()
        if run.checkpoint is not None:
            restore_module(run, run.checkpoint)
        run.strategy.setup_module(run.module)
        return loop.run(run)


@contextmanager
def guarded(run: Run) -> Iterator[None]:
    """Tear a run down once at its end; on an error, restore the modes and tell everybody first.

    Every `on_exception` and every `teardown` runs once, even if others raise; what they raise is noted on the original
    error. Gradient mode is restored always; each submodule's train/eval mode if anything raised.
    """
    modes = ModuleModes(run.module)
    grad_enabled = torch.is_grad_enabled()
    torn_down = False
    try:
        torch.set_grad_enabled(True)
        yield
        torn_down = True
        _tear_down(run)
    except BaseException as error:
        torch.set_grad_enabled(grad_enabled)
        modes.restore()
        _attempt(error, "on_exception", partial(run.hooks.on_exception, error))
        if not torn_down:
            _attempt(error, "teardown", partial(_tear_down, run))
        raise
    finally:
        torch.set_grad_enabled(grad_enabled)


def _tear_down(run: Run) -> None:
    try:
        run.hooks.teardown(run.verb)
    finally:
        run.strategy.teardown()


def _attempt(original: BaseException, what: str, action: Callable[[], object]) -> None:
    """Do something after an error; what it raises is noted on that error, which matters more."""
    try:
        action()
    except BaseException as further:
        original.add_note(f"Afterwards, {what} raised {describe(further)}")
