"""The base of all strategies of this package: precision, optimizers, gradient clipping and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer
from torch.utils._foreach_utils import _device_has_foreach_support

from camshaft.hooks_core import StrategyDefaults, StrategyHooks
from camshaft.hooks_core.protocols import PendingSave
from camshaft.hooks_core.support.devices import make_current
from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.optimizer_step import replace_step
from camshaft.strategies.checkpoints.writer import CheckpointWriter
from camshaft.strategies.copy_stream import CopyStream
from camshaft.strategies.precision import Precision, choose_precision
from camshaft.strategies.precision.formats import scale_in

if TYPE_CHECKING:
    from camshaft.strategies.compilation import Compilation
    from camshaft.strategies.logical_ranks import LogicalRanks


T = TypeVar("T")


class TorchArguments(TypedDict, total=False):
    """The arguments of `TorchStrategy` beside the device, which its subclasses take too."""

    precision: str | int | Precision
    save_asynchronously: bool
    compile: bool | Mapping[str, Any]
    copy_stream: bool


class TorchStrategy(StrategyDefaults, StrategyHooks):
    """The base class of strategies on torch alone. Subclasses choose the device and wrap the steps.

    Args:
        device: The device of this process.
        precision: The number format; see `choose_precision`.
        save_asynchronously: Whether checkpoints are written in the background, while training continues.
        compile: Whether the modules that a step calls are compiled, in place, while a verb runs: the module itself, its
            children, and members of lists (`nn.ModuleList`), each as it is called. A dictionary holds arguments of
            `torch.compile`, and perhaps "policy", which chooses other modules, as that of `ShardedStrategy`. It warns
            if the first training steps call none of them.
        copy_stream: Whether batches are copied on a stream of their own, so that the copy for a step overlaps with the
            computation of the one before. It takes the memory of about one batch more, and needs pinned batches (the
            loader's `pin_memory`). It has no effect on the CPU, where nothing is copied, for batches of a module that
            overrides `transfer_batch_to_device`, and for objects that move themselves by a `to` of their own.

    Attributes:
        precision: The `Precision` of the argument's name.
        given_arguments: The arguments of the constructor, by which a strategy can be made anew for another rank.
        compile: The argument.
        compilation: What carries it out; None without.

    Raises:
        TypeError: If `compile` is something else, or torch has no such argument.
        ValueError: If the precision's name is unknown, or the device type has no such precision.
    """

    __hook_base__: ClassVar[bool] = True

    given_arguments: dict[str, Any]
    _logical: LogicalRanks | None = None

    def __init__(
        self,
        device: torch.device,
        *,
        precision: str | int | Precision = "32-true",
        save_asynchronously: bool = False,
        compile: bool | Mapping[str, Any] = False,
        copy_stream: bool = False,
    ) -> None:
        self.device = device
        self.compile = compile
        self.compilation: Compilation | None = None
        if compile is not False:
            from camshaft.strategies.compilation import Compilation  # slow to import

            self.compilation = Compilation(compile, type(self).__qualname__)
        self.precision = choose_precision(precision, device.type)
        self.save_asynchronously = save_asynchronously
        self._checkpoints = CheckpointWriter(self, save_asynchronously)
        self.copy_stream = copy_stream
        self._copies: CopyStream | None = None
        self._gradient_factor = 1.0  # of saved gradients, whose scale may be another
        self._restore_steps: list[Callable[[], None]] = []

    def connect(self) -> None:
        """Make the device the current one of this thread."""
        make_current(self.device)

    @property
    def has_skipped_step(self) -> bool:  # type: ignore[override]  # read-only here
        """True if the latest step of an optimizer was skipped after an overflow."""
        return self.precision.has_skipped_step

    @property
    def num_logical_ranks(self) -> int | None:
        """Number of logical ranks of all processes; None without."""
        return None if self._logical is None else self._logical.number

    @property
    def logical_ranks(self) -> range:
        """Indices of the logical ranks that this process plays, in their order; its own rank without."""
        return range(self.data_rank, self.data_rank + 1) if self._logical is None else self._logical.ranks

    @property
    def logical_rank(self) -> int | None:
        """The logical rank that was entered; None outside of steps."""
        return None if self._logical is None else self._logical.index

    def enter_logical_rank(self, index: int) -> None:
        """Make the step and the backward that follow those of a logical rank; see `LogicalRanks.enter`."""
        self._logical_ranks("enter_logical_rank").enter(index)

    def leave_logical_ranks(self) -> None:
        """End a step's microbatches: the module has the buffers of this process's first logical rank."""
        self._logical_ranks("leave_logical_ranks").leave()

    def play_logical_ranks(self, step: Callable[[int], T], switch: Callable[[int], None] | None = None) -> list[T]:
        """Run a step that updates by itself (manual optimization) for each of this process's logical ranks. Collective.

        Several take turns: where a step averages gradients by `backward`, or steps an optimizer, it waits until all
        others have come there, and the optimizer steps once for all. An optimizer that gets a closure evaluates the
        losses of all by it, and gets their mean over all logical ranks. Gradients, buffers, `requires_grad`, settings
        of optimizers and random numbers are each one's own, at the cost of as many copies of gradients.
        `enter_logical_rank` and `leave_logical_ranks` are not to be called.

        Args:
            step: Runs the step of one, given its index; in another thread for all but the first.
            switch: Called with the index of the logical rank that goes on, whenever that changes.

        Returns:
            What the steps return, in the order of `logical_ranks`.

        Raises:
            RuntimeError: If steps average or update in different orders, or differentiate by themselves, or there are
                no logical ranks.
            ValueError: If there are several under "16-mixed", whose scale depends on each update of each of them.
        """
        logical = self._logical_ranks("play_logical_ranks")

        def go_on(index: int) -> None:
            logical.index = index
            self.set_gradient_sync(logical.syncs)
            if switch is not None:
                switch(index)

        self._check_scale(logical)
        from camshaft.strategies.turns import Turns  # few modules update by themselves

        return logical.take_turns(Turns(logical, step, go_on, self.device))

    def together(self, name: str, action: Callable[[], T]) -> T:
        """Call a function once for all of this process's logical ranks, when the steps of all have come here.

        For what a step under `play_logical_ranks` does to things that they share, such as a scheduler. Elsewhere it is
        called at once.

        Args:
            name: What it is; the steps of all have to come to the same.
            action: The function.

        Returns:
            What it returns, to all.
        """
        turns = None if self._logical is None else self._logical.turns
        result: T = action() if turns is None else turns.together(name, action)
        return result

    def _step_together(self, name: str, optimizer: Optimizer) -> None:
        """Make an optimizer step once for all logical ranks of this process, until `teardown`."""
        logical = self._logical_ranks("setup_optimizers")

        def around(original: Callable[..., Any]) -> Callable[..., Any]:
            def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
                if logical.turns is None:
                    rule, where = "called after `leave_logical_ranks`", type(self).__qualname__
                    action = "Run steps that update by themselves by `play_logical_ranks`."
                    if logical.index is not None:
                        raise RuntimeError(must_be("optimizer.step", rule, logical.index, where, action))
                    return original(*args, **kwargs)
                if args and args[0] is not None:
                    return logical.turns.step(name, lambda joint: original(joint, *args[1:], **kwargs), args[0])
                if kwargs.get("closure") is not None:
                    return logical.turns.step(
                        name, lambda joint: original(*args, **{**kwargs, "closure": joint}), kwargs["closure"]
                    )
                return self.together(name, partial(original, *args, **kwargs))

            return step

        self._restore_steps.append(replace_step(optimizer, around))

    def logical_gradients(self) -> dict[int, dict[str, Tensor]]:
        """Return gradients of an open accumulation window by logical rank and parameter's name. Collective.

        Returns:
            Those of all logical ranks in rank 0, this process's in others; nothing between windows. Copy them before
            training goes on.
        """
        return self._logical_ranks("logical_gradients").open_gradients()

    def load_logical_gradients(self, gradients: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Continue the accumulation window whose gradients `logical_gradients` returned in rank 0."""
        self._logical_ranks("load_logical_gradients").load_open_gradients(gradients)

    def _play(self, number: int, broadcast: Callable[[Iterable[Tensor]], object] = list) -> None:
        """Play this process's share of so many logical ranks; see `LogicalRanks`."""
        from camshaft.strategies.logical_ranks import LogicalRanks  # few runs have them

        where = type(self).__qualname__
        self._logical = LogicalRanks(number, self.global_rank, self.world_size, where, broadcast)

    def _logical_ranks(self, method: str) -> LogicalRanks:
        if self._logical is None:
            rule, where = "the number of logical ranks", type(self).__qualname__
            action = f"Pass it, or do not call `{method}`."
            raise RuntimeError(must_be("logical_ranks", rule, None, where, action))
        return self._logical

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Convert a module to this strategy's precision and move it to the device, in place.

        Returns:
            The module, or a `Computing` of it if the precision wraps its forward.
        """
        if self._logical is not None:
            self._logical.begin(module)
        self.precision.convert_module(module)
        self.place_module(module)
        if self.compilation is not None:
            self.compilation.begin(module)
        step = self.wrap_step(module)
        return module if step is module else Computing(module, step)

    def place_module(self, module: nn.Module) -> None:
        """Move a module to the device, in place. Override it to place its parts elsewhere."""
        module.to(self.device)

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """Make optimizers step in this strategy's precision, and return them.

        Raises:
            ValueError: If several logical ranks of a process update by themselves under "16-mixed".
        """
        for optimizer in optimizers:
            self.precision.setup_optimizer(optimizer)
        if self._logical is not None:
            if getattr(self._logical.module, "automatic_optimization", True) is False:
                self._check_scale(self._logical)
            for optimizer in optimizers:
                self._step_together(f"step of optimizer {len(self._logical.optimizers)}", optimizer)
                self._logical.optimizers.append(optimizer)
        return list(optimizers)

    def _check_scale(self, logical: LogicalRanks) -> None:
        """Raise `ValueError` where a scale of losses depends on each update of each logical rank."""
        if len(logical.ranks) > 1 and hasattr(self.precision, "scale_loss"):
            rule, where = "another than '16-mixed' where steps update by themselves", type(self).__qualname__
            action = "Use 'bf16-mixed', or as many processes as logical ranks."
            raise ValueError(must_be("precision", rule, self.precision.name, where, action))

    def batch_to_device(self, batch: Any) -> Any:
        """Move the tensors of a batch to the device, on a stream of their own if `copy_stream` is set.

        Returns:
            The batch on the device, in the same structure.

        Raises:
            ValueError: If `copy_stream` is set and the device has no streams.
        """
        if self.copy_stream and self.device.type != "cpu":
            if self._copies is None:
                self._copies = CopyStream(self.device, type(self).__qualname__)
            batch = self._copies.copy(batch)
        return super().batch_to_device(batch)

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the step in this strategy's precision."""
        step = self.precision.wrap_step(step)
        return step if self.compilation is None else self.compilation.watching(step)

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        """Differentiate a scalar loss, by `loss.backward()` or by `differentiate(loss)` if that is given."""
        if self._logical is None:
            self.precision.backward(loss, differentiate)
        else:
            self._logical.backward(loss, partial(self.precision.backward, differentiate=differentiate))

    def set_gradient_sync(self, is_on: bool) -> None:
        """Set whether the steps that follow end an accumulation window, for logical ranks."""
        if self._logical is not None:
            self._logical.syncs = is_on

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Unscale an optimizer's gradients."""
        self.precision.unscale(optimizer)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Update the weights, and return the closure's loss, if there is a closure."""
        return optimizer.step() if closure is None else optimizer.step(closure=closure)

    def clip_gradients(self, optimizer: Optimizer, clip_val: float, algorithm: str) -> None:
        """Clip an optimizer's gradients; see `camshaft.strategies.torch_strategy.clip_gradients`."""
        norm = self.gradient_norm(optimizer) if self._logical is not None and algorithm == "norm" else None
        if norm is None:
            clip_gradients(optimizer, clip_val, algorithm)
        else:
            with torch.no_grad():
                parts = [_local_part(parameter)[1] for parameter in _with_gradients(optimizer)]
                torch._foreach_mul_(parts, _factor(clip_val, norm))

    def gradient_norm(self, optimizer: Optimizer) -> Tensor | None:
        """Return the 2-norm of an optimizer's reduced gradients, for logical ranks. Collective if they are sharded.

        Returns:
            The norm, with the same bits on any number of processes, however gradients are sharded; None without any.
        """
        from camshaft.strategies.tree import tree_norm  # few runs have logical ranks

        with torch.no_grad():
            gradients: list[Any] = [parameter.grad for parameter in _with_gradients(optimizer)]
            return tree_norm(gradients) if gradients else None

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the precision, such as the loss scale."""
        return self.precision.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the precision; `place_like` then brings gradients of another one to its scale."""
        self.precision.load_state_dict(state)
        self._gradient_factor = scale_in(self.precision.state_dict()) / scale_in(state)

    def place_like(self, value: Tensor, parameter: Tensor) -> Tensor:
        """Return a copy of a saved gradient on its parameter's device, in the scale of this precision."""
        return self._scaled(super().place_like(value, parameter), parameter)

    def _scaled(self, gradient: Tensor, parameter: Tensor) -> Tensor:
        if self._gradient_factor == 1.0:
            return gradient
        widest = torch.promote_types(gradient.dtype, parameter.dtype)  # float16 alone would overflow
        return gradient.to(widest) * self._gradient_factor

    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> PendingSave | None:
        """Write a checkpoint; see `CheckpointWriter.save`. Collective."""
        return self._checkpoints.save(checkpoint, path)

    def load_checkpoint(self, path: str, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint with whole tensors on the CPU; see `CheckpointWriter.load`. Collective."""
        return self._checkpoints.load(path, sharded=False, weights_only=weights_only)

    def teardown(self) -> None:
        """Restore the optimizers; keep the module on its device, not compiled, ready for the next verb."""
        while self._restore_steps:
            self._restore_steps.pop()()
        self.precision.release()
        if self.compilation is not None:
            self.compilation.end()
        self._copies = None  # a stream cannot be copied


class Computing(nn.Module):
    """A module whose forward runs as a step of a strategy, for loops that call the module rather than steps.

    Args:
        module: The module, a submodule of this one.
        step: Called in place of its forward.
    """

    def __init__(self, module: nn.Module, step: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self._step = step

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the module."""
        return self._step(*args, **kwargs)


def clip_gradients(optimizer: Optimizer, clip_val: float, algorithm: str = "norm") -> None:
    """Clip the gradients of all parameters of an optimizer, in place.

    The norm is that of whole gradients, also if parameters are sharded (`torch.distributed.tensor.DTensor`), on any
    meshes. Collective among the ranks that share them, unless clipped by value.

    Args:
        optimizer: The optimizer.
        clip_val: The maximum total 2-norm ("norm") or absolute value ("value").
        algorithm: "norm" or "value".

    Raises:
        ValueError: If the algorithm is another.
    """
    if algorithm not in ("norm", "value"):
        action = "Pass one of the two."
        raise ValueError(must_be("algorithm", "'norm' or 'value'", algorithm, "clip_gradients", action))
    parameters = _with_gradients(optimizer)
    gradients: list[Any] = [parameter.grad for parameter in parameters]
    if not gradients:
        return
    if _are_alike(gradients):
        if algorithm == "norm":  # by the operations of `torch.nn.utils.clip_grad_norm_`, with bit-equal results
            total_norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2.0)), 2.0)
            torch._foreach_mul_(gradients, _factor(clip_val, total_norm))
        else:
            _clamp(gradients, clip_val)
    elif any(hasattr(kind, "device_mesh") for kind in set(map(type, parameters))):  # few types
        _clip_sharded(parameters, clip_val, algorithm)
    elif algorithm == "norm":
        clip_grad_norm_(parameters, clip_val)
    else:
        clip_grad_value_(parameters, clip_val)


def _with_gradients(optimizer: Optimizer) -> list[Tensor]:
    return [
        parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.grad is not None
    ]


def _are_alike(gradients: list[Tensor]) -> bool:
    """Return whether one `torch._foreach` call can take all: plain tensors of one device and dtype, without a graph.

    torch's own functions group them by device and dtype, twice, which takes longer than clipping a small model.
    """
    device, dtype = gradients[0].device, gradients[0].dtype
    if not _device_has_foreach_support(device):
        return False
    for gradient in gradients:
        is_plain = type(gradient) is Tensor and not gradient.requires_grad
        if not is_plain or gradient.dtype is not dtype or gradient.device != device:
            return False
    return True


def _factor(max_norm: float, total_norm: Tensor) -> Tensor:
    """Return the factor of gradients, as in `torch.nn.utils.clip_grad_norm_`."""
    return (max_norm / (total_norm + 1e-6)).clamp_(max=1.0)


def _clamp(gradients: list[Tensor], clip_val: float) -> None:
    torch._foreach_clamp_min_(gradients, -clip_val)
    torch._foreach_clamp_max_(gradients, clip_val)


@torch.no_grad()
def _clip_sharded(parameters: Sequence[Tensor], clip_val: float, algorithm: str) -> None:
    """Clip this rank's parts of sharded gradients, by the norm of the whole ones."""
    parts: dict[_Layout, list[Tensor]] = {}
    for parameter in parameters:
        layout, part = _local_part(parameter)
        parts.setdefault(layout, []).append(part)
    if algorithm == "value":
        for tensors in parts.values():
            _clamp(tensors, clip_val)
        return
    squares = [_sum_of_squares(layout, tensors) for layout, tensors in parts.items()]
    if not squares:
        return
    total_norm = torch.stack([square.to(squares[0].device) for square in squares]).sum().sqrt()
    factor = _factor(clip_val, total_norm)
    for tensors in parts.values():
        torch._foreach_mul_(tensors, factor.to(tensors[0].device))


_Layout = tuple[torch.device, torch.dtype, str, tuple[dist.ProcessGroup, ...]]
"""Device and dtype of parts of gradients, the device type of the mesh, and the process group of each mesh dimension
that the gradients are sharded over."""


def _local_part(parameter: Any) -> tuple[_Layout, Tensor]:
    """Return the layout of a parameter's gradient, and this rank's part of it."""
    gradient = parameter.grad
    if not hasattr(gradient, "device_mesh"):
        return (gradient.device, gradient.dtype, gradient.device.type, ()), gradient
    if any(placement.is_partial() for placement in gradient.placements):
        from torch.distributed.tensor import Replicate  # loaded already, unlike in runs without sharding

        placements = [Replicate() if item.is_partial() else item for item in gradient.placements]
        gradient = parameter.grad = gradient.redistribute(placements=placements)
    mesh, part = gradient.device_mesh, gradient.to_local()
    groups = tuple(
        mesh.get_group(dim)
        for dim, placement in enumerate(gradient.placements)
        if not placement.is_replicate() and mesh.size(dim) > 1
    )
    return (part.device, part.dtype, mesh.device_type, groups), part


def _sum_of_squares(layout: _Layout, parts: list[Tensor]) -> Tensor:
    """Return the squared norm of whole gradients, from their parts. Collective."""
    _, dtype, device_type, groups = layout
    # a norm in half precision would overflow, or round small gradients off
    norms = torch._foreach_norm(parts, 2, dtype=torch.float32 if dtype.itemsize < 4 else None)
    square = torch.stack(norms).square().sum()
    if groups:
        # offloaded gradients are on the CPU, but their groups communicate through GPUs
        square = square.to(device_type)
        for group in groups:
            dist.all_reduce(square, group=group)
    return square
