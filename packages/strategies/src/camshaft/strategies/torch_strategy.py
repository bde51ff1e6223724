"""What all strategies of this package have in common: precision, optimizers and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.hooks_core import StrategyDefaults, StrategyHooks
from camshaft.hooks_core.protocols import PendingSave
from camshaft.hooks_core.transfer import move_to_device
from camshaft.strategies.checkpoints.checkpoint_writer import CheckpointWriter
from camshaft.strategies.clipping import clip_gradients
from camshaft.strategies.ddp.steps import Computing
from camshaft.strategies.precision import Precision, choose_precision


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
        """Clip an optimizer's gradients; see `camshaft.strategies.clipping.clip_gradients`."""
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
