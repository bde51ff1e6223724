"""The loops that a careful engineer writes without a framework: the reference of every measurement."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .frameworks import NO_CALLBACKS, CallbackLoad, Evidence
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


def on_batch_start(batch: Batch, batch_idx: int) -> None:
    """Stand in for a callback's hook."""


def on_batch_end(loss: Tensor, batch: Batch, batch_idx: int) -> None:
    """Stand in for a callback's hook."""


class ByHand:
    """No framework: the loop itself."""

    name = "by hand"
    takes_idle_callbacks = False

    def version(self) -> str:
        return str(torch.__version__)

    def train(self, batches: Loader, load: CallbackLoad = NO_CALLBACKS) -> Evidence:
        model = build_model().train()
        optimizer = build_optimizer(model)
        if load.num_hooked == 0:
            for inputs, classes in batches:
                loss = cross_entropy(model(inputs), classes)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            return {"weights": flat_weights(model)}

        starts = [on_batch_start] * load.num_hooked
        ends = [on_batch_end] * load.num_hooked
        for batch_idx, batch in enumerate(batches):
            for start in starts:
                start(batch, batch_idx)
            inputs, classes = batch
            loss = cross_entropy(model(inputs), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for end in ends:
                end(loss, batch, batch_idx)
        return {"weights": flat_weights(model)}

    def train_with_everything(self, batches: Loader, folder: Path) -> Evidence:
        from rich.progress import Progress
        from torchmetrics.classification import MulticlassAccuracy

        model = build_model().train()
        parameters = list(model.parameters())
        optimizer = build_optimizer(model)
        scheduler = build_scheduler(optimizer)
        accuracy = MulticlassAccuracy(NUM_CLASSES, validate_args=False)
        starts = [on_batch_start] * NUM_BUSY_CALLBACKS
        ends = [on_batch_end] * NUM_BUSY_CALLBACKS
        logged_losses: list[float] = []
        refreshed = 0.0

        with (
            (folder / "metrics.csv").open("w", newline="") as file,
            Progress(refresh_per_second=BAR_REFRESHES_PER_SECOND) as bar,
        ):
            rows = csv.writer(file)
            rows.writerow(["step", "train_loss", "train_accuracy"])
            task = bar.add_task("epoch 0", total=len(batches))
            for batch_idx, batch in enumerate(batches):
                for start in starts:
                    start(batch, batch_idx)
                inputs, classes = batch
                logits = model(inputs)
                loss = cross_entropy(logits, classes)
                batch_accuracy = accuracy(logits.detach(), classes)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
                optimizer.step()
                scheduler.step()
                for end in ends:
                    end(loss, batch, batch_idx)
                if (batch_idx + 1) % LOG_EVERY_N_STEPS == 0:
                    logged_losses.append(loss.item())
                    rows.writerow([batch_idx, logged_losses[-1], batch_accuracy.item()])
                    file.flush()
                now = time.perf_counter()
                if now - refreshed > SECONDS_BETWEEN_REFRESHES:
                    refreshed = now
                    bar.update(task, completed=batch_idx + 1, description=f"epoch 0 loss {loss.item():.3f}")
        return {
            "weights": flat_weights(model),
            "accuracy": accuracy.compute(),
            "logged_losses": torch.tensor(logged_losses),
        }

    def accumulate(self, batches: Loader) -> Evidence:
        model = build_model().train()
        optimizer = build_optimizer(model)
        for batch_idx, (inputs, classes) in enumerate(batches):
            loss = cross_entropy(model(inputs), classes) / ACCUMULATED_BATCHES
            if batch_idx % ACCUMULATED_BATCHES == 0:
                optimizer.zero_grad()
            loss.backward()
            if (batch_idx + 1) % ACCUMULATED_BATCHES == 0:
                optimizer.step()
        return {"weights": flat_weights(model)}

    def tbptt(self, batches: Loader) -> Evidence:
        model = build_recurrent_model().train()
        optimizer = build_optimizer(model)
        for batch in batches:
            hiddens: Tensor | None = None
            for inputs, classes in splits_of(batch):
                logits, hiddens = model(inputs, hiddens)
                loss = loss_of_split(logits, classes)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                hiddens = hiddens.detach()
        return {"weights": flat_weights(model)}

    def evaluate(self, batches: Loader) -> Evidence:
        model = build_model().eval()
        with torch.inference_mode():
            for inputs, classes in batches:
                loss = cross_entropy(model(inputs), classes)
        return {"last_loss": loss}

    def predict(self, batches: Loader) -> Evidence:
        model = build_model().eval()
        with torch.inference_mode():
            for inputs, _classes in batches:
                logits = model(inputs)
        return {"last_logits": logits}

    def enter_first_step(self, report: Callable[[], NoReturn]) -> None:
        model = build_model().train()
        build_optimizer(model)
        for _inputs, _classes in build_batches():
            report()


def build() -> ByHand:
    """Return the reference."""
    return ByHand()
