from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from precision_reference import assert_equal, batches, model_of, one_parameter, train, weight_loss, weights
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.overrides import TorchFunctionMode

from camshaft.strategies import SingleDeviceStrategy
from camshaft.strategies.precision import ScaledPrecision


@pytest.mark.parametrize("clip_val", [None, 0.05])
def test_scaled_training_equals_the_loop_by_hand_also_where_updates_overflow(clip_val: float | None) -> None:
    by_hand, ours = model_of(), model_of()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=2)
    optimizer = SGD(by_hand.parameters(), lr=0.1)
    expected = []
    for batch in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            output = by_hand(batch)
        scaler.scale(output.square().mean()).backward()
        if clip_val is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(by_hand.parameters(), clip_val)
        before, scale = by_hand[0].weight.clone(), scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        expected.append((torch.equal(before, by_hand[0].weight), scale))
    precision = ScaledPrecision("cpu", init_scale=2.0**18, growth_interval=2)
    history = train(SingleDeviceStrategy("cpu", precision=precision), ours, clip_val)
    assert history == expected
    assert {skipped for skipped, _ in history} == {True, False}
    assert_equal(weights(by_hand), weights(ours))


@pytest.fixture
def scaled() -> SingleDeviceStrategy:
    return SingleDeviceStrategy("cpu", precision=ScaledPrecision("cpu", init_scale=1024.0))


def test_every_way_of_stepping_unscales(scaled: SingleDeviceStrategy) -> None:
    parameter, optimizer = one_parameter(scaled)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = weight_loss(parameter, 1.0)
        scaled.backward(loss)
        return loss

    ways: list[Callable[[], Any]] = [
        lambda: (closure(), optimizer.step())[0],
        lambda: (closure(), scaled.optimizer_step(optimizer))[0],
        lambda: optimizer.step(closure),
        lambda: optimizer.step(closure=closure),
        lambda: scaled.optimizer_step(optimizer, closure),
    ]
    for way in ways:
        before = parameter.item()
        assert way().item() == before
        assert parameter.item() == before - 0.5
        assert not scaled.has_skipped_step


def test_a_closure_computes_gradients_even_where_none_are_wanted(scaled: SingleDeviceStrategy) -> None:
    parameter, optimizer = one_parameter(scaled)

    def closure() -> Tensor:
        loss = weight_loss(parameter, 1.0)
        scaled.backward(loss)
        return loss

    with torch.no_grad():
        optimizer.step(closure)
    assert parameter.item() == 0.5


def test_a_skipped_step_is_none_for_the_optimizers_hooks(scaled: SingleDeviceStrategy) -> None:
    parameter, optimizer = one_parameter(scaled)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    for factor, expected in ((math.inf, []), (1.0, ["before", "after"]), (math.nan, [])):
        calls.clear()
        optimizer.zero_grad()
        scaled.backward(weight_loss(parameter, factor))
        optimizer.step()
        assert calls == expected
        assert scaled.has_skipped_step is not bool(expected)
    assert parameter.item() == 0.5
    assert scaled.precision.state_dict()["gradient_scaler"]["scale"] == 256.0


def test_gradients_are_unscaled_before_the_optimizers_hooks(scaled: SingleDeviceStrategy) -> None:
    parameter, optimizer = one_parameter(scaled)
    seen: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(parameter.grad.item()))
    scaled.backward(weight_loss(parameter, 3.0))
    assert parameter.grad.item() == 3.0 * 1024
    optimizer.step()
    assert seen == [3.0]


def test_gradients_are_unscaled_once(scaled: SingleDeviceStrategy) -> None:
    parameter, optimizer = one_parameter(scaled)
    scaled.backward(weight_loss(parameter, 3.0))
    scaled.unscale_gradients(optimizer)
    scaled.unscale_gradients(optimizer)
    assert parameter.grad.item() == 3.0
    optimizer.step()
    assert parameter.item() == -0.5


def test_the_gradients_of_an_accumulation_window_share_a_scale() -> None:
    strategy = SingleDeviceStrategy("cpu", precision=ScaledPrecision("cpu", init_scale=4.0, growth_interval=1))
    parameter, optimizer = one_parameter(strategy)
    scales = []
    for micro_batch in range(6):
        strategy.backward(weight_loss(parameter, 1.0))
        scales.append(strategy.precision.scale)
        if micro_batch % 3 == 2:
            optimizer.step()
            assert parameter.grad.item() == 3.0
            optimizer.zero_grad()
    assert scales == [4.0] * 3 + [8.0] * 3


def test_several_optimizers_keep_one_scale_for_an_iteration() -> None:
    strategy = SingleDeviceStrategy("cpu", precision=ScaledPrecision("cpu", init_scale=4.0, growth_interval=1))
    (left, of_left), (right, of_right) = one_parameter(strategy), one_parameter(strategy)
    for iteration in range(3):
        scale = 4.0 * 2**iteration
        for parameter in (left, right):
            strategy.backward(weight_loss(parameter, 1.0))
            assert parameter.grad.item() == scale
        for optimizer in (of_left, of_right):
            optimizer.step()
            optimizer.zero_grad()
    assert left.item() == right.item() == -0.5


def test_one_optimizers_overflow_leaves_the_others_step() -> None:
    strategy = SingleDeviceStrategy("cpu", precision=ScaledPrecision("cpu", init_scale=4.0))
    (left, of_left), (right, of_right) = one_parameter(strategy), one_parameter(strategy)
    strategy.backward(weight_loss(left, math.inf))
    strategy.backward(weight_loss(right, 1.0))
    of_left.step()
    assert strategy.has_skipped_step
    of_right.step()
    assert not strategy.has_skipped_step
    assert (left.item(), right.item()) == (1.0, 0.5)
    assert strategy.state_dict()["gradient_scaler"]["scale"] == 2.0


_ACTIONS = st.one_of(
    st.tuples(st.just("backward"), st.integers(0, 2), st.sampled_from([1.0, -2.0, 4.0, math.inf])),
    st.tuples(st.sampled_from(["step", "step", "zero", "unscale"]), st.integers(0, 1), st.just(0.0)),
    st.tuples(st.just("save"), st.just(0), st.just(0.0)),
)


@settings(max_examples=300, deadline=None)
@given(actions=st.lists(_ACTIONS, max_size=24), growth_interval=st.integers(1, 3))
def test_any_order_of_backwards_and_steps_updates_as_without_a_scale(
    actions: list[tuple[str, int, float]], growth_interval: int
) -> None:
    precision = ScaledPrecision("cpu", init_scale=16.0, growth_interval=growth_interval)
    strategy = SingleDeviceStrategy("cpu", precision=precision)
    parameters = [nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizers = strategy.setup_optimizers([SGD([parameter], lr=0.5) for parameter in parameters])
    strategy.backward(weight_loss(parameters[0], 0.0))
    optimizers[0].zero_grad()
    true_weights, true_gradients = [1.0, 1.0], [None, None]
    for action, which, factor in actions:
        if action == "backward":
            chosen = [0, 1] if which == 2 else [which]
            strategy.backward(sum(weight_loss(parameters[idx], factor) for idx in chosen))
            for idx in chosen:
                true_gradients[idx] = (true_gradients[idx] or 0.0) + factor
        elif action == "zero":
            optimizers[which].zero_grad()
            true_gradients[which] = None
        elif action == "unscale":
            strategy.unscale_gradients(optimizers[which])
            gradient = parameters[which].grad
            assert (None if gradient is None else gradient.item()) == pytest.approx(true_gradients[which], nan_ok=True)
        elif action == "save":
            strategy.state_dict()
        else:
            optimizers[which].step()
            gradient = true_gradients[which]
            assert strategy.has_skipped_step is (gradient is not None and not math.isfinite(gradient))
            if gradient is not None and math.isfinite(gradient):
                true_weights[which] -= 0.5 * gradient
        assert [parameter.item() for parameter in parameters] == true_weights


def test_an_update_that_was_unscaled_and_given_up_leaves_no_trace(scaled: SingleDeviceStrategy) -> None:
    parameter, optimizer = one_parameter(scaled)
    scaled.backward(weight_loss(parameter, 3.0))
    scaled.unscale_gradients(optimizer)
    optimizer.zero_grad()
    scaled.backward(weight_loss(parameter, 1.0))
    scaled.unscale_gradients(optimizer)
    assert parameter.grad.item() == 1.0


def test_an_optimizer_without_gradients_steps_without_the_scaler(scaled: SingleDeviceStrategy) -> None:
    parameter, optimizer = one_parameter(scaled)
    scaled.unscale_gradients(optimizer)
    optimizer.step()
    assert parameter.item() == 1.0
    assert not scaled.has_skipped_step


def test_sparse_gradients_are_unscaled(scaled: SingleDeviceStrategy) -> None:
    embedding = nn.Embedding(4, 1, sparse=True)
    before = embedding.weight.detach().clone()
    (optimizer,) = scaled.setup_optimizers([SGD(embedding.parameters(), lr=1.0)])
    scaled.backward(embedding(torch.tensor([1, 1, 2])).sum())
    optimizer.step()
    assert torch.allclose(before - embedding.weight, torch.tensor([[0.0], [2.0], [1.0], [0.0]]))


def test_another_process_overflow_skips_the_step_and_lowers_the_scale(scaled: SingleDeviceStrategy) -> None:
    asked: list[bool] = []

    def agree(found: torch.Tensor) -> bool:
        asked.append(bool(found))
        return len(asked) < 3

    scaled.precision.agree = agree
    (left, of_left), (right, of_right) = one_parameter(scaled), one_parameter(scaled)
    scaled.backward(weight_loss(left, 1.0) + weight_loss(right, 1.0))
    of_left.step()
    assert scaled.has_skipped_step
    of_right.step()
    assert scaled.has_skipped_step
    assert (left.item(), right.item()) == (1.0, 1.0)
    of_left.zero_grad()
    scaled.backward(weight_loss(left, 1.0))
    assert left.grad.item() == 512.0
    of_left.step()
    assert left.item() == 0.5
    assert asked == [False, False, False]


def test_schedulers_made_before_and_after_work_without_a_warning(scaled: SingleDeviceStrategy) -> None:
    parameter = nn.Parameter(torch.ones(1))
    optimizer = SGD([parameter], lr=0.5)
    original = inspect.signature(optimizer.step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = StepLR(optimizer, step_size=1, gamma=0.5)
        scaled.setup_optimizers([optimizer])
        assert inspect.signature(optimizer.step).parameters["closure"] == original.parameters["closure"]
        after = StepLR(optimizer, step_size=1, gamma=0.5)
        scaled.backward(weight_loss(parameter, 1.0))
        optimizer.step()
        before.step()
        after.step()
    assert parameter.item() == 0.5
    assert optimizer.param_groups[0]["lr"] == 0.125
    scaled.teardown()
    parameter.grad.fill_(2.0)
    optimizer.step()  # unscaled nowhere any more
    assert parameter.item() == 0.25


def test_the_step_keeps_its_signature_and_gets_it_back(scaled: SingleDeviceStrategy) -> None:
    class WithArguments(SGD):
        def step(self, closure: Any = None, *, factor: float = 1.0) -> Any:  # type: ignore[override]
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.mul_(factor)
            return super().step(closure)

    parameter, optimizer = one_parameter(scaled, lambda own: WithArguments(own, lr=0.5))
    assert str(inspect.signature(optimizer.step)) == "(closure: 'Any' = None, *, factor: 'float' = 1.0) -> 'Any'"
    scaled.backward(weight_loss(parameter, 1.0))
    optimizer.step(factor=2.0)
    assert parameter.item() == 0.0
    scaled.teardown()
    assert "step" not in vars(optimizer)


def test_a_step_replaced_by_a_plain_function_keeps_its_signature(scaled: SingleDeviceStrategy) -> None:
    parameter = nn.Parameter(torch.ones(1))
    optimizer = SGD([parameter], lr=0.5)
    plain_step = optimizer.step

    def step(closure: Any = None) -> Any:
        return plain_step(closure)

    optimizer.step = step  # type: ignore[method-assign]
    scaled.setup_optimizers([optimizer])
    assert list(inspect.signature(optimizer.step).parameters) == ["closure"]
    scaled.backward(weight_loss(parameter, 1.0))
    optimizer.step()
    assert parameter.item() == 0.5


def test_a_scheduler_patch_that_was_there_before_is_there_after(scaled: SingleDeviceStrategy) -> None:
    optimizer = SGD([nn.Parameter(torch.ones(1))], lr=0.5)
    StepLR(optimizer, step_size=1)
    patched = optimizer.step
    scaled.setup_optimizers([optimizer])
    assert optimizer.step is not patched
    scaled.setup_optimizers([optimizer])
    scaled.teardown()
    assert optimizer.step is patched


def test_training_goes_on_from_a_state_as_if_it_had_not_stopped() -> None:
    def strategy() -> SingleDeviceStrategy:
        return SingleDeviceStrategy("cpu", precision=ScaledPrecision("cpu", init_scale=2.0**20, growth_interval=2))

    def run(model: nn.Module, optimizer: Optimizer, strategy: SingleDeviceStrategy, some: list[Tensor]) -> None:
        computing = strategy.setup_module(model)
        (optimizer,) = strategy.setup_optimizers([optimizer])
        for batch in some:
            optimizer.zero_grad()
            strategy.backward(computing(batch).square().mean())
            optimizer.step()

    whole, resumed, data = model_of(), model_of(), list(batches(12))
    undisturbed = strategy()
    run(whole, Adam(whole.parameters()), undisturbed, data)

    first, optimizer = strategy(), Adam(resumed.parameters())
    run(resumed, optimizer, first, data[:7])
    state = first.state_dict()
    first.teardown()
    second = strategy()
    second.load_state_dict(state)
    run(resumed, optimizer, second, data[7:])
    assert second.state_dict() == undisturbed.state_dict()
    assert_equal(weights(whole), weights(resumed))


def test_the_state_of_another_precision_changes_nothing(scaled: SingleDeviceStrategy) -> None:
    before = scaled.state_dict()
    scaled.load_state_dict(SingleDeviceStrategy("cpu").state_dict())
    assert scaled.state_dict() == before
    full = SingleDeviceStrategy("cpu")
    full.load_state_dict(before)
    assert full.state_dict() == {}


class Ahead(SGD):
    """An optimizer that steps by the gradient one unit ahead: two evaluations, with a change through `data`."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = closure()
        parameters = self.param_groups[0]["params"]
        for parameter in parameters:
            parameter.data.add_(1.0)
        closure()
        for parameter in parameters:
            parameter.data.sub_(1.0)
        super().step()
        return loss


def test_an_optimizer_that_evaluates_its_closure_again_gets_unscaled_gradients(scaled: SingleDeviceStrategy) -> None:
    parameter, optimizer = one_parameter(scaled, lambda own: Ahead(own, lr=0.5))
    seen: list[float] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = parameter.square().sum()
        scaled.backward(loss)
        seen.append(parameter.grad.item() / scaled.precision.scale)  # type: ignore[attr-defined]
        return loss

    for step in (lambda: scaled.optimizer_step(optimizer, closure), lambda: optimizer.step(closure)):
        before = parameter.item()
        assert step().item() == before**2
        assert parameter.item() == before - 0.5 * 2 * (before + 1)
        assert seen == [2 * before, 2 * (before + 1)]
        seen.clear()


@pytest.mark.parametrize("first_steps", [0, 1])
@pytest.mark.parametrize("overflowing", [0, 1])
def test_an_overflow_of_any_evaluation_skips_the_step_and_puts_the_weights_back(
    scaled: SingleDeviceStrategy, first_steps: int, overflowing: int
) -> None:
    parameter, optimizer = one_parameter(scaled, lambda own: Ahead(own, lr=0.5))
    factors: list[float] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = weight_loss(parameter, factors.pop(0))
        scaled.backward(loss)
        return loss

    def step(*of_evaluations: float) -> None:
        factors[:] = of_evaluations
        scaled.optimizer_step(optimizer, closure)

    for _ in range(first_steps):
        step(1.0, 1.0)
    before = parameter.item()
    step(*(math.inf if idx == overflowing else 1.0 for idx in range(2)))
    assert (parameter.item(), scaled.has_skipped_step) == (before, True)
    assert len(factors) == (1 if overflowing == 0 else 0)
    step(1.0, 3.0)
    assert (parameter.item(), scaled.has_skipped_step) == (before - 1.5, False)
    assert scaled.precision.scale == 512.0  # type: ignore[attr-defined]


def test_weights_are_copied_for_those_alone_that_evaluate_again(scaled: SingleDeviceStrategy) -> None:
    class Once(SGD):
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            return super().step(closure)

    def num_copies(make: Any) -> list[int]:
        parameter, optimizer = one_parameter(scaled, make)
        counts = []

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = weight_loss(parameter, 1.0)
            scaled.backward(loss)
            return loss

        for _ in range(3):
            with Clones() as clones:
                scaled.optimizer_step(optimizer, closure)
            counts.append(clones.count)
        return counts

    assert num_copies(lambda own: Once(own, lr=0.5)) == [1, 0, 0]
    assert num_copies(lambda own: Ahead(own, lr=0.5)) == [1, 1, 1]


class Clones(TorchFunctionMode):
    """A mode that counts calls of `Tensor.clone`."""

    count = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is Tensor.clone
        return function(*args, **(kwargs or {}))


def test_an_lbfgs_is_refused(scaled: SingleDeviceStrategy) -> None:
    with pytest.raises(TypeError, match="under precision='16-mixed', but got 'LBFGS'"):
        scaled.setup_optimizers([torch.optim.LBFGS([nn.Parameter(torch.ones(1))])])


def test_parameters_in_half_precision_are_refused(scaled: SingleDeviceStrategy) -> None:
    with pytest.raises(ValueError, match="an optimizer without float16 parameters under precision='16-mixed'"):
        scaled.setup_optimizers([SGD([nn.Parameter(torch.ones(1).half())])])


def test_a_loss_that_was_differentiated_by_itself_is_noticed(scaled: SingleDeviceStrategy) -> None:
    parameter, optimizer = one_parameter(scaled)
    weight_loss(parameter, 1.0).backward()
    with pytest.raises(RuntimeError, match="must be called through the strategy's `backward`"):
        optimizer.step()
    assert parameter.item() == 1.0


def test_unscaling_for_an_unknown_optimizer_is_refused(scaled: SingleDeviceStrategy) -> None:
    with pytest.raises(ValueError, match="`optimizer` must be one that was set up, but got 'SGD'"):
        scaled.unscale_gradients(SGD([nn.Parameter(torch.ones(1))]))
