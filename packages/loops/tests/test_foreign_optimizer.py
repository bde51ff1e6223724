"""Objects that are optimizers by their attributes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Net, Sized, hooked, make_batches, same_bits, seeded, weights
from own_optimizers import WRAPPERS, Taking, momentum
from torch import nn
from torch.optim.lr_scheduler import StepLR

from camshaft.loops.optimization.configuration import read_configuration

pytestmark = pytest.mark.filterwarnings("ignore:There is a `validation_step`")

wrappers = pytest.mark.parametrize("wrapper", WRAPPERS, ids=lambda one: one.__name__)


def by_hand(wrapper: Any, batches: Any, num_epochs: int = 1) -> Any:
    net = seeded()
    optimizer = wrapper(momentum(net))
    for batch in batches * num_epochs:
        net.zero_grad()
        net.loss(batch).backward()
        optimizer.step()
    return weights(net)


@wrappers
@pytest.mark.parametrize("overrides", [False, True])
def test_a_wrapper_trains_as_by_hand_and_its_steps_count(wrapper: Any, overrides: bool) -> None:
    announced: list[Any] = []
    callback = hooked(on_before_optimizer_step=lambda trainer, module, optimizer: announced.append(optimizer))

    class Overriding(Net):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
            announced.append(optimizer)
            optimizer.step(closure=optimizer_closure)

    made: list[Any] = []

    def configure(module: Any) -> Any:
        made.append(wrapper(momentum(module)))
        return made[0]

    net = seeded(Overriding if overrides else Net, configure)
    trainer = BareTrainer(net, callbacks=[callback], max_epochs=1).fit(Sized(make_batches(4)))
    assert same_bits(weights(net), by_hand(wrapper, make_batches(4)))
    assert trainer.global_step == 4
    assert len(announced) == (8 if overrides else 4)
    assert all(one is made[0] for one in [*announced, *trainer.fit_loop.optimization.optimizers])


@wrappers
def test_a_wrapper_is_stepped_by_hand_in_manual_optimization(wrapper: Any) -> None:
    class ByHand(Net):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            [optimizer] = trainer.fit_loop.optimization.optimizers
            optimizer.zero_grad()
            self.loss(batch).backward()
            optimizer.step()

    net = seeded(ByHand, lambda module: wrapper(momentum(module)))
    trainer = BareTrainer(net, max_epochs=1)
    trainer.fit(Sized(make_batches(4)))
    assert same_bits(weights(net), by_hand(wrapper, make_batches(4)))
    assert trainer.global_step == 4


@wrappers
def test_a_fit_with_a_wrapper_resumes_exactly(wrapper: Any) -> None:
    def fit(module: Any, checkpoint: Any = None) -> BareTrainer:
        callback = hooked(on_train_epoch_end=lambda trainer, _: trainer.save_checkpoint("epoch"))
        trainer = BareTrainer(module, callbacks=[callback], max_epochs=1 if checkpoint is None else 3)
        return trainer.fit(Sized(make_batches(3)), checkpoint=checkpoint)

    def configure(module: Any) -> Any:
        inner = momentum(module)
        return [wrapper(inner)], [StepLR(inner, 1, gamma=0.5)]

    stopped, resumed = seeded(Net, configure), seeded(Net, configure, seed=7)
    fit(resumed, fit(stopped).load("epoch"))
    whole = seeded(Net, configure)
    BareTrainer(whole, max_epochs=3).fit(Sized(make_batches(3)))
    assert same_bits(weights(whole), weights(resumed))


def test_what_a_borrowed_method_loads_reaches_what_is_wrapped() -> None:
    inner, other = momentum(Net()), momentum(Net())
    inner.param_groups[0]["lr"] = 0.5
    net = seeded(Net, lambda module: Taking(other))
    trainer = BareTrainer(net, max_epochs=0).fit(Sized(make_batches(1)))
    [optimizer] = trainer.fit_loop.optimization.optimizers
    optimizer.load_state_dict(inner.state_dict())
    assert (optimizer.param_groups[0]["lr"], other.param_groups[0]["lr"]) == (0.5, 0.5)
    assert optimizer.defaults is other.defaults


def test_an_optimizer_of_torch_stays_what_it_is() -> None:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    trainer = BareTrainer(net, max_epochs=0)
    object.__setattr__(net, "configure", lambda module: optimizer)
    trainer.fit(Sized(make_batches(1)))
    assert trainer.fit_loop.optimization.optimizers == [optimizer]


class Bare:
    """A wrapper that passes on as little as it can."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optim = optimizer

    @property
    def param_groups(self) -> Any:
        return self.optim.param_groups

    def state_dict(self) -> Any:
        return self.optim.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.optim.load_state_dict(state)


def test_a_wrapper_gets_the_closure_if_it_takes_one() -> None:
    given: list[Any] = []

    class Taking(Bare):
        def step(self, closure: Any = None) -> Any:
            given.append(closure)
            return "loss"

        def zero_grad(self) -> None:
            """Does nothing."""

    wrapper = Taking(momentum(Net()))
    [optimizer] = read_configuration(wrapper).optimizers
    assert optimizer is wrapper
    assert optimizer.step(len) == "loss"  # type: ignore[arg-type, comparison-overlap, func-returns-value]
    assert given == [len]
    assert (optimizer.defaults, optimizer.state) == ({}, {})


@pytest.mark.parametrize("by_name", [True, False])
def test_a_closure_is_evaluated_before_a_step_that_takes_none(by_name: bool) -> None:
    called: list[str] = []

    class Stepping(Bare):
        def step(self) -> None:
            called.append("step")

        def zero_grad(self) -> None:
            """Does nothing."""

    [optimizer] = read_configuration(Stepping(momentum(Net()))).optimizers
    handles = [
        optimizer.register_step_pre_hook(lambda *_: called.append("before")),
        optimizer.register_step_post_hook(lambda *_: called.append("after")),
    ]
    read_configuration(optimizer)  # another fit with it
    closure: Any = lambda: called.append("closure") or 1.0  # noqa: E731
    assert (optimizer.step(closure=closure) if by_name else optimizer.step(closure)) == 1.0
    for handle in handles:
        handle.remove()
    optimizer.step()
    assert called == ["before", "closure", "step", "after", "step"]


def test_a_state_of_all_attributes_holds_none_that_was_added() -> None:
    class Noam(Bare):
        def step(self, closure: Any = None) -> Any:
            self.rate = 2.0
            return self.optim.step(closure)

        def zero_grad(self) -> None:
            self.optim.zero_grad()

        def state_dict(self) -> Any:
            return {name: value for name, value in vars(self).items() if name != "optim"}

        def load_state_dict(self, state: Any) -> None:
            vars(self).update(state)

    net = seeded(Net, lambda module: Noam(momentum(module)))
    trainer = BareTrainer(net, max_epochs=1).fit(Sized(make_batches(2)))
    [optimizer] = trainer.fit_loop.optimization.optimizers
    assert optimizer.state_dict() == {"rate": 2.0, "defaults": {}, "state": {}}
    optimizer.load_state_dict({"rate": 3.0})
    assert optimizer.rate == 3.0 and optimizer.register_step_pre_hook is not None


def test_a_wrapper_that_lacks_something_is_refused() -> None:
    class Stepping:
        def step(self) -> None:
            """Does nothing."""

    message = r"`optimizer` must be an optimizer, or an object with .* \(missing: param_groups, zero_grad, state_dict, "
    with pytest.raises(TypeError, match=message):
        read_configuration(Stepping())
    with pytest.raises(TypeError, match="`return value` must be an optimizer"):
        read_configuration(nn.Linear(1, 1))
