"""Logged values in a checkpoint come back as they were."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from metric_log_scripts import bits

from camshaft.loops.metrics.values import (
    load_tensor,
    load_tensors,
    load_value,
    save_number,
    save_tensor,
    save_tensors,
    save_value,
)

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool]
TENSORS = st.builds(lambda value, dtype: torch.tensor(value, dtype=dtype), st.integers(-9, 9), st.sampled_from(DTYPES))


@given(st.lists(TENSORS))
def test_many_tensors_come_back_in_order_with_their_types(tensors: list[torch.Tensor]) -> None:
    assert bits(load_tensors(save_tensors(tensors))) == bits(tensors)


def test_neighbours_of_one_type_are_saved_as_one() -> None:
    tensors = [torch.tensor(1.0)] * 3 + [torch.tensor(1)] * 2 + [torch.tensor(1.0)]
    assert [len(saved["tensor"]) for saved in save_tensors(tensors)] == [3, 2, 1]


@pytest.mark.parametrize("value", [None, 1.5, float("inf"), torch.tensor(2.0, dtype=torch.float64)])
def test_a_value_comes_back(value: object) -> None:
    assert bits(load_value(save_value(value))) == bits(value)


def test_a_saved_tensor_is_a_copy_without_its_graph_and_so_is_the_loaded_one() -> None:
    tensor = torch.ones((), requires_grad=True)
    saved = save_tensor(tensor)
    loaded = load_tensor(saved)
    assert not saved["tensor"].requires_grad and not loaded.requires_grad
    assert len({tensor.data_ptr(), saved["tensor"].data_ptr(), loaded.data_ptr()}) == 3


@pytest.mark.parametrize("device", ["xpu:0", "mps:0", "cuda:77"])
def test_a_tensor_whose_device_is_missing_is_loaded_somewhere(device: str) -> None:
    loaded = load_tensor({"tensor": torch.tensor(3.0), "device": device})
    assert float(loaded) == 3.0
    if not torch.accelerator.is_available():
        assert loaded.device.type == "cpu"


@pytest.mark.parametrize("number", [True, 3, 2.5])
def test_a_number_becomes_one_of_pythons_own(number: float) -> None:
    class Number(type(number) if number is not True else int):
        pass

    saved = save_number(Number(number))
    assert saved == number and type(saved) in (int, float)
