"""How many bytes training takes, with batches split along time and with batches left whole."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Sized, hooked
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytestmark = [pytest.mark.exhaustive, pytest.mark.filterwarnings("ignore::UserWarning")]

SPLIT_SIZE = 4
NUM_UNITS = 8
BATCH_SIZE = 64


class Storages:
    """Bytes of storages that are in use, each counted once however many tensors share it.

    Args:
        others: Tensors whose storages do not count: weights and batches, which are there all the time.

    Attributes:
        current: The number of bytes now.
        peak: The largest there was.
    """

    def __init__(self, others: Iterable[Tensor]) -> None:
        self.current = self.peak = 0
        self._others = {tensor.untyped_storage().data_ptr() for tensor in others}
        self._num_uses: Counter[int] = Counter()

    def use_until_end_of(self, owner: Any, tensor: Tensor) -> None:
        """Count the storage of a tensor for as long as `owner` lives, which keeps it alive."""
        storage = tensor.untyped_storage()
        address, num_bytes = storage.data_ptr(), storage.nbytes()
        if address not in self._others:
            self._num_uses[address] += 1
            if self._num_uses[address] == 1:
                self.current += num_bytes
                self.peak = max(self.peak, self.current)
            weakref.finalize(owner, self._end_use, address, num_bytes)

    def _end_use(self, address: int, num_bytes: int) -> None:
        self._num_uses[address] -= 1
        if self._num_uses[address] == 0:
            self.current -= num_bytes


class HeldForBackward(torch.autograd.graph.saved_tensors_hooks):
    """Measures what graphs hold for backward: from when it is saved until backward or the graph's end frees it."""

    def __init__(self, others: Iterable[Tensor]) -> None:
        self.storages = Storages(others)
        super().__init__(self._pack, lambda packed: packed.tensor)

    def _pack(self, tensor: Tensor) -> Packed:
        packed = Packed(tensor)
        self.storages.use_until_end_of(packed, tensor)
        return packed


class Packed:
    """What a graph holds in place of a tensor; it has no other owner."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Alive(TorchDispatchMode):
    """Measures what any tensor takes that an operation made: activations, gradients, hidden states, losses."""

    def __init__(self, others: Iterable[Tensor]) -> None:
        self.storages = Storages(others)
        super().__init__()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.storages.use_until_end_of(tensor.untyped_storage(), tensor)
        return result


class Recurrent(nn.Module):
    """A cell and a head, whose step keeps every output until the loss is computed."""

    def __init__(self, split_size: int | None) -> None:
        super().__init__()
        self.truncated_bptt_steps = split_size
        self.cell = nn.GRUCell(1, NUM_UNITS)
        self.head = nn.Linear(NUM_UNITS, 1)

    def unroll(self, batch: Tensor, hiddens: Any) -> dict[str, Any]:
        """The loss and the hidden state, nested to see that it is let go of wherever it is."""
        hidden = torch.zeros(len(batch), NUM_UNITS) if hiddens is None else hiddens["cell"][0]
        outputs = []
        for step in batch.unbind(1):
            hidden = self.cell(step, hidden)
            outputs.append(self.head(hidden))
        return {"loss": (torch.stack(outputs, dim=1) - 1).square().mean(), "hiddens": {"cell": (hidden,)}}


class OneOptimizer(Recurrent):
    def training_step(self, batch: Tensor, batch_idx: int, hiddens: Any) -> Any:
        return self.unroll(batch, hiddens)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class OwnOptimizerStep(OneOptimizer):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
        optimizer.step(closure=optimizer_closure)


class SeveralOptimizers(Recurrent):
    def training_step(self, batch: Tensor, batch_idx: int, optimizer_idx: int, hiddens: Any) -> Any:
        return self.unroll(batch, hiddens)

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.cell, self.head)]


class ByHand(Recurrent):
    automatic_optimization = False

    def training_step(self, batch: Tensor, batch_idx: int, hiddens: Any) -> Any:
        outputs = self.unroll(batch, hiddens)
        self.optimizer.zero_grad()
        outputs["loss"].backward()
        self.optimizer.step()
        return outputs

    def configure_optimizers(self) -> Any:
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return self.optimizer


MODES = [OneOptimizer, OwnOptimizerStep, SeveralOptimizers, ByHand]
MEASURES = [HeldForBackward, Alive]


def peak_bytes(measure: Any, mode: type[Recurrent], length: int, split_size: int | None, **arguments: Any) -> int:
    """The peak of a fit on two batches, without the weights and the batches themselves."""
    torch.manual_seed(0)
    module, batches = mode(split_size), [torch.ones(BATCH_SIZE, length, 1) for _ in range(2)]
    measured = measure([*module.parameters(), *batches])
    with measured:
        BareTrainer(module, max_epochs=1, **arguments).fit(Sized(batches))
    peak: int = measured.storages.peak
    return peak


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("measure", MEASURES)
def test_memory_is_that_of_a_split_however_long_sequences_are(measure: Any, mode: type[Recurrent]) -> None:
    peaks = [peak_bytes(measure, mode, length, SPLIT_SIZE) for length in (8, 32, 128)]
    assert peaks[0] == peaks[1] == peaks[2] > 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("measure", MEASURES)
def test_without_splits_memory_grows_with_the_length(measure: Any, mode: type[Recurrent]) -> None:
    short, long, longer = (peak_bytes(measure, mode, length, None) for length in (8, 32, 128))
    assert longer - long == pytest.approx(4 * (long - short), rel=0.05)  # in proportion, but for a constant
    assert longer > 10 * short


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("measure", MEASURES)
def test_memory_grows_with_the_length_of_splits(measure: Any, mode: type[Recurrent]) -> None:
    short, long = (peak_bytes(measure, mode, 128, split_size) for split_size in (SPLIT_SIZE, 8 * SPLIT_SIZE))
    assert long > 4 * short


@pytest.mark.parametrize("mode", [OneOptimizer, OwnOptimizerStep, SeveralOptimizers])
@pytest.mark.parametrize("measure", MEASURES)
def test_accumulation_windows_hold_no_graph_of_earlier_splits(measure: Any, mode: type[Recurrent]) -> None:
    peaks = [peak_bytes(measure, mode, length, SPLIT_SIZE, accumulate_grad_batches=3) for length in (32, 128)]
    assert peaks[0] == peaks[1] <= 1.1 * peak_bytes(measure, mode, 32, SPLIT_SIZE)


@pytest.mark.parametrize("split_size", [SPLIT_SIZE, None])
@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_held_for_backward_after_a_batch(mode: type[Recurrent], split_size: int | None) -> None:
    module, batches, held = mode(split_size), [torch.ones(BATCH_SIZE, 16, 1)] * 2, []
    measured = HeldForBackward([*module.parameters(), *batches])
    note = hooked(on_train_batch_end=lambda *_: held.append(measured.storages.current))
    with measured:
        BareTrainer(module, callbacks=[note], max_epochs=1).fit(Sized(batches))
    assert held == [0, 0]
