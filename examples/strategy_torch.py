"""camshaft's loops on bare torch: a strategy of one's own, and a module that logs, without a trainer.

In one process, or in two that share the data:

    python examples/strategy_torch.py
    torchrun --nproc-per-node 2 examples/strategy_torch.py
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from camshaft.hooks_core import StrategyDefaults
from camshaft.loops import FitLimits, FitLoop, OptimizationSettings, Run, run_verb
from camshaft.loops.metrics import MetricLog, MetricLogging
from train_digits import Digits, digits_loaders


class TorchStrategy(StrategyDefaults):
    """One device per process; with `bf16`, steps run under autocast while weights and gradients stay as they are."""

    def __init__(self, device: torch.device | str = "cpu", bf16: bool = False) -> None:
        self.global_rank = int(os.environ.get("RANK", 0))
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))
        self.world_size = int(os.environ.get("WORLD_SIZE", 1))
        self.device = torch.device(device)
        self._bf16 = bf16
        self._syncs = True
        self._parameters: list[nn.Parameter] = []

    def connect(self) -> None:
        if self.world_size > 1 and not dist.is_initialized():
            dist.init_process_group("gloo")

    def all_gather(self, value: Any) -> list[Any]:
        if self.world_size == 1:
            return [value]
        gathered = [None] * self.world_size
        dist.all_gather_object(gathered, value)
        return gathered

    def setup_module(self, module: nn.Module) -> nn.Module:
        self._parameters = list(module.to(self.device).parameters())
        for tensor in module.state_dict().values() if self.world_size > 1 else ():
            tensor.copy_(self.broadcast(tensor.cpu()))
        return module

    def set_gradient_sync(self, is_on: bool) -> None:
        self._syncs = is_on

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        return partial(self._run, step) if self._bf16 else step

    def _run(self, step: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            return step(*arguments, **named)

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        (differentiate or Tensor.backward)(loss)
        if self.world_size > 1 and self._syncs:
            for parameter in self._parameters:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = self.reduce(gradient)


class LoggedDigits(MetricLogging, Digits):
    """Logs the loss of each step and its mean over the epoch, and the accuracy of each validation."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("accuracy", self.predict_step(batch, batch_idx).float().mean())


class Printer:
    """A logger that prints; the metric log calls it on the first process."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        print(f"step {step}: " + ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()))

    def save(self) -> None:
        """Nothing is buffered."""


def train_and_log(strategy: TorchStrategy) -> MetricLog:
    """Train for 5 epochs, each with a validation; values of epochs are reduced over all processes."""
    loaders = digits_loaders()
    module, fit = LoggedDigits(), FitLoop(FitLimits(max_epochs=5), OptimizationSettings(gradient_clip_val=1.0))
    metrics = MetricLog(progress=fit.progress, loggers=[Printer()], log_every_n_steps=20, strategy=strategy)
    loaders["validate"] = loaders.pop("predict")
    strategy.connect()
    metrics.attach(module)
    run_verb(Run(verb="fit", module=module, strategy=strategy, trainer=fit, loaders=loaders, metrics=metrics), fit)
    return metrics


if __name__ == "__main__":
    device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    torch_strategy = TorchStrategy(device, bf16=True)
    values = train_and_log(torch_strategy).callback_metrics  # tensors, on their device until they are read
    if torch_strategy.global_rank == 0:
        print(f"loss {values['loss_epoch']:.3f}, accuracy {values['accuracy']:.1%}")
    if dist.is_initialized():
        dist.destroy_process_group()
