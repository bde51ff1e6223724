"""The kit on Lightning's `Trainer`, which calls hooks of these names on its callbacks and on its module."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from certify.framework import Framework, Steps, loader, sgd
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from camshaft.hooks_core import CATALOGUE
from camshaft.hooks_core.conformance import FEATURES, Adapter, Scenario


class Module(Steps, LightningModule):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return sgd(self)

    # Lightning calls the following where they are overridden.

    def prepare_data(self) -> None: ...

    def configure_model(self) -> None: ...

    def on_validation_model_train(self) -> None:
        self.train()

    def on_test_model_train(self) -> None:
        self.train()


def as_lightning(callback: Any) -> Callback:
    """Return a callback of Lightning that hands each call on; Lightning takes a `Checkpoint` for one that monitors."""
    forwarding = Checkpoint() if callback.monitors else Callback()
    for name, spec in CATALOGUE.items():
        if spec.kind == "event" and hasattr(Callback, name):
            setattr(forwarding, name, getattr(callback, name))
    return forwarding


def run(scenario: Scenario, module: Module, callbacks: list[Any]) -> None:
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=scenario.num_epochs,
        num_sanity_val_steps=scenario.num_sanity_val_batches,
        val_check_interval=scenario.val_check_interval or 1.0,
        limit_val_batches=1.0 if scenario.num_val_batches or scenario.verb != "fit" else 0,
        accumulate_grad_batches=scenario.accumulate_grad_batches,
        callbacks=[as_lightning(callback) for callback in callbacks],
        logger=False,
        enable_checkpointing=any(callback.monitors for callback in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loaders = {"dataloaders": loader(scenario.num_batches)}
    if scenario.verb == "fit":
        val_loader = loader(scenario.num_val_batches) if scenario.num_val_batches else None
        loaders = {"train_dataloaders": loaders["dataloaders"], "val_dataloaders": val_loader}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few workers, few batches, no logger
        getattr(trainer, scenario.verb)(module, **loaders)


FRAMEWORK = Framework(
    title="Lightning",
    about="`lightning.pytorch.Trainer` with a `LightningModule`; each callback of the kit behind one of Lightning's.",
    distributions=("lightning",),
    adapter=Adapter(run, Module),
    features=tuple(FEATURES.keys() - {"skip_epoch_by_callback", "after_module"}),
    without=(
        *("configure_sharded_model", "module:on_exception"),
        *("module:on_sanity_check_start", "module:on_sanity_check_end"),
    ),
)
