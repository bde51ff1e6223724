"""The kit on camshaft's own trainer: every receiver is handed over as it is."""

from __future__ import annotations

from typing import Any

import torch
from certify.framework import Framework, Steps, loader, sgd

from camshaft.hooks_core.conformance import FEATURES, Adapter, Scenario
from camshaft.strategies import SingleDeviceStrategy
from camshaft.trainer import DataModule, Trainer, TrainingModule


class Module(Steps, TrainingModule):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return sgd(self)


def run(scenario: Scenario, module: Module, callbacks: list[Any], data: Any, strategy: Any) -> None:
    trainer = Trainer(
        strategy=strategy,
        max_epochs=scenario.num_epochs,
        num_sanity_val_steps=scenario.num_sanity_val_batches,
        val_check_interval=scenario.val_check_interval,
        limit_val_batches=1.0 if scenario.num_val_batches or scenario.verb != "fit" else 0,
        accumulate_grad_batches=scenario.accumulate_grad_batches,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    data.train_dataloader = data.test_dataloader = data.predict_dataloader = lambda: loader(scenario.num_batches)
    num_val_batches = scenario.num_val_batches if scenario.verb == "fit" else scenario.num_batches
    data.val_dataloader = lambda: loader(num_val_batches)
    getattr(trainer, scenario.verb)(module, datamodule=data)


FRAMEWORK = Framework(
    title="camshaft",
    about="The `Trainer` of camshaft-trainer, with callbacks, a data module, a module and a strategy.",
    distributions=("camshaft-trainer", "camshaft-loops", "camshaft-hooks-core"),
    adapter=Adapter(run, Module, DataModule, lambda: SingleDeviceStrategy("cpu")),
    features=tuple(FEATURES),
)
