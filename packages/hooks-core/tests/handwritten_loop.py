"""A small trainer in plain Python that masters every feature of the conformance kit, and can be told to err."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from camshaft.hooks_core import CheckpointHooks, DataHooks, Hooks, ModelHooks, StrategyHooks, resolve
from camshaft.hooks_core.conformance import Adapter, Scenario
from camshaft.hooks_core.spec import SKIP_EPOCH, ZeroGrad


class Model(ModelHooks, DataHooks, CheckpointHooks):
    """A model without parameters."""

    def training_step(self, batch: int, batch_idx: int) -> float:
        return 0.5

    def validation_step(self, batch: int, batch_idx: int) -> None: ...

    def test_step(self, batch: int, batch_idx: int) -> None: ...

    def predict_step(self, batch: int, batch_idx: int) -> int:
        return batch


class Data(DataHooks, CheckpointHooks):
    """A data module without data."""


class Optimizer:
    """Calls its closure, and updates nothing."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return closure() if closure is not None else None


class Trainer:
    """Runs a scenario on receivers.

    Args:
        scenario: The numbers of epochs and batches.
        hooks: The resolved hooks.
    """

    zero_grad: ZeroGrad = "before_backward"

    def __init__(self, scenario: Scenario, hooks: Hooks) -> None:
        self.scenario = scenario
        self.hooks: Any = hooks
        self.optimizer = Optimizer()

    def run(self) -> None:
        hooks, verb = self.hooks, self.scenario.verb
        try:
            hooks.prepare_data()
            hooks.setup(verb)
            hooks.configure_sharded_model()
            hooks.configure_model()
            if verb == "fit":
                self.fit()
            else:
                self.evaluate({"validate": "validation"}.get(verb, verb), self.scenario.num_batches)
        except BaseException as error:
            hooks.on_exception(error)
            raise
        finally:
            hooks.teardown(verb)

    def fit(self) -> None:
        hooks, scenario = self.hooks, self.scenario
        hooks.on_fit_start()
        if scenario.num_sanity_val_batches:
            hooks.on_sanity_check_start()
            self.evaluate("validation", scenario.num_sanity_val_batches)
            hooks.on_sanity_check_end()
        hooks.on_train_start()
        for epoch in range(scenario.num_epochs):
            self.run_epoch(epoch)
        hooks.on_train_end()
        hooks.on_fit_end()

    def run_epoch(self, epoch: int) -> None:
        hooks, scenario = self.hooks, self.scenario
        hooks.on_train_epoch_start()
        for batch_idx in range(scenario.num_batches):
            if hooks.on_train_batch_start("batch", batch_idx) == SKIP_EPOCH:
                break
            outputs = self.optimize(epoch, batch_idx)
            hooks.on_train_batch_end(outputs, "batch", batch_idx)
            every = scenario.val_check_interval or scenario.num_batches
            if scenario.num_val_batches and (batch_idx + 1) % every == 0:
                self.evaluate("validation", scenario.num_val_batches)
        hooks.on_train_epoch_end()

    def optimize(self, epoch: int, batch_idx: int) -> Any:
        hooks, window = self.hooks, self.scenario.accumulate_grad_batches
        updates = (batch_idx + 1) % window == 0 or batch_idx == self.scenario.num_batches - 1
        zeroes = self.zero_grad if batch_idx % window == 0 else None
        outputs = None

        def closure() -> Any:
            nonlocal outputs
            if zeroes == "before_training_step":
                hooks.on_before_zero_grad(self.optimizer)
            outputs = hooks.training_step("batch", batch_idx)
            if outputs is not None:
                if zeroes == "before_backward":
                    hooks.on_before_zero_grad(self.optimizer)
                hooks.on_before_backward(outputs)
                hooks.on_after_backward()
                if updates:
                    hooks.on_before_optimizer_step(self.optimizer)
            return outputs

        if updates and hooks.optimizer_step is not None:
            hooks.optimizer_step(epoch, batch_idx, self.optimizer, closure)
        else:
            closure()
        if updates and outputs is not None and self.zero_grad == "after_optimizer_step":
            hooks.on_before_zero_grad(self.optimizer)
        return outputs

    def evaluate(self, word: str, num_batches: int) -> None:
        def hook(moment: str) -> Any:
            return getattr(self.hooks, f"on_{word}_{moment}")

        hook("start")()
        hook("epoch_start")()
        for batch_idx in range(num_batches):
            hook("batch_start")("batch", batch_idx, 0)
            outputs = getattr(self.hooks, f"{word}_step")("batch", batch_idx, 0)
            hook("batch_end")(outputs, "batch", batch_idx, 0)
        hook("epoch_end")()
        hook("end")()


def run(trainer: type[Trainer] = Trainer) -> Callable[..., None]:
    """What an adapter calls to run a scenario with a trainer of this class."""

    def adapted(scenario: Scenario, module: Any, callbacks: Sequence[Any], **others: Any) -> None:
        trainer(scenario, resolve(callbacks=callbacks, module=module, **others)).run()

    return adapted


def adapter(trainer: type[Trainer] = Trainer) -> Adapter:
    """An adapter with all kinds of receivers."""
    return Adapter(run(trainer), Model, Data, StrategyHooks)
