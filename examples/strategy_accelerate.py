"""camshaft's loops on Hugging Face Accelerate: its devices, processes and precision, by an adapter of a page.

In one process, or in two that share the data:

    python examples/strategy_accelerate.py
    torchrun --nproc-per-node 2 examples/strategy_accelerate.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object, send_to_device
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.hooks_core import StrategyDefaults
from camshaft.hooks_core.support.messages import must_be
from strategy_parts import Steps
from train_digits import train

KINDS = ("NO", "MULTI_CPU", "MULTI_GPU")  # one device, or data parallelism


class AccelerateStrategy(StrategyDefaults):
    """One device or data parallelism, in 32-bit or "bf16" precision, as the accelerator was told."""

    def __init__(self, accelerator: Accelerator) -> None:
        told = (accelerator.distributed_type, accelerator.mixed_precision, accelerator.gradient_accumulation_steps)
        if told[0] not in KINDS or told[1] not in ("no", "bf16") or told[2] != 1:
            rule = "on one device or data-parallel, in 'no' or 'bf16' precision, and without accumulation of its own"
            action = "Let the loop accumulate, and use 'bf16' in place of 'fp16', which needs a gradient scaler."
            raise ValueError(must_be("accelerator", rule, told, "AccelerateStrategy", action))
        self.accelerator = accelerator
        self.device = accelerator.device
        self.global_rank = accelerator.process_index
        self.local_rank = accelerator.local_process_index
        self.world_size = accelerator.num_processes
        self._steps: Any = None
        self._steps_alone: Any = None
        self._prepared: dict[Optimizer, Any] = {}
        self._unsynchronised = ExitStack()

    def broadcast(self, value: Any, src: int = 0) -> Any:
        return broadcast_object_list([value], src)[0]

    def all_gather(self, value: Any) -> list[Any]:
        return gather_object([value])

    def barrier(self, name: str | None = None) -> None:
        self.accelerator.wait_for_everyone()

    def setup_module(self, module: nn.Module) -> nn.Module:
        self._steps_alone = Steps(module)
        self._steps = self.accelerator.prepare_model(self._steps_alone)  # gives both its precision
        return self._steps

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        # Prepared ones take no step hooks and hide that LBFGS needs a closure, so the loops keep the original ones.
        self._prepared = {optimizer: self.accelerator.prepare_optimizer(optimizer) for optimizer in optimizers}
        return list(optimizers)

    def batch_to_device(self, batch: Any) -> Any:
        return send_to_device(batch, self.device, non_blocking=self.accelerator.non_blocking)

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        return partial(self._run, step)

    def _run(self, step: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        # in evaluation DDP would wait for others, to share buffers, and they may have no batch left
        steps = self._steps if torch.is_grad_enabled() else self._steps_alone
        return steps(step, *arguments, **named)

    def set_gradient_sync(self, is_on: bool) -> None:
        self._unsynchronised.close()
        if not is_on:
            self._unsynchronised.enter_context(self.accelerator.no_sync(self._steps))

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        (differentiate or self.accelerator.backward)(loss)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        return self._prepared[optimizer].step(closure)

    def teardown(self) -> None:
        self._unsynchronised.close()
        self._steps, self._steps_alone, self._prepared = None, None, {}
        self.accelerator.free_memory()


if __name__ == "__main__":
    chosen = Accelerator(cpu=not torch.cuda.is_available(), mixed_precision="bf16")
    chosen.print(train(AccelerateStrategy(chosen)))
    chosen.end_training()
