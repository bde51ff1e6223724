"""The update of one optimizer (forward, zeroing, backward, clipping, step), and the accumulation window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from camshaft.hooks_core import Hooks, no_op
from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.spec import ZeroGrad
from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.optimizer_step import needs_closure, steps_with_closure
from camshaft.hooks_core.support.transfer import map_nested
from camshaft.loops.optimization.configuration import ConfiguredOptimizers, dropping_gradients, parameters_of
from camshaft.loops.optimization.settings import OptimizationSettings
from camshaft.loops.optimization.weighted_loss import WeightedLoss, WindowAverage, scale
from camshaft.loops.optimization.window import AccumulationWindow
from camshaft.loops.state.of_ranks import OfRanks
from camshaft.loops.state.progress import FitProgress
from camshaft.loops.state.run import Run


@attrs.frozen(eq=False, repr=False, kw_only=True)
class UpdateContext:
    """The parts that all updates of a fit share.

    Attributes:
        run: The run.
        configured: The optimizers and schedulers, as the strategy has set them up.
        progress: The counters of the fit.
        settings: Settings of the updates, as the fit was given them.
        window: The accumulation window of all optimizers.
        split: Function that splits a batch along time; None leaves batches whole.
    """

    run: Run
    configured: ConfiguredOptimizers
    progress: FitProgress
    settings: OptimizationSettings
    window: AccumulationWindow
    split: Callable[[Any], Sequence[Any]] | None = None

    @property
    def where(self) -> str:
        """Name of the module's class, for errors."""
        return type(self.run.module).__qualname__


class Zeroing:
    """Zeroes the gradients of one optimizer, once for each window, at the place that `zero_grad` names.

    Args:
        context: The parts that all updates share.
        optimizer: The optimizer.
        optimizer_idx: Its index among all.
        place: The place.

    Attributes:
        is_first: Whether the place is before a window's first `training_step`.
        is_last: Whether it is after the update; gradients are then zeroed before the first one, too.
        is_done: Whether the gradients of the window that is open have been zeroed.
        drop: Zeroes without calling any hook.
        quick: The same where no receiver has a hook of zeroing, else None.
    """

    def __init__(self, context: UpdateContext, optimizer: Optimizer, optimizer_idx: int, place: ZeroGrad) -> None:
        hooks = context.run.hooks
        self.is_first = place == "before_training_step"
        self.is_done = self.is_last = place == "after_optimizer_step"
        self.drop = dropping_gradients(optimizer)
        self._optimizer, self._progress = optimizer, context.progress
        self._announce = _implemented(hooks.on_before_zero_grad)
        self._override = with_arguments(hooks, "optimizer_zero_grad", optimizer_idx=optimizer_idx)
        self.quick = self.drop if self._announce is None and self._override is None else None
        if self.is_last:
            self.drop()  # older gradients must not reach the first update

    def run(self, batch_idx: int) -> None:
        """Zero the gradients. Hooks: on_before_zero_grad, optimizer_zero_grad."""
        self.announce()
        self.clear(batch_idx)
        self.is_done = True

    def announce(self) -> None:
        """Tell that gradients are about to be zeroed. Hooks: on_before_zero_grad."""
        if self._announce is not None:
            self._announce(self._optimizer)

    def clear(self, batch_idx: int) -> None:
        """Zero the gradients. Hooks: optimizer_zero_grad."""
        if self._override is not None:
            self._override(self._progress.current_epoch, batch_idx, self._optimizer)
        else:
            self.drop()


class Preparation:
    """Averages, unscales and clips the gradients of one optimizer, right before its step.

    Args:
        context: The parts that all updates share.
        optimizer: The optimizer.
        optimizer_idx: Its index among all.

    Attributes:
        average: Makes the gradients the mean over their window.
        is_needed: Whether there is anything to do. Most updates have nothing; this spares them the call.
    """

    def __init__(self, context: UpdateContext, optimizer: Optimizer, optimizer_idx: int) -> None:
        hooks, strategy = context.run.hooks, context.run.strategy
        self._optimizer, self._window = optimizer, context.window
        self.average = WindowAverage(context.run, context.window)
        has_hook = hooks.on_before_optimizer_step is not no_op
        bound = partial(with_arguments, hooks, optimizer_idx=optimizer_idx)
        self._on_before_optimizer_step: Any = bound("on_before_optimizer_step") if has_hook else None
        self._configure_gradient_clipping = bound("configure_gradient_clipping")
        self._unscale_gradients, self._clip_gradients = strategy.unscale_gradients, strategy.clip_gradients
        self.follow(context.settings)

    def follow(self, settings: OptimizationSettings) -> None:
        """Clip by these settings from the next update on, and adapt to the window's length."""
        self._settings = settings
        has_hook = self._on_before_optimizer_step is not None or self._configure_gradient_clipping is not None
        averages = self._window.length != 1 or bool(self.average.is_weighted)
        self.is_needed = has_hook or settings.gradient_clip_val is not None or averages

    def differentiable(self, outputs: Any, loss: Tensor) -> Tensor:
        """Return what is differentiated of a step; see `WindowAverage.differentiable`."""
        loss = self.average.differentiable(outputs, loss)
        if not self.is_needed:  # the first loss has told whether it is
            self.follow(self._settings)
        return loss

    def run(self) -> None:
        """Prepare the gradients. Hooks: on_before_optimizer_step, configure_gradient_clipping."""
        self._unscale_gradients(self._optimizer)
        factor = self.average.end_window()
        if factor is not None:
            scale((one.grad for one in parameters_of(self._optimizer) if one.grad is not None), factor)
        if self._on_before_optimizer_step is not None:
            self._on_before_optimizer_step(self._optimizer)
        clip_val, algorithm = self._settings.gradient_clip_val, self._settings.gradient_clip_algorithm
        if self._configure_gradient_clipping is not None:
            self._configure_gradient_clipping(self._optimizer, clip_val, algorithm)
        elif clip_val is not None:
            self._clip_gradients(self._optimizer, clip_val, algorithm)


class OptimizerUpdate:
    """Makes the updates of one optimizer, one for each accumulation window.

    A window's gradients are those of its own steps alone: they are zeroed at the place that `zero_grad` names. Each
    loss is divided by the window's length, so that an update follows the mean; a window that the epoch's end cuts
    short is averaged over its real length, and one of `WeightedLoss` by weights.

    Args:
        context: The parts that all updates share. If it splits batches, `training_step` gets `hiddens`.
        optimizer: The optimizer.
        optimizer_idx: Its index among all.
        default_zero_grad: Where gradients are zeroed if the settings leave it open: before a window's first backward,
            before its first `training_step`, or after its update.

    Attributes:
        optimizer: The optimizer.
        holds_gradients: Whether gradients wait for the update that ends their window.
        hiddens: The hidden state that the next step gets.
        has_updated: Whether the latest step updated the weights.
        zeroing: Zeroes the gradients.
        preparation: Prepares the gradients for the optimizer's step.
    """

    def __init__(
        self,
        context: UpdateContext,
        optimizer: Optimizer,
        optimizer_idx: int,
        *,
        default_zero_grad: ZeroGrad = "before_backward",
    ) -> None:
        run = context.run
        hooks, strategy = run.hooks, run.strategy
        self.optimizer = optimizer
        self.holds_gradients = False
        self.hiddens: Any = None
        self.has_updated = False
        self.zeroing = Zeroing(context, optimizer, optimizer_idx, context.settings.zero_grad or default_zero_grad)
        self.preparation = Preparation(context, optimizer, optimizer_idx)
        self._average = self.preparation.average
        # For the hot path: a step looks up no attribute of hooks and strategy, and a hook without receivers is None.
        self._context = context
        self._optimizer_idx = optimizer_idx
        self._window = context.window
        self._carries_hiddens = context.split is not None
        self._training_step: Any = hooks.training_step
        self._on_before_backward = _implemented(hooks.on_before_backward)
        self._on_after_backward = _implemented(hooks.on_after_backward)
        self._backward: Any = strategy.backward
        is_autocast = is_under_autocast(strategy)
        differentiate = with_arguments(
            hooks, "backward", optimizer_idx=optimizer_idx, optimizer=optimizer, use_amp=is_autocast
        )
        if differentiate is not None:
            self._backward = partial(strategy.backward, differentiate=differentiate)
        self._strategy, self._step = strategy, strategy.optimizer_step

    def run(self, batch: Any, batch_idx: int, ends_window: bool) -> Any:
        """Add a step's gradients to those of its window, and update the weights if it ends the window. Collective.

        Hooks: training_step, on_before_zero_grad, optimizer_zero_grad, on_before_backward, backward,
        on_after_backward, on_before_optimizer_step, configure_gradient_clipping.

        Args:
            batch: The batch or split, on its device.
            batch_idx: Index of the batch in the epoch.
            ends_window: Whether the window's gradients are complete with it.

        Returns:
            The outputs of `training_step`.

        Raises:
            TypeError: If `training_step` returned neither a loss nor None, or weighted losses beside others.
            LossError: If the loss has several elements or no graph.
        """
        zeroing = self.zeroing
        self.has_updated = False
        if zeroing.is_first and not zeroing.is_done:
            zeroing.run(batch_idx)
        if self._carries_hiddens:
            outputs = self._training_step(batch, batch_idx, self._optimizer_idx, self.hiddens)
        else:
            outputs = self._training_step(batch, batch_idx, self._optimizer_idx)
        loss = outputs if isinstance(outputs, Tensor) else loss_of(outputs, self._context.run.module)
        if loss is not None:
            if not zeroing.is_done:
                if zeroing.quick is not None:
                    zeroing.quick()
                    zeroing.is_done = True
                else:
                    zeroing.run(batch_idx)
            if self._average.is_weighted is not False or isinstance(outputs, WeightedLoss):
                loss = self.preparation.differentiable(outputs, loss)
            elif self._window.divisor != 1:
                loss = loss / self._window.divisor
            if self._on_before_backward is not None:
                self._on_before_backward(loss)
            try:
                self._backward(loss)
            except RuntimeError as error:
                self._explain(loss, error)
                raise
            self.holds_gradients = True
            if self._on_after_backward is not None:
                self._on_after_backward()
        if ends_window:
            self.end_window(batch_idx)
        return outputs

    def end_window(self, batch_idx: int) -> None:
        """Update the weights, if there are gradients. Collective. Hooks: as `run`, from on_before_optimizer_step on."""
        zeroing = self.zeroing
        if self.holds_gradients:
            if self.preparation.is_needed:
                self.preparation.run()
            self._step(self.optimizer)
            self.has_updated = not self._strategy.has_skipped_step
            if zeroing.is_last:
                zeroing.run(batch_idx)
        zeroing.is_done, self.holds_gradients = zeroing.is_last, False

    def drop(self) -> None:
        """Forget the gradients of a window that no update will end."""
        if self.zeroing.is_last and self.holds_gradients:
            self.zeroing.drop()
        self.zeroing.is_done, self.holds_gradients = self.zeroing.is_last, False
        self._average.drop()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the open window, as plain values."""
        is_zeroed = self.zeroing.is_done and not self._window.is_complete
        state, weights = {"zeroed": is_zeroed, "holds_gradients": self.holds_gradients}, self._average.state_dict()
        return {**state, "weights": weights} if weights else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on inside the window that was open; its gradients are restored with the weights."""
        self.holds_gradients = bool(state["holds_gradients"])
        self.zeroing.is_done = self.zeroing.is_last or bool(state["zeroed"])
        self._average.load_state_dict(state.get("weights", {}))

    def close(self) -> None:
        """Leave the optimizer as it was."""

    def _explain(self, loss: Tensor, error: RuntimeError) -> None:
        """Replace an error of backward by one that explains it, if its cause is the loss."""
        try:
            check_loss(loss, "`training_step` must return", self._context.where)
        except LossError as of_loss:
            raise of_loss from error


class ClosureUpdate(OptimizerUpdate):
    """Makes the updates of an optimizer under the control of their owner, who gets a closure.

    The owner is an override of `optimizer_step`, or an optimizer that is not torch's own. The closure runs the last
    step of a window (forward, zeroing and backward), and then clipping, each time anew. It enables gradients, since the
    `step` of many optimizers disables them.

    Attributes:
        add_gradients: Adds a step's gradients to those of its window, as `OptimizerUpdate.run`.
    """

    def __init__(self, context: UpdateContext, optimizer: Optimizer, optimizer_idx: int, **settings: Any) -> None:
        super().__init__(context, optimizer, optimizer_idx, **settings)
        known = {"optimizer_idx": optimizer_idx, "on_tpu": False, "using_lbfgs": isinstance(optimizer, LBFGS)}
        known["using_native_amp"] = is_under_autocast(context.run.strategy)
        self._own_step = with_arguments(context.run.hooks, "optimizer_step", **known)
        self._evaluates_loss = needs_closure(optimizer)
        self.add_gradients: Callable[..., Any] = super().run
        self._has_stepped = False
        self._step_hook = optimizer.register_step_post_hook(self._note_step)

    def run(self, batch: Any, batch_idx: int, ends_window: bool) -> Any:
        """Run a step as `OptimizerUpdate.run`, or let the owner run the one that ends a window. Collective.

        Hooks: those of `OptimizerUpdate.run`; around all of these, at a window's end, optimizer_step.

        Args:
            batch: The batch or split, on its device.
            batch_idx: Index of the batch in the epoch.
            ends_window: Whether the window's gradients are complete with it.

        Returns:
            The outputs of `training_step`.

        Raises:
            TypeError, LossError: As `OptimizerUpdate.run`.
            RuntimeError: If the owner never called the closure, or called it twice although gradients are accumulated.
        """
        add_gradients = self.add_gradients
        if not ends_window:
            return add_gradients(batch, batch_idx, ends_window=False)
        outputs: Any = None
        num_evaluations = 0

        @torch.enable_grad()
        def closure() -> Tensor | None:
            nonlocal outputs, num_evaluations
            outputs = None  # frees the graph of the evaluation before
            num_evaluations += 1
            if num_evaluations > 1:
                self._discard_evaluation()
            outputs = add_gradients(batch, batch_idx, ends_window=False)
            self._prepare_step(batch_idx, num_evaluations)
            return self.loss_of(outputs)

        self._has_stepped = False
        try:
            if self._own_step is not None:
                self._own_step(self._context.progress.current_epoch, batch_idx, self.optimizer, closure)
            else:
                self._step(self.optimizer, closure)
        except _NoLossError:
            pass  # there is nothing to update
        if not num_evaluations:
            self._check_left_out()
        self.has_updated = self._has_stepped and self.holds_gradients
        if self.zeroing.is_last and self.holds_gradients:
            self.zeroing.run(batch_idx)
        self.zeroing.is_done, self.holds_gradients = self.zeroing.is_last, False
        return outputs

    def loss_of(self, outputs: Any) -> Tensor | None:
        """Return the loss that the closure returns, given what `add_gradients` returned."""
        return loss_of(outputs, self._context.run.module)

    def close(self) -> None:
        """Leave the optimizer as it was."""
        self._step_hook.remove()

    @property
    def _owner(self) -> str:
        is_optimizer = self._own_step is None
        return f"{type(self.optimizer).__qualname__}.step" if is_optimizer else f"{self._context.where}.optimizer_step"

    def _check_left_out(self) -> None:
        """Refuse an owner that has not called its closure."""
        name, action = "optimizer_closure", "Pass it on: `optimizer.step(closure=optimizer_closure)`."
        if self._own_step is None:
            name, action = "closure", "Call it first: `loss = closure()`."
        rule = f"called in `{self._owner.rpartition('.')[2]}`, since it computes the gradients"
        raise RuntimeError(f"`{name}` must be {rule}, but got no call of it in {self._owner}. {action}")

    def _discard_evaluation(self) -> None:
        """Discard the evaluation of the closure before this one."""
        if self._window.length != 1:
            rule = "called once per update, since the gradients of a window are added up"
            action = "Call it once, or pass accumulate_grad_batches=1."
            raise RuntimeError(must_be("optimizer_closure", rule, "another call", self._owner, action))
        self.zeroing.is_done, self.holds_gradients = self.zeroing.is_last, False
        self._average.drop()
        if self.zeroing.is_last:
            self.zeroing.drop()

    def _prepare_step(self, batch_idx: int, num_evaluations: int) -> None:
        """Prepare the gradients if the closure gave any."""
        if self.holds_gradients:
            self.preparation.run()
        elif self._own_step is not None and not self._evaluates_loss:
            if not self.zeroing.is_done:
                self.zeroing.run(batch_idx)  # so that the step that follows has nothing to apply
        elif num_evaluations == 1:
            raise _NoLossError
        else:
            rule = f"a loss whenever {type(self.optimizer).__name__} evaluates it again for an update"
            where = f"{self._context.where}.training_step"
            raise RuntimeError(must_be("return value", rule, None, where, "Decide by the batch alone what to skip."))

    def _note_step(self, *_: Any) -> None:
        self._has_stepped = True


class _NoLossError(Exception):
    """Raised through the `step` of an optimizer that evaluates the loss itself, when there is none."""


def has_owner(run: Run, optimizer: Optimizer) -> bool:
    """Return whether updates are under the control of an owner, who gets a closure; see `ClosureUpdate`."""
    return run.hooks.optimizer_step is not None or steps_with_closure(optimizer)


def _implemented(hook: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return a hook, or None if it has no receivers."""
    return None if hook is no_op else hook


def loss_of(outputs: Any, module: nn.Module) -> Tensor | None:
    """Return the loss in the outputs of `training_step`, or None if they are None.

    Args:
        outputs: What `training_step` returned.
        module: The module, for the error.

    Raises:
        TypeError: If it is no tensor, no dictionary with a tensor as 'loss', and not None.
    """
    if outputs is None or isinstance(outputs, Tensor):
        return outputs
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else None
    if isinstance(loss, Tensor):
        return loss
    got, action = repr(outputs), "Return the loss."
    if isinstance(outputs, Mapping):
        kinds = ", ".join(f"{str(name)!r}: {type(value).__name__}" for name, value in outputs.items())
        got = f"a dictionary with {kinds or 'nothing'}"
    if isinstance(loss, WeightedLoss):
        action = "Return the WeightedLoss itself, which takes further values as keyword arguments."
    raise TypeError(
        f"`training_step` must return a tensor, a dictionary with a tensor as 'loss', a WeightedLoss, or None, but got "
        f"{got} ({type(outputs).__name__}) in {type(module).__qualname__}. {action}"
    )


class LossError(ValueError, RuntimeError):
    """A loss that cannot be differentiated; the `RuntimeError` of torch is its cause.

    Attributes:
        shape: The loss's shape.
    """

    def __init__(self, message: str, shape: tuple[int, ...]) -> None:
        super().__init__(message)
        self.shape = shape


def check_loss(loss: Tensor, does: str, where: str) -> None:
    """Raise `LossError` for a loss that torch could not differentiate because of its shape or its graph.

    Args:
        loss: The loss.
        does: Beginning of the message, such as "`training_step` must return".
        where: The class.

    Raises:
        LossError: If it has several elements, or does not depend on anything that requires gradients.
    """
    shape = tuple(loss.shape)
    if not loss.requires_grad:
        rule = "a loss that depends on parameters which require gradients"
        action = "Compute it of trainable parameters, without `detach()`, `item()` or `torch.no_grad()`."
        raise LossError(f"{does} {rule}, but got one without a graph, of shape {shape}, in {where}. {action}", shape)
    if loss.numel() != 1:
        got = f"but got one of shape {shape} in {where}. Reduce it, such as by `loss.mean()`."
        raise LossError(f"{does} a loss with one element, {got}", shape)


def without_graph(outputs: Any) -> Any:
    """Return the outputs of `training_step` as `on_train_batch_end` gets them.

    Args:
        outputs: The outputs: a loss, a dictionary with it or anything else.

    Returns:
        For a loss a dictionary with it, for a dictionary with a loss a copy of it; the loss no longer holds the graph.
        Other tensors in the dictionary are as they were: a module that keeps none of their graphs detaches them. All
        else as it is, such as None, or the list with an item per optimizer of `PerOptimizerOptimization.run_batch`,
        whose items were made by this already.
    """
    if isinstance(outputs, Tensor):
        return {"loss": outputs.detach()}
    if isinstance(outputs, Mapping) and isinstance(outputs.get("loss"), Tensor):
        return {**outputs, "loss": outputs["loss"].detach()}
    return outputs


def next_hiddens(outputs: Any, hiddens: Any, module: nn.Module) -> Any:
    """Return the detached hidden state that the next split begins with.

    Args:
        outputs: The outputs of `training_step` for a split.
        hiddens: The hidden state that it was given; a step that returned None leaves it as it was.
        module: The module, for errors.

    Raises:
        TypeError: If there is no hidden state in the outputs.
    """
    if outputs is None:
        return hiddens
    if type(outputs) is OfRanks:
        before = [None] * len(outputs) if hiddens is None else hiddens
        return OfRanks(next_hiddens(one, known, module) for one, known in zip(outputs, before, strict=True))
    if not isinstance(outputs, Mapping) or "hiddens" not in outputs:
        rule = "a dictionary with 'hiddens', the state that the next split begins with, or None, if batches are split"
        got = sorted(map(str, outputs)) if isinstance(outputs, Mapping) else outputs
        where, action = f"{type(module).__qualname__}.training_step", 'Return {"loss": loss, "hiddens": hiddens}.'
        raise TypeError(must_be("return value", rule, got, where, action))
    hiddens = outputs["hiddens"]
    return hiddens.detach() if isinstance(hiddens, Tensor) else detached(hiddens)


def with_hiddens(outputs: Any, hiddens: Any) -> Any:
    """Return the outputs of a split with the detached hidden state in place of its own; None as it is.

    Args:
        outputs: What the split's `training_step` returned.
        hiddens: The detached hidden state.
    """
    if type(outputs) is OfRanks:
        return OfRanks(map(with_hiddens, outputs, hiddens))
    return None if outputs is None else {**outputs, "hiddens": hiddens}


def detached(value: Any) -> Any:
    """Return a value without its graph: all that can be detached, in collections of any nesting."""
    return map_nested(value, lambda leaf: hasattr(leaf, "detach"), lambda leaf: leaf.detach())


def with_arguments(hooks: Hooks, name: str, **values: Any) -> Callable[..., Any] | None:
    """Return a hook that passes on further arguments, where it has receivers whose signatures name them.

    Args:
        hooks: The hooks of the run.
        name: The hook's name.
        values: The known values, by the arguments' names.

    Returns:
        The hook with those of the values that its receivers take; the very hook of the run where they take none.
    """
    hook: Callable[..., Any] | None = getattr(hooks, name)
    taken = {argument: value for argument, value in values.items() if hooks.takes(name, argument)}
    return partial(hook, **taken) if hook is not None and taken else hook


def is_under_autocast(strategy: Strategy) -> bool:
    """Return whether a strategy tells that its steps run under autocast; the protocol does not ask it to."""
    return getattr(getattr(strategy, "precision", None), "autocast_dtype", None) is not None
