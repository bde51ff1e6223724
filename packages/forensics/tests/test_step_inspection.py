from __future__ import annotations

import math
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from torch import Tensor, nn

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.forensics import StepInspection, inspect_step
from camshaft.forensics.replay import step_inspection
from camshaft.forensics.replay.step_inspection import TensorStatistics


def inspected(module: nn.Module, batch: Any, loss_of: Any = None) -> StepInspection:
    with inspect_step(module, batch) as inspection:
        loss = module(batch).sum() if loss_of is None else loss_of(module, batch)
        inspection.add_loss(loss)
        loss.backward()
    return inspection


def first(inspection: StepInspection) -> tuple[str, str]:
    found = inspection.first_non_finite
    assert found is not None
    return found.kind, found.name


class Function(nn.Module):
    """A submodule that applies a function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


@given(
    arrays(
        st.sampled_from([np.float32, np.float64, np.float16]),
        array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
    )
)
@example(np.full((3,), 3e38, np.float32))
@example(np.full((3,), 1e300))
@example(np.full((2,), 8.98846567e307))
@example(np.array([math.nan, math.inf, -math.inf]))
@settings(deadline=None)
def test_the_statistics_are_those_of_numpy_over_the_finite_values(values: Any) -> None:
    found = TensorStatistics.of(torch.from_numpy(np.array(values)))
    assert found.shape == values.shape
    counts = [int(are.sum()) for are in (np.isnan(values), np.isposinf(values), np.isneginf(values))]
    assert [found.num_nan, found.num_inf, found.num_minus_inf] == counts
    finite = values[np.isfinite(values)].astype(np.longdouble)
    if finite.size == 0:
        expected = [math.nan] * 5
    else:
        norm = np.sqrt((finite**2).sum())
        expected = [float(one) for one in (finite.min(), finite.max(), finite.mean(), finite.std(), norm)]
    scale = float(np.abs(finite).max(initial=0))
    numbers = [found.min, found.max, found.mean, found.std, found.norm]
    np.testing.assert_allclose(numbers, expected, rtol=1e-9, atol=1e-14 * scale)


def test_large_tensors_are_computed_with_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(100)
    values[50] = math.nan
    whole = TensorStatistics.of(values)
    monkeypatch.setattr(step_inspection, "NUM_PER_CHUNK", 7)
    assert TensorStatistics.of(values).num_nan == 1
    assert TensorStatistics.of(values).std == pytest.approx(whole.std, rel=1e-12)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([True, False]),
        torch.tensor([1, 0]),
        torch.tensor([1.0, 0.0]).to(torch.float8_e4m3fn),
        torch.tensor([1j, 0]),
        torch.tensor([1.0, 0.0]).to_sparse(),
    ],
    ids=["bool", "int", "float8", "complex", "sparse"],
)
def test_tensors_of_every_kind_have_statistics(tensor: Tensor) -> None:
    found = TensorStatistics.of(tensor)
    assert (found.min, found.max, found.mean, found.norm, found.num_non_finite) == (0, 1, 0.5, 1, 0)


@given(st.integers(0, 5), st.sampled_from(["forward", "backward", "parameter", "caller"]), st.booleans())
@settings(deadline=None)
def test_the_planted_submodule_is_the_first(place: int, kind: str, is_nested: bool) -> None:
    torch.manual_seed(place)
    layers: list[nn.Module] = [nn.Linear(3, 3) if idx % 2 else nn.Tanh() for idx in range(6)]
    culprit: tuple[str, str]
    if kind == "parameter":
        layers[place] = nn.Linear(3, 3)
        with torch.no_grad():
            layers[place].weight[0, 1] = math.inf  # type: ignore[operator]
        culprit = "parameter", f"{place}.weight"
    elif kind == "backward":
        layers[place] = Function(lambda x: (0 * x).sqrt())  # whose derivative is not finite
        culprit = "gradient", str(place)
    else:
        layers[place] = Function(lambda x: x / 0)
        culprit = "output", str(place)
    module: nn.Module = nn.Sequential(*layers)
    prefix = ""
    if kind == "caller":
        planted = place
        inner = [nn.Tanh() if idx == planted else one for idx, one in enumerate(layers)]

        class Caller(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = nn.ModuleList(inner)

            def forward(self, x: Tensor) -> Tensor:
                for idx, layer in enumerate(self.layers):
                    x = layer(x / 0 if idx == planted else x)
                return x

        module, culprit = Caller(), ("input", "")
    if is_nested:
        module, prefix = nn.Sequential(nn.Linear(3, 3), module), "1"
    name = ".".join(part for part in (prefix, culprit[1]) if part)
    assert first(inspected(module, torch.randn(4, 3, requires_grad=True))) == (culprit[0], name)


def test_a_batch_that_is_not_finite_is_named_with_its_place() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    batch = {"x": torch.randn(2, 3), "targets": (torch.tensor([1.0, math.nan]), "text")}
    inspection = inspected(module, batch, lambda module, batch: (module(batch["x"]) * batch["targets"][0]).sum())
    assert first(inspection) == ("batch", "targets.0")
    assert "1 NaN of 2 values" in str(inspection.first_non_finite)


def test_a_loss_that_is_not_finite_though_all_outputs_are_is_named() -> None:
    inspection = inspected(nn.Linear(2, 2), torch.ones(1, 2), lambda module, x: module(x).sum() * math.inf)
    assert first(inspection) == ("loss", "")


def test_a_gradient_that_code_after_the_submodules_computes_is_of_the_module_itself() -> None:
    inspection = inspected(nn.Linear(2, 2), torch.ones(1, 2), lambda module, x: (0 * module(x)).sqrt().sum())
    assert first(inspection) == ("gradient", "")


def test_a_nan_that_comes_of_a_mask_is_named_before_the_mask() -> None:
    mask = torch.full((2, 3), -math.inf)
    module = nn.Sequential(Function(lambda mask: mask.clone()), nn.Softmax(-1), nn.Tanh())
    with inspect_step(module, mask) as inspection:
        module(mask)
    assert [(one.kind, one.name) for one in inspection.origins] == [("output", "1"), ("batch", "")]


@pytest.mark.parametrize("follows", [nn.Softmax(-1), None], ids=["another submodule", "the loss"])
def test_the_logarithm_of_zero_is_named_once_something_comes_of_it(follows: nn.Module | None) -> None:
    log = Function(lambda x: (x - x).log())
    module = nn.Sequential(nn.Linear(2, 2), log, *([] if follows is None else [follows]))
    assert first(inspected(module, torch.ones(1, 2))) == ("output", "1")


@pytest.mark.parametrize(
    ("x", "expected"),
    [(math.inf, [("input", ""), ("output", "0")]), (math.nan, [("input", "")])],
    ids=["infinite", "NaN"],
)
def test_where_infinities_turn_into_nan_is_named_too(x: float, expected: list[tuple[str, str]]) -> None:
    module = nn.Sequential(Function(lambda x: x - x), nn.Tanh())
    with inspect_step(module) as inspection:
        module(torch.tensor([x]))
    assert [(one.kind, one.name) for one in inspection.origins] == expected


Pair = namedtuple("Pair", "a b")


@dataclass
class Fields:
    hidden: Tensor
    size: int


class Held:
    def __init__(self, x: Tensor) -> None:
        self.x, self.myself = x, self


@pytest.mark.parametrize(
    ("make", "places"),
    [
        (lambda x: x, [""]),
        (lambda x: (x, [x]), ["0", "1.0"]),
        (lambda x: {"loss": x, "none": None}, ["loss"]),
        (lambda x: Pair(1, x), ["1"]),
        (lambda x: Fields(x, 1), ["0"]),
        (Held, ["x"]),
        (lambda x: "text", []),
    ],
    ids=["tensor", "list", "dict", "named tuple", "dataclass", "object that holds itself", "none"],
)
def test_outputs_are_found_in_collections(make: Any, places: list[str]) -> None:
    module = nn.Sequential(nn.Linear(2, 2), Function(make), Function(lambda value: value))
    with inspect_step(module) as inspection:
        module(torch.ones(1, 2))
    assert [list(call.outputs) for call in inspection.calls[1:]] == [places] * 3
    assert inspection.first_non_finite is None


def test_a_shared_submodule_has_a_row_for_each_call() -> None:
    shared = nn.Linear(2, 2)
    module = nn.ModuleDict({"a": shared, "b": shared})
    inspection = inspected(module, torch.ones(1, 2), lambda module, x: module["b"](module["a"](x).abs() / 0).sum())
    assert [(call.name, call.call_idx) for call in inspection.calls] == [("a", 0), ("a", 1)]
    assert [call.outputs[""].num_non_finite for call in inspection.calls] == [0, 2]
    assert "a (call 2)" in str(inspection)
    assert first(inspection) == ("input", "")


def test_gradients_before_and_after_a_change_in_place_are_told_apart() -> None:
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(inplace=True))
    nn.init.constant_(module[0].weight, -1)  # type: ignore[arg-type]
    linear, relu, _ = inspected(module, torch.ones(1, 2)).calls
    assert (linear.gradients[""].max, relu.gradients[""].max) == (0, 1)


def test_statistics_are_those_of_the_tensors_of_the_step() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(5, 3)
    inspection = inspected(module, x)
    assert [call.name for call in inspection.calls] == ["0", "1", "2", ""]
    hidden = module[:2](x).detach().requires_grad_()
    module[2](hidden).sum().backward()
    assert hidden.grad is not None
    assert inspection.calls[1].outputs[""] == TensorStatistics.of(hidden)
    assert inspection.calls[1].gradients[""] == TensorStatistics.of(hidden.grad)
    assert inspection.parameters["2.weight"].values == TensorStatistics.of(module[2].weight)  # type: ignore[arg-type]
    module.zero_grad()
    module(x).sum().backward()
    assert inspection.parameters["0.weight"].gradient == TensorStatistics.of(module[0].weight.grad)  # type: ignore[arg-type]


def test_an_inspected_step_computes_the_same_bits_and_leaves_no_hooks() -> None:
    def bits(is_inspected: bool) -> list[Tensor]:
        torch.manual_seed(0)
        module = nn.Transformer(8, 2, 1, 1, 16, dropout=0.1, batch_first=True)
        source, target = torch.randn(2, 5, 8), torch.randn(2, 4, 8)
        mask = nn.Transformer.generate_square_subsequent_mask(4)
        if is_inspected:
            with inspect_step(module, (source, target)) as inspection:
                loss = module(source, target, tgt_mask=mask).square().mean()
                loss.backward()
            assert inspection.first_non_finite is None  # though the causal mask holds -inf
        else:
            loss = module(source, target, tgt_mask=mask).square().mean()
            loss.backward()
        assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
        return [loss, torch.random.get_rng_state(), *(one.grad for one in module.parameters() if one.grad is not None)]

    assert all(torch.equal(a, b) for a, b in zip(bits(True), bits(False), strict=True))


def test_a_submodule_that_raises_and_is_caught_does_not_confuse_the_rest() -> None:
    def fail(x: Tensor) -> Tensor:
        raise ValueError

    class Trying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.failing, self.other = Function(fail), Function(lambda x: x / 0)

        def forward(self, x: Tensor) -> Tensor:
            try:
                found: Tensor = self.failing(x)
            except ValueError:
                found = self.other(x)
            return found

    module = nn.Sequential(Trying())
    with inspect_step(module) as inspection:
        module(torch.ones(1))
    assert [call.name for call in inspection.calls] == ["0.other", "0", ""]
    assert first(inspection) == ("output", "0.other")


def test_the_table_is_aligned_and_can_be_cut() -> None:
    inspection = inspected(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), torch.ones(2, 3))
    lines = inspection.render(max_rows=2).splitlines()
    assert lines[0] == "All values and gradients are finite."
    assert lines[2].split() == [*step_inspection._HEADINGS[:-1], "not", "finite"]
    assert lines[3].split()[:4] == ["0", "Linear", "output", "2x4"]
    assert len({len(line) for line in lines[2:5]}) == 1
    assert lines[-1] == "... and 8 rows more"
    assert len(str(inspection).splitlines()) == 2 + 1 + 10


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="`module` must be a torch") as raised, inspect_step(1):  # type: ignore[arg-type]
        pass
    assert "in inspect_step. Pass the module itself." in str(raised.value)
