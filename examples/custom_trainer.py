"""A training loop of one's own on camshaft-hooks-core alone, proved by the conformance kit.

`fit_torch` is a loop in plain torch. What callbacks know of it is in custom_trainer_state.py; with that, those
of camshaft-callbacks run in it. `fit_numpy` drives a NumPy model by the same protocol, without torch. The same callback
works with both.

    python examples/custom_trainer.py
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from camshaft.hooks_core import Callback, ModelHooks, resolve
from camshaft.hooks_core.conformance import Adapter, Scenario, conform
from camshaft.hooks_core.spec import SKIP_EPOCH

FEATURES = ("skip_epoch", "skip_update", "exceptions")


def fit_torch(
    module: Any, batches: Any, callbacks: Sequence[Callback] = (), num_epochs: int = 1, trainer: Any = None
) -> None:
    """Train a torch module, with a call at the place of every event of the protocol; callbacks are told `trainer`."""
    from custom_trainer_state import TrainerState  # what needs torch stays where torch is needed

    trainer = trainer or TrainerState(list(callbacks), num_epochs)
    steps = ("training_step", "configure_optimizers")
    hooks: Any = resolve(callbacks=trainer.callbacks, module=module, trainer=trainer, required=steps)
    try:
        hooks.prepare_data()
        hooks.setup("fit")
        hooks.configure_sharded_model()
        hooks.configure_model()
        trainer.start(module, batches, hooks)
        optimizer = trainer.take_optimizers(hooks.configure_optimizers())
        hooks.on_fit_start()
        hooks.on_train_start()
        while trainer.goes_on:
            hooks.on_train_epoch_start()
            for batch_idx, batch in enumerate(batches):
                trainer.start_batch(batch_idx)
                if hooks.on_train_batch_start(batch, batch_idx) == SKIP_EPOCH:
                    break
                trainer.note_loss(loss := train_batch(hooks, trainer, optimizer, batch, batch_idx))
                hooks.on_train_batch_end(loss, batch, batch_idx)
                trainer.save_point()
                if trainer.should_stop:
                    break
            hooks.on_train_epoch_end()
            trainer.end_epoch()
        hooks.on_train_end()
        hooks.on_fit_end()
    except BaseException as error:
        hooks.on_exception(error)
        raise
    finally:
        hooks.teardown("fit")


def train_batch(hooks: Any, trainer: Any, optimizer: Any, batch: Any, batch_idx: int) -> Any:
    """Add a batch's gradients to those of its accumulation window, and update at the window's end."""
    loss = hooks.training_step(batch, batch_idx)
    if loss is not None:
        if not trainer.holds_gradients:
            hooks.on_before_zero_grad(optimizer)
            optimizer.zero_grad()
        share = loss / trainer.window_length
        hooks.on_before_backward(share)
        share.backward()
        hooks.on_after_backward()
        trainer.holds_gradients = True
    if trainer.ends_window and trainer.holds_gradients:
        hooks.on_before_optimizer_step(optimizer)
        optimizer.step()
        trainer.count_update()
    return None if loss is None else loss.detach()


def fit_numpy(module: Any, batches: Iterable[Any], callbacks: Sequence[Callback] = (), num_epochs: int = 1) -> None:
    """Train a module that differentiates and updates by itself, in its `backward` and `optimizer_step`."""
    steps = ("training_step", "backward", "optimizer_step")
    hooks: Any = resolve(callbacks=callbacks, module=module, required=steps)
    try:
        hooks.prepare_data()
        hooks.setup("fit")
        hooks.configure_sharded_model()
        hooks.configure_model()
        hooks.on_fit_start()
        hooks.on_train_start()
        for epoch in range(num_epochs):
            hooks.on_train_epoch_start()
            for batch_idx, batch in enumerate(batches):
                if hooks.on_train_batch_start(batch, batch_idx) == SKIP_EPOCH:
                    break
                loss = None

                def closure(batch: Any = batch, batch_idx: int = batch_idx) -> Any:
                    nonlocal loss
                    loss = hooks.training_step(batch, batch_idx)
                    if loss is not None:
                        hooks.on_before_zero_grad(None)
                        hooks.on_before_backward(loss)
                        hooks.backward(loss)
                        hooks.on_after_backward()
                        hooks.on_before_optimizer_step(None)
                    return loss

                hooks.optimizer_step(epoch, batch_idx, None, closure)
                hooks.on_train_batch_end(loss, batch, batch_idx)
            hooks.on_train_epoch_end()
        hooks.on_train_end()
        hooks.on_fit_end()
    except BaseException as error:
        hooks.on_exception(error)
        raise
    finally:
        hooks.teardown("fit")


class NumpyLine(ModelHooks):
    """Fits `y = weight * x` by gradient descent."""

    def __init__(self) -> None:
        self.weight = np.float64(0.0)
        self.gradient = 0.0

    def training_step(self, batch: Any, batch_idx: int) -> float:
        self.x, self.residual = batch[0], self.weight * batch[0] - batch[1]
        return float(np.mean(self.residual**2))

    def backward(self, loss: float) -> None:
        self.gradient = float(np.mean(2 * self.residual * self.x))

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        if optimizer_closure() is not None:
            self.weight -= 0.1 * self.gradient


def torch_line() -> Any:
    """The same model as a torch module."""
    import torch

    class TorchLine(ModelHooks, torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            x, y = (torch.as_tensor(values) for values in batch)
            return ((self.weight * x - y) ** 2).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return TorchLine()


class PrintLoss(Callback):
    """Prints each epoch's last loss; it knows nothing of torch, NumPy or the loop."""

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.loss = float(outputs)

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        print(f"  loss {self.loss:.6f}")


def line_batches(num_batches: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches of points on the line `y = 3 * x`."""
    generator = np.random.default_rng(0)
    points = [generator.normal(size=8) for _ in range(num_batches)]
    return [(x, 3.0 * x) for x in points]


def demonstrate(name: str, fit: Any, make_module: Any) -> None:
    """Train a model with a loop, then let the kit prove the loop."""
    print(f"{name}: training")
    module = make_module()
    fit(module, line_batches(10), [PrintLoss()], num_epochs=3)
    print(f"  weight {module.weight.item():.4f}")

    def run(scenario: Scenario, module: Any, callbacks: list[Callback]) -> None:
        fit(module, line_batches(scenario.num_batches), callbacks, scenario.num_epochs)

    print(f"{name}: conformance")
    print(conform(Adapter(run, make_module), verbs=["fit"], features=FEATURES))


if __name__ == "__main__":
    demonstrate("NumPy", fit_numpy, NumpyLine)
    if find_spec("torch") is None:
        print("torch: left out, since it is not installed")
    else:
        demonstrate("torch", fit_torch, torch_line)
