"""Ignite: an `Engine` around a process function, in which the user writes the optimization."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import ignite
import torch
from ignite.engine import Engine, Events, create_supervised_trainer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .frameworks import NO_CALLBACKS, CallbackLoad, Evidence
from .recurrent import SPLIT_SIZE, TIME_DIM, build_recurrent_model, loss_of_split
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


class Ignite:
    """Event handlers instead of callbacks, so that one without an event does not exist."""

    name = "ignite"
    takes_idle_callbacks = False

    def version(self) -> str:
        return ignite.__version__

    def train(self, batches: Loader, load: CallbackLoad = NO_CALLBACKS) -> Evidence:
        model = build_model().train()
        optimizer = build_optimizer(model)

        def process(engine: Engine, batch: Batch) -> Tensor:
            inputs, classes = batch
            loss = cross_entropy(model(inputs), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        engine = Engine(process)
        _attach_handlers(engine, load.num_hooked)
        engine.run(batches, max_epochs=1)
        return {"weights": flat_weights(model)}

    def train_with_everything(self, batches: Loader, folder: Path) -> Evidence:
        from ignite.handlers.tqdm_logger import ProgressBar
        from torchmetrics.classification import MulticlassAccuracy

        model = build_model().train()
        parameters = list(model.parameters())
        optimizer = build_optimizer(model)
        scheduler = build_scheduler(optimizer)
        accuracy = MulticlassAccuracy(NUM_CLASSES, validate_args=False)
        logged_losses: list[float] = []

        def process(engine: Engine, batch: Batch) -> dict[str, Tensor]:
            inputs, classes = batch
            logits = model(inputs)
            loss = cross_entropy(logits, classes)
            batch_accuracy = accuracy(logits.detach(), classes)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
            optimizer.step()
            scheduler.step()
            return {"loss": loss, "accuracy": batch_accuracy}

        with (folder / "metrics.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["step", "train_loss", "train_accuracy"])

            def log_row(engine: Engine) -> None:
                output: Any = engine.state.output
                logged_losses.append(output["loss"].item())
                rows.writerow([engine.state.iteration - 1, logged_losses[-1], output["accuracy"].item()])
                file.flush()

            engine = Engine(process)
            _attach_handlers(engine, NUM_BUSY_CALLBACKS)
            engine.add_event_handler(Events.ITERATION_COMPLETED(every=LOG_EVERY_N_STEPS), log_row)
            bar = ProgressBar()
            # The bar draws at every event that it is attached to, which by default is each iteration.
            bar.attach(
                engine,
                output_transform=lambda output: {"loss": output["loss"]},
                event_name=Events.ITERATION_COMPLETED(every=LOG_EVERY_N_STEPS),
            )
            engine.run(batches, max_epochs=1)
        return {
            "weights": flat_weights(model),
            "accuracy": accuracy.compute(),
            "logged_losses": torch.tensor(logged_losses),
        }

    def accumulate(self, batches: Loader) -> Evidence:
        model = build_model()
        trainer = create_supervised_trainer(
            model, build_optimizer(model), cross_entropy, gradient_accumulation_steps=ACCUMULATED_BATCHES
        )
        trainer.run(batches, max_epochs=1)
        return {"weights": flat_weights(model)}

    def tbptt(self, batches: Loader) -> Evidence:
        from ignite.contrib.engines import create_supervised_tbptt_trainer

        model = build_recurrent_model()
        loss: Any = loss_of_split
        trainer = create_supervised_tbptt_trainer(model, build_optimizer(model), loss, SPLIT_SIZE, dim=TIME_DIM)
        trainer.run(batches, max_epochs=1)
        return {"weights": flat_weights(model)}

    def evaluate(self, batches: Loader) -> Evidence:
        model = build_model().eval()

        def process(engine: Engine, batch: Batch) -> Tensor:
            inputs, classes = batch
            return cross_entropy(model(inputs), classes)

        return {"last_loss": _run_inference(process, batches)}

    def predict(self, batches: Loader) -> Evidence:
        model: nn.Module = build_model().eval()

        def process(engine: Engine, batch: Batch) -> Tensor:
            inputs, _classes = batch
            logits: Tensor = model(inputs)
            return logits

        return {"last_logits": _run_inference(process, batches)}

    def enter_first_step(self, report: Callable[[], NoReturn]) -> None:
        model = build_model().train()
        build_optimizer(model)

        def process(engine: Engine, batch: Batch) -> None:
            report()

        Engine(process).run(build_batches(), max_epochs=1)


def _run_inference(process: Callable[[Engine, Batch], Tensor], batches: Loader) -> Tensor:
    engine = Engine(process)
    with torch.inference_mode():
        engine.run(batches, max_epochs=1)
    output: Any = engine.state.output
    return torch.as_tensor(output)


def _attach_handlers(engine: Engine, num_pairs: int) -> None:
    def on_start(engine: Engine) -> None:
        pass

    def on_end(engine: Engine) -> None:
        pass

    for _ in range(num_pairs):
        engine.add_event_handler(Events.ITERATION_STARTED, on_start)
        engine.add_event_handler(Events.ITERATION_COMPLETED, on_end)


def build() -> Ignite:
    """Return the adapter."""
    return Ignite()
