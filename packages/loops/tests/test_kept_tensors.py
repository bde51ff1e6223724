"""A logged value is the value at the time of the call, whatever becomes of the tensor."""

from __future__ import annotations

import warnings

import pytest
import torch
from metric_log_parts import Rig
from torch import nn

from camshaft.loops.metrics.values import NUM_WATCHED, KeptTensors

NUM_STEPS = 300


def mean_of(next_value, after_log=lambda value: None) -> float:
    rig = Rig()
    rig.start_training()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(NUM_STEPS):
            value = next_value(step)
            rig.log("x", value, on_epoch=True)
            after_log(value)
        (result,) = rig.end_epoch()
    return result["x_epoch"]


MEAN_OF_STEPS = (NUM_STEPS - 1) / 2


def test_fresh_tensors() -> None:
    assert mean_of(lambda step: torch.tensor(float(step))) == MEAN_OF_STEPS


def test_a_total_that_is_added_to_in_place_before_it_is_logged() -> None:
    total = torch.tensor(-1.0)
    assert mean_of(lambda step: total.add_(1)) == MEAN_OF_STEPS


def test_a_total_that_is_added_to_in_place_after_it_is_logged() -> None:
    total = torch.tensor(0.0)
    assert mean_of(lambda step: total, after_log=lambda value: value.add_(1)) == MEAN_OF_STEPS


def test_a_total_that_is_logged_through_a_detached_alias() -> None:
    total = torch.tensor(0.0)
    assert mean_of(lambda step: total.detach(), after_log=lambda value: total.add_(1)) == MEAN_OF_STEPS


def test_a_loss_that_is_scaled_in_place_after_it_is_logged() -> None:
    assert mean_of(lambda step: torch.tensor(float(step)), after_log=lambda value: value.div_(4)) == MEAN_OF_STEPS


def test_a_parameter_that_an_optimizer_changes() -> None:
    parameter = nn.Parameter(torch.tensor(0.0))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad = torch.tensor(-1.0)
    for logged in (lambda step: parameter, lambda step: parameter.detach()):
        with torch.no_grad():
            parameter.zero_()
        assert mean_of(logged, after_log=lambda value: optimizer.step()) == MEAN_OF_STEPS


def test_memory_that_is_reused_without_counting_changes_as_by_a_cuda_graph() -> None:
    static = torch.tensor(0.0)
    memory = static.numpy()  # writes past torch, which a replayed graph does too

    def replay(step: int) -> torch.Tensor:
        memory[...] = step
        return static

    assert mean_of(replay) == MEAN_OF_STEPS


def test_tensors_of_inference_mode() -> None:
    with torch.inference_mode():
        total = torch.tensor(0.0)
        assert mean_of(lambda step: total, after_log=lambda value: value.add_(1)) == MEAN_OF_STEPS


def test_tensors_of_inference_mode_can_be_reduced_outside_of_it(evaluating: Rig) -> None:
    for step in range(NUM_STEPS):
        with torch.inference_mode():
            evaluating.log("x", torch.tensor(float(step)), batch_size=1)
    assert evaluating.end_epoch() == [{"x": MEAN_OF_STEPS}]


def test_tensors_of_inference_mode_among_others() -> None:
    def mixed(step: int) -> torch.Tensor:
        with torch.inference_mode(step % 20 == 19):
            return torch.tensor(float(step))

    assert mean_of(mixed) == MEAN_OF_STEPS


def test_fresh_tensors_are_not_copied_once_they_are_known_to_be_fresh() -> None:
    kept = KeptTensors("x")
    alive = [torch.tensor(float(step)) for step in range(NUM_WATCHED + 1)]
    copies = [kept.keep(tensor) for tensor in alive]
    assert kept.borrows
    assert all(copy.data_ptr() != tensor.data_ptr() for copy, tensor in zip(copies, alive, strict=True))
    rig = Rig()
    rig.start_training()
    for tensor in alive:
        rig.log("x", tensor)
    assert rig.metrics.callback_metrics["x"].data_ptr() == alive[-1].data_ptr()


def test_a_view_does_not_keep_the_whole_alive(training: Rig) -> None:
    for _ in range(NUM_WATCHED + 5):
        training.log("x", torch.ones(1000)[3])
    assert training.metrics.callback_metrics["x"].untyped_storage().nbytes() == 4


def test_a_change_that_comes_too_late_to_be_expected_is_reported_and_then_provided_for(training: Rig) -> None:
    for step in range(60):
        value = torch.tensor(float(step))
        training.log("x", value, on_epoch=True)
        if step >= 40:
            value.zero_()
    training.metrics.moment = "epoch"
    with pytest.warns(RuntimeWarning, match=r"`value` must stay as it is .* in log\('x'\).* Log `value.clone\(\)`"):
        assert training.metrics.callback_metrics["x"] is not None
    training.metrics.moment = "batch"
    value = torch.tensor(5.0)
    training.log("x", value, on_epoch=True)
    value.zero_()
    assert float(training.metrics.callback_metrics["x"]) == 5.0


def test_the_graph_is_let_go() -> None:
    import weakref

    class Token:
        pass

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.token = Token()
            tokens.append(weakref.ref(ctx.token))
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    tokens: list = []
    rig = Rig()
    rig.start_training()
    weight = torch.tensor(2.0, requires_grad=True)
    for _ in range(NUM_WATCHED + 5):
        rig.log("loss", Square.apply(weight), on_epoch=True)
        assert tokens[-1]() is None
    assert not rig.metrics.callback_metrics["loss"].requires_grad
