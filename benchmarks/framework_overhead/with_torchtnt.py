"""torchtnt: `TrainUnit` with the user's own step in lean runs, `AutoUnit` where it must clip and schedule."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchtnt.framework.auto_unit import AutoUnit
from torchtnt.framework.callback import Callback
from torchtnt.framework.evaluate import evaluate
from torchtnt.framework.predict import predict
from torchtnt.framework.state import State
from torchtnt.framework.train import train
from torchtnt.framework.unit import EvalUnit, PredictUnit, TrainUnit

from .frameworks import NO_CALLBACKS, CallbackLoad, Evidence
from .recurrent import build_recurrent_model, loss_of_split, splits_of
from .timed_loaders import Loader
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


class LeanTrainUnit(TrainUnit[Batch]):
    """The optimization written out by the user, as in torchtnt's first example."""

    def __init__(self) -> None:
        super().__init__()
        self.model = build_model()
        self.optimizer = build_optimizer(self.model)

    def train_step(self, state: State, data: Batch) -> None:
        inputs, classes = data
        loss = cross_entropy(self.model(inputs), classes)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class AccumulatingUnit(AutoUnit[Batch]):
    """`AutoUnit` divides the loss, zeroes and steps at the ends of the windows."""

    def __init__(self) -> None:
        super().__init__(
            module=build_model(),
            device=torch.device("cpu"),
            gradient_accumulation_steps=ACCUMULATED_BATCHES,
        )

    def configure_optimizers_and_lr_scheduler(self, module: nn.Module) -> tuple[Any, Any]:
        return build_optimizer(module), None

    def compute_loss(self, state: State, data: Batch) -> tuple[Tensor, Tensor]:
        inputs, classes = data
        logits = self.module(inputs)
        return cross_entropy(logits, classes), logits


class RecurrentUnit(TrainUnit[Batch]):
    """Splits and optimization written out by the user: torchtnt has nothing of its own for them."""

    def __init__(self) -> None:
        super().__init__()
        self.model = build_recurrent_model()
        self.optimizer = build_optimizer(self.model)

    def train_step(self, state: State, data: Batch) -> None:
        hiddens: Tensor | None = None
        for inputs, classes in splits_of(data):
            logits, hiddens = self.model(inputs, hiddens)
            loss = loss_of_split(logits, classes)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            hiddens = hiddens.detach()


class LeanEvalUnit(EvalUnit[Batch], PredictUnit[Batch]):
    """Loss and logits of each batch; the last ones are kept in a list, which costs no tracked assignment."""

    def __init__(self) -> None:
        super().__init__()
        self.model = build_model()
        self.outputs: list[Tensor] = [torch.empty(0)]

    def eval_step(self, state: State, data: Batch) -> Tensor:
        inputs, classes = data
        loss = cross_entropy(self.model(inputs), classes)
        self.outputs[0] = loss
        return loss

    def predict_step(self, state: State, data: Batch) -> Tensor:
        inputs, _classes = data
        logits: Tensor = self.model(inputs)
        self.outputs[0] = logits
        return logits


class UnitWithEverything(AutoUnit[Batch]):
    """`AutoUnit` runs backward, clipping, optimizer and scheduler; logging is the user's."""

    def __init__(self, module: nn.Module, csv_logger: Any, accuracy: Any) -> None:
        super().__init__(
            module=module,
            device=torch.device("cpu"),
            step_lr_interval="step",
            clip_grad_norm=MAX_GRAD_NORM,
        )
        self.csv_logger = csv_logger
        self.accuracy = accuracy

    def configure_optimizers_and_lr_scheduler(self, module: nn.Module) -> tuple[Any, Any]:
        optimizer = build_optimizer(module)
        return optimizer, build_scheduler(optimizer)

    def compute_loss(self, state: State, data: Batch) -> tuple[Tensor, Tensor]:
        inputs, classes = data
        logits = self.module(inputs)
        return cross_entropy(logits, classes), logits

    def on_train_step_end(self, state: State, data: Batch, step: int, results: Any) -> None:
        batch_accuracy = self.accuracy(results.outputs.detach(), data[1])
        if (step + 1) % LOG_EVERY_N_STEPS == 0:
            self.csv_logger.log("train_loss", results.loss, step)
            self.csv_logger.log("train_accuracy", batch_accuracy, step)


class IdleCallback(Callback):
    """Implements nothing."""


class HookedCallback(Callback):
    """Implements the start and the end of a batch, trivially."""

    def on_train_step_start(self, state: State, unit: Any) -> None:
        pass

    def on_train_step_end(self, state: State, unit: Any) -> None:
        pass


class TorchTNT:
    """torchtnt's three entry points."""

    name = "torchtnt"
    takes_idle_callbacks = True

    def version(self) -> str:
        import importlib.metadata

        return importlib.metadata.version("torchtnt")

    def train(self, batches: Loader, load: CallbackLoad = NO_CALLBACKS) -> Evidence:
        unit = LeanTrainUnit()
        train(unit, batches, max_epochs=1, callbacks=_callbacks(load))
        return {"weights": flat_weights(unit.model)}

    def train_with_everything(self, batches: Loader, folder: Path) -> Evidence:
        from torchmetrics.classification import MulticlassAccuracy
        from torchtnt.framework.callbacks import TQDMProgressBar
        from torchtnt.utils.loggers import CSVLogger

        csv_logger = CSVLogger(str(folder / "metrics.csv"))
        # It would write once more at the end of the process, when the folder is gone.
        atexit.unregister(csv_logger.close)
        accuracy = MulticlassAccuracy(NUM_CLASSES, validate_args=False)
        unit = UnitWithEverything(build_model(), csv_logger, accuracy)
        callbacks = [*_callbacks(CallbackLoad(num_hooked=NUM_BUSY_CALLBACKS)), TQDMProgressBar()]
        train(unit, batches, max_epochs=1, callbacks=callbacks)
        csv_logger.close()
        rows = (folder / "metrics.csv").read_text().splitlines()
        column = rows[0].split(",").index("train_loss")
        return {
            "weights": flat_weights(unit.module),
            "accuracy": accuracy.compute(),
            "logged_losses": torch.tensor([float(row.split(",")[column]) for row in rows[1:]]),
        }

    def accumulate(self, batches: Loader) -> Evidence:
        unit = AccumulatingUnit()
        train(unit, batches, max_epochs=1)
        return {"weights": flat_weights(unit.module)}

    def tbptt(self, batches: Loader) -> Evidence:
        unit = RecurrentUnit()
        train(unit, batches, max_epochs=1)
        return {"weights": flat_weights(unit.model)}

    def evaluate(self, batches: Loader) -> Evidence:
        unit = LeanEvalUnit()
        evaluate(unit, batches)
        return {"last_loss": unit.outputs[0]}

    def predict(self, batches: Loader) -> Evidence:
        unit = LeanEvalUnit()
        predict(unit, batches)
        return {"last_logits": unit.outputs[0]}

    def enter_first_step(self, report: Callable[[], NoReturn]) -> None:
        class FirstStepUnit(LeanTrainUnit):
            def train_step(self, state: State, data: Batch) -> None:
                report()

        train(FirstStepUnit(), build_batches(), max_epochs=1)


def _callbacks(load: CallbackLoad) -> list[Callback]:
    return [IdleCallback() for _ in range(load.num_idle)] + [HookedCallback() for _ in range(load.num_hooked)]


def build() -> TorchTNT:
    """Return the adapter."""
    return TorchTNT()
