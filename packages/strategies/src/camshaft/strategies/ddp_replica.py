"""One rank's replica of a module in DistributedDataParallel: steps, accumulation, unused parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from camshaft.hooks_core.support.messages import must_be
from camshaft.strategies.parallel import broadcast_tensors
from camshaft.strategies.torch_strategy import Computing

_NUM_NAMED = 5
_FIRST_BUCKET_BYTES = 2**20  # of DistributedDataParallel


class Replica:
    """A module whose steps run inside a DistributedDataParallel's forward, so that backward averages gradients.

    A forward prepares the averaging of the next backward when it returns. A backward inside a step (manual
    optimization) comes before that, so it is prepared by an extra forward, which does nothing else.

    Args:
        wrap: A function that makes the DistributedDataParallel of a module.
        is_manual: Whether steps call backward inside. If False, the first such call is detected.
        is_logical: Whether steps are those of logical ranks. They run outside of the forward, which would make compiled
            graphs depend on the number of processes; the extra one prepares each backward.
        settles: Whether the final layout of gradient buckets is made at once. Otherwise torch makes it after the first
            backward, and a resumed run rounds its first sums of three and more gradients differently, as runs with
            sparse gradients always do.

    Attributes:
        ddp: The wrapped steps of the module.
        trainable: The parameters whose gradients are averaged.
        syncs: Whether the backwards of the steps that follow average gradients.
        holds_local_gradients: Whether gradients may exist that were not averaged.
        is_inside: Whether a step is running.
        is_plain: Whether a step may be called in `ddp` directly, rather than by `run`.
    """

    def __init__(
        self,
        module: nn.Module,
        wrap: Callable[[nn.Module], DistributedDataParallel],
        *,
        is_manual: bool,
        is_logical: bool = False,
        settles: bool = False,
    ) -> None:
        self.trainable = trainable_parameters(module)
        self.ddp = wrap(_steps_of(module))
        self.syncs = True
        self.holds_local_gradients = False
        self.is_inside = False
        self.is_plain = False
        self.is_manual = is_manual = is_manual or is_logical
        self._is_logical = is_logical
        self._has_checked_backward = False
        self._has_restored_gradients = False
        if is_manual:
            self.ddp.require_backward_grad_sync = False
        # DistributedDataParallel fails where the backward by which it learns a static graph does not average.
        self._has_learned_graph = not self.ddp.static_graph
        self._needs_all = not (self.ddp.find_unused_parameters or self.ddp.static_graph)
        if settles and not any(getattr(submodule, "sparse", False) for submodule in module.modules()):
            self._settle_buckets()
        # DistributedDataParallel reports parameters without gradients only in the next forward: by then the weights
        # have been updated once, with gradients that were not averaged.
        self._names = {one: name for name, one in module.named_parameters() if one.requires_grad}
        self._reached: set[Tensor] = set()  # by the latest backward, as long as that is checked
        self._handles: list[Any] = []
        if self._needs_all:
            trainable: list[Any] = list(self.trainable)
            self._handles = [one.register_post_accumulate_grad_hook(self._reached.add) for one in trainable]

    def set_sync(self, is_on: bool) -> None:
        """Set whether the backwards of the steps that follow average gradients, previous local ones included."""
        self.syncs = is_on
        if not is_on:
            self.holds_local_gradients, self.is_plain = True, False
        if not self.is_manual:
            self.ddp.require_backward_grad_sync = is_on or not self._has_learned_graph

    def expect_local_gradients(self) -> None:
        """Treat the gradients that the next step finds as local, as in a resumed run."""
        self.holds_local_gradients = self._has_restored_gradients = True
        self.is_plain = False

    def run(self, step: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the first step, one of manual optimization, or one while there are local gradients. Collective.

        Raises:
            RuntimeError: If the step called `loss.backward` instead of the strategy's.
        """
        if self.is_manual:
            self.ddp.require_forward_param_sync = self.syncs
        if self._has_restored_gradients:
            self._has_restored_gradients = False
            self._mark_local_gradients()
        num_gradients = 0 if self._has_checked_backward else self._count_gradients()
        self.is_inside = True
        try:
            outputs = step(*args, **kwargs) if self._is_logical else self.ddp(step, *args, **kwargs)
        finally:
            self.is_inside = False
        has_loss = _has_loss(outputs)
        if not self._has_checked_backward:
            if self._count_gradients() > num_gradients:
                rule = "called by the strategy's `backward` inside a step"
                action = "Call strategy.backward(loss), or manual_backward(loss), in place of loss.backward()."
                raise RuntimeError(must_be("loss.backward", rule, "gradients of one rank", "DDPStrategy", action))
            self._has_checked_backward = has_loss
        if not self.is_manual:
            if self.syncs and has_loss:
                self.holds_local_gradients = False  # the backward that follows averages all of them
            self.is_plain = has_loss and not self.holds_local_gradients
        return outputs

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any]) -> None:
        """Differentiate a loss, inside a step or after it. Collective if gradients are averaged."""
        self._has_checked_backward = True
        if self.is_inside or self._is_logical:
            loss = self._prepare_inside(loss)
        if self.syncs:
            self._reached.clear()
        differentiate(loss)
        if self.syncs:
            self.check_unused()
        if not self._has_learned_graph:
            self._has_learned_graph = True
            self.set_sync(self.syncs)

    def check_unused(self) -> None:
        """Raise `RuntimeError`, once, if the latest backward left parameters without gradients."""
        if not self._handles or not self._reached:
            return
        self.close()
        unused = [name for one, name in self._names.items() if one not in self._reached]
        if unused:
            more = f" and {len(unused) - _NUM_NAMED} more" if len(unused) > _NUM_NAMED else ""
            named = ", ".join(unused[:_NUM_NAMED]) + more
            rule = f"True where a loss does not depend on all trainable parameters (this one does not on {named})"
            action = "Pass find_unused_parameters=True, or freeze these parameters before the epoch begins."
            raise RuntimeError(must_be("find_unused_parameters", rule, False, "DDPStrategy", action))

    def average(self) -> None:
        """Average local gradients without a loss, by a backward that adds zeros. Collective."""
        parameters = [parameter for parameter in self.trainable if parameter.requires_grad]
        if not self._needs_all:
            parameters = [parameter for parameter in parameters if parameter.grad is not None] or parameters[:1]
        with torch.enable_grad():
            loss = self._prepare(_zero_loss, *parameters)
        loss.backward()  # type: ignore[no-untyped-call]
        self.holds_local_gradients = False

    def _settle_buckets(self) -> None:
        """Run a backward of zeros, after which DistributedDataParallel lays its buckets out anew. Collective."""
        if not self._needs_all:
            return  # either it never lays them out anew, or it learns more than their layout from the first backward
        gradients = [parameter.grad for parameter in self.trainable]
        for parameter in self.trainable:
            parameter.grad = None
        self.average()
        for parameter, gradient in zip(self.trainable, gradients, strict=True):
            parameter.grad = gradient

    def _mark_local_gradients(self) -> None:
        """Tell DistributedDataParallel which parameters have local gradients.

        With `find_unused_parameters`, it also averages gradients of parameters that only previous backwards without
        averaging have used. It records these in each backward; in a resumed run there has been none.
        """
        local = [(one, one.grad, one.requires_grad) for one in self.trainable if one.grad is not None]
        if not local or not self.ddp.find_unused_parameters or self.ddp.static_graph:
            return  # otherwise a backward averages the gradients of all parameters
        for parameter, _, _ in local:
            parameter.grad = None
            parameter.requires_grad_(True)
        with torch.enable_grad():
            # Not prepared by a forward, so it averages nothing.
            _zero_loss(*(parameter for parameter, _, _ in local)).backward()  # type: ignore[no-untyped-call]
        for parameter, gradient, requires_grad in local:
            parameter.grad = gradient
            parameter.requires_grad_(requires_grad)

    def close(self) -> None:
        """Remove all hooks from the parameters. Not collective."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _count_gradients(self) -> int:
        return sum(parameter.grad is not None for parameter in self.trainable)

    def _prepare_inside(self, loss: Tensor) -> Tensor:
        if not self.is_manual:
            if self.ddp.static_graph:
                rule = "False where a step calls backward without `automatic_optimization = False`"
                action = "Set automatic_optimization = False on the module, or pass static_graph=False."
                raise RuntimeError(must_be("static_graph", rule, True, "DDPStrategy", action))
            self.is_manual, self.is_plain = True, False
            self.ddp.require_backward_grad_sync = False
        self.holds_local_gradients = not self.syncs
        return self._prepare(lambda same: same, loss) if self.syncs or not self._has_learned_graph else loss

    def _prepare(self, step: Callable[..., Tensor], *args: Any) -> Tensor:
        """Return a step's loss whose backward averages gradients. Buffers are not broadcast: graphs may need them."""
        ddp = self.ddp
        outer = ddp.require_backward_grad_sync
        ddp.require_forward_param_sync = False
        ddp.require_backward_grad_sync = True
        try:
            loss: Tensor = ddp(step, *args)
        finally:
            ddp.require_backward_grad_sync = outer
        return loss


class SimulatedReplication(nn.Module):
    """The communication of a DistributedDataParallel in a simulated world, whose reducer needs real values.

    A backward that averages reduces buckets of gradients as they become ready. A communication hook is left out.

    Args:
        module: The module with the steps.
        arguments: The arguments of DistributedDataParallel; attributes of the same names.
    """

    def __init__(self, module: nn.Module, **arguments: Any) -> None:
        super().__init__()
        self.module = module
        vars(self).update(arguments)
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        self._is_averaging = False
        self._num_ready: dict[int, int] = {}
        parameters = trainable_parameters(module)[::-1]  # in the order in which backward reaches them
        buckets: list[list[nn.Parameter]] = [[]]
        limits = [_FIRST_BUCKET_BYTES, int(arguments["bucket_cap_mb"] * 2**20)]
        for parameter in parameters:
            if sum(one.nbytes for one in buckets[-1]) >= limits[min(len(buckets) - 1, 1)]:
                buckets.append([])
            buckets[-1].append(parameter)
        for idx, bucket in enumerate(filter(None, buckets)):
            # with views the gradients themselves are the bucket
            has_views = arguments["gradient_as_bucket_view"]
            buffer = None if has_views else bucket[0].new_empty(sum(one.numel() for one in bucket))
            for parameter in bucket:
                note: Any = partial(self._note, idx, bucket, buffer)
                parameter.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the module, with the buffers of rank 0."""
        self._is_averaging = self.require_backward_grad_sync and torch.is_grad_enabled()
        if self.require_forward_param_sync and self.broadcast_buffers:
            broadcast_tensors(self.module.buffers())
        return self.module(*args, **kwargs)

    def _note(self, idx: int, bucket: list[nn.Parameter], buffer: Tensor | None, parameter: Tensor) -> None:
        self._num_ready[idx] = self._num_ready.get(idx, 0) + 1
        if self._num_ready[idx] < len(bucket):
            return
        self._num_ready[idx] = 0
        if self._is_averaging and buffer is not None:
            dist.all_reduce(buffer)
        elif self._is_averaging:
            dist.all_reduce(torch.cat([one.grad.flatten() for one in bucket if one.grad is not None]))


def trainable_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that require gradients."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _steps_of(module: nn.Module) -> nn.Module:
    """Return a module whose forward calls the step in its first argument, so that its wrapper wraps every step."""
    steps = Computing(module, lambda step, *args, **kwargs: step(*args, **kwargs))
    # The names of ignored parameters and buffers are relative to the module.
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", None)
    if ignored is not None:
        steps._ddp_params_and_buffers_to_ignore = [f"module.{name}" for name in ignored]  # type: ignore[assignment]
    return steps


def _has_loss(outputs: Any) -> bool:
    return isinstance(outputs.get("loss") if isinstance(outputs, Mapping) else outputs, Tensor)


def _zero_loss(*parameters: Tensor) -> Tensor:
    """Return a loss whose gradients are zeros and come from the last parameter to the first, as in most models."""
    loss = parameters[0].new_zeros(())
    for parameter in parameters:
        loss = _ZeroGradient.apply(loss, parameter)  # type: ignore[no-untyped-call]
    return loss


class _ZeroGradient(torch.autograd.Function):
    """An operation that gives a parameter a gradient of zeros, dense or sparse like its current gradient."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, parameter: Tensor) -> Tensor:
        ctx.parameter = parameter
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        parameter = ctx.parameter
        return gradient, torch.zeros_like(parameter if parameter.grad is None else parameter.grad)
