"""Optimizers that a callback replaces during a fit, in the trainer or in its strategy, train as in Lightning."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.optim import LBFGS, SGD, Adam
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

lightning = pytest.importorskip("lightning.pytorch", reason="compares with Lightning")
names = pytest.importorskip("camshaft.compat")

DATA = DataLoader(torch.randn(16, 2, generator=torch.Generator().manual_seed(1)), 4)  # type: ignore[arg-type]
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
HOOKS = ["on_train_epoch_start", "on_train_batch_start", "on_train_batch_end"]
MAKE = {"SGD": lambda parameters: SGD(parameters, 0.1), "LBFGS": lambda parameters: LBFGS(parameters, max_iter=2)}


def made(framework: ModuleType, is_automatic: bool) -> Any:
    base: Any = framework.LightningModule if framework is lightning else framework.TrainingModule

    class Module(base):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.automatic_optimization = torch.nn.Linear(2, 1), is_automatic

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.layer(batch).square().mean()
            if not is_automatic:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = Adam(self.parameters(), 0.1)
            return [optimizer], [StepLR(optimizer, 1, 0.5)]

    torch.manual_seed(0)
    return Module()


def run(framework: ModuleType, hook: str, place: Callable[[Any], Any], optimizer: str, **settings: Any) -> Any:
    module = made(framework, settings.pop("is_automatic"))

    def replace(callback: Any, trainer: Any, module: Any, *_: Any) -> None:
        if trainer.current_epoch == 1 and not hasattr(callback, "was_called"):
            callback.was_called = True
            new = MAKE[optimizer](module.parameters())
            trainer.lr_scheduler_configs[0].scheduler = StepLR(new, 1, 0.1)
            place(trainer).optimizers = [new]

    callback = type("Replacing", (framework.Callback,), {hook: replace})()
    trainer = framework.Trainer(max_epochs=3, callbacks=[callback], accelerator="cpu", **QUIET, **settings)
    trainer.fit(module, DATA)
    (last,) = trainer.strategy.optimizers
    assert last is trainer.optimizers[0] and type(last).__name__ == optimizer
    rate = trainer.strategy.lr_scheduler_configs[0].scheduler.get_last_lr()
    return [module.layer.weight.tolist(), module.layer.bias.tolist(), rate, trainer.global_step]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    "place", [lambda trainer: trainer, lambda trainer: trainer.strategy], ids=["trainer", "strategy"]
)
@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        ("SGD", {"is_automatic": True, "accumulate_grad_batches": 2, "gradient_clip_val": 0.1}),
        ("LBFGS", {"is_automatic": True}),
        ("SGD", {"is_automatic": False}),
    ],
    ids=["accumulated", "closure", "manual"],
)
def test_a_replaced_optimizer_steps_from_the_next_batch_on(
    hook: str, place: Callable[[Any], Any], optimizer: str, settings: dict[str, Any]
) -> None:
    theirs, own = (run(framework, hook, place, optimizer, **settings) for framework in (lightning, names))
    assert own == theirs
