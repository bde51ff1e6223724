"""What all strategies of this package have in common: precision, optimizers and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer

from camshaft.hooks_core import StrategyDefaults, StrategyHooks
from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import PendingSave
from camshaft.hooks_core.transfer import move_to_device
from camshaft.strategies.checkpoints.writer import CheckpointWriter
from camshaft.strategies.precision import Precision, choose_precision

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class TorchStrategy(StrategyDefaults, StrategyHooks):
    """A strategy on torch alone. Subclasses choose the device and what surrounds the steps.

    Args:
        device: Where this process computes.
        precision: The number format; see `choose_precision`.
        save_asynchronously: Whether checkpoints are written while training goes on.

    Attributes:
        precision: The `Precision` that the name stands for.

    Raises:
        ValueError: If the precision's name is unknown, or the kind of device has no such precision.
    """

    __hook_base__: ClassVar[bool] = True

    global_rank: int = 0
    local_rank: int = 0
    world_size: int = 1

    def __init__(
        self, device: torch.device, *, precision: str | int | Precision = "32-true", save_asynchronously: bool = False
    ) -> None:
        self.device = device
        self.precision = choose_precision(precision, device.type)
        self.save_asynchronously = save_asynchronously
        self._checkpoints = CheckpointWriter(self, save_asynchronously)

    @property
    def has_skipped_step(self) -> bool:  # type: ignore[override]  # it is read only
        """Whether the latest step of an optimizer left the weights as they were, after an overflow."""
        return self.precision.has_skipped_step

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Move a module to the device, in place, in this strategy's precision.

        Returns:
            The module; or, where something is to surround its forward, another whose forward calls it so.
        """
        self.precision.convert_module(module)
        module.to(self.device)
        step = self.wrap_step(module)
        return module if step is module else Computing(module, step)

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """Make optimizers step in this strategy's precision. Returns them."""
        for optimizer in optimizers:
            self.precision.setup_optimizer(optimizer)
        return list(optimizers)

    def batch_to_device(self, batch: Any) -> Any:
        """Move a batch of any nesting to the device."""
        return move_to_device(batch, self.device)

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The step in this strategy's precision."""
        return self.precision.wrap_step(step)

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        """Differentiate a scalar loss, by `loss.backward()` or by `differentiate(loss)` if that is given."""
        self.precision.backward(loss, differentiate)

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Give an optimizer's gradients their true size."""
        self.precision.unscale(optimizer)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Update the weights. Returns the closure's loss, if there is a closure."""
        return optimizer.step() if closure is None else optimizer.step(closure=closure)

    def clip_gradients(self, optimizer: Optimizer, clip_val: float, algorithm: str) -> None:
        """Clip an optimizer's gradients; see `camshaft.strategies.torch_strategy.clip_gradients`."""
        clip_gradients(optimizer, clip_val, algorithm)

    def state_dict(self) -> dict[str, Any]:
        """What the precision has learned, such as the scale of losses."""
        return self.precision.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with it."""
        self.precision.load_state_dict(state)

    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> PendingSave | None:
        """Write a checkpoint; see `CheckpointWriter.save`. Collective."""
        return self._checkpoints.save(checkpoint, path)

    def load_checkpoint(self, path: str, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint with whole tensors on the CPU; see `CheckpointWriter.load`. Collective."""
        return self._checkpoints.load(path, sharded=False, weights_only=weights_only)

    def teardown(self) -> None:
        """Leave the optimizers as they were; the module stays where it is, ready for the next verb."""
        self.precision.release()


ALGORITHMS = ("norm", "value")


def clip_gradients(optimizer: Optimizer, clip_val: float, algorithm: str = "norm") -> None:
    """Clip the gradients of all parameters of an optimizer, in place.

    Of sharded parameters (`torch.distributed.tensor.DTensor`), on whichever meshes they are, the whole gradients count.
    Collective among the processes that share them, unless clipped by value.

    Args:
        optimizer: The optimizer.
        clip_val: The largest total 2-norm ("norm") or absolute value ("value").
        algorithm: "norm" or "value".

    Raises:
        ValueError: If the algorithm is neither.
    """
    if algorithm not in ALGORITHMS:
        action = "Pass one of the two."
        raise ValueError(must_be("algorithm", "'norm' or 'value'", algorithm, "clip_gradients", action))
    parameters = [
        parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.grad is not None
    ]
    gradients: list[Any] = [parameter.grad for parameter in parameters]
    if not gradients:
        return
    if _are_alike(gradients):
        if algorithm == "norm":
            _scale_to_norm(gradients, clip_val)
        else:
            _clamp(gradients, clip_val)
    elif any(hasattr(kind, "device_mesh") for kind in set(map(type, parameters))):  # of many parameters, few kinds
        _clip_sharded(parameters, clip_val, algorithm)
    elif algorithm == "norm":
        clip_grad_norm_(parameters, clip_val)
    else:
        clip_grad_value_(parameters, clip_val)


def _are_alike(gradients: list[Tensor]) -> bool:
    """Whether one call can take them all: plain tensors of one device and type, without a graph.

    torch would sort them by device and type, twice, which takes it longer than the clipping of a small model.
    """
    device, dtype = gradients[0].device, gradients[0].dtype
    if device.type not in ("cpu", "cuda"):
        return False  # torch may have no functions for lists there
    for gradient in gradients:
        if (
            type(gradient) is not Tensor
            or gradient.dtype is not dtype
            or gradient.device != device
            or gradient.requires_grad
        ):
            return False
    return True


def _scale_to_norm(gradients: list[Tensor], max_norm: float) -> None:
    """The operations of `torch.nn.utils.clip_grad_norm_`, which end in the same bits."""
    total_norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2.0)), 2.0)
    torch._foreach_mul_(gradients, _factor(max_norm, total_norm))


def _factor(max_norm: float, total_norm: Tensor) -> Tensor:
    """What gradients are multiplied by, as `torch.nn.utils.clip_grad_norm_` has it."""
    return (max_norm / (total_norm + 1e-6)).clamp_(max=1.0)


def _clamp(gradients: list[Tensor], largest: float) -> None:
    torch._foreach_clamp_min_(gradients, -largest)
    torch._foreach_clamp_max_(gradients, largest)


@torch.no_grad()
def _clip_sharded(parameters: Sequence[Tensor], clip_val: float, algorithm: str) -> None:
    """Clip gradients of which this process holds parts: each part by itself, once the norm of all is known."""
    parts: dict[_Spread, list[Tensor]] = {}
    for parameter in parameters:
        spread, part = _local_part(parameter)
        parts.setdefault(spread, []).append(part)
    if algorithm == "value":
        for tensors in parts.values():
            _clamp(tensors, clip_val)
        return
    squares = [_sum_of_squares(spread, tensors) for spread, tensors in parts.items()]
    if not squares:
        return
    total_norm = torch.stack([square.to(squares[0].device) for square in squares]).sum().sqrt()
    factor = _factor(clip_val, total_norm)
    for tensors in parts.values():
        torch._foreach_mul_(tensors, factor.to(tensors[0].device))


_Spread = tuple[torch.device, torch.dtype, str, tuple[dist.ProcessGroup, ...]]
"""Where and in which format parts of gradients are, and between which processes the others are: one group for each
dimension of a mesh along which they are cut, with the kind of device that these groups communicate on."""


def _local_part(parameter: Any) -> tuple[_Spread, Tensor]:
    """The part of a parameter's gradient that this process holds, and how the whole is spread."""
    gradient = parameter.grad
    if not hasattr(gradient, "device_mesh"):
        return (gradient.device, gradient.dtype, gradient.device.type, ()), gradient
    if any(placement.is_partial() for placement in gradient.placements):
        gradient = parameter.grad = _summed(gradient)
    mesh, part = gradient.device_mesh, gradient.to_local()
    groups = tuple(
        mesh.get_group(dim)
        for dim, placement in enumerate(gradient.placements)
        if not placement.is_replicate() and mesh.size(dim) > 1
    )
    return (part.device, part.dtype, mesh.device_type, groups), part


def _summed(gradient: DTensor) -> DTensor:
    """A gradient whose parts are not added up yet, added up."""
    from torch.distributed.tensor import Replicate

    placements = [Replicate() if item.is_partial() else item for item in gradient.placements]
    return gradient.redistribute(placements=placements)


def _sum_of_squares(spread: _Spread, parts: list[Tensor]) -> Tensor:
    """The squared norm of whole gradients, from their parts."""
    _, dtype, device_type, groups = spread
    # a norm of half precision would overflow, or lose what small gradients add
    norms = torch._foreach_norm(parts, 2, dtype=torch.float32 if dtype.itemsize < 4 else None)
    square = torch.stack(norms).square().sum()
    if groups:
        # offloaded gradients are on the CPU, their processes talk through their GPUs
        square = square.to(device_type)
        for group in groups:
            dist.all_reduce(square, group=group)
    return square


class Steps(nn.Module):
    """Lets what surrounds a module's forward surround any of its steps: its forward calls the step that it is given.

    Args:
        module: The module whose steps these are; its parameters and buffers are this one's.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the step returns."""
        return step(*args, **kwargs)


class Computing(nn.Module):
    """A module as it computes under a strategy, for loops that call it rather than steps.

    Args:
        module: The module; its parameters and buffers are this one's.
        step: What is called in place of it.
    """

    def __init__(self, module: nn.Module, step: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self._step = step

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        return self._step(*args, **kwargs)
