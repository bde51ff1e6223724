from __future__ import annotations

import sys
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from camshaft.compat import TrainingModule
from camshaft.compat.names.utilities import types_and_flags as types
from camshaft.compat.names.utilities.functions import (
    PossibleUserWarning,
    disable_possible_user_warnings,
    rank_prefixed_message,
)
from camshaft.compat.names.utilities.model_functions import (
    ModuleMode,
    add_prefix,
    check_finite_loss,
    convert_params,
    convert_tensors_to_scalars,
    convert_to_tensors,
    detect_nan_parameters,
    extract_batch_size,
    find_shared_parameters,
    get_torchvision_model,
    grad_norm,
    has_len_all_ranks,
    is_cuda_out_of_memory,
    is_cudnn_snafu,
    is_out_of_cpu_memory,
    is_param_in_hook_signature,
    measure_flops,
    restricted_classmethod,
    set_shared_parameters,
    sized_len,
    suggested_max_num_workers,
    warning_cache,
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


def test_parameters_with_several_names_are_found_and_set() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    model = nn.Sequential(first, nn.Sequential(second))
    assert find_shared_parameters(model) == []
    assert set_shared_parameters(model, [["0.weight", "1.0.weight"]]) is model
    assert second.weight is first.weight
    assert find_shared_parameters(model) == [["0.weight", "1.0.weight"]]


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
    warning_cache.clear()
    with pytest.warns(UserWarning, match="have different lengths, of which the first is taken: 3"):
        assert extract_batch_size([torch.ones(3), torch.ones(2)]) == 3


def test_lengths_of_loaders() -> None:
    strategy: Any = SimpleNamespace(device="cpu", reduce=lambda value, op: value + 4)
    assert sized_len(DataLoader([1, 2])) == 2
    assert sized_len(iter([])) is None
    assert has_len_all_ranks(DataLoader([1]), strategy)
    assert not has_len_all_ranks(iter([]), strategy)
    with pytest.raises(RuntimeError, match="`dataloader` must be one with a batch in every process"):
        has_len_all_ranks([], strategy)
    assert has_len_all_ranks([], strategy, allow_zero_length_dataloader_with_multiple_devices=True)
    assert suggested_max_num_workers(1) >= 1
    with pytest.raises(ValueError, match="`local_world_size` must be at least 1"):
        suggested_max_num_workers(0)


def test_data_become_tensors_and_numbers() -> None:
    made = convert_to_tensors({"a": 1, "b": [True, 0.5], "c": "x"}, torch.device("cpu"))
    assert [made["a"].dtype, made["b"][0].dtype, made["b"][1].dtype, made["c"]] == [
        torch.int32,
        torch.uint8,
        torch.float32,
        "x",
    ]
    assert convert_tensors_to_scalars({"a": torch.tensor([2]), "b": 3}) == {"a": 2, "b": 3}
    with pytest.raises(ValueError, match="`data` must be tensors of one element"):
        convert_tensors_to_scalars(torch.ones(2))


def test_errors_of_memory_are_told_apart() -> None:
    errors = [
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. Tried"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        ValueError("CUDA out of memory"),
    ]
    kinds = (is_cuda_out_of_memory, is_cudnn_snafu, is_out_of_cpu_memory)
    assert [[kind(error) for kind in kinds] for error in errors] == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
        [False, False, False],
    ]


def test_flops_of_a_forward_and_a_backward() -> None:
    model = nn.Linear(4, 3, bias=False)
    batch = torch.ones(2, 4)
    assert measure_flops(model, lambda: model(batch)) == 2 * 2 * 4 * 3
    assert measure_flops(model, lambda: model(batch), lambda output: output.sum()) > 2 * 2 * 4 * 3


def test_values_that_are_not_finite_are_errors() -> None:
    model = nn.Linear(1, 1)
    detect_nan_parameters(model)
    nn.init.constant_(model.bias, float("nan"))
    with pytest.raises(ValueError, match="`bias` must be finite"):
        detect_nan_parameters(model)
    check_finite_loss(torch.tensor(1.0))
    with pytest.raises(ValueError, match="`loss` must be finite"):
        check_finite_loss(torch.tensor(float("inf")))


def test_modes_of_parts_are_put_back() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout())
    model[1].eval()
    kept = ModuleMode()
    kept.capture(model)
    model.train()
    kept.restore(model)
    assert [part.training for part in model.modules()] == [True, True, False]


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


def test_names_of_arguments_of_hooks() -> None:
    class Own(TrainingModule):
        def training_step(self, batch: Any, batch_idx: int, *rest: Any) -> None:
            """Two arguments, or more."""

    step = Own().training_step
    assert is_param_in_hook_signature(step, "batch_idx", explicit=True)
    assert is_param_in_hook_signature(step, "dataloader_idx")
    assert not is_param_in_hook_signature(step, "dataloader_idx", explicit=True)
    assert is_param_in_hook_signature(step, "dataloader_idx", explicit=True, min_args=2)


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
    assert not types._BITSANDBYTES_AVAILABLE
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        _ = types.other


def test_optimizers_and_schedulers_are_told_by_their_methods() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    assert isinstance(optimizer, types.Optimizable) and isinstance(optimizer, types.Steppable)
    assert not isinstance(nn.Linear(1, 1), types.Steppable)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert isinstance(scheduler, types.LRSchedulerTypeTuple)
    assert types.LRSchedulerConfig(scheduler).interval == "epoch"


def test_a_model_of_torchvision_is_made_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(get_model=lambda name, **kwargs: (name, kwargs))
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=made))
    monkeypatch.setitem(sys.modules, "torchvision.models", made)
    assert get_torchvision_model("resnet18", weights=None) == ("resnet18", {"weights": None})
