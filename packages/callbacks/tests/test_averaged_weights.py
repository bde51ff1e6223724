"""Averages equal those of torch's AveragedModel, without a copy of the module."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

from camshaft.callbacks.weights.averaged_weights import AveragedWeights


def place_like(value: Tensor, parameter: Tensor) -> Tensor:
    return value.to(parameter.device, copy=True)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1).double())


def change(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.randn(tensor.shape, generator=generator))
            elif tensor.dtype != torch.bool:
                tensor.add_(1)


def functions(kind: str) -> dict[str, Any]:
    return {
        "equal": {},
        "avg_fn": {"avg_fn": get_ema_avg_fn(0.7)},
        "multi_avg_fn": {"multi_avg_fn": get_ema_multi_avg_fn(0.7)},
    }[kind]


@settings(deadline=None)
@given(
    num_updates=st.integers(1, 6),
    kind=st.sampled_from(["equal", "avg_fn", "multi_avg_fn"]),
    use_buffers=st.booleans(),
    device=st.sampled_from([None, "cpu"]),
)
def test_every_average_equals_that_of_torch(num_updates: int, kind: str, use_buffers: bool, device: Any) -> None:
    module = network()
    own = AveragedWeights(module, device, use_buffers=use_buffers, **functions(kind))
    reference = AveragedModel(module, use_buffers=use_buffers, **functions(kind))
    for seed in range(num_updates):
        change(module, seed)
        own.update_parameters(module)
        reference.update_parameters(module)
    assert isinstance(own, AveragedModel) and own.num_averaged == num_updates == int(reference.n_averaged)
    averages, expected = own.module.state_dict(), reference.module.state_dict()
    assert averages.keys() == {
        name for name, value in expected.items() if value.is_floating_point() and (use_buffers or "running" not in name)
    }
    for name, average in averages.items():
        torch.testing.assert_close(average, expected[name], rtol=1e-6, atol=1e-7, msg=name)


def test_counters_and_what_is_not_saved_stay_the_modules_own() -> None:
    module = network()
    module.register_buffer("table", torch.ones(2), persistent=False)
    module.register_buffer("mask", torch.ones(2, dtype=torch.bool))
    average = AveragedWeights(module, use_buffers=True)
    average.update_parameters()
    change(module, 1)
    counted = int(module[1].num_batches_tracked)
    average.exchange()
    assert int(module[1].num_batches_tracked) == counted
    assert not {"table", "mask", "1.num_batches_tracked"} & average.named_values().keys()


def test_exchanging_twice_leaves_everything_as_it_was() -> None:
    module = network()
    average = AveragedWeights(module, use_buffers=True)
    average.update_parameters()
    kept = {name: value.clone() for name, value in average.named_values().items()}
    change(module, 3)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    average.exchange()
    for name, value in kept.items():
        assert torch.equal(module.state_dict()[name], value)
        assert torch.equal(average.named_values()[name], before[name])
    average.exchange()
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_buffer_that_the_module_replaces_is_followed() -> None:
    module = network()
    average = AveragedWeights(module, use_buffers=True)
    module[1].running_mean = torch.full((3,), 5.0)
    average.update_parameters()
    assert torch.equal(average.named_values()["1.running_mean"], torch.full((3,), 5.0))


def test_a_shared_weight_is_averaged_once_and_has_all_its_names() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    average = AveragedWeights(module)
    values = average.named_values()
    assert len(list(average.module.parameters())) == 3 and values.keys() == module.state_dict().keys()
    assert values["0.weight"] is values["1.weight"]


def test_the_module_is_neither_copied_nor_kept_alive() -> None:
    class Unique(nn.Linear):
        def __deepcopy__(self, memo: Any) -> Any:
            raise AssertionError("the module was copied")

    module = Unique(2, 2)
    average = AveragedWeights(module)
    assert average.is_of(module) and not average.is_of(nn.Linear(2, 2))
    reference = weakref.ref(module)
    del module
    gc.collect()
    assert reference() is None


def test_values_are_loaded_as_they_were_saved() -> None:
    module = network()
    average = AveragedWeights(module)
    average.update_parameters()
    change(module, 2)
    average.update_parameters()
    saved = {name: value.clone() for name, value in average.named_values().items()}
    same = network()
    other = AveragedWeights(same)
    other.load_values(saved, 2, place_like)
    assert other.num_averaged == 2
    for name, value in saved.items():
        assert torch.equal(other.named_values()[name], value)
    del saved["0.bias"]
    with pytest.raises(ValueError, match=r"`checkpoint` must be a checkpoint with the average of '0.bias'"):
        other.load_values(saved, 2, place_like)


def test_what_cannot_be_is_refused() -> None:
    module = network()
    average = AveragedWeights(module)
    with pytest.raises(ValueError, match="`model` must be the module of the constructor"):
        average.update_parameters(network())
    with pytest.raises(NotImplementedError, match="computes nothing"):
        average(torch.zeros(1, 2))
    with pytest.raises(
        ValueError, match=r"`parameter` must be initialized before weights are averaged, but got '0.weight'"
    ):
        AveragedWeights(nn.Sequential(nn.LazyLinear(2)))
