"""A module and a data module that override whatever can be overridden, with what would have happened anyway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bare_parts import Net, Sized
from torch import nn


def _optimizer_step(module: Net) -> Callable[..., Any]:
    def optimizer_step(epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
        optimizer.step(closure=optimizer_closure)

    return optimizer_step


def _optimizer_zero_grad(module: Net) -> Callable[..., Any]:
    return lambda epoch, batch_idx, optimizer: optimizer.zero_grad()


def _backward(module: Net) -> Callable[..., Any]:
    return lambda loss: loss.backward()


def _configure_gradient_clipping(module: Net) -> Callable[..., Any]:
    def configure_gradient_clipping(
        optimizer: Any, gradient_clip_val: float | None, gradient_clip_algorithm: str
    ) -> None:
        if gradient_clip_val is None:
            return
        clip = nn.utils.clip_grad_norm_ if gradient_clip_algorithm == "norm" else nn.utils.clip_grad_value_
        clip(module.parameters(), gradient_clip_val)

    return configure_gradient_clipping


def _lr_scheduler_step(module: Net) -> Callable[..., Any]:
    return lambda scheduler, metric: scheduler.step() if metric is None else scheduler.step(metric)


def _model_eval(module: Net) -> Callable[..., Any]:
    return lambda: module.eval()


def _model_train(module: Net) -> Callable[..., Any]:
    return lambda: module.train()


def _same_batch(module: Any) -> Callable[..., Any]:
    return lambda batch, dataloader_idx: batch


def _transfer(module: Any) -> Callable[..., Any]:
    return lambda batch, device, dataloader_idx: batch


OVERRIDES: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "optimizer_step": _optimizer_step,
    "optimizer_zero_grad": _optimizer_zero_grad,
    "backward": _backward,
    "configure_gradient_clipping": _configure_gradient_clipping,
    "lr_scheduler_step": _lr_scheduler_step,
    "on_before_batch_transfer": _same_batch,
    "transfer_batch_to_device": _transfer,
    "on_after_batch_transfer": _same_batch,
    **{f"on_{word}_model_eval": _model_eval for word in ("validation", "test", "predict")},
    **{f"on_{word}_model_train": _model_train for word in ("validation", "test", "predict")},
    "on_validation_model_zero_grad": lambda module: module.zero_grad,
}


def override(module: Net, *names: str) -> Net:
    """Let a module override these hooks with their defaults."""
    for name in names:
        object.__setattr__(module, name, OVERRIDES[name](module))
    return module


class Data:
    """A data module with every hook that it may have.

    Args:
        loaders: What each of its hooks `<stage>_dataloader` returns, by the hook's first word.
    """

    def __init__(self, **loaders: Any) -> None:
        self.loaders = {name: Sized(batches) for name, batches in loaders.items()}
        self.memory = 0

    def prepare_data(self) -> None:
        self.memory += 1

    def setup(self, stage: str) -> None:
        self.memory += 1

    def train_dataloader(self) -> Any:
        return self.loaders["train"]

    def val_dataloader(self) -> Any:
        return self.loaders["val"]

    def test_dataloader(self) -> Any:
        return self.loaders["test"]

    def predict_dataloader(self) -> Any:
        return self.loaders["predict"]

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {"memory": self.memory}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.memory = state_dict["memory"]
