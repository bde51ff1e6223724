"""camshaft's loops on bare torch: a strategy of one's own, in a page.

It has one process and one device:

    python examples/strategy_torch.py
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.hooks_core import StrategyDefaults
from camshaft.hooks_core.transfer import move_to_device
from train_digits import train


class TorchStrategy(StrategyDefaults):
    """One process on one device; with `bf16`, steps run under autocast while weights and gradients stay as they are."""

    global_rank = 0
    local_rank = 0
    world_size = 1

    def __init__(self, device: torch.device | str = "cpu", bf16: bool = False) -> None:
        self.device = torch.device(device)
        self._bf16 = bf16

    def setup_module(self, module: nn.Module) -> nn.Module:
        return module.to(self.device)

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        return list(optimizers)

    def batch_to_device(self, batch: Any) -> Any:
        return move_to_device(batch, self.device)

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        return partial(self._run, step) if self._bf16 else step

    def _run(self, step: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            return step(*arguments, **named)

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        (differentiate or Tensor.backward)(loss)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        return optimizer.step() if closure is None else optimizer.step(closure)

    def clip_gradients(self, optimizer: Optimizer, clip_val: float, algorithm: str) -> None:
        clip = nn.utils.clip_grad_norm_ if algorithm == "norm" else nn.utils.clip_grad_value_
        clip([parameter for group in optimizer.param_groups for parameter in group["params"]], clip_val)

    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(f"{path}.partial", "wb") as file:
            torch.save(dict(checkpoint), file)
            file.flush()
            os.fsync(file.fileno())  # on disk before it takes the place of an earlier one
        os.replace(f"{path}.partial", path)

    def load_checkpoint(self, path: str, weights_only: bool | None = None) -> dict[str, Any]:
        return torch.load(path, map_location="cpu", weights_only=weights_only is not False)

    def teardown(self) -> None:
        """Nothing is held between runs."""


if __name__ == "__main__":
    print(train(TorchStrategy("cuda" if torch.cuda.is_available() else "cpu", bf16=True)))
