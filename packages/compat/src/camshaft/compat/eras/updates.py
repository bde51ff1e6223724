"""Updates, and modes of optimization, as earlier eras made and counted them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.compat.eras.releases import COUNTS_UPDATES
from camshaft.hooks_core import no_op
from camshaft.hooks_core.dispatch.binding import bind
from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.eras.releases import Behaviour
from camshaft.hooks_core.spec import ZeroGrad
from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.optimizer_step import replace_step
from camshaft.loops import FitProgress
from camshaft.loops.optimization.automatic import PerOptimizerOptimization
from camshaft.loops.optimization.manual import ManualOptimization
from camshaft.loops.optimization.toggling import OptimizerToggle
from camshaft.loops.optimization.update import (
    ClosureUpdate,
    OptimizerUpdate,
    UpdateContext,
    Zeroing,
    loss_of,
    with_arguments,
)


class NoOptimizer(Optimizer):
    """An optimizer of nothing, where `configure_optimizers` returned none: batches are computed and counted."""

    def __init__(self) -> None:
        super().__init__([torch.zeros(1)], {})
        self.param_groups.clear()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Evaluate the closure."""
        return None if closure is None else closure()

    def state_dict(self) -> dict[str, Any]:
        """Return an empty dictionary."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing."""


def update_class(behaviour: Behaviour, optimizer: Optimizer, *, has_owner: bool) -> type[OptimizerUpdate]:
    """Return which update an era had of an optimizer.

    Args:
        behaviour: What the era did.
        optimizer: The optimizer.
        has_owner: Whether the update is under the control of an owner; see `ClosureUpdate`.
    """
    if behaviour.steps_after_backward:
        return UpdateAfterBackward
    is_none = isinstance(optimizer, NoOptimizer)
    if behaviour.era != "1.x" and not is_none:
        return ClosureUpdate if has_owner else OptimizerUpdate
    if behaviour.since < COUNTS_UPDATES or is_none:
        return CountedClosureUpdate if has_owner else CountedUpdate
    return SkippableUpdate if has_owner else OptimizerUpdate


class SkippableUpdate(ClosureUpdate):
    """An update that an override of `optimizer_step` leaves out by doing nothing at all (1.x).

    Then `training_step` does not run. Stepping without the closure is an error, since it would train on nothing.
    """

    def _check_left_out(self) -> None:
        if self._has_stepped:
            super()._check_left_out()


class CountedUpdate(OptimizerUpdate):
    """An update that counts every end of a window, stepped or not (1.0 to 1.5, and without an optimizer)."""

    def run(self, batch: Any, batch_idx: int, ends_window: bool) -> Any:
        """Run the update as `OptimizerUpdate.run`."""
        outputs = super().run(batch, batch_idx, ends_window)
        self.has_updated = ends_window
        return outputs


class CountedClosureUpdate(CountedUpdate, SkippableUpdate):
    """The same of an update under the control of an owner."""


class AnnouncedZeroing(Zeroing):
    """The zeroing of `optimizer_step` itself (0.x): the loop only calls the hook before it, at the place.

    "after_optimizer_step" stands for right after each step of the optimizer.
    """

    def __init__(self, context: UpdateContext, optimizer: Optimizer, optimizer_idx: int, place: ZeroGrad) -> None:
        super().__init__(context, optimizer, optimizer_idx, place)
        self.drop()
        self.quick = None  # not the loop's task
        self._step_hook: Any = None
        if self.is_last and self._announce is not None:
            self._step_hook = optimizer.register_step_post_hook(lambda *_: self.announce())

    def run(self, batch_idx: int) -> None:
        """Call the hook. Hooks: on_before_zero_grad."""
        self.announce()
        self.is_done = True

    def close(self) -> None:
        """Leave the optimizer as it was."""
        if self._step_hook is not None:
            self._step_hook.remove()


class UpdateAfterBackward(ClosureUpdate):
    """An update with forward and backward first, then `optimizer_step`, once for each window (0.x).

    The closure that `optimizer_step` gets computes the step once more, from zeroed gradients; by default it is passed
    on to an optimizer that evaluates the loss itself, as LBFGS does. Every end of a window counts as an update, also
    where an override does not step. Where `optimizer_step` zeroes as well, what an override leaves in place is added to
    later gradients.

    Args:
        shared, default_zero_grad: The arguments of `OptimizerUpdate`.
        step_zeroes: Whether `optimizer_step` zeroes the gradients, so that the loop never does; `default_zero_grad` is
            then the place of `on_before_zero_grad` alone; see `AnnouncedZeroing`.
    """

    def __init__(self, *shared: Any, default_zero_grad: ZeroGrad, step_zeroes: bool) -> None:
        super().__init__(*shared, default_zero_grad=default_zero_grad)
        self._step_zeroes = step_zeroes
        self._is_window_open = False
        if step_zeroes:
            context, optimizer, optimizer_idx = shared
            self.zeroing = AnnouncedZeroing(context, optimizer, optimizer_idx, default_zero_grad)

    def run(self, batch: Any, batch_idx: int, ends_window: bool) -> Any:
        """Add a step's gradients to those of its window, and let `optimizer_step` follow if it ends the window.

        Collective.

        Hooks: training_step, on_before_zero_grad (in its era's place), on_before_backward, backward, on_after_backward;
        at a window's end on_before_optimizer_step, configure_gradient_clipping, optimizer_step, optimizer_zero_grad.

        Args:
            batch: The batch or split, on its device.
            batch_idx: Index of the batch in the epoch.
            ends_window: Whether the window's gradients are complete with it.

        Returns:
            What `training_step` returned, when it ran first.

        Raises:
            TypeError: If `training_step` returned neither a loss nor None.
            RuntimeError: If an override of `optimizer_step` called the closure with gradients of other steps,
                or the closure found no loss.
        """
        had_gradients = self.holds_gradients
        outputs = super().run(batch, batch_idx, ends_window=False)
        if self.preparation.average.is_weighted:
            rule, where = "plain where `optimizer_step` zeroes by itself (0.x)", f"{self._context.where}.training_step"
            raise TypeError(must_be("loss", rule, "a WeightedLoss", where, "Port the module to weigh losses."))
        self._is_window_open = not ends_window
        if ends_window:
            self.has_updated = True
            if self.holds_gradients:
                self._update(batch, batch_idx, had_gradients)
            if not self._step_zeroes:
                self.holds_gradients = False
            self.zeroing.is_done = self.zeroing.is_last
        return outputs

    def drop(self) -> None:
        """Forget the gradients of a window that no update will end; those that an override left in place stay."""
        if self._step_zeroes and not self._is_window_open:
            self.holds_gradients = self._has_gradients()
            return
        if self._step_zeroes:
            self.zeroing.drop()
        super().drop()
        self._is_window_open = False

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the position inside an open window; the caller restores its gradients with the weights."""
        super().load_state_dict(state)
        self._is_window_open = not self._window.is_complete

    def close(self) -> None:
        """Restore the optimizer."""
        super().close()
        if isinstance(self.zeroing, AnnouncedZeroing):
            self.zeroing.close()

    def _update(self, batch: Any, batch_idx: int, had_gradients: bool) -> None:
        evaluate = partial(self._evaluate_once_more, batch, batch_idx, had_gradients)
        # called by a default of `optimizer_step`, in place of `optimizer.step(closure)`
        step_by_default = partial(self._step_by_default, batch_idx, evaluate)
        closure: Any = partial(evaluate)
        closure.step_by_default = step_by_default
        if self._own_step is not None:
            self.preparation.run()
            self._own_step(self._context.progress.current_epoch, batch_idx, self.optimizer, closure)
        else:
            if self.preparation.is_needed and not self._evaluates_loss:
                self.preparation.run()
            step_by_default()
        if self._step_zeroes:
            self.holds_gradients = self._has_gradients()
        elif self.zeroing.is_last:
            self.zeroing.run(batch_idx)

    def _step_by_default(self, batch_idx: int, closure: Callable[[], Any]) -> None:
        """Run the default of `optimizer_step`."""
        if self._evaluates_loss:
            self._step(self.optimizer, closure)
        else:
            self._step(self.optimizer)
        if self._step_zeroes:
            self.zeroing.clear(batch_idx)

    def _evaluate_once_more(self, batch: Any, batch_idx: int, had_gradients: bool) -> Tensor | None:
        """Run forward and backward from zeroed gradients, and everything before a step."""
        if had_gradients or self._window.length != 1:
            rule = "called only without gradients of other steps, since it zeroes gradients first"
            action = "Step without it, or zero the gradients in every batch and pass accumulate_grad_batches=1."
            where = f"{self._context.where}.optimizer_step"
            raise RuntimeError(must_be("second_order_closure", rule, "a call", where, action))
        self.zeroing.drop()
        self.zeroing.is_done, self.holds_gradients = True, False
        outputs = super().run(batch, batch_idx, ends_window=False)
        self.has_updated = True
        self._prepare_step(batch_idx, num_evaluations=2)
        return loss_of(outputs, self._context.run.module)

    def _has_gradients(self) -> bool:
        groups = self.optimizer.param_groups
        return any(parameter.grad is not None for group in groups for parameter in group["params"])


class BatchCountedPerOptimizerOptimization(PerOptimizerOptimization):
    """`PerOptimizerOptimization` whose updates, and the optimizers' turns, are counted by batches.

    Where splits are accumulated, a window may lie in two batches: turns are then those of the windows, as ever.

    Args:
        turns_by_epoch: Whether turns begin anew with each epoch.
        arguments, keywords: Those of `PerOptimizerOptimization`.
    """

    def __init__(self, *arguments: Any, turns_by_epoch: bool, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._of_fit, self._progress = self._progress, FitProgress()
        self._turns_by_epoch = turns_by_epoch
        self._all_turns = self._turns

    def run_batch(self, batch: Any, batch_idx: int, is_last: bool) -> Any:
        """Run a batch as `PerOptimizerOptimization.run_batch`, with the turn of the batch."""
        turns = self._all_turns
        if self._split is None or not self._accumulates:
            num_earlier = self._of_fit.global_step
            if self._turns_by_epoch:
                num_earlier = batch_idx // self._window.length
            self._turns = [turns[num_earlier % len(turns)]]
        else:
            self._turns = turns
        num_before = self._progress.global_step
        outputs = super().run_batch(batch, batch_idx, is_last)
        if self._progress.global_step != num_before:
            self._of_fit.global_step += 1
        return outputs


class BatchCountedManualOptimization(ManualOptimization):
    """`ManualOptimization` that counts every batch, and gives `training_step` the first index if it asks for one.

    Args:
        context: That of `ManualOptimization`.
        zeroes_after_step: Whether an optimizer's gradients are zeroed after each of its steps, and its step takes
            `make_optimizer_step`, which may leave it at the closure.
    """

    def __init__(self, context: UpdateContext, *, zeroes_after_step: bool) -> None:
        super().__init__(context)
        hooks, optimizers = context.run.hooks, context.configured.optimizers if zeroes_after_step else []
        self._of_fit, self._progress = self._progress, FitProgress()
        self._training_step = with_arguments(hooks, "training_step", optimizer_idx=0)
        self._on_before_zero_grad = hooks.on_before_zero_grad
        self._step_hooks += [one.register_step_post_hook(partial(self._zero, one)) for one in optimizers]
        self._restore_steps = [replace_step(one, _optional_step) for one in optimizers]

    def run_batch(self, batch: Any, batch_idx: int, is_last: bool) -> Any:
        """Run a batch as `ManualOptimization`. Hooks: also on_before_zero_grad, if gradients are zeroed after steps."""
        outputs = super().run_batch(batch, batch_idx, is_last)
        self._of_fit.global_step += 1
        return outputs

    def close(self) -> None:
        """Restore the optimizers."""
        super().close()
        for restore in self._restore_steps:
            restore()

    def _zero(self, optimizer: Optimizer, *_: Any) -> None:
        self._on_before_zero_grad(optimizer)
        optimizer.zero_grad()


def _optional_step(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step that takes `make_optimizer_step`, and only calls its closure where that is false."""

    def step(_: Optimizer, *args: Any, make_optimizer_step: bool | None = None, **kwargs: Any) -> Any:
        if make_optimizer_step is None or make_optimizer_step:
            return original(*args, **kwargs)
        closure = args[0] if args else kwargs.get("closure")
        with torch.enable_grad():
            return None if closure is None else closure()

    return step


class NoToggle(OptimizerToggle):
    """Leaves all parameters as their owner wants them, as releases up to 0.5 did."""

    isolates = False

    def toggle(self, optimizer: Optimizer) -> None:
        """Freeze nothing."""
        self.active = optimizer


class ModuleToggle(OptimizerToggle):
    """Lets a module that overrides `toggle_optimizer` decide what requires gradients while an optimizer is at work.

    After its turn everything requires gradients again that did before.

    Args:
        module: The module.
        optimizers: All optimizers.
    """

    def __init__(self, module: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        super().__init__(optimizers)
        self._module = module
        self._own_toggle = _by_name(module, "toggle_optimizer", ("optimizer", "optimizer_idx"))
        self._own_untoggle = _by_name(module, "untoggle_optimizer", ("optimizer_idx",))
        self._before: list[tuple[Tensor, bool]] = []

    def toggle(self, optimizer: Optimizer) -> None:
        """Let the module choose. If another optimizer was at work, its turn is over."""
        self.untoggle()
        self.active = optimizer
        self._before = [(parameter, parameter.requires_grad) for parameter in self._module.parameters()]
        self._own_toggle(optimizer=optimizer, optimizer_idx=self._optimizers.index(optimizer))

    def untoggle(self) -> None:
        """Let require gradients whatever did before `toggle`."""
        optimizer, self.active = self.active, None
        if optimizer is not None:
            self._own_untoggle(optimizer_idx=self._optimizers.index(optimizer))
        for parameter, requires_grad in self._before:
            parameter.requires_grad = requires_grad
        self._before.clear()


def _by_name(module: nn.Module, name: str, provided: Sequence[str]) -> Callable[..., Any]:
    """Return an override that takes all these arguments by name and passes on those that it asks for; if there is none,
    what does nothing."""
    method = implementation(module, name)
    if method is None:
        return no_op
    arguments = bind(method, provided)

    def call(**values: Any) -> Any:
        positional = [values[one.source] for one in arguments if one.keyword is None]
        return method(*positional, **{one.keyword: values[one.source] for one in arguments if one.keyword is not None})

    return call
