"""One process's replica of a module, whose gradients torch's DistributedDataParallel averages over all processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from camshaft.hooks_core.messages import must_be
from camshaft.strategies.torch_strategy import Steps


class Replica:
    """Runs steps inside of a DistributedDataParallel's forward, so that the backwards after them average gradients.

    A backward inside of a step (manual optimization) comes before that forward has ended, which is when the averaging
    of the next backward is prepared. Such a backward is prepared by a forward of its own, which does nothing else.

    Args:
        module: The module.
        wrap: Makes the DistributedDataParallel of what it is given.
        is_manual: Whether steps call backward inside; if they do nevertheless, that is noticed.
        settles: Whether gradients are laid out for averaging as they will be for good. Otherwise that happens after the
            first backward, and a run that is resumed rounds its first sums of three and more gradients differently; so
            does one with sparse gradients always.

    Attributes:
        ddp: The wrapped steps of the module.
        trainable: The parameters whose gradients are averaged.
        syncs: Whether the backwards of the steps that follow average gradients.
        holds_local_gradients: Whether gradients may wait that were not averaged.
        is_inside: Whether a step is running.
        is_plain: Whether a step may be called in `ddp` without further ado, rather than by `run`.
    """

    def __init__(
        self,
        module: nn.Module,
        wrap: Callable[[nn.Module], DistributedDataParallel],
        *,
        is_manual: bool,
        settles: bool = False,
    ) -> None:
        self.trainable = trainable_parameters(module)
        self.ddp = wrap(_steps_of(module))
        self.syncs = True
        self.holds_local_gradients = False
        self.is_inside = False
        self.is_plain = False
        self.is_manual = is_manual
        self._knows_who_differentiates = False
        self._has_restored_gradients = False
        if is_manual:
            self.ddp.require_backward_grad_sync = False
        # DistributedDataParallel fails where the backward by which it learns a static graph does not average.
        self._has_learned_graph = not self.ddp.static_graph
        self._needs_all = not (self.ddp.find_unused_parameters or self.ddp.static_graph)
        if settles and not any(getattr(submodule, "sparse", False) for submodule in module.modules()):
            self._settle_buckets()
        self._unused = UnusedParameterCheck(module) if self._needs_all else None

    def set_sync(self, is_on: bool) -> None:
        """Say whether the backwards of the steps that follow average gradients, those that wait included."""
        self.syncs = is_on
        if not is_on:
            self.holds_local_gradients, self.is_plain = True, False
        if not self.is_manual:
            self.ddp.require_backward_grad_sync = is_on or not self._has_learned_graph

    def expect_local_gradients(self) -> None:
        """Take the gradients that the next step finds for ones that were not averaged, as in a resumed run."""
        self.holds_local_gradients = self._has_restored_gradients = True
        self.is_plain = False

    def run(self, step: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the first step, one of manual optimization, or one while gradients wait to be averaged. Collective.

        Raises:
            RuntimeError: If a backward inside of the step was not this one's.
        """
        if self.is_manual:
            self.ddp.require_forward_param_sync = self.syncs
        if self._has_restored_gradients:
            self._has_restored_gradients = False
            self._mark_local_gradients()
        num_gradients = 0 if self._knows_who_differentiates else self._count_gradients()
        self.is_inside = True
        try:
            outputs = self.ddp(step, *args, **kwargs)
        finally:
            self.is_inside = False
        has_loss = _has_loss(outputs)
        if not self._knows_who_differentiates:
            if self._count_gradients() > num_gradients:
                rule = "called by way of the strategy's `backward` inside of a step"
                action = "Call strategy.backward(loss), or manual_backward(loss), in place of loss.backward()."
                raise RuntimeError(must_be("loss.backward", rule, "gradients of one process", "DDPStrategy", action))
            self._knows_who_differentiates = has_loss
        if not self.is_manual:
            if self.syncs and has_loss:
                self.holds_local_gradients = False  # the backward that follows averages all of them
            self.is_plain = has_loss and not self.holds_local_gradients
        return outputs

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any]) -> None:
        """Differentiate a loss, inside of a step or after it. Collective if gradients are averaged."""
        self._knows_who_differentiates = True
        if self.is_inside:
            loss = self._prepare_inside(loss)
        if self._unused is not None and self.syncs:
            self._unused.begin()
            differentiate(loss)
            self.check_unused()
            return
        differentiate(loss)
        if not self._has_learned_graph:
            self._has_learned_graph = True
            self.set_sync(self.syncs)

    def check_unused(self) -> None:
        """Notice, once, that the latest backward left parameters without gradients.

        Raises:
            RuntimeError: If it did.
        """
        if self._unused is not None and self._unused.has_seen_any:
            check, self._unused = self._unused, None
            check.end()

    def average(self) -> None:
        """Average gradients that wait, where no backward does it any more: by one that adds zeros. Collective."""
        parameters = [parameter for parameter in self.trainable if parameter.requires_grad]
        if not self._needs_all:
            parameters = [parameter for parameter in parameters if parameter.grad is not None] or parameters[:1]
        with torch.enable_grad():
            loss = self._prepare(_zero_loss, *parameters)
        loss.backward()  # type: ignore[no-untyped-call]
        self.holds_local_gradients = False

    def _settle_buckets(self) -> None:
        """Go through the backward after which DistributedDataParallel lays its buckets out anew, once. Collective."""
        if not self._needs_all:
            return  # it never lays them out anew, or learns more than their layout from the first backward
        gradients = [parameter.grad for parameter in self.trainable]
        for parameter in self.trainable:
            parameter.grad = None
        self.average()
        for parameter, gradient in zip(self.trainable, gradients, strict=True):
            parameter.grad = gradient

    def _mark_local_gradients(self) -> None:
        """Let DistributedDataParallel know which parameters have gradients that were not averaged.

        Looking for unused parameters, it averages those that the latest backward leaves out as well, if one before
        that did not average has used them. It notes that in each backward, and in a resumed run it has seen none.
        """
        waiting = [(one, one.grad, one.requires_grad) for one in self.trainable if one.grad is not None]
        if not waiting or not self.ddp.find_unused_parameters or self.ddp.static_graph:
            return  # without such a search, a backward averages the gradients of all parameters
        for parameter, _, _ in waiting:
            parameter.grad = None
            parameter.requires_grad_(True)
        with torch.enable_grad():
            # not prepared by a forward, so it averages nothing
            _zero_loss(*(parameter for parameter, _, _ in waiting)).backward()  # type: ignore[no-untyped-call]
        for parameter, gradient, requires_grad in waiting:
            parameter.grad = gradient
            parameter.requires_grad_(requires_grad)

    def close(self) -> None:
        """Leave the parameters as they were. Not collective."""
        if self._unused is not None:
            self._unused.close()

    def _count_gradients(self) -> int:
        return sum(parameter.grad is not None for parameter in self.trainable)

    def _prepare_inside(self, loss: Tensor) -> Tensor:
        if not self.is_manual:
            if self.ddp.static_graph:
                rule = "False where a step calls backward although its module does not say so"
                action = "Set automatic_optimization = False on the module, or pass static_graph=False."
                raise RuntimeError(must_be("static_graph", rule, True, "DDPStrategy", action))
            self.is_manual, self.is_plain = True, False
            self.ddp.require_backward_grad_sync = False
        self.holds_local_gradients = not self.syncs
        return self._prepare(_same, loss) if self.syncs or not self._has_learned_graph else loss

    def _prepare(self, step: Callable[..., Tensor], *args: Any) -> Tensor:
        """A step's loss, whose backward averages gradients; buffers stay, which graphs may refer to."""
        ddp = self.ddp
        outer = ddp.require_backward_grad_sync
        ddp.require_forward_param_sync = False
        ddp.require_backward_grad_sync = True
        try:
            loss: Tensor = ddp(step, *args)
        finally:
            ddp.require_backward_grad_sync = outer
        return loss


def trainable_parameters(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that require gradients."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _steps_of(module: nn.Module) -> Steps:
    steps = Steps(module)
    # What a module asks DistributedDataParallel to leave alone is named from that module on.
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", None)
    if ignored is not None:
        steps._ddp_params_and_buffers_to_ignore = [f"module.{name}" for name in ignored]  # type: ignore[assignment]
    return steps


def _same(loss: Tensor) -> Tensor:
    return loss


def _has_loss(outputs: Any) -> bool:
    return isinstance(outputs.get("loss") if isinstance(outputs, Mapping) else outputs, Tensor)


def _zero_loss(*parameters: Tensor) -> Tensor:
    """A loss whose gradients are zeros and come from the last parameter to the first, as a model's do by and large."""
    loss = parameters[0].new_zeros(())
    for parameter in parameters:
        loss = _ZeroGradient.apply(loss, parameter)  # type: ignore[no-untyped-call]
    return loss


class _ZeroGradient(torch.autograd.Function):
    """Gives a parameter a gradient of zeros of the form that its gradient has, dense or sparse."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, parameter: Tensor) -> Tensor:
        ctx.parameter = parameter
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        parameter = ctx.parameter
        return gradient, torch.zeros_like(parameter if parameter.grad is None else parameter.grad)


_NUM_NAMED = 5


class UnusedParameterCheck:
    """Learns which parameters one backward reaches.

    DistributedDataParallel notices parameters that got no gradient when the next forward begins: the weights have then
    been updated once, with gradients that were not averaged.

    Args:
        module: The module, whose trainable parameters a backward has to reach.
    """

    def __init__(self, module: nn.Module) -> None:
        self._names = {id(value): name for name, value in module.named_parameters() if value.requires_grad}
        self._reached: set[int] = set()
        self._handles: list[Any] = [
            value.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]
            for value in module.parameters()
            if value.requires_grad
        ]

    @property
    def has_seen_any(self) -> bool:
        """Whether a gradient was computed since `begin`."""
        return bool(self._reached)

    def begin(self) -> None:
        """Forget the backwards before."""
        self._reached.clear()

    def end(self) -> None:
        """Stop learning.

        Raises:
            RuntimeError: If some parameters were not reached.
        """
        self.close()
        unused = [name for key, name in self._names.items() if key not in self._reached]
        if unused:
            more = f" and {len(unused) - _NUM_NAMED} more" if len(unused) > _NUM_NAMED else ""
            named = ", ".join(unused[:_NUM_NAMED]) + more
            rule = f"True where a loss does not depend on all trainable parameters (this one does not on {named})"
            action = "Pass find_unused_parameters=True, or freeze what is not trained before the epoch begins."
            raise RuntimeError(must_be("find_unused_parameters", rule, False, "DDPStrategy", action))

    def close(self) -> None:
        """Leave the parameters as they were."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _note(self, parameter: Tensor) -> None:
        self._reached.add(id(parameter))
