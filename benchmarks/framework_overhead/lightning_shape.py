"""What the frameworks with the interface of Lightning 2.x have in common; their adapters say the rest."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .frameworks import NO_CALLBACKS, CallbackLoad, Evidence
from .timed_loaders import Clock, Loader, TimedBatches
from .workload import (
    ACCUMULATED_BATCHES,
    LOG_EVERY_N_STEPS,
    MAX_GRAD_NORM,
    NUM_BUSY_CALLBACKS,
    NUM_CLASSES,
    Batch,
    build_batches,
    build_model,
    build_optimizer,
    build_scheduler,
    flat_weights,
)


@dataclass(frozen=True)
class LightningShape:
    """A framework with Lightning's `Trainer`, module and callbacks.

    Args:
        name: as shown in the table.
        read_version: looks up the version shown in the header.
        trainer: the `Trainer` class.
        module: the base class of user modules.
        callback: the base class of user callbacks.
        build_recurrent_module: returns a user module that trains the recurrent model, split by split.
        build_csv_logger: takes the folder to write to.
        build_progress_bar: returns a rich progress bar.
        trainer_arguments: arguments that every `Trainer` of this framework gets, beside the common ones.
        everything_arguments: further arguments of the scenario "everything".
    """

    name: str
    read_version: Callable[[], str]
    trainer: Callable[..., Any]
    module: Any
    callback: Any
    build_recurrent_module: Callable[[], Any]
    build_csv_logger: Callable[[Path], Any]
    build_progress_bar: Callable[[], Any]
    trainer_arguments: dict[str, Any]
    everything_arguments: dict[str, Any]
    takes_idle_callbacks: bool = True

    def version(self) -> str:
        return self.read_version()

    def train(self, batches: Loader, load: CallbackLoad = NO_CALLBACKS) -> Evidence:
        module = _lean_module(self.module)
        _lean_trainer(self, _callbacks(self.callback, load)).fit(module, batches)
        return {"weights": flat_weights(module)}

    def train_with_everything(self, batches: Loader, folder: Path) -> Evidence:
        trainer = self.trainer(
            max_epochs=1,
            logger=self.build_csv_logger(folder),
            log_every_n_steps=LOG_EVERY_N_STEPS,
            callbacks=[
                *_callbacks(self.callback, CallbackLoad(num_hooked=NUM_BUSY_CALLBACKS)),
                self.build_progress_bar(),
            ],
            gradient_clip_val=MAX_GRAD_NORM,
            enable_checkpointing=False,
            default_root_dir=str(folder),
            **self.trainer_arguments,
            **self.everything_arguments,
        )
        module = _module_with_everything(self.module)
        trainer.fit(module, batches)
        return {
            "weights": flat_weights(module),
            "accuracy": torch.as_tensor(trainer.callback_metrics["train_accuracy_epoch"]),
            "logged_losses": read_column(folder, "train_loss"),
        }

    def accumulate(self, batches: Loader) -> Evidence:
        module = _lean_module(self.module)
        _lean_trainer(self, [], accumulate_grad_batches=ACCUMULATED_BATCHES).fit(module, batches)
        return {"weights": flat_weights(module)}

    def tbptt(self, batches: Loader) -> Evidence:
        module = self.build_recurrent_module()
        _lean_trainer(self, []).fit(module, batches)
        return {"weights": flat_weights(module)}

    def evaluate(self, batches: Loader) -> Evidence:
        module = _lean_module(self.module)
        _lean_trainer(self, []).validate(module, batches, verbose=False)
        return {"last_loss": module.last_output}

    def predict(self, batches: Loader) -> Evidence:
        module = _lean_module(self.module)
        _lean_trainer(self, []).predict(module, batches, return_predictions=False)
        return {"last_logits": module.last_output}

    def enter_first_step(self, report: Callable[[], NoReturn]) -> None:
        class FirstStepModule(self.module):  # type: ignore[name-defined, misc]
            def __init__(self) -> None:
                super().__init__()
                self.model = build_model()

            def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
                report()

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return build_optimizer(self)

        _lean_trainer(self, []).fit(FirstStepModule(), TimedBatches(build_batches(), Clock(num_warmup=0, num_timed=8)))


def _lean_trainer(framework: LightningShape, callbacks: list[Any], **arguments: Any) -> Any:
    return framework.trainer(
        barebones=True, max_epochs=1, callbacks=callbacks, **framework.trainer_arguments, **arguments
    )


def _lean_module(base: Any) -> Any:
    class LeanModule(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = build_model()
            # A plain list: assigning a tensor to a module at each step would be timed too.
            self.outputs: list[Tensor | None] = [None]

        @property
        def last_output(self) -> Tensor | None:
            return self.outputs[0]

        def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
            inputs, classes = batch
            return cross_entropy(self.model(inputs), classes)

        def validation_step(self, batch: Batch, batch_idx: int) -> Tensor:
            inputs, classes = batch
            loss = cross_entropy(self.model(inputs), classes)
            self.outputs[0] = loss
            return loss

        def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
            inputs, _classes = batch
            logits: Tensor = self.model(inputs)
            self.outputs[0] = logits
            return logits

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return build_optimizer(self)

    return LeanModule()


def _module_with_everything(base: Any) -> Any:
    from torchmetrics.classification import MulticlassAccuracy

    class ModuleWithEverything(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = build_model()
            self.accuracy = MulticlassAccuracy(NUM_CLASSES, validate_args=False)

        def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
            inputs, classes = batch
            logits = self.model(inputs)
            loss = cross_entropy(logits, classes)
            self.accuracy(logits.detach(), classes)
            self.log("train_loss", loss, prog_bar=True)
            self.log("train_accuracy", self.accuracy, on_step=True, on_epoch=True)
            return loss

        def configure_optimizers(self) -> dict[str, Any]:
            optimizer = build_optimizer(self)
            scheduler = build_scheduler(optimizer)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    return ModuleWithEverything()


def _callbacks(base: Any, load: CallbackLoad) -> list[Any]:
    class IdleCallback(base):  # type: ignore[misc]
        pass

    class HookedCallback(base):  # type: ignore[misc]
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Batch, batch_idx: int) -> None:
            pass

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
            pass

    return [IdleCallback() for _ in range(load.num_idle)] + [HookedCallback() for _ in range(load.num_hooked)]


def read_column(folder: Path, column: str) -> Tensor:
    """Return the values of a column of the one CSV file below `folder`."""
    (path,) = folder.glob("**/*.csv")
    with path.open(newline="") as file:
        return torch.tensor([float(row[column]) for row in csv.DictReader(file) if row.get(column)])
