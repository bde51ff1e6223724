"""Manual optimization, and none."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Net, Sized, hooked, make_batches, same_bits, seeded, weights
from torch.optim import LBFGS, SGD

pytestmark = pytest.mark.filterwarnings("ignore:There is a `validation_step`")


class TwoOptimizers(Net):
    """Steps one optimizer in every batch, the other in every second, and none in the last of four."""

    automatic_optimization = False

    def configure_optimizers(self) -> Any:
        self.optimizers = [SGD(self.layer.parameters(), lr=0.1), SGD(self.head.parameters(), lr=0.2)]
        return self.optimizers

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 3:
            return None
        self.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        for optimizer in self.optimizers[: 1 + batch_idx % 2]:
            optimizer.step()
        return {"loss": loss, "extra": batch_idx}


def test_a_batch_counts_once_however_many_optimizers_step() -> None:
    counts: list[int] = []
    callback = hooked(on_train_batch_end=lambda trainer, *_: counts.append(trainer.global_step))
    BareTrainer(seeded(TwoOptimizers), callbacks=[callback], max_epochs=1).fit(Sized(make_batches(4)))
    assert counts == [1, 2, 3, 3]


def test_each_step_of_each_optimizer_is_announced() -> None:
    net, announced = seeded(TwoOptimizers), []

    def announce(trainer: Any, module: Any, optimizer: Any) -> None:
        announced.append((trainer.run.batch_idx, module.optimizers.index(optimizer)))

    callback = hooked(on_before_optimizer_step=announce)
    BareTrainer(net, callbacks=[callback], max_epochs=1).fit(Sized(make_batches(4)))
    assert announced == [(0, 0), (1, 0), (1, 1), (2, 0)]


@pytest.mark.parametrize(("make", "num_calls"), [(SGD, 1), (partial(LBFGS, max_iter=3), 3)])
@pytest.mark.parametrize("by_name", [True, False])
def test_a_step_with_a_closure_is_announced_after_each_call_with_the_gradients_that_it_made(
    make: Any, num_calls: int, by_name: bool
) -> None:
    class Closing(Net):
        automatic_optimization = False

        def configure_optimizers(self) -> Any:
            self.optimizer = make(self.parameters(), lr=0.1)
            return self.optimizer

        def training_step(self, batch: Any, batch_idx: int) -> None:
            def closure() -> Any:
                self.optimizer.zero_grad()
                loss = self.loss(batch)
                loss.backward()
                made.append(weights_gradient(self))
                return loss

            arguments, keywords = ((), {"closure": closure}) if by_name else ((closure,), {})
            self.optimizer.step(*arguments, **keywords)

    def weights_gradient(net: Any) -> Any:
        return None if net.layer.weight.grad is None else net.layer.weight.grad.clone()

    made: list[Any] = []
    found: list[Any] = []
    callback = hooked(on_before_optimizer_step=lambda trainer, module, _: found.append(weights_gradient(module)))
    trainer = BareTrainer(seeded(Closing), callbacks=[callback], max_epochs=1).fit(Sized(make_batches(2)))
    assert len(found) == 2 * num_calls and trainer.global_step == 2
    assert all(torch.equal(one, other) for one, other in zip(found, made, strict=True))


def test_the_weights_are_those_of_the_step_alone() -> None:
    net, by_hand, batches = seeded(TwoOptimizers), seeded(TwoOptimizers), make_batches(4)
    BareTrainer(net, max_epochs=2).fit(Sized(batches))
    by_hand.configure_optimizers()
    for batch_idx, batch in [*enumerate(batches), *enumerate(batches)]:
        by_hand.training_step(batch, batch_idx)
    assert same_bits(weights(net), weights(by_hand))


def test_max_steps_counts_batches_with_updates() -> None:
    trainer = BareTrainer(seeded(TwoOptimizers), max_steps=4).fit(Sized(make_batches(4)))
    assert trainer.global_step == 4
    assert trainer.progress.total_batches == 5


def test_no_hook_of_the_loop_stays_on_the_optimizers_even_after_an_error() -> None:
    class Failing(TwoOptimizers):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            super().training_step(batch, batch_idx)
            if self.fails:
                raise ValueError("on purpose")

    for fails in (False, True):
        net = seeded(Failing)
        net.fails = fails
        trainer = BareTrainer(net, max_epochs=1)
        if fails:
            with pytest.raises(ValueError, match="on purpose"):
                trainer.fit(Sized(make_batches(1)))
        else:
            trainer.fit(Sized(make_batches(1)))
        assert not any(optimizer._optimizer_step_pre_hooks for optimizer in net.optimizers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"accumulate_grad_batches": 2}, "`accumulate_grad_batches` must be 1 under manual optimization, but got 2"),
        ({"gradient_clip_val": 0.5}, "`gradient_clip_val` must be None under manual optimization, but got 0.5"),
        (
            {"zero_grad": "after_optimizer_step"},
            "`zero_grad` must be 'before_backward' under manual optimization, but got 'after_optimizer_step'",
        ),
    ],
)
def test_what_only_automatic_optimization_can_do_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"{message} .* in TwoOptimizers"):
        BareTrainer(TwoOptimizers(), max_epochs=1, **arguments).fit(Sized(make_batches(1)))


def test_without_an_optimizer_the_steps_run_and_nothing_is_updated() -> None:
    net = seeded(Net, lambda module: None)
    before = weights(net)
    outputs: list[Any] = []
    callback = hooked(on_train_batch_end=lambda trainer, module, output, *_: outputs.append(output))
    trainer = BareTrainer(net, callbacks=[callback], max_epochs=2)
    with pytest.warns(UserWarning, match="`configure_optimizers` returned no optimizer: nothing will be updated"):
        trainer.fit(Sized(make_batches(3)))
    assert (trainer.global_step, trainer.progress.total_batches) == (0, 6)
    assert same_bits(weights(net), before)
    assert all(isinstance(output["loss"], torch.Tensor) for output in outputs)
