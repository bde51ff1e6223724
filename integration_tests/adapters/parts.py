"""A module and its data, and running the loops on them without a trainer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

from camshaft.hooks_core import Callback, ModelHooks
from camshaft.hooks_core.check import check
from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.trace import Event, Trace
from camshaft.loops import FitLimits, FitLoop, OptimizationSettings, Run, SaveRequest, collect, run_verb

NUM_FEATURES = 6
NUM_BATCHES = 5  # no multiple of the accumulation windows, so that the last one is short
BATCH_SIZE = 8


class Net(ModelHooks, nn.Module):
    """A regression.

    Args:
        configure: Given the parameters, returns what `configure_optimizers` returns.
        noisy: Whether it has dropout and batch normalization: random numbers, and buffers that are no parameters.
    """

    def __init__(self, configure: Any, noisy: bool = True) -> None:
        super().__init__()
        noise = [nn.BatchNorm1d(5), nn.Dropout(0.25)] if noisy else [nn.Identity()]
        self.layers = nn.Sequential(nn.Linear(NUM_FEATURES, 5), *noise, nn.Tanh(), nn.Linear(5, 1))
        self.dtypes: set[torch.dtype] = set()
        self._configure = configure

    def forward(self, batch: Sequence[Tensor]) -> Tensor:
        output = self.layers(batch[0])
        self.dtypes.add(output.dtype)
        return output

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self(batch), batch[1])

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self(batch), batch[1])

    def test_step(self, batch: Sequence[Tensor], batch_idx: int) -> dict[str, Tensor]:
        return {"error": (self(batch) - batch[1]).abs()}

    def predict_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        return self(batch)

    def configure_optimizers(self) -> Any:
        return self._configure(self.parameters())


class ShapedByHooks(Net):
    """Takes over the update, the zeroing and what happens to a batch on its way."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer.step(closure=optimizer_closure)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=False)

    def on_after_batch_transfer(self, batch: Sequence[Tensor], dataloader_idx: int) -> Sequence[Tensor]:
        return [batch[0] * 0.5, batch[1]]


class Manual(Net):
    """Optimizes by its own hand."""

    automatic_optimization = False

    def configure_optimizers(self) -> Any:
        self.optimizer: Optimizer = self._configure(self.parameters())
        return self.optimizer

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def adam_with_scheduler(parameters: Iterable[nn.Parameter]) -> Any:
    optimizer = torch.optim.Adam(parameters, lr=0.05)
    return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


def sgd_with_scheduler(parameters: Iterable[nn.Parameter]) -> Any:
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.8)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def lbfgs(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return torch.optim.LBFGS(parameters, lr=0.1, max_iter=3)


def batches(seed: int, part: slice = slice(None)) -> DataLoader[Any]:
    """Batches that are the same in every process, or a part of each."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(NUM_BATCHES, BATCH_SIZE, NUM_FEATURES, generator=generator)
    return DataLoader([[x[part], x.sum(dim=1, keepdim=True).sin()[part]] for x in inputs], batch_size=None)


def shuffled(seed: int) -> DataLoader[Any]:
    """The samples of `batches` in a loader that shuffles with a generator of its own."""
    inputs, targets = (torch.cat(parts) for parts in zip(*batches(seed), strict=True))
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(TensorDataset(inputs, targets), BATCH_SIZE, shuffle=True, generator=generator)


class Outputs(Callback):
    """Keeps what the steps returned, and lets a run save at the end of its first epoch."""

    def __init__(self, path: str | None = None) -> None:
        self.path = path
        self.run: Run | None = None
        self.outputs: list[Any] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.outputs.append(outputs)

    def on_validation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.outputs.append(outputs)

    def on_test_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.outputs.append(outputs)

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        if self.path is not None and self.run is not None and self.run.epoch == 0:
            self.run.request_save(SaveRequest(self.path))


@attrs.frozen
class Outcome:
    """What a run leaves behind."""

    calls: list[Event]
    weights: dict[str, Tensor]
    outputs: list[Any]
    result: Any


def assert_identical(actual: Any, expected: Any, where: str = "it") -> None:
    """Nested values are the same, tensors to the bit."""
    assert type(actual) is type(expected), where
    if isinstance(expected, Tensor):
        assert actual.dtype == expected.dtype and torch.equal(actual, expected), where
    elif isinstance(expected, dict):
        assert list(actual) == list(expected), where
        for key, value in expected.items():
            assert_identical(actual[key], value, f"{where}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), where
        for position, value in enumerate(expected):
            assert_identical(actual[position], value, f"{where}[{position}]")
    else:
        assert actual == expected, where


def run(
    verb: Any, loop: Any, module: nn.Module, strategy: Strategy, loaders: dict[str, Any], **arguments: Any
) -> Outcome:
    """Run one verb, and check that it called every hook in its order.

    Args:
        loaders: By stage.
        arguments: `path`, where fit saves after its first epoch; `checkpoint`, one to start from.
    """
    callback, trace = Outputs(arguments.pop("path", None)), Trace()
    trace.record(callback, "callback")
    trace.record(module, "module", name="module")
    trace.record(strategy, "strategy", name="strategy")

    def write(request: SaveRequest) -> None:
        strategy.save_checkpoint(collect(callback.run, loop), request.path)

    callback.run = Run(
        verb=verb,
        module=module,
        strategy=strategy,
        trainer=loop,
        callbacks=[callback],
        loaders=loaders,
        write_checkpoint=write,
        **arguments,
    )
    result = run_verb(callback.run, loop)
    check(trace, verb)
    weights = {name: value.detach().clone() for name, value in module.state_dict().items()}
    return Outcome(list(trace), weights, callback.outputs, result)


def fit(module: nn.Module, strategy: Strategy, train: Any, validate: Any, **arguments: Any) -> Outcome:
    """Fit for two epochs.

    Args:
        arguments: Those of `OptimizationSettings`, and of what `run` and `FitLoop` take beside them.
    """
    of_run = {name: arguments.pop(name) for name in ("path", "checkpoint") if name in arguments}
    of_loop = {name: arguments.pop(name) for name in ("loader_settings", "validation") if name in arguments}
    loop = FitLoop(FitLimits(max_epochs=2), OptimizationSettings(**arguments), **of_loop)
    return run("fit", loop, module, strategy, {"train": train, "validate": validate}, **of_run)
