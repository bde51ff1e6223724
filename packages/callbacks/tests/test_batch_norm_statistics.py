"""Statistics that are taken anew equal those of torch's update_bn, with the batches of all processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from recording_trainer import OneProcess
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from camshaft.callbacks.weights.stochastic_weight_averaging import batch_norm_buffers, batch_norms, update_batch_norm


def network() -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2), nn.BatchNorm1d(2, momentum=0.3))
    module(torch.randn(4, 2))
    return module


def batches(num_batches: int = 5) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(4, 2, generator=generator) for _ in range(num_batches)]


class TwoRanks(OneProcess):
    """The first of two processes; it is told what the other one answers."""

    world_size = 2
    num_data_ranks = 2  # type: ignore[assignment]

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.asked: list[Tensor] = []

    def all_gather(self, value: Any) -> list[Any]:
        self.asked.append(value)
        return [value, self.answers.pop(0)]


def test_one_process_has_the_statistics_of_torch() -> None:
    own, reference = network(), network()
    update_batch_norm(own, batches(), own, OneProcess())  # type: ignore[arg-type]
    update_bn(batches(), reference)
    for name, value in reference.state_dict().items():
        assert torch.equal(own.state_dict()[name], value), name
    assert [layer.momentum for layer in batch_norms(own)] == [0.1, 0.3]


def test_two_processes_have_the_mean_over_the_batches_of_both() -> None:
    reference, other = network(), network()
    other_batches = [batch + 1 for batch in batches(3)]
    update_bn(other_batches, other)
    count = torch.tensor(3.0)
    sums = torch.cat(
        [part for layer in batch_norms(other) for part in (count[None], layer.running_mean * 3, layer.running_var * 3)]
    )
    own = network()
    # the other process has three batches, so the fourth of this one is not used
    strategy = TwoRanks([torch.tensor(1)] * 3 + [torch.tensor(0), sums])
    update_batch_norm(own, batches(5), own, strategy)  # type: ignore[arg-type]
    assert not strategy.answers
    update_bn([*batches(3), *other_batches], reference)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(own.state_dict()[name], value, msg=name)


def test_frozen_layers_stay_as_they_are() -> None:
    module = network()
    module[1].eval()
    module[3].track_running_stats = False
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module.append(nn.BatchNorm1d(2))
    assert batch_norms(module) == [module[4]] and batch_norm_buffers(module).keys() == {
        "4.running_mean",
        "4.running_var",
        "4.num_batches_tracked",
    }
    update_batch_norm(module, batches(), module, OneProcess())  # type: ignore[arg-type]
    for name, value in before.items():
        assert torch.equal(module.state_dict()[name], value), name
    assert module[4].num_batches_tracked == 5


def test_an_error_or_no_batch_leaves_the_momentum_as_it_was() -> None:
    module = network()
    with pytest.raises(RuntimeError, match="`train loader` must give batches again after training"):
        update_batch_norm(module, iter(()), module, OneProcess())  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        update_batch_norm(module, batches(), lambda batch: 1 / 0, OneProcess())  # type: ignore[arg-type]
    assert [layer.momentum for layer in batch_norms(module)] == [0.1, 0.3]
