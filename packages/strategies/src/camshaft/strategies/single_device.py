"""One process on one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.hooks_core import StrategyHooks
from camshaft.hooks_core.transfer import move_to_device
from camshaft.strategies.checkpoint_file import read_checkpoint, write_checkpoint
from camshaft.strategies.clipping import clip_gradients
from camshaft.strategies.device import choose_device


class SingleDeviceStrategy(StrategyHooks):
    """Run everything on one device, in 32-bit precision as the module is.

    Args:
        device: A `torch.device`, a device string such as "cuda:1", or an accelerator's name. The default chooses the
            best device of this machine.

    Raises:
        ValueError, RuntimeError: As `choose_device`, if a name stands for nothing on this machine.
    """

    __hook_base__: ClassVar[bool] = True

    global_rank = 0
    local_rank = 0
    world_size = 1

    def __init__(self, device: torch.device | str = "auto") -> None:
        if isinstance(device, str) and device in ("auto", "gpu"):
            self.device = choose_device(device)
        else:
            wanted = torch.device(device)
            # checks that it exists; the index of the CPU and of "cuda" alone is 0
            choose_device(wanted.type, wanted.index or 0) if wanted.type in ("cpu", "cuda", "mps") else None
            self.device = wanted

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Move a module to the device, in place."""
        return module.to(self.device)

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """Nothing to prepare: the optimizers as they are."""
        return list(optimizers)

    def batch_to_device(self, batch: Any) -> Any:
        """Move a batch of any nesting to the device."""
        return move_to_device(batch, self.device)

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The step as it is: one device needs no context."""
        return step

    def backward(self, loss: Tensor) -> None:
        """Differentiate a scalar loss."""
        loss.backward()  # type: ignore[no-untyped-call]

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Update the weights. Returns the closure's loss, if there is a closure."""
        return optimizer.step() if closure is None else optimizer.step(closure)

    def clip_gradients(self, optimizer: Optimizer, clip_val: float, algorithm: str) -> None:
        """Clip an optimizer's gradients; see `camshaft.strategies.clipping.clip_gradients`."""
        clip_gradients(optimizer, clip_val, algorithm)

    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> None:
        """Write a checkpoint durably; see `write_checkpoint`."""
        write_checkpoint(checkpoint, path)

    def load_checkpoint(self, path: str) -> dict[str, Any]:
        """Read a checkpoint with its tensors on the CPU; see `read_checkpoint`."""
        return read_checkpoint(path)

    def teardown(self) -> None:
        """Nothing to let go of: the module stays where it is, ready for the next verb."""
