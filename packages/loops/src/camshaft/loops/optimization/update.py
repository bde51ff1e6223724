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
from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.optimizer_step import needs_closure, steps_with_closure
from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.spec import ZeroGrad
from camshaft.hooks_core.transfer import map_nested
from camshaft.loops.optimization.configuration import ConfiguredOptimizers, dropping_gradients
from camshaft.loops.optimization.settings import OptimizationSettings
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


class OptimizerUpdate:
    """Makes the updates of one optimizer, one for each accumulation window.

    A window's gradients are those of its own steps alone: they are zeroed at the place that `zero_grad` names. Each
    loss is divided by the window's length, so that an update follows the mean; a window that the epoch's end cuts
    short is averaged over its real length.

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
    """

    def __init__(
        self,
        context: UpdateContext,
        optimizer: Optimizer,
        optimizer_idx: int,
        *,
        default_zero_grad: ZeroGrad = "before_backward",
    ) -> None:
        run, zero_grad = context.run, context.settings.zero_grad or default_zero_grad
        self.optimizer = optimizer
        self.holds_gradients = False
        self.hiddens: Any = None
        self.has_updated = False
        self._optimizer_idx = optimizer_idx
        self._settings = context.settings
        self._window = context.window
        self._progress = context.progress
        self._module = run.module
        self._strategy = run.strategy
        self._carries_hiddens = context.split is not None
        self._evaluates_loss = needs_closure(optimizer)
        self._with_closure = run.hooks.optimizer_step is not None or steps_with_closure(optimizer)
        self._drop_gradients = dropping_gradients(optimizer)
        self._bind(run.hooks, run.strategy)
        self.follow(context.settings)
        self._zeroes_first = zero_grad == "before_training_step"
        self._zeroes_last = zero_grad == "after_optimizer_step"
        self._zeroed = self._zeroes_last
        self._has_stepped = False
        if self._zeroes_last:
            self._drop_gradients()  # older gradients must not reach the first update
        self._step_hook = optimizer.register_step_post_hook(self._note_step) if self._with_closure else None

    def _bind(self, hooks: Hooks, strategy: Strategy) -> None:
        """Bind all that a step calls.

        This is for the hot path: a step looks up no attribute of hooks and strategy, and a hook without receivers is
        None, so that it is not even called.
        """
        optimizer, is_autocast = self.optimizer, is_under_autocast(strategy)
        bound = partial(with_arguments, hooks, optimizer_idx=self._optimizer_idx)
        self._training_step: Any = hooks.training_step
        self._on_before_zero_grad = _implemented(hooks.on_before_zero_grad)
        self._on_before_backward = _implemented(hooks.on_before_backward)
        self._on_after_backward = _implemented(hooks.on_after_backward)
        has_on_before_step = hooks.on_before_optimizer_step is not no_op
        self._on_before_optimizer_step: Any = bound("on_before_optimizer_step") if has_on_before_step else None
        self._configure_gradient_clipping = bound("configure_gradient_clipping")
        self._optimizer_zero_grad = bound("optimizer_zero_grad")
        self._step = strategy.optimizer_step
        self._own_step = bound(
            "optimizer_step", on_tpu=False, using_native_amp=is_autocast, using_lbfgs=isinstance(optimizer, LBFGS)
        )
        self._unscale_gradients, self._clip_gradients = strategy.unscale_gradients, strategy.clip_gradients
        backward: Any = strategy.backward
        differentiate = bound("backward", optimizer=optimizer, use_amp=is_autocast)
        self._backward = backward if differentiate is None else partial(backward, differentiate=differentiate)
        # set only where zeroing calls no hook: `run` then does it without a further call
        self._zero_grad = None if self._on_before_zero_grad or hooks.optimizer_zero_grad else self._drop_gradients
        self._calls_before_step = hooks.configure_gradient_clipping is not None or has_on_before_step

    def run(self, batch: Any, batch_idx: int, ends_window: bool) -> Any:
        """Add a step's gradients to those of its window, and update the weights if it ends the window. Collective.

        Hooks: training_step, on_before_zero_grad, optimizer_zero_grad, on_before_backward, backward,
        on_after_backward, on_before_optimizer_step, configure_gradient_clipping; around all of these, at a window's
        end, optimizer_step if it is overridden.

        Args:
            batch: The batch or split, on its device.
            batch_idx: Index of the batch in the epoch.
            ends_window: Whether the window's gradients are complete with it.

        Returns:
            The outputs of `training_step`.

        Raises:
            TypeError: If `training_step` returned neither a loss nor None.
            LossError: If the loss has several elements or no graph.
            RuntimeError: If an override of `optimizer_step`, or an optimizer's own step, never called its closure, or
                called it twice although gradients are accumulated.
        """
        if ends_window and self._with_closure:
            return self._run_with_closure(batch, batch_idx)
        self.has_updated = False
        if self._zeroes_first and not self._zeroed:
            self._zero_gradients(batch_idx)
        if self._carries_hiddens:
            outputs = self._training_step(batch, batch_idx, self._optimizer_idx, self.hiddens)
        else:
            outputs = self._training_step(batch, batch_idx, self._optimizer_idx)
        loss = outputs if isinstance(outputs, Tensor) else loss_of(outputs, self._module)
        if loss is not None:
            if not self._zeroed:
                if self._zero_grad is not None:
                    self._zero_grad()
                    self._zeroed = True
                else:
                    self._zero_gradients(batch_idx)
            if self._window.divisor != 1:
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
            if self.holds_gradients:
                if self._has_work_before_step:
                    self._before_step()
                self._step(self.optimizer)
                self.has_updated = not self._strategy.has_skipped_step
                if self._zeroes_last:
                    self._zero_gradients(batch_idx)
            self._zeroed, self.holds_gradients = self._zeroes_last, False
        return outputs

    def follow(self, settings: OptimizationSettings) -> None:
        """Clip by these settings from the next update on, and adapt to the window's length."""
        self._settings = settings
        # Most updates have nothing to do between backward and step; this flag spares them the call.
        self._has_work_before_step = (
            self._calls_before_step or settings.gradient_clip_val is not None or self._window.length != 1
        )

    def drop(self) -> None:
        """Forget the gradients of a window that no update will end."""
        if self._zeroes_last and self.holds_gradients:
            self._drop_gradients()
        self._zeroed, self.holds_gradients = self._zeroes_last, False

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the open window, as plain values."""
        return {"zeroed": self._zeroed and not self._window.is_complete, "holds_gradients": self.holds_gradients}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on inside the window that was open; its gradients are restored with the weights."""
        self.holds_gradients = bool(state["holds_gradients"])
        self._zeroed = self._zeroes_last or bool(state["zeroed"])

    def close(self) -> None:
        """Leave the optimizer as it was."""
        if self._step_hook is not None:
            self._step_hook.remove()

    def _run_with_closure(self, batch: Any, batch_idx: int) -> Any:
        """Run the window's last step and its update under the control of their owner.

        The owner is an override of `optimizer_step`, or an optimizer that is not torch's own. What they call is a
        closure that runs the step's forward, zeroing and backward, and then clipping, each time anew. It enables
        gradients, since the `step` of many optimizers disables them.
        """
        outputs: Any = None
        num_evaluations = 0

        @torch.enable_grad()
        def closure() -> Tensor | None:
            nonlocal outputs, num_evaluations
            outputs = None  # frees the graph of the evaluation before
            num_evaluations += 1
            if num_evaluations > 1:
                self._evaluate_again()
            outputs = self.run(batch, batch_idx, ends_window=False)
            self._before_step_of_closure(batch_idx, num_evaluations)
            return loss_of(outputs, self._module)

        self._has_stepped = False
        try:
            if self._own_step is not None:
                self._own_step(self._progress.current_epoch, batch_idx, self.optimizer, closure)
            else:
                self._step(self.optimizer, closure)
        except _NoLossError:
            pass  # there is nothing to update
        if not num_evaluations:
            self._check_left_out()
        self.has_updated = self._has_stepped and self.holds_gradients
        if self._zeroes_last and self.holds_gradients:
            self._zero_gradients(batch_idx)
        self._zeroed, self.holds_gradients = self._zeroes_last, False
        return outputs

    def _explain(self, loss: Tensor, error: RuntimeError) -> None:
        """Replace an error of backward by one that explains it, if its cause is the loss."""
        try:
            check_loss(loss, "`training_step` must return", type(self._module).__qualname__)
        except LossError as of_loss:
            raise of_loss from error

    def _check_left_out(self) -> None:
        """Refuse an override of `optimizer_step`, or an optimizer's own step, that has not called its closure."""
        if self._own_step is None:
            raise RuntimeError(
                "`closure` must be called in `step`, since it computes the gradients, but got no call of it in "
                f"{type(self.optimizer).__qualname__}.step. Call it first: `loss = closure()`."
            )
        raise RuntimeError(
            "`optimizer_closure` must be called in `optimizer_step`, but got no call of it in "
            f"{type(self._module).__qualname__}.optimizer_step. Pass it on: "
            "`optimizer.step(closure=optimizer_closure)`."
        )

    def _zero_gradients(self, batch_idx: int) -> None:
        if self._on_before_zero_grad is not None:
            self._on_before_zero_grad(self.optimizer)
        self._clear_gradients(batch_idx)
        self._zeroed = True

    def _clear_gradients(self, batch_idx: int) -> None:
        if self._optimizer_zero_grad is not None:
            self._optimizer_zero_grad(self._progress.current_epoch, batch_idx, self.optimizer)
        else:
            self._drop_gradients()

    def _before_step(self) -> None:
        window = self._window
        if window.length != 1 and window.position != window.divisor:
            self._average_over(window.position)
        self._unscale_gradients(self.optimizer)
        if self._on_before_optimizer_step is not None:
            self._on_before_optimizer_step(self.optimizer)
        clip_val, algorithm = self._settings.gradient_clip_val, self._settings.gradient_clip_algorithm
        if self._configure_gradient_clipping is not None:
            self._configure_gradient_clipping(self.optimizer, clip_val, algorithm)
        elif clip_val is not None:
            self._clip_gradients(self.optimizer, clip_val, algorithm)

    def _average_over(self, length: int) -> None:
        """Correct gradients that were divided by another length before the epoch's end was known."""
        factor = self._window.divisor / length
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)

    def _evaluate_again(self) -> None:
        """Discard a previous evaluation of the closure."""
        if self._window.length != 1:
            rule = "called once per update, since the gradients of a window are added up"
            action = "Call it once, or pass accumulate_grad_batches=1."
            where = f"{type(self._module).__qualname__}.optimizer_step"
            if self._own_step is None:
                where = f"{type(self.optimizer).__qualname__}.step"
            raise RuntimeError(must_be("optimizer_closure", rule, "another call", where, action))
        self._zeroed, self.holds_gradients = self._zeroes_last, False
        if self._zeroes_last:
            self._drop_gradients()

    def _before_step_of_closure(self, batch_idx: int, num_evaluations: int) -> None:
        """Clip and call the hooks before the step, if the closure gave gradients."""
        if self.holds_gradients:
            self._before_step()
        elif self._own_step is not None and not self._evaluates_loss:
            if not self._zeroed:
                self._zero_gradients(batch_idx)  # so that the step that follows has nothing to apply
        elif num_evaluations == 1:
            raise _NoLossError
        else:
            rule = f"a loss whenever {type(self.optimizer).__name__} evaluates it again for an update"
            where = f"{type(self._module).__qualname__}.training_step"
            raise RuntimeError(must_be("return value", rule, None, where, "Decide by the batch alone what to skip."))

    def _note_step(self, *_: Any) -> None:
        self._has_stepped = True


def _implemented(hook: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return a hook, or None if it has no receivers."""
    return None if hook is no_op else hook


class _NoLossError(Exception):
    """Raised through the `step` of an optimizer that evaluates the loss itself, when there is none."""


_COUNTS = ("position", "divisor", "num_begun", "is_complete")


class AccumulationWindow:
    """The accumulation window that is open. What it counts are batches or, where batches are split, splits.

    Args:
        length: Steps of a whole window.

    Attributes:
        length: Steps of a whole window of this epoch.
        next_length: Steps of a window in the epochs that begin later.
        position: Steps of this window so far.
        divisor: Divisor of each loss of this window: its length, as far as that was known when it began.
        num_begun: Windows of this epoch so far, with this one.
        is_complete: Whether the latest step ends this window; the next one begins another.
    """

    def __init__(self, length: int) -> None:
        self.length = self.next_length = self._given_length = length
        self.reset()

    def reset(self) -> None:
        """Begin a new epoch, in which no window is open."""
        self.position = 0
        self.divisor: int | float = self.length
        self.num_begun = 0
        self.is_complete = True

    def begin_steps(self) -> None:
        """Take `next_length` for the epoch whose steps begin."""
        self.length = self.divisor = self.next_length

    def enter(self, num_remaining: int | float) -> None:
        """Take in the next step.

        Args:
            num_remaining: Steps of the epoch from this one on; infinite if unknown.
        """
        if self.is_complete:
            self.position = 0
            self.divisor = min(self.length, num_remaining)
            self.num_begun += 1
        self.position += 1
        self.is_complete = self.position == self.length or num_remaining == 1

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the window, as plain values."""
        lengths = {"length": self.length, "given_length": self._given_length, "next_length": self.next_length}
        return {**lengths, **{name: getattr(self, name) for name in _COUNTS}}

    def load_next_length(self, state: dict[str, Any]) -> bool:
        """Restore a length that was set during the saved run, unless this run was given another one.

        Returns:
            Whether both runs were given the same.
        """
        is_same = bool(state.get("given_length", state["length"]) == self._given_length)
        if is_same:
            self.next_length = int(state.get("next_length", state["length"]))
        return is_same

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on inside an epoch, and inside the window that was open.

        Raises:
            ValueError: If it was open and its length was another one than this run has been given.
        """
        if self.load_next_length(state):
            self.length = int(state["length"])
        elif not state["is_complete"] and state["length"] != self.length:
            rule = f"that of the checkpoint ({state['length']}), which was saved inside an accumulation window"
            action = "Pass the same, or resume from a checkpoint that was saved at a window's end."
            raise ValueError(must_be("accumulate_grad_batches", rule, self.length, "fit", action))
        for name in _COUNTS:
            setattr(self, name, state[name])
        if self.is_complete:
            self.divisor = self.length  # the next window has the length of this run


def check_accumulation(length: int, optimizers: Sequence[Optimizer], where: str) -> None:
    """Raise `ValueError` where optimizers cannot wait for the gradients of several steps.

    Args:
        length: Steps of a window.
        optimizers: The optimizers that automatic optimization steps.
        where: The module's class, for the message.
    """
    if length == 1:
        return
    for optimizer in optimizers:
        if needs_closure(optimizer):
            rule = f"1 with {type(optimizer).__name__}, which evaluates the loss several times per update"
            action = "Use another optimizer, or 1."
            raise ValueError(must_be("accumulate_grad_batches", rule, length, where, action))
    parameters = [
        {id(parameter) for group in optimizer.param_groups for parameter in group["params"]} for optimizer in optimizers
    ]
    if sum(map(len, parameters)) != len(set().union(*parameters)):
        rule = "1 if optimizers share parameters, whose gradients would mix while they wait for the update"
        action = "Give every parameter to one optimizer, or pass 1."
        raise ValueError(must_be("accumulate_grad_batches", rule, length, where, action))


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
    got = f"a dictionary with {sorted(map(str, outputs))}" if isinstance(outputs, Mapping) else repr(outputs)
    raise TypeError(
        f"`training_step` must return a tensor, a dictionary with a tensor as 'loss', or None, but got {got} "
        f"({type(outputs).__name__}) in {type(module).__qualname__}. Return the loss."
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
        raise LossError(
            f"{does} a loss that depends on parameters which require gradients, but got one without a graph, of shape "
            f"{shape}, in {where}. Compute it from the model's outputs, without `detach()`, `item()` or "
            "`torch.no_grad()`, and leave parameters trainable.",
            shape,
        )
    if loss.numel() != 1:
        raise LossError(
            f"{does} a loss with one element, but got one of shape {shape} in {where}. Reduce it, such as by "
            "`loss.mean()`.",
            shape,
        )


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
    if not isinstance(outputs, Mapping) or "hiddens" not in outputs:
        rule = "a dictionary with 'hiddens', the state that the next split begins with, or None"
        where = f"{type(module).__qualname__}.training_step"
        got = sorted(map(str, outputs)) if isinstance(outputs, Mapping) else outputs
        action = 'Return {"loss": loss, "hiddens": hiddens}.'
        raise TypeError(must_be("return value", f"{rule}, if batches are split along time", got, where, action))
    hiddens = outputs["hiddens"]
    return hiddens.detach() if isinstance(hiddens, Tensor) else detached(hiddens)


def with_hiddens(outputs: Any, hiddens: Any) -> Any:
    """Return the outputs of a split with the detached hidden state in place of its own; None as it is.

    Args:
        outputs: What the split's `training_step` returned.
        hiddens: The detached hidden state.
    """
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
