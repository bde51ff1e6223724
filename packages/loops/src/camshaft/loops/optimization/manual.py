"""Manual optimization: the module differentiates and steps by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from torch.optim import Optimizer

from camshaft.hooks_core import no_op
from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.support.messages import must_be
from camshaft.loops.optimization.configuration import ConfiguredOptimizers
from camshaft.loops.optimization.settings import OptimizationSettings
from camshaft.loops.optimization.update import UpdateContext, next_hiddens, with_arguments, with_hiddens
from camshaft.loops.optimization.weighted_loss import WeightedLoss
from camshaft.loops.state.run import Run


class ManualOptimization:
    """Runs `training_step`, and counts one update for each batch or split in which any optimizer stepped.

    Without optimizers it runs the module for its side effects alone.

    Args:
        context: The parts that all updates share.

    Attributes:
        num_batches: Batches of the epoch that runs; makes no difference here.
        configured: The module's optimizers and schedulers.
        settings: The settings; with optimizers they neither accumulate nor clip.
        holds_gradients: False: the module manages its gradients by itself.
        keeps_gradients: True: the module may need its gradients after any batch.
        has_differentiated: False: a module that does so steps, too.
    """

    holds_gradients = has_differentiated = False
    keeps_gradients = True

    def __init__(self, context: UpdateContext) -> None:
        run = context.run
        self.num_batches: int | float = float("inf")
        self.settings, self.configured, self._split = context.settings, context.configured, context.split
        self._training_step: Any = run.hooks.training_step
        self._module, self._metrics, self._progress = run.module, run.metrics, context.progress
        self._stepped = False
        self._hooks = run.hooks
        self._step_hooks: list[Any] = []
        self.announce_steps()

    def announce_steps(self, wrap: Callable[[Any], Any] | None = None) -> None:
        """Call `on_before_optimizer_step` whenever the module steps, from now on through what `wrap` makes of it."""
        for step_hook in self._step_hooks:
            step_hook.remove()
        self._step_hooks.clear()
        for optimizer_idx, optimizer in enumerate(self.configured.optimizers):
            announce = with_arguments(self._hooks, "on_before_optimizer_step", optimizer_idx=optimizer_idx)
            hook = partial(self._before_step, announce if wrap is None else wrap(announce))
            self._step_hooks.append(optimizer.register_step_pre_hook(hook))

    def replace_step(self, step: Callable[..., Any]) -> Any:
        """Call a function in place of the module's `training_step`. Returns what was called until now."""
        former, self._training_step = self._training_step, step
        return former

    def keep_until_close(self, *handles: Any) -> None:
        """Call `remove` of handles when the optimizers are left, or announced anew."""
        self._step_hooks += handles

    def follow(self, settings: OptimizationSettings) -> None:
        """Take other settings.

        Raises:
            ValueError: If there are optimizers and the settings accumulate or clip, which is left to the module.
        """
        if self.configured.optimizers:
            check_manual(settings, self.configured, type(self._module).__qualname__)
        self.settings = settings

    def run_batch(self, batch: Any, batch_idx: int, is_last: bool) -> Any:
        """Run the module's own optimization of a batch, split by split if it is split along time.

        Hooks: tbptt_split_batch, training_step; on_before_optimizer_step whenever the module steps an optimizer in it,
        after each call of the closure if the step gets one.

        Args:
            batch: The batch, on its device.
            batch_idx: Its index in the epoch.
            is_last: Whether it is known to be the epoch's last.

        Returns:
            The outputs of `training_step`, for the last split and with its hidden state detached if the batch is split.
        """
        if self._split is None:
            self._stepped = False
            outputs = self._training_step(batch, batch_idx)
            if self._stepped:
                self._progress.global_step += 1
            if isinstance(outputs, WeightedLoss):
                refuse_weights(self._module)
            return outputs
        hiddens = outputs = None
        for split_idx, split in enumerate(self._split(batch)):
            outputs = None  # frees the graph before the next one is built
            if split_idx and self._metrics is not None:
                self._metrics.end_train_batch(self._stepped)  # the loop does so for the last split
            self._stepped = False
            outputs = self._training_step(split, batch_idx, hiddens=hiddens)
            if isinstance(outputs, WeightedLoss):
                refuse_weights(self._module)
            hiddens = next_hiddens(outputs, hiddens, self._module)
            if self._stepped:
                self._progress.global_step += 1
        return with_hiddens(outputs, hiddens)

    def start_epoch(self) -> None:
        """Do nothing: no state is left from the epoch before."""

    def begin_steps(self) -> None:
        """Do nothing: no setting counts from here on."""

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state: nothing is kept from batch to batch."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on inside an epoch.

        Raises:
            ValueError: If the state is not that of manual optimization.
        """
        if state:
            action = "Optimize as when the checkpoint was saved, or fit without `ckpt_path`."
            raise ValueError(must_be("optimization", "that of manual optimization", state, "the checkpoint", action))

    def reweigh_window(self, ratio: float) -> float:
        """Leave gradients as they are: what the module accumulates is its own.

        Returns:
            1, the factor of gradients.
        """
        return 1.0

    def load_accumulation(self, state: dict[str, Any]) -> None:
        """Do nothing: there is no accumulation."""

    def close(self) -> None:
        """Leave the optimizers as they were."""
        for step_hook in self._step_hooks:
            step_hook.remove()

    def _before_step(self, announce: Any, optimizer: Optimizer, arguments: Any, keywords: Any) -> Any:
        """Call the hook; after the closure, if the step gets one, since that computes the gradients."""
        self._stepped = True
        if announce is no_op:
            return None
        closure = keywords.get("closure", arguments[1] if len(arguments) > 1 else None)
        if not callable(closure):
            announce(optimizer)
            return None

        def evaluate() -> Any:
            loss = closure()
            announce(optimizer)
            return loss

        if "closure" in keywords:
            return arguments, {**keywords, "closure": evaluate}
        return (optimizer, evaluate, *arguments[2:]), keywords


def check_manual(settings: OptimizationSettings, configured: ConfiguredOptimizers, where: str) -> None:
    """Raise `ValueError` if manual optimization is asked for what only automatic optimization can do.

    Args:
        settings: Settings of the updates.
        configured: The module's optimizers.
        where: Name of the module's class, for the message.
    """
    for name, value, neutral in (
        ("accumulate_grad_batches", settings.accumulate_grad_batches, 1),
        ("gradient_clip_val", settings.gradient_clip_val, None),
        ("zero_grad", settings.zero_grad or "before_backward", "before_backward"),
        ("frequency", configured.frequencies or None, None),
    ):
        if value != neutral:
            action = "Call `clip_gradients`" if name == "gradient_clip_val" else "Do it"
            rule = f"{neutral!r} under manual optimization"
            raise ValueError(must_be(name, rule, value, where, f"{action} in `training_step`."))


def refuse_weights(module: Any) -> NoReturn:
    """Raise `TypeError` for a weighted loss under manual optimization."""
    rule = "None or values of its own under manual optimization, which weighs nothing"
    action = "Weigh by hand: `manual_backward(loss * weight / total)`, or let the loop optimize."
    where = f"{type(module).__qualname__}.training_step"
    raise TypeError(must_be("return value", rule, "a WeightedLoss", where, action))


def check_optimizer_idx(run: Run, configured: ConfiguredOptimizers) -> None:
    """Raise `ValueError` if a step under manual optimization asks for the index of one of several optimizers."""
    if run.hooks.takes("training_step", "optimizer_idx") and len(configured.optimizers) > 1:
        rule = "one without `optimizer_idx` under manual optimization, where it steps all optimizers by itself"
        step, where = implementation(run.module, "training_step"), type(run.module).__qualname__
        raise ValueError(must_be("training_step", rule, step, where, "Leave `optimizer_idx` out."))
