"""Modules that make Lightning do what camshaft does, where a difference changes the weights."""

from __future__ import annotations

from typing import Any

import torch

from comparison.configuration import Configuration


def averages_short_windows(module_class: Any, configuration: Configuration) -> Any:
    """Scale the losses of a short last accumulation window: Lightning divides them by the asked-for length.

    Exact to the bit where that length is a power of two.
    """

    class Averaging(module_class):  # type: ignore[misc]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            outputs = super().training_step(batch, batch_idx)
            real = configuration.real_window(batch_idx)
            if outputs is None or configuration.is_manual or real == configuration.window:
                return outputs
            if isinstance(outputs, dict):
                return {**outputs, "loss": outputs["loss"] * configuration.window / real}
            return outputs * configuration.window / real

    return Averaging


def schedules_by_updates(module_class: Any, configuration: Configuration) -> Any:
    """Step a scheduler of steps after each so many updates that had gradients, whatever Lightning counts."""
    scheduling = configuration.scheduling
    if scheduling is None or scheduling.interval != "step":
        return module_class

    class Counting(module_class):  # type: ignore[misc]
        has_gradients = False
        is_updated = False
        num_updates = 0

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            super().on_load_checkpoint(checkpoint)
            self.num_updates = checkpoint["global_step"]

        def on_before_zero_grad(self, optimizer: Any) -> None:
            super().on_before_zero_grad(optimizer)
            self.has_gradients = False

        def on_after_backward(self) -> None:
            super().on_after_backward()
            self.has_gradients = True

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
            self.is_updated = False
            return super().on_train_batch_start(batch, batch_idx)

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            super().on_before_optimizer_step(optimizer)
            self.is_updated = self.has_gradients
            self.num_updates += self.has_gradients

        def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
            if self.is_updated and self.num_updates % scheduling.frequency == 0:
                super().lr_scheduler_step(scheduler, metric)

    return Counting


def restores_random_state(module_class: Any, configuration: Configuration) -> Any:
    """Resume with the random numbers that would have come without the interruption."""

    class Restoring(module_class):  # type: ignore[misc]
        random_state: torch.Tensor | None = None

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            super().on_save_checkpoint(checkpoint)
            checkpoint["random_state"] = torch.get_rng_state()

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            super().on_load_checkpoint(checkpoint)
            self.random_state = checkpoint["random_state"]

        def on_fit_start(self) -> None:
            super().on_fit_start()
            if self.random_state is not None:
                torch.set_rng_state(self.random_state)

    return Restoring
