"""Lightning Fabric: the user's own loop, with Fabric's model, optimizer, loader, backward, clipping and callbacks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import lightning
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from .frameworks import NO_CALLBACKS, CallbackLoad, Evidence
from .lightning_shape import read_column
from .recurrent import build_recurrent_model, loss_of_split, splits_of
from .timed_loaders import Loader
from .workload import (
    ACCUMULATED_BATCHES,
    BAR_REFRESHES_PER_SECOND,
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

SECONDS_BETWEEN_REFRESHES = 1 / BAR_REFRESHES_PER_SECOND


class IdleCallback:
    """Implements nothing."""


class HookedCallback:
    """Implements the start and the end of a batch, trivially."""

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        pass

    def on_train_batch_end(self, loss: Tensor, batch: Batch, batch_idx: int) -> None:
        pass


class WithFabric:
    """Loops as the user writes them. Callbacks are called by the loop, with `fabric.call`."""

    name = "fabric"
    takes_idle_callbacks = True

    def version(self) -> str:
        return str(lightning.__version__)

    def train(self, batches: Loader, load: CallbackLoad = NO_CALLBACKS) -> Evidence:
        fabric = _fabric(_callbacks(load))
        model, optimizer = _set_up_training(fabric, build_model())
        loader = _set_up_loader(fabric, batches)
        if load == NO_CALLBACKS:
            for inputs, classes in loader:
                loss = cross_entropy(model(inputs), classes)
                optimizer.zero_grad()
                fabric.backward(loss)
                optimizer.step()
            return {"weights": flat_weights(model)}

        for batch_idx, batch in enumerate(loader):
            fabric.call("on_train_batch_start", batch, batch_idx)
            inputs, classes = batch
            loss = cross_entropy(model(inputs), classes)
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            fabric.call("on_train_batch_end", loss, batch, batch_idx)
        return {"weights": flat_weights(model)}

    def train_with_everything(self, batches: Loader, folder: Path) -> Evidence:
        from lightning.fabric.loggers import CSVLogger
        from rich.progress import Progress
        from torchmetrics.classification import MulticlassAccuracy

        logger = CSVLogger(folder, flush_logs_every_n_steps=1)
        fabric = _fabric(_callbacks(CallbackLoad(num_hooked=NUM_BUSY_CALLBACKS)), loggers=logger)
        model, optimizer = _set_up_training(fabric, build_model())
        scheduler = build_scheduler(optimizer)
        accuracy = MulticlassAccuracy(NUM_CLASSES, validate_args=False)
        refreshed = 0.0

        with Progress(refresh_per_second=BAR_REFRESHES_PER_SECOND) as bar:
            task = bar.add_task("epoch 0", total=len(batches))
            for batch_idx, batch in enumerate(_set_up_loader(fabric, batches)):
                fabric.call("on_train_batch_start", batch, batch_idx)
                inputs, classes = batch
                logits = model(inputs)
                loss = cross_entropy(logits, classes)
                batch_accuracy = accuracy(logits.detach(), classes)
                optimizer.zero_grad()
                fabric.backward(loss)
                fabric.clip_gradients(model, optimizer, max_norm=MAX_GRAD_NORM)
                optimizer.step()
                scheduler.step()
                fabric.call("on_train_batch_end", loss, batch, batch_idx)
                if (batch_idx + 1) % LOG_EVERY_N_STEPS == 0:
                    fabric.log_dict({"train_loss": loss, "train_accuracy": batch_accuracy}, step=batch_idx)
                now = time.perf_counter()
                if now - refreshed > SECONDS_BETWEEN_REFRESHES:
                    refreshed = now
                    bar.update(task, completed=batch_idx + 1, description=f"epoch 0 loss {loss.item():.3f}")
        return {
            "weights": flat_weights(model),
            "accuracy": accuracy.compute(),
            "logged_losses": read_column(folder, "train_loss"),
        }

    def accumulate(self, batches: Loader) -> Evidence:
        fabric = _fabric()
        model, optimizer = _set_up_training(fabric, build_model())
        for batch_idx, (inputs, classes) in enumerate(_set_up_loader(fabric, batches)):
            is_accumulating = (batch_idx + 1) % ACCUMULATED_BATCHES != 0
            if batch_idx % ACCUMULATED_BATCHES == 0:
                optimizer.zero_grad()
            with fabric.no_backward_sync(model, enabled=is_accumulating):
                loss = cross_entropy(model(inputs), classes) / ACCUMULATED_BATCHES
                fabric.backward(loss)
            if not is_accumulating:
                optimizer.step()
        return {"weights": flat_weights(model)}

    def tbptt(self, batches: Loader) -> Evidence:
        fabric = _fabric()
        model, optimizer = _set_up_training(fabric, build_recurrent_model())
        for batch in _set_up_loader(fabric, batches):
            hiddens: Tensor | None = None
            for inputs, classes in splits_of(batch):
                logits, hiddens = model(inputs, hiddens)
                loss = loss_of_split(logits, classes)
                optimizer.zero_grad()
                fabric.backward(loss)
                optimizer.step()
                hiddens = hiddens.detach()
        return {"weights": flat_weights(model)}

    def evaluate(self, batches: Loader) -> Evidence:
        fabric = _fabric()
        model = fabric.setup_module(build_model()).eval()
        with torch.inference_mode():
            for inputs, classes in _set_up_loader(fabric, batches):
                loss = cross_entropy(model(inputs), classes)
        return {"last_loss": loss}

    def predict(self, batches: Loader) -> Evidence:
        fabric = _fabric()
        model = fabric.setup_module(build_model()).eval()
        with torch.inference_mode():
            for inputs, _classes in _set_up_loader(fabric, batches):
                logits = model(inputs)
        return {"last_logits": logits}

    def enter_first_step(self, report: Callable[[], NoReturn]) -> None:
        _set_up_training(_fabric(), build_model())
        for _inputs, _classes in build_batches():
            report()


def _fabric(callbacks: list[Any] | None = None, **arguments: Any) -> Fabric:
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=callbacks, **arguments)
    fabric.launch()
    return fabric


def _set_up_training(fabric: Fabric, model: nn.Module) -> tuple[Any, Any]:
    model, optimizer = fabric.setup(model, build_optimizer(model))
    return model.train(), optimizer


def _set_up_loader(fabric: Fabric, batches: Loader) -> Any:
    # It takes nothing but a DataLoader.
    return fabric.setup_dataloaders(batches) if isinstance(batches, DataLoader) else batches


def _callbacks(load: CallbackLoad) -> list[Any]:
    return [IdleCallback() for _ in range(load.num_idle)] + [HookedCallback() for _ in range(load.num_hooked)]


def build() -> WithFabric:
    """Return the adapter, with Lightning's hints switched off."""
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    return WithFabric()
