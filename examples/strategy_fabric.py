"""camshaft's loops on Lightning Fabric: its devices, processes and precision, by an adapter of a page.

In one process, or in two that share the data:

    python examples/strategy_fabric.py
    torchrun --nproc-per-node 2 examples/strategy_fabric.py
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.hooks_core import StrategyDefaults
from camshaft.hooks_core.support.messages import must_be
from strategy_parts import Steps
from train_digits import train

PRECISIONS = ("32-true", "bf16-mixed")


class FabricStrategy(StrategyDefaults):
    """One device or DDP, in 32-bit or mixed bf16 precision, as Fabric was told; launch it before a run."""

    def __init__(self, fabric: Fabric) -> None:
        told = (type(fabric.strategy).__name__, fabric.strategy.precision.precision)
        if not isinstance(fabric.strategy, (SingleDeviceStrategy, DDPStrategy)) or told[1] not in PRECISIONS:
            rule = f"on one device or with DDP, in precision {' or '.join(PRECISIONS)}"
            action = "Use 'bf16-mixed' in place of '16-mixed', which needs a gradient scaler."
            raise ValueError(must_be("fabric", rule, told, "FabricStrategy", action))
        self.fabric = fabric
        self.device = fabric.device
        self.global_rank = fabric.global_rank
        self.local_rank = fabric.local_rank
        self.world_size = fabric.world_size
        self._steps: Any = None
        self._wrapped: dict[Optimizer, Any] = {}
        self._unsynchronised = ExitStack()

    def broadcast(self, value: Any, src: int = 0) -> Any:
        return self.fabric.broadcast(value, src)

    def all_gather(self, value: Any) -> list[Any]:
        return [self.fabric.broadcast(value, src) for src in range(self.world_size)]

    def setup_module(self, module: nn.Module) -> nn.Module:
        self._steps = self.fabric.setup_module(Steps(module))
        return self._steps

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        # Wrapped ones hide that LBFGS needs a closure, so the loops keep the original ones.
        self._wrapped = {optimizer: self.fabric.setup_optimizers(optimizer) for optimizer in optimizers}
        return list(optimizers)

    def batch_to_device(self, batch: Any) -> Any:
        return self.fabric.to_device(batch)

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        return partial(self._run, step)

    def _run(self, step: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if torch.is_grad_enabled():
            return self._steps(step, *arguments, **named)
        with self.fabric.autocast():  # DDP would wait for others, to share buffers, and they may have no batch left
            return step(*arguments, **named)

    def set_gradient_sync(self, is_on: bool) -> None:
        self._unsynchronised.close()
        if not is_on:
            self._unsynchronised.enter_context(self.fabric.no_backward_sync(self._steps))

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        # Fabric lets nobody call `loss.backward()` outside of its own
        own: Any = loss if differentiate is None else SimpleNamespace(backward=partial(differentiate, loss))
        self.fabric.backward(own)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        return self._wrapped[optimizer].step(closure)

    def clip_gradients(self, optimizer: Optimizer, clip_val: float, algorithm: str) -> None:
        if algorithm == "norm":
            self.fabric.clip_gradients(self._steps, optimizer, max_norm=clip_val, error_if_nonfinite=False)
        else:
            self.fabric.clip_gradients(self._steps, optimizer, clip_val=clip_val)

    def teardown(self) -> None:
        self._unsynchronised.close()
        self._steps, self._wrapped = None, {}


if __name__ == "__main__":
    chosen = Fabric(devices=int(os.environ.get("WORLD_SIZE", 1)), precision="bf16-mixed")
    chosen.launch()
    chosen.print(train(FabricStrategy(chosen)))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
