"""Automatic optimization: closures, overrides and accumulation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Net, Sized, hooked, make_batches, same_bits, seeded, sgd, weights
from overriding_parts import override
from torch import nn

from camshaft.loops import WeightedLoss

pytestmark = pytest.mark.filterwarnings("ignore:There is a `validation_step`")


def lbfgs(module: nn.Module) -> torch.optim.LBFGS:
    return torch.optim.LBFGS(module.parameters(), lr=0.5, max_iter=4)


@pytest.mark.parametrize("overrides", [(), ("optimizer_step",), ("optimizer_zero_grad", "backward")])
def test_lbfgs_is_trained_as_by_hand(overrides: tuple[str, ...]) -> None:
    batches = make_batches(3, batch_size=4)
    by_hand = seeded()
    optimizer = lbfgs(by_hand)
    for batch in [*batches, *batches]:

        def closure(batch: Any = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = by_hand.loss(batch)
            loss.backward()
            return loss

        optimizer.step(closure)
    by_loop = override(seeded(Net, lbfgs), *overrides)
    trainer = BareTrainer(by_loop, max_epochs=2).fit(Sized(batches))
    assert same_bits(weights(by_loop), weights(by_hand))
    assert trainer.global_step == 6


def test_lbfgs_calls_the_step_several_times_and_each_time_all_hooks_around_it() -> None:
    calls: list[str] = []
    callback = hooked(
        on_before_zero_grad=lambda *_: calls.append("zero"),
        on_before_backward=lambda *_: calls.append("backward"),
        on_before_optimizer_step=lambda *_: calls.append("update"),
    )
    BareTrainer(seeded(Net, lbfgs), callbacks=[callback], max_epochs=1).fit(Sized(make_batches(1)))
    assert len(calls) > 3
    assert calls == ["zero", "backward", "update"] * (len(calls) // 3)


def test_an_optimizer_that_evaluates_the_loss_itself_refuses_accumulation() -> None:
    made: list[torch.optim.Optimizer] = []
    net = Net(lambda module: made.append(lbfgs(module)) or made[0])
    with pytest.raises(ValueError, match=r"`accumulate_grad_batches` must be 1 with LBFGS, .* but got 2"):
        BareTrainer(net, max_epochs=1, accumulate_grad_batches=2).fit(Sized(make_batches(2)))
    assert not made[0]._optimizer_step_post_hooks


class OwnStep(Net):
    """Overrides `optimizer_step` with a function given to it."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        object.__setattr__(self, "own", own)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
        self.own(batch_idx, optimizer, optimizer_closure)


def test_an_optimizer_step_that_only_calls_the_closure_updates_nothing_and_counts_nothing() -> None:
    net = seeded(OwnStep, lambda batch_idx, optimizer, closure: closure())
    before = weights(net)
    assert BareTrainer(net, max_epochs=2).fit(Sized(make_batches(3))).global_step == 0
    assert same_bits(weights(net), before)


def test_an_optimizer_step_that_steps_every_second_batch_counts_what_it_steps() -> None:
    def own(batch_idx: int, optimizer: Any, closure: Any) -> None:
        if batch_idx % 2:
            optimizer.step(closure=closure)
        else:
            closure()

    batches = make_batches(5)
    net, by_hand = seeded(OwnStep, own), seeded()
    assert BareTrainer(net, max_epochs=1).fit(Sized(batches)).global_step == 2
    optimizer = sgd(by_hand)
    for batch in batches[1::2]:
        optimizer.zero_grad()
        by_hand.loss(batch).backward()
        optimizer.step()
    assert same_bits(weights(net), weights(by_hand))


def test_a_closure_that_is_called_apart_from_the_step_counts_one_update() -> None:
    def own(batch_idx: int, optimizer: Any, closure: Any) -> None:
        closure()
        optimizer.step()

    net, other = seeded(OwnStep, own), seeded()
    assert BareTrainer(net, max_epochs=1).fit(Sized(make_batches(3))).global_step == 3
    BareTrainer(other, max_epochs=1).fit(Sized(make_batches(3)))
    assert same_bits(weights(net), weights(other))


def test_an_optimizer_step_that_never_calls_the_closure_is_an_error() -> None:
    net = OwnStep(lambda batch_idx, optimizer, closure: optimizer.step())
    with pytest.raises(RuntimeError, match="`optimizer_closure` must be called in `optimizer_step`") as caught:
        BareTrainer(net, max_epochs=1).fit(Sized(make_batches(1)))
    assert "OwnStep.optimizer_step" in str(caught.value)


@pytest.mark.parametrize("overrides", [(), ("optimizer_step",)])
def test_a_batch_without_a_loss_is_no_update(overrides: tuple[str, ...]) -> None:
    class Skipping(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None if batch_idx == 1 else self.loss(batch)

    net = override(seeded(Skipping), *overrides)
    assert BareTrainer(net, max_epochs=1).fit(Sized(make_batches(3))).global_step == 2


@pytest.mark.parametrize("name", ["optimizer_zero_grad", "backward", "configure_gradient_clipping"])
def test_an_override_takes_the_place_of_the_default(name: str) -> None:
    net, calls, strategy_calls = seeded(), [], []
    trainer = BareTrainer(net, max_epochs=1, gradient_clip_val=0.25, gradient_clip_algorithm="value")
    plain_backward = trainer.strategy.backward

    def backward(loss: Any, differentiate: Any = None) -> None:
        strategy_calls.append("default" if differentiate is None else "own")
        plain_backward(loss, differentiate)

    trainer.strategy.backward = backward
    trainer.strategy.clip_gradients = lambda *_: strategy_calls.append("configure_gradient_clipping")
    object.__setattr__(
        net, name, lambda *arguments: (calls.append(arguments), arguments[0].backward() if name == "backward" else None)
    )
    trainer.fit(Sized(make_batches(2)))
    assert len(calls) == 2
    assert name not in strategy_calls
    assert strategy_calls.count("own" if name == "backward" else "default") == 2
    if name == "configure_gradient_clipping":
        assert calls[0] == (trainer.fit_loop.optimization.optimizers[0], 0.25, "value")
    if name == "optimizer_zero_grad":
        assert calls[1] == (0, 1, trainer.fit_loop.optimization.optimizers[0])
        assert any(float(parameter.grad.abs().sum()) for parameter in net.parameters())


def test_own_clipping_is_called_without_a_clip_value_too() -> None:
    net, calls = Net(), []
    net.configure_gradient_clipping = lambda optimizer, val, algorithm: calls.append((val, algorithm))
    BareTrainer(net, max_epochs=1).fit(Sized(make_batches(2)))
    assert calls == [(None, "norm")] * 2


def test_gradients_are_whole_before_the_optimizer_step_and_clipped_after() -> None:
    norms: list[float] = []

    def norm(module: nn.Module) -> float:
        return float(torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in module.parameters()])))

    net = seeded()
    callback = hooked(
        on_before_optimizer_step=lambda trainer, module, optimizer: norms.append(norm(module)),
        on_train_batch_end=lambda trainer, module, *_: norms.append(norm(module)),
    )
    trainer = BareTrainer(net, callbacks=[callback], max_epochs=1, gradient_clip_val=1e-3)
    trainer.fit(Sized(make_batches(1)))
    before, after = norms
    assert before > 1e-2
    assert after == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ({"value": 1}, r"a dictionary with 'value': int \(dict\)"),
        ("text", r"'text' \(str\) in .*Wrong\. Return the loss"),
        (3.0, r"3.0 \(float\)"),
        ({"loss": 1.0}, r"a dictionary with 'loss': float \(dict\)"),
        (
            {"loss": WeightedLoss(torch.ones(()), 2)},
            r"a dictionary with 'loss': WeightedLoss .* Return the WeightedLoss",
        ),
    ],
)
def test_a_training_step_must_return_a_loss(returned: Any, words: str) -> None:
    class Wrong(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return returned

    with pytest.raises(TypeError, match=f"`training_step` must return a tensor, .* but got {words}"):
        BareTrainer(Wrong(), max_epochs=1).fit(Sized(make_batches(1)))


def test_batch_end_gets_the_loss_without_its_graph_and_the_rest_as_it_is() -> None:
    class Dictionary(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            results = (self.loss(batch), {"loss": self.loss(batch), "logits": self(batch[0]), "extra": "kept"}, None)
            return results[batch_idx]

    seen: list[Any] = []
    callback = hooked(on_train_batch_end=lambda trainer, module, outputs, batch, batch_idx: seen.append(outputs))
    BareTrainer(Dictionary(), callbacks=[callback], max_epochs=1).fit(Sized(make_batches(3)))
    alone, among_others, none = seen
    assert list(alone) == ["loss"] and none is None
    assert among_others["extra"] == "kept" and among_others["logits"].requires_grad
    assert not alone["loss"].requires_grad and not among_others["loss"].requires_grad


def test_no_hook_of_the_loop_stays_on_the_optimizer() -> None:
    net = override(Net(), "optimizer_step")
    trainer = BareTrainer(net, max_epochs=1).fit(Sized(make_batches(1)))
    assert not trainer.fit_loop.optimization.optimizers[0]._optimizer_step_post_hooks
