from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from precision_reference import assert_equal, batches, model_of, one_parameter, train, weight_loss, weights
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.optim import SGD, Adam

from camshaft.strategies import SingleDeviceStrategy
from camshaft.strategies.precision import Precision, ScaledPrecision, TruePrecision, choose_precision

TRUE = {"bf16-true": torch.bfloat16, "16-true": torch.float16, "64-true": torch.float64}
Pair = namedtuple("Pair", ["left", "right"])


@pytest.mark.parametrize(
    ("name", "full_name", "param_dtype", "autocast_dtype"),
    [
        (32, "32-true", None, None),
        ("32", "32-true", None, None),
        ("32-true", "32-true", None, None),
        (16, "16-mixed", None, torch.float16),
        ("16-mixed", "16-mixed", None, torch.float16),
        ("bf16", "bf16-mixed", None, torch.bfloat16),
        ("bf16-true", "bf16-true", torch.bfloat16, None),
        ("16-true", "16-true", torch.float16, None),
        ("64", "64-true", torch.float64, None),
        (64, "64-true", torch.float64, None),
    ],
)
def test_a_name_stands_for_a_precision(name: Any, full_name: str, param_dtype: Any, autocast_dtype: Any) -> None:
    precision = choose_precision(name, "cpu")
    assert (precision.name, precision.param_dtype, precision.autocast_dtype) == (full_name, param_dtype, autocast_dtype)


@pytest.mark.parametrize("name", ["half", 8, True, None, torch.float16])
def test_an_unknown_name_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="`precision` must be one of 32-true, 16-mixed, bf16-mixed, bf16-true, 16-"):
        SingleDeviceStrategy("cpu", precision=name)


def test_a_precision_of_ones_own_is_taken_as_it_is() -> None:
    precision = ScaledPrecision("cpu", init_scale=8.0)
    assert SingleDeviceStrategy("cpu", precision=precision).precision is precision


def test_float64_on_a_device_without_it_is_refused() -> None:
    with pytest.raises(ValueError, match="'64-true' on 'mps', which has no float64"):
        choose_precision("64-true", "mps")


@pytest.mark.parametrize(
    "arguments", [{"init_scale": 0.0}, {"growth_factor": 1.0}, {"backoff_factor": 1.0}, {"growth_interval": 0}]
)
def test_a_scaler_that_cannot_work_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(arguments))}` must be"):
        ScaledPrecision("cpu", **arguments)


def test_a_true_precision_of_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`param_dtype` must be torch.bfloat16, torch.float16 or torch.float64"):
        TruePrecision(torch.float32)


def test_full_precision_adds_nothing() -> None:
    strategy = SingleDeviceStrategy("cpu")
    model = model_of()
    optimizer = SGD(model.parameters(), lr=0.1)

    def step() -> None: ...

    assert strategy.setup_module(model) is model
    assert strategy.wrap_step(step) is step
    assert strategy.setup_optimizers([optimizer]) == [optimizer]
    assert "step" not in vars(optimizer)
    assert strategy.has_skipped_step is False
    assert strategy.state_dict() == {}


@pytest.mark.parametrize(("name", "dtype"), TRUE.items())
class TestTruePrecision:
    def test_module_inputs_and_new_tensors_are_of_its_format(self, name: str, dtype: torch.dtype) -> None:
        strategy = SingleDeviceStrategy("cpu", precision=name)
        model = model_of()
        model.register_buffer("phase", torch.ones(2, dtype=torch.complex64))
        strategy.setup_module(model)
        assert {value.dtype for value in model.state_dict().values()} == {dtype, torch.int64, torch.complex64}

        seen: list[Any] = []

        def step(batch: Any, packed: PackedSequence, *, scale: Tensor, plain: Any) -> Tensor:
            seen.extend([batch["list"][0], batch["pair"].left, packed.data, scale, torch.zeros(1), batch["ids"], plain])
            return torch.ones(1, dtype=torch.float32)

        batch = OrderedDict(list=[torch.ones(2)], pair=Pair(torch.ones(2).double(), 1), ids=torch.arange(3))
        run = strategy.wrap_step(step)
        returned = run(batch, pack_sequence([torch.ones(2)]), scale=torch.ones(1).half(), plain="x")
        assert [value.dtype for value in seen[:5]] == [dtype] * 5
        assert seen[5].dtype == torch.int64 and seen[6] == "x"
        assert returned.dtype == torch.float32
        assert batch["list"][0].dtype == torch.float32

    def test_the_default_format_is_restored_after_an_error(self, name: str, dtype: torch.dtype) -> None:
        def step() -> None:
            assert torch.get_default_dtype() == dtype
            raise KeyError("in the step")

        with pytest.raises(KeyError):
            SingleDeviceStrategy("cpu", precision=name).wrap_step(step)()
        assert torch.get_default_dtype() == torch.float32

    def test_it_trains_as_the_loop_by_hand(self, name: str, dtype: torch.dtype) -> None:
        by_hand, ours = model_of().to(dtype), model_of()
        optimizer = SGD(by_hand.parameters(), lr=0.1)
        for batch in batches():
            optimizer.zero_grad()
            by_hand(batch.to(dtype)).square().mean().backward()
            optimizer.step()
        train(SingleDeviceStrategy("cpu", precision=name), ours)
        assert_equal(weights(by_hand), weights(ours))


def test_autocast_trains_as_the_loop_by_hand() -> None:
    by_hand, ours = model_of(), model_of()
    optimizer = SGD(by_hand.parameters(), lr=0.1)
    for batch in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            output = by_hand(batch)
        assert output.dtype == torch.bfloat16
        output.square().mean().backward()
        optimizer.step()
    train(SingleDeviceStrategy("cpu", precision="bf16-mixed"), ours)
    assert_equal(weights(by_hand), weights(ours))


@pytest.mark.parametrize("precision", ["bf16-mixed", ScaledPrecision("cpu", init_scale=16.0)], ids=["bf16", "16"])
def test_a_backward_inside_a_step_computes_as_one_outside(precision: str | Precision) -> None:
    gradients = []
    for inside in (True, False):
        strategy = SingleDeviceStrategy("cpu", precision=precision)
        model, batch = model_of(), next(batches())

        def step(
            batch: Tensor,
            model: nn.Module = model,
            strategy: SingleDeviceStrategy = strategy,
            inside: bool = inside,
        ) -> Tensor:
            with torch.autocast("cpu", enabled=False):
                hidden = model[0](batch)  # its backward multiplies matrices in full precision
            loss = model[3](model[1](hidden).relu()).square().mean()
            if inside:
                strategy.backward(loss)
                assert torch.is_autocast_enabled("cpu")
            return loss

        loss = strategy.wrap_step(step)(batch)
        if not inside:
            strategy.backward(loss)
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert_equal(*gradients)


@pytest.mark.parametrize("name", ["32-true", "bf16-mixed", "16-mixed"])
def test_a_function_may_differentiate_the_loss(name: str) -> None:
    strategy = SingleDeviceStrategy("cpu", precision=name)
    parameter, optimizer = one_parameter(strategy)
    strategy.backward(weight_loss(parameter, 1.0), lambda loss: (loss * 3.0).backward())
    strategy.optimizer_step(optimizer)
    assert parameter.item() == -0.5


def test_the_base_is_what_modules_are_made_in() -> None:
    assert type(choose_precision("32-true", "cpu")) is Precision


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["16-mixed", "bf16-mixed", "bf16-true", "16-true", "64-true"])
def test_a_gpu_trains_in_every_precision(name: str, accelerator: str) -> None:
    strategy = SingleDeviceStrategy(accelerator, precision=name)
    model = model_of()
    computing = strategy.setup_module(model)
    # 1e-8, the default, is zero in float16
    (optimizer,) = strategy.setup_optimizers([Adam(model.parameters(), lr=0.01, eps=1e-3)])
    losses = []
    for batch in [*batches()] * 5:
        optimizer.zero_grad()
        loss = computing(strategy.batch_to_device(batch)).square().mean()
        strategy.backward(loss)
        strategy.unscale_gradients(optimizer)
        strategy.clip_gradients(optimizer, 1.0, "norm")
        strategy.optimizer_step(optimizer)
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_gradients_of_several_uses_of_a_weight_are_added_up_in_its_own_dtype() -> None:
    layer, small = nn.Linear(1, 1, bias=False), 2.0**-12  # 1 + small is 1 in bfloat16
    precision = choose_precision("bf16-mixed", "cpu")
    step = precision.wrap_step(lambda: layer(torch.ones(1, 1)).sum() + layer(torch.full((1, 1), small)).sum())
    precision.backward(step())
    assert layer.weight.grad is not None and layer.weight.grad.item() == 1 + small
