"""Who zeroes gradients when, in each era, and what is announced before it."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from bare_parts import Sized, same_bits, seeded, weights
from compat_parts import BareTrainer
from earlier_parts import Alternating, OneNet, Stepping, TwoNets, alternate_by_hand, fit, make_inputs, of_era
from torch import Tensor

from camshaft.hooks_core.check import check
from camshaft.hooks_core.eras.hooks import catalogue_of
from camshaft.hooks_core.eras.releases import behaviour_of
from camshaft.hooks_core.trace import Trace

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize("num_batches", [4, 5, 7])
def test_alternating_steps_of_0_5_go_by_all_gradients_since_the_optimizers_last_step(num_batches: int) -> None:
    module, by_hand, inputs = seeded(Alternating), seeded(Alternating), make_inputs(num_batches)
    trainer = fit(module, inputs, max_epochs=3)
    alternate_by_hand(by_hand, inputs, 3)
    assert same_bits(weights(module), weights(by_hand))
    assert trainer.global_step == 3 * num_batches
    assert module.num_steps == by_hand.num_steps


def test_in_0_8_the_loop_zeroes_after_every_batch() -> None:
    module, by_hand, inputs = seeded(of_era("0.8", Alternating)), seeded(Alternating), make_inputs(6)
    fit(module, inputs)
    alternate_by_hand(by_hand, inputs, zeroes="after", freezes=True)
    assert same_bits(weights(module), weights(by_hand))


def test_validation_leaves_gradients_alone_that_wait_for_a_step() -> None:
    class Validated(Alternating):
        def validation_step(self, batch: Tensor, batch_nb: int) -> Any:
            return {"val_loss": self.loss(batch, 0)}

    module, by_hand, inputs = seeded(Validated), seeded(Validated), make_inputs(5)
    trainer = BareTrainer(module, max_epochs=2, zero_grad=None, val_check_interval=1)
    trainer.fit(Sized(inputs), Sized(make_inputs(1)))
    alternate_by_hand(by_hand, inputs, 2)
    assert same_bits(weights(module), weights(by_hand))


@pytest.mark.parametrize("era", ["0.5", "0.8", "0.9", "1.0.8", "1.1"])
@pytest.mark.parametrize("overrides", [False, True])
def test_a_moving_average_before_zeroing_sees_the_new_weights(era: str, overrides: bool) -> None:
    class Averaged(OneNet):
        hook_era = era

        def __init__(self) -> None:
            super().__init__()
            self.average = [torch.zeros_like(parameter) for parameter in self.parameters()]
            self.has_gradients: list[bool] = []

        def on_before_zero_grad(self, optimizer: Any) -> None:
            self.has_gradients.append(self.head.weight.grad is not None)
            for average, parameter in zip(self.average, self.parameters(), strict=True):
                average.mul_(0.5).add_(parameter.detach(), alpha=0.5)

    module, by_hand, inputs = (
        seeded(of_era(era, Stepping, Averaged) if overrides else Averaged),
        seeded(Averaged),
        make_inputs(5),
    )
    fit(module, inputs)
    optimizer = by_hand.optimizers_by_hand()[0]
    for x in inputs:
        optimizer.zero_grad()
        by_hand.loss(x).backward()
        optimizer.step()
        Averaged.on_before_zero_grad(by_hand, optimizer)
    assert same_bits(module.average, by_hand.average)
    zeroed_by_itself = overrides and era in ("0.8", "0.9")
    assert module.has_gradients == [not zeroed_by_itself] * 5


_OF_OPTIMIZATION = ("training_step", "backward", "on_after_backward", "optimizer_step", "on_before_zero_grad")


@pytest.mark.parametrize("num_optimizers", [1, 2])
@pytest.mark.parametrize("overrides", [False, True])
@pytest.mark.parametrize("era", ["0.5", "0.7", "0.8"])
def test_traces_follow_the_order_of_the_era(era: str, overrides: bool, num_optimizers: int) -> None:
    class Traced(TwoNets):
        hook_era = era

        def configure_optimizers(self) -> Any:
            return self.optimizers_by_hand()[:num_optimizers]

        def on_before_zero_grad(self, optimizer: Any) -> None:
            pass

        def on_after_backward(self) -> None:
            pass

    module, trace = seeded(of_era(era, Stepping, Traced) if overrides else Traced), Trace(catalogue_of(era))
    trace.record(module, "module", only=[hook for hook in _OF_OPTIMIZATION if hook in dir(module)])
    fit(module, make_inputs(2))
    of_step = {
        "0.5": ["training_step", "on_after_backward", "optimizer_step", "on_before_zero_grad"],
        "0.7": ["training_step", "on_before_zero_grad", "on_after_backward", "optimizer_step"],
        "0.8": ["training_step", "on_after_backward", "optimizer_step", "on_before_zero_grad"],
    }[era]
    names = [event.hook for event in trace if event.kind == "enter"]
    assert names == [name for name in of_step if overrides or name != "optimizer_step"] * 2 * num_optimizers
    check(trace, "fit")


class OfEra07(OneNet):
    hook_era = "0.7"

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        self.calls.append("step")
        return {"loss": self.loss(batch)}

    def on_before_zero_grad(self, optimizer: Any) -> None:
        self.calls.append("zero")

    def on_after_backward(self) -> None:
        self.calls.append("backward")


def test_in_0_7_zeroing_is_announced_before_backward() -> None:
    module, by_hand = seeded(OfEra07), seeded(OfEra07)
    fit(module, make_inputs(3))
    assert module.calls == ["step", "zero", "backward"] * 3
    optimizer = by_hand.optimizers_by_hand()[0]
    for x in make_inputs(3):
        optimizer.zero_grad()
        by_hand.loss(x).backward()
        optimizer.step()
    assert same_bits(weights(module), weights(by_hand))


def test_where_optimizer_step_zeroes_the_loop_only_announces_it_before_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Alternating07(Alternating):
        hook_era = "0.7"

        def on_before_zero_grad(self, optimizer: Any) -> None:
            self.num_announced = getattr(self, "num_announced", 0) + 1

    behaviour = attrs.evolve(behaviour_of("0.7"), step_zeroes=True)
    monkeypatch.setattr("camshaft.compat.eras.reading.behaviour_of", lambda *arguments: behaviour)
    module, by_hand, inputs = seeded(Alternating07), seeded(Alternating07), make_inputs(5)
    fit(module, inputs, max_epochs=2)
    alternate_by_hand(by_hand, inputs, 2, freezes=True)
    assert same_bits(weights(module), weights(by_hand))
    assert module.num_announced == 2 * 5 * 2


@pytest.mark.parametrize("place", ["before_training_step", "before_backward", "after_optimizer_step"])
def test_a_place_that_is_chosen_counts_more_than_the_eras(place: str) -> None:
    module, by_hand, inputs = seeded(Alternating), seeded(Alternating), make_inputs(6)
    fit(module, inputs, zero_grad=place)
    alternate_by_hand(by_hand, inputs, zeroes="after" if place == "after_optimizer_step" else "before")
    assert same_bits(weights(module), weights(by_hand))
