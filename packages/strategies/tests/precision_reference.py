"""The model and the loops of the tests of precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from camshaft.strategies import SingleDeviceStrategy


def model_of(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))


def batches(count: int = 6) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(8, 4, generator=generator) for _ in range(count))


def weights(model: nn.Module) -> list[Tensor]:
    return [value.detach().clone() for value in model.state_dict().values()]


def assert_equal(one: list[Tensor], other: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def weight_loss(parameter: Tensor, factor: float) -> Tensor:
    """Return a loss whose gradient is the factor, in any precision."""
    return (parameter * factor).sum()


def train(strategy: SingleDeviceStrategy, model: nn.Module, clip_val: float | None = None) -> list[tuple[bool, float]]:
    """Train on some batches. Return for each whether its update was skipped, and its loss scale."""
    computing = strategy.setup_module(model)
    (optimizer,) = strategy.setup_optimizers([SGD(model.parameters(), lr=0.1)])
    history = []
    for batch in batches():
        optimizer.zero_grad()
        loss = computing(batch).square().mean()
        strategy.backward(loss)
        if clip_val is not None:
            strategy.unscale_gradients(optimizer)
            strategy.clip_gradients(optimizer, clip_val, "norm")
        strategy.optimizer_step(optimizer)
        history.append((strategy.has_skipped_step, getattr(strategy.precision, "scale", 1.0)))
    strategy.teardown()
    return history


def one_parameter(
    strategy: SingleDeviceStrategy, make: Callable[[list[Tensor]], Optimizer] = lambda own: SGD(own, lr=0.5)
) -> tuple[nn.Parameter, Optimizer]:
    parameter = nn.Parameter(torch.ones(1))
    (optimizer,) = strategy.setup_optimizers([make([parameter])])
    return parameter, optimizer
