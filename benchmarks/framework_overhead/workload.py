"""The work that the hand-written loop and every framework do: model, batches and constants."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]

NUM_FEATURES = 32
NUM_CLASSES = 2
BATCH_SIZE = 8
LEARNING_RATE = 0.01
MAX_GRAD_NORM = 1.0
LOG_EVERY_N_STEPS = 50
BAR_REFRESHES_PER_SECOND = 10
NUM_BUSY_CALLBACKS = 5
SCHEDULER_STEP_SIZE = 100
ACCUMULATED_BATCHES = 4
SEED = 20


def use_one_thread() -> None:
    """Keep torch from starting threads of its own in this process."""
    torch.set_num_threads(1)


def build_model() -> nn.Linear:
    """Return the same tiny model at each call."""
    torch.manual_seed(SEED)
    return nn.Linear(NUM_FEATURES, NUM_CLASSES)


def build_optimizer(model: nn.Module) -> torch.optim.SGD:
    """Return the plain SGD that every loop uses."""
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


def build_scheduler(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.StepLR:
    """Return the scheduler that every loop of the scenario "everything" steps once per batch."""
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=SCHEDULER_STEP_SIZE, gamma=0.9)


def build_batches(num_batches: int = 8) -> list[Batch]:
    """Return `num_batches` pairs of inputs (8, 32) float32 and classes (8,) int64, the same at each call."""
    generator = torch.Generator().manual_seed(SEED)
    return [
        (
            torch.randn(BATCH_SIZE, NUM_FEATURES, generator=generator),
            torch.randint(NUM_CLASSES, (BATCH_SIZE,), generator=generator),
        )
        for _ in range(num_batches)
    ]


def flat_weights(model: nn.Module) -> Tensor:
    """Return a copy of all parameters as one vector: proof of the training that was done."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).clone()
