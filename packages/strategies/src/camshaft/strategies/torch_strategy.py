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
from camshaft.strategies.checkpoint_file import read_checkpoint, write_checkpoint
from camshaft.strategies.clipping import clip_gradients
from camshaft.strategies.precision import choose_precision


class TorchStrategy(StrategyDefaults, StrategyHooks):
    """A strategy on torch alone. Subclasses choose the device and what surrounds the steps.

    Args:
        device: Where this process computes.
        precision: The number format; see `choose_precision`.
        save_asynchronously: Whether checkpoints are written while training goes on.
    """

    __hook_base__: ClassVar[bool] = True

    global_rank: int = 0
    local_rank: int = 0
    world_size: int = 1

    def __init__(
        self, device: torch.device, *, precision: str | int = "32-true", save_asynchronously: bool = False
    ) -> None:
        self.device = device
        self.precision = choose_precision(precision, device.type)
        self.save_asynchronously = save_asynchronously

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Move a module to the device, in place, in this strategy's precision."""
        self.precision.convert_module(module)
        return module.to(self.device)

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

    def backward(self, loss: Tensor) -> None:
        """Differentiate a scalar loss."""
        self.precision.backward(loss)

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Give an optimizer's gradients their true size."""
        self.precision.unscale(optimizer)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Update the weights. Returns the closure's loss, if there is a closure."""
        return optimizer.step() if closure is None else optimizer.step(closure)

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
        """Write a checkpoint durably; see `write_checkpoint`."""
        write_checkpoint(checkpoint, path)
        return None

    def load_checkpoint(self, path: str) -> dict[str, Any]:
        """Read a checkpoint with its tensors on the CPU; see `read_checkpoint`."""
        return read_checkpoint(path)

    def teardown(self) -> None:
        """Leave the optimizers as they were; the module stays where it is, ready for the next verb."""
        self.precision.release()
