"""Optimizers that are not torch's own get the closure, and evaluate it as they like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Net, Sized, hooked, make_batches, same_bits, seeded, sgd, weights
from own_optimizers import Deaf, Sam, Sign
from torch import nn
from torch.optim import SGD

pytestmark = pytest.mark.filterwarnings("ignore:There is a `validation_step`")


def sam(module: nn.Module) -> Sam:
    return Sam(module.parameters())


def sam_by_hand(net: Net, batches: Any, clip_val: float | None = None) -> Any:
    optimizer = sam(net)
    for batch in batches:

        def evaluate(batch: Any = batch) -> None:
            net.zero_grad()
            net.loss(batch).backward()
            if clip_val is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip_val)

        optimizer.step_by_hand(evaluate)
    return weights(net)


@pytest.mark.parametrize("zero_grad", [None, "before_training_step", "after_optimizer_step"])
@pytest.mark.parametrize("clip_val", [None, 0.1])
def test_one_that_evaluates_twice_trains_as_by_hand(zero_grad: Any, clip_val: float | None) -> None:
    net, batches = seeded(Net, sam), make_batches(4)
    trainer = BareTrainer(net, max_epochs=2, zero_grad=zero_grad, gradient_clip_val=clip_val).fit(Sized(batches))
    assert same_bits(weights(net), sam_by_hand(seeded(), batches * 2, clip_val))
    assert trainer.global_step == 8


def test_each_evaluation_is_a_step_with_its_hooks() -> None:
    calls: list[str] = []

    class Calling(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            calls.append("step")
            return self.loss(batch)

    names = ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step")
    callback = hooked(**{name: lambda *_, name=name: calls.append(name) for name in names})
    BareTrainer(seeded(Calling, sam), callbacks=[callback], max_epochs=1).fit(Sized(make_batches(1)))
    assert calls == ["step", *names] * 2


def test_an_override_of_optimizer_step_hands_it_on() -> None:
    class Overriding(Net):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
            optimizer.step(closure=optimizer_closure)

    net, batches = seeded(Overriding, sam), make_batches(3)
    BareTrainer(net, max_epochs=1).fit(Sized(batches))
    assert same_bits(weights(net), sam_by_hand(seeded(), batches))


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_one_that_evaluates_once_gets_the_closure_and_trains_as_by_hand(accumulate: int) -> None:
    net, other, batches = seeded(Net, lambda module: Sign(module.parameters())), seeded(), make_batches(5)
    trainer = BareTrainer(net, max_epochs=1, accumulate_grad_batches=accumulate).fit(Sized(batches))
    optimizer, windows = Sign(other.parameters()), range(0, 5, accumulate)
    for start in windows:
        window = batches[start : start + accumulate]
        other.zero_grad()
        for batch in window:
            (other.loss(batch) / len(window)).backward()
        optimizer.step()
    assert same_bits(weights(net), weights(other))
    assert trainer.fit_loop.optimization.optimizers[0].num_closures == trainer.global_step == len(windows)


def test_one_that_evaluates_twice_cannot_accumulate_and_says_so() -> None:
    message = r"`optimizer_closure` must be called once per update, .* 'another call' .* in Sam\.step\."
    with pytest.raises(RuntimeError, match=message):
        BareTrainer(seeded(Net, sam), max_epochs=1, accumulate_grad_batches=2).fit(Sized(make_batches(2)))


def test_several_take_turns_each_with_a_closure() -> None:
    class Two(Net):
        def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> Any:
            return self.loss(batch)

        def configure_optimizers(self) -> Any:
            return [Sam(self.layer.parameters()), Sign(self.head.parameters())]

    net, other, batches = seeded(Two), seeded(Two), make_batches(3)
    BareTrainer(net, max_epochs=1).fit(Sized(batches))
    first, second = other.configure_optimizers()
    for batch in batches:

        def evaluate(batch: Any = batch) -> None:
            other.zero_grad()
            other.loss(batch).backward()

        first.step_by_hand(evaluate)
        evaluate()
        second.step()
    assert same_bits(weights(net), weights(other))


def test_each_split_of_a_sequence_is_evaluated_as_often_as_wanted() -> None:
    hiddens: list[Any] = []

    class Sequences(Net):
        truncated_bptt_steps = 1

        def tbptt_split_batch(self, batch: Any, split_size: int) -> list[Any]:
            return [(batch[0][:1], batch[1][:1]), (batch[0][1:], batch[1][1:])]

        def training_step(self, batch: Any, batch_idx: int, hiddens: Any) -> Any:
            seen.append(hiddens)
            return {"loss": self.loss(batch), "hiddens": len(seen)}

    seen = hiddens
    net, other, batches = seeded(Sequences, sam), seeded(), make_batches(2)
    trainer = BareTrainer(net, max_epochs=1).fit(Sized(batches))
    splits = [(x[part], y[part]) for x, y in batches for part in (slice(1), slice(1, 2))]
    assert same_bits(weights(net), sam_by_hand(other, splits))
    assert (trainer.global_step, seen) == (4, [None, None, 2, 2] * 1 + [None, None, 6, 6])


def test_a_batch_without_a_loss_is_no_update() -> None:
    class Skipping(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None if batch_idx == 1 else self.loss(batch)

    for configure in (sam, lambda module: Sign(module.parameters())):
        net, other, batches = seeded(Skipping, configure), seeded(Net, configure), make_batches(3)
        assert BareTrainer(net, max_epochs=1).fit(Sized(batches)).global_step == 2
        BareTrainer(other, max_epochs=1).fit(Sized([batches[0], batches[2]]))
        assert same_bits(weights(net), weights(other))


def test_one_that_never_reads_its_closure_is_stepped_with_gradients() -> None:
    net, other, batches = (
        seeded(Net, lambda module: Deaf(module.parameters())),
        seeded(Net, lambda module: Sign(module.parameters())),
        make_batches(3),
    )
    for one in (net, other):
        BareTrainer(one, max_epochs=1).fit(Sized(batches))
    assert same_bits(weights(net), weights(other))


def test_one_that_reads_its_closure_without_calling_it_is_an_error() -> None:
    class Forgetful(Sign):
        def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
            return None if closure is None else super().step()

    net = seeded(Net, lambda module: Forgetful(module.parameters()))
    with pytest.raises(RuntimeError, match=r"`closure` must be called in `step`, .* in .*Forgetful\.step"):
        BareTrainer(net, max_epochs=1).fit(Sized(make_batches(1)))


class Inheriting(SGD):
    """Another class, with torch's own step."""


class Stepping(SGD):
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        given.append(closure)
        return super().step(closure)


given: list[Any] = []


def test_a_step_of_torchs_gets_no_closure_also_where_it_is_inherited() -> None:
    for make, expected in ((SGD, False), (Inheriting, False), (Stepping, True)):
        with_closure: list[bool] = []

        def configure(module: Any, make: Any = make) -> Any:
            return make(module.parameters(), lr=0.1, momentum=0.9)

        net = seeded(Net, configure)
        trainer = BareTrainer(net, max_epochs=1)
        strategy = trainer.strategy
        step = strategy.optimizer_step
        strategy.optimizer_step = lambda optimizer, closure=None, step=step, seen=with_closure: (
            seen.append(closure is not None),
            step(optimizer, closure),
        )
        trainer.fit(Sized(make_batches(2)))
        by_torch = seeded(Net, sgd)
        BareTrainer(by_torch, max_epochs=1).fit(Sized(make_batches(2)))
        assert with_closure == [expected] * 2
        assert same_bits(weights(net), weights(by_torch))


def test_gradients_are_enabled_for_the_closure_alone() -> None:
    enabled: list[bool] = []

    class Watching(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            enabled.append(torch.is_grad_enabled())
            return self.loss(batch)

    BareTrainer(seeded(Watching, sam), max_epochs=1).fit(Sized(make_batches(1)))
    assert enabled == [True, True]
