"""The module and the data that strategies are tried on, and optimizers that ask for something special."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

NUM_INPUTS, NUM_HIDDEN, NUM_OUTPUTS = 6, 5, 3  # 5 rows are no multiple of two ranks
SHARE = 4  # samples of a batch on each of the ranks that share the data out
STEPS = ("training_step", "validation_step", "test_step", "predict_step")

Batch = dict[str, Tensor]


class Subject(nn.Module):
    """A small regression with a frozen parameter and buffers.

    Args:
        seed: Of its weights; no global random numbers are used.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.first = nn.Linear(NUM_INPUTS, NUM_HIDDEN)
        self.last = nn.Linear(NUM_HIDDEN, NUM_OUTPUTS)
        self.frozen = nn.Parameter(torch.ones(NUM_HIDDEN), requires_grad=False)
        self.register_buffer("offset", torch.zeros(NUM_OUTPUTS))
        self.register_buffer("version", torch.tensor(seed))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(torch.tanh(self.first(inputs)) * self.frozen) + self.offset
        return outputs

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self(batch["inputs"]), batch["targets"])

    def validation_step(self, batch: Batch, batch_idx: int) -> Any:
        return self(batch["inputs"])

    def test_step(self, batch: Batch, batch_idx: int) -> Any:
        return self(batch["inputs"])

    def predict_step(self, batch: Batch, batch_idx: int) -> Any:
        return self(batch["inputs"])


class BuiltLate(nn.Module):
    """A module without layers until `build` is called."""

    net: nn.Sequential

    def build(self) -> None:
        """Make the layers, with PyTorch's own initialisation and by the global random numbers."""
        self.net = nn.Sequential(nn.Linear(NUM_INPUTS, NUM_HIDDEN), nn.Tanh(), nn.Linear(NUM_HIDDEN, NUM_OUTPUTS))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self.net(batch["inputs"]), batch["targets"])


class Midpoint(Optimizer):
    """Steps along the gradient half a step ahead: like LBFGS it evaluates the closure several times by itself.

    Args:
        parameters: What to update.
        lr: The step size.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]  # as LBFGS, it needs one
        """Make an update; the closure computes the loss with its gradients."""
        with torch.enable_grad():
            loss = closure()
        begin = [(p, p.detach().clone(), group["lr"]) for group in self.param_groups for p in group["params"]]
        self._move(begin, 0.5)
        with torch.enable_grad():
            closure()
        self._move(begin, 1.0)
        return loss

    @torch.no_grad()
    def _move(self, begin: list[tuple[Tensor, Tensor, float]], share: float) -> None:
        for parameter, start, lr in begin:
            if parameter.grad is not None:
                parameter.copy_(start - share * lr * parameter.grad)


def global_batch(batch_idx: int, num_data_ranks: int) -> Batch:
    """The batch of all ranks together, on the CPU."""
    generator = torch.Generator().manual_seed(1000 + batch_idx)
    inputs = torch.randn(SHARE * num_data_ranks, NUM_INPUTS, generator=generator)
    targets = torch.stack([inputs.sum(1).sin(), inputs[:, 0], inputs[:, 1] * inputs[:, 2]], dim=1)
    return {"inputs": inputs, "targets": targets}


def share_of(batch: Batch, data_rank: int, num_data_ranks: int) -> Batch:
    """One rank's samples of a batch."""
    return {name: value[data_rank::num_data_ranks] for name, value in batch.items()}


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Plain gradient descent, in steps that are large enough to tell wrong gradients."""
    return torch.optim.SGD(parameters, lr=0.3)


def momentum(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Gradient descent with a memory."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """An optimizer with a state for each parameter and a count of its steps; its epsilon is one of 16 bits, too."""
    return torch.optim.Adam(parameters, lr=0.02, eps=1e-3)


def midpoint(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """An optimizer that evaluates the loss itself."""
    return Midpoint(parameters, lr=0.3)
