from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from camshaft.compat.names.utilities import types_and_flags as types
from camshaft.compat.names.utilities.functions import (
    PossibleUserWarning,
    add_prefix,
    convert_params,
    convert_tensors_to_scalars,
    detect_nan_parameters,
    disable_possible_user_warnings,
    extract_batch_size,
    grad_norm,
    rank_prefixed_message,
    restricted_classmethod,
    sized_len,
    suggested_max_num_workers,
)


def test_norms_of_gradients_have_names_to_be_logged() -> None:
    layer = nn.Linear(2, 1)
    layer(torch.tensor([[3.0, 4.0]])).sum().backward()
    norms = grad_norm(layer, 2)
    assert {name: round(float(norm), 4) for name, norm in norms.items()} == {
        "grad_2.0_norm/weight": 5.0,
        "grad_2.0_norm/bias": 1.0,
        "grad_2.0_norm_total": 5.099,
    }
    assert set(grad_norm(layer, "inf", "|")) == {"grad_inf_norm|weight", "grad_inf_norm|bias", "grad_inf_norm_total"}
    assert grad_norm(nn.Linear(1, 1), 1) == {}
    with pytest.raises(ValueError, match="`norm_type` must be a positive number or 'inf'"):
        grad_norm(layer, 0)


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.ones(3, 2), 3),
        (torch.tensor(1.0), 1),
        ([torch.ones(2), "text"], 2),
        ({"a": {"b": torch.ones(4)}}, 4),
        (["text", torch.ones(2)], 2),
        ([], None),
        ("text", None),
    ],
)
def test_the_batch_size_is_the_length_of_the_first_tensor(batch: Any, size: int | None) -> None:
    if size is not None:
        assert extract_batch_size(batch) == size
        return
    with pytest.raises(types.MisconfigurationException, match=r"Pass `self\.log\(\.\.\., batch_size"):
        extract_batch_size(batch)


def test_tensors_of_different_lengths_are_a_warning() -> None:
    with pytest.warns(UserWarning, match="have different lengths, of which the first is taken: 3"):
        assert extract_batch_size([torch.ones(3), torch.ones(2)]) == 3


def test_lengths_of_loaders() -> None:
    assert sized_len(DataLoader([1, 2])) == 2
    assert sized_len(iter([])) is None
    assert suggested_max_num_workers(1) >= 1
    with pytest.raises(ValueError, match="`local_world_size` must be at least 1"):
        suggested_max_num_workers(0)


def test_tensors_become_numbers() -> None:
    assert convert_tensors_to_scalars({"a": torch.tensor([2]), "b": 3}) == {"a": 2, "b": 3}
    with pytest.raises(ValueError, match="`data` must be tensors of one element"):
        convert_tensors_to_scalars(torch.ones(2))


def test_values_that_are_not_finite_are_errors() -> None:
    model = nn.Linear(1, 1)
    detect_nan_parameters(model)
    nn.init.constant_(model.bias, float("nan"))
    with pytest.raises(ValueError, match="`bias` must be finite"):
        detect_nan_parameters(model)


def test_a_method_of_a_class_alone_is_not_called_on_an_object() -> None:
    class Own:
        @restricted_classmethod
        def load(cls, value: int) -> tuple[type, int]:
            return cls, value

    class Derived(Own):
        pass

    assert Derived.load(3) == (Derived, 3)
    with pytest.raises(TypeError, match=r"`Derived\.load` must be called on the class"):
        Derived().load(3)
    assert hasattr(Derived(), "load")


def test_small_ones() -> None:
    assert rank_prefixed_message("text", 3) == "[rank: 3] text"
    assert rank_prefixed_message("text", None) == "text"
    assert add_prefix({"a": 1}, "x", "-") == {"x-a": 1}
    assert add_prefix({"a": 1}, "", "-") == {"a": 1}
    assert convert_params(None) == {}
    assert convert_params(SimpleNamespace(a=1).__dict__) == {"a": 1}


def test_possible_warnings_can_be_ignored() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        disable_possible_user_warnings()
        warnings.warn("possible", PossibleUserWarning, stacklevel=1)
        warnings.warn("sure", UserWarning, stacklevel=1)
    assert [str(one.message) for one in caught] == ["sure"]


def test_flags_say_what_is_installed() -> None:
    assert types._TORCH_GREATER_EQUAL_2_4 and not types._TORCH_GREATER_EQUAL_99_0
    assert types._PYTHON_GREATER_EQUAL_3_10_0
    assert not types._NO_SUCH_LIBRARY_AVAILABLE and not types._NOSUCH_GREATER_EQUAL_1_0
    assert types._NUMPY_AVAILABLE and torch.profiler.kineto_available() == types._KINETO_AVAILABLE
    assert not types._BITSANDBYTES_AVAILABLE and not types._APEX_AVAILABLE and types._NATIVE_AMP_AVAILABLE
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        _ = types.other
