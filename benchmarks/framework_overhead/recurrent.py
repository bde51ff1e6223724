"""The work of truncated backpropagation through time: a tiny recurrent model and sequences."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .workload import BATCH_SIZE, NUM_CLASSES, SEED, Batch

NUM_SPLITS = 8
SPLIT_SIZE = 2  # time steps
NUM_INPUTS = 8
HIDDEN_SIZE = 8
TIME_DIM = 1


class RecurrentModel(nn.Module):
    """A hidden state that takes in a split's time steps at once, and logits for the split's end."""

    def __init__(self) -> None:
        super().__init__()
        self.recur = nn.Linear(SPLIT_SIZE * NUM_INPUTS + HIDDEN_SIZE, HIDDEN_SIZE)
        self.classify = nn.Linear(HIDDEN_SIZE, NUM_CLASSES)

    def forward(self, inputs: Tensor, hiddens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the logits (8, classes) of a split's inputs (8, 2, 8), and the hidden state (8, 8) after them."""
        if hiddens is None:
            hiddens = inputs.new_zeros(len(inputs), HIDDEN_SIZE)
        hiddens = torch.tanh(self.recur(torch.cat((inputs.flatten(1), hiddens), 1)))
        return self.classify(hiddens), hiddens


def build_recurrent_model() -> RecurrentModel:
    """Return the same tiny model at each call."""
    torch.manual_seed(SEED)
    return RecurrentModel()


def loss_of_split(logits: Tensor, classes: Tensor) -> Tensor:
    """Return the mean loss over a split's sequences; `classes` (8, 2) has one class for each time step."""
    return cross_entropy(logits, classes[:, -1])


def splits_of(batch: Batch) -> zip[Batch]:
    """Split a batch along time, as one does by hand."""
    inputs, classes = batch
    return zip(inputs.split(SPLIT_SIZE, TIME_DIM), classes.split(SPLIT_SIZE, TIME_DIM), strict=True)


def build_sequences(num_batches: int = 8) -> list[Batch]:
    """Return `num_batches` pairs of inputs (8, 16, 8) float32 and classes (8, 16) int64, the same at each call."""
    generator = torch.Generator().manual_seed(SEED)
    shape = (BATCH_SIZE, NUM_SPLITS * SPLIT_SIZE)
    return [
        (
            torch.randn(*shape, NUM_INPUTS, generator=generator),
            torch.randint(NUM_CLASSES, shape, generator=generator),
        )
        for _ in range(num_batches)
    ]
