"""The update of one optimizer: where gradients are zeroed, and closures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Net, Sized, hooked, make_batches, same_bits, seeded, sgd, weights
from graphs import Graphs
from overriding_parts import override
from torch import nn

from camshaft.loops.optimization.update import LossError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

PLACES = ("before_training_step", "before_backward", "after_optimizer_step")


class Called(Net):
    """Notes what is called, and skips the batches of these indices."""

    def __init__(self, calls: list[str], skipped: tuple[int, ...] = (), configure: Any = None) -> None:
        super().__init__(configure)
        object.__setattr__(self, "calls", calls)
        self.skipped = skipped

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.calls.append("step")
        return None if batch_idx in self.skipped else self.loss(batch)

    def on_before_zero_grad(self, optimizer: Any) -> None:
        self.calls.append("zero")

    def on_before_backward(self, loss: Any) -> None:
        self.calls.append("backward")

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.calls.append("update")


def calls_of(zero_grad: str, *, num_batches: int = 2, overrides: tuple[str, ...] = (), **arguments: Any) -> list[str]:
    keywords = {name: arguments.pop(name) for name in ("skipped", "configure") if name in arguments}
    calls: list[str] = []
    net = override(seeded(Called, calls, **keywords), *overrides)
    BareTrainer(net, max_epochs=1, zero_grad=zero_grad, **arguments).fit(Sized(make_batches(num_batches)))
    return calls


@pytest.mark.parametrize("overrides", [(), ("optimizer_step",), ("optimizer_zero_grad", "backward")])
@pytest.mark.parametrize(
    ("zero_grad", "calls"),
    [
        ("before_training_step", ["zero", "step", "backward", "update"]),
        ("before_backward", ["step", "zero", "backward", "update"]),
        ("after_optimizer_step", ["step", "backward", "update", "zero"]),
    ],
)
def test_gradients_are_zeroed_where_it_was_asked_for(zero_grad: str, calls: list[str], overrides: Any) -> None:
    assert calls_of(zero_grad, overrides=overrides) == 2 * calls


@pytest.mark.parametrize(
    ("zero_grad", "calls"),
    [
        ("before_training_step", "zero step step backward update zero step backward update"),
        ("before_backward", "step step zero backward update step zero backward update"),
        ("after_optimizer_step", "step step backward update zero step backward update zero"),
    ],
)
def test_once_for_each_window_whatever_its_first_batch_returns(zero_grad: str, calls: str) -> None:
    assert calls_of(zero_grad, num_batches=3, skipped=(0,), accumulate_grad_batches=2) == calls.split()


@pytest.mark.parametrize(
    ("zero_grad", "calls"),
    [("before_training_step", "zero step"), ("before_backward", "step"), ("after_optimizer_step", "step")],
)
def test_a_window_without_a_loss_is_no_update(zero_grad: str, calls: str) -> None:
    assert calls_of(zero_grad, num_batches=1, skipped=(0,)) == calls.split()


def test_where_an_override_had_nothing_to_apply_nothing_is_zeroed_after_it() -> None:
    calls = calls_of("after_optimizer_step", num_batches=2, skipped=(0,), overrides=("optimizer_step",))
    assert calls == ["step", "step", "backward", "update", "zero"]


@pytest.mark.parametrize("zero_grad", PLACES)
def test_an_override_still_steps_without_a_loss_but_has_nothing_to_apply(zero_grad: str) -> None:
    net, other = seeded(Called, [], skipped=(1,)), seeded(Called, [])
    override(net, "optimizer_step")
    batches = make_batches(2)
    assert BareTrainer(net, max_epochs=1, zero_grad=zero_grad).fit(Sized(batches)).global_step == 1
    BareTrainer(other, max_epochs=1).fit(Sized(batches[:1]))
    assert same_bits(weights(net), weights(other))


@pytest.mark.parametrize("zero_grad", PLACES)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_from_before_the_fit_do_not_leak_into_it(zero_grad: str, accumulate: int) -> None:
    batches, results = make_batches(2), []
    for leaves_gradients in (False, True):
        net = seeded()
        if leaves_gradients:
            net.loss(batches[0]).backward()
        trainer = BareTrainer(net, max_epochs=1, zero_grad=zero_grad, accumulate_grad_batches=accumulate)
        trainer.fit(Sized(batches))
        results.append(weights(net))
    assert same_bits(*results)


@pytest.mark.parametrize("zero_grad", PLACES)
def test_a_window_that_an_epoch_left_open_leaves_nothing_behind(zero_grad: str) -> None:
    def skip(trainer: Any, module: Any, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == 3 and trainer.progress.current_epoch == 0 else None

    batches = make_batches(4)
    callback = hooked(on_train_batch_start=skip)
    net, by_hand = seeded(), seeded()
    BareTrainer(net, callbacks=[callback], max_epochs=2, zero_grad=zero_grad, accumulate_grad_batches=2).fit(
        Sized(batches)
    )
    optimizer = sgd(by_hand)
    for window in (batches[:2], batches[:2], batches[2:]):  # the first epoch ends within its second window
        optimizer.zero_grad()
        for batch in window:
            (by_hand.loss(batch) / 2).backward()
        optimizer.step()
    assert same_bits(weights(net), weights(by_hand))


def lbfgs(module: nn.Module) -> torch.optim.LBFGS:
    return torch.optim.LBFGS(module.parameters(), lr=0.5, max_iter=4)


@pytest.mark.parametrize(
    ("zero_grad", "evaluation", "end"),
    [
        ("before_training_step", ["zero", "step", "backward", "update"], []),
        ("before_backward", ["step", "zero", "backward", "update"], []),
        ("after_optimizer_step", ["step", "backward", "update"], ["zero"]),
    ],
)
def test_an_optimizer_that_evaluates_the_loss_itself_gets_fresh_gradients_each_time(
    zero_grad: str, evaluation: list[str], end: list[str]
) -> None:
    calls = calls_of(zero_grad, num_batches=1, configure=lbfgs)
    num_evaluations = calls.count("step")
    assert num_evaluations > 2
    assert calls == num_evaluations * evaluation + end
    results = []
    for place in (zero_grad, "before_backward"):
        net = seeded(Net, lbfgs)
        BareTrainer(net, max_epochs=2, zero_grad=place).fit(Sized(make_batches(3)))
        results.append(weights(net))
    assert same_bits(*results)


def test_no_graph_of_an_earlier_evaluation_is_alive_when_the_next_begins() -> None:
    graphs = Graphs()

    class Watching(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            assert graphs.num_alive == 0
            return {"loss": graphs.watched(self.loss(batch))}

    net = seeded(Watching, lbfgs)
    object.__setattr__(
        net, "optimizer_step", lambda epoch, batch_idx, optimizer, closure: [float(closure()), closure()]
    )
    BareTrainer(net, max_epochs=1).fit(Sized(make_batches(2)))
    assert graphs.num_watched == 4


@pytest.mark.parametrize("overrides", [(), ("optimizer_step",)])
def test_an_optimizer_that_evaluates_the_loss_itself_leaves_out_a_batch_without_one(overrides: Any) -> None:
    batches = make_batches(3)
    net, other = override(seeded(Called, [], (1,), lbfgs), *overrides), seeded(Net, lbfgs)
    assert BareTrainer(net, max_epochs=1).fit(Sized(batches)).global_step == 2
    BareTrainer(other, max_epochs=1).fit(Sized([batches[0], batches[2]]))
    assert same_bits(weights(net), weights(other))


def test_a_loss_that_is_gone_when_it_is_evaluated_again_is_an_error() -> None:
    class Fickle(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.num_calls = getattr(self, "num_calls", 0) + 1
            return self.loss(batch) if self.num_calls == 1 else None

    message = (
        r"`return value` must be a loss whenever LBFGS evaluates it again for an update, but got None .* in .*Fickle\."
    )
    with pytest.raises(RuntimeError, match=message):
        BareTrainer(seeded(Fickle, lbfgs), max_epochs=1).fit(Sized(make_batches(1)))


def test_a_closure_that_is_called_twice_would_add_gradients_of_a_window_twice() -> None:
    def twice(epoch: int, batch_idx: int, optimizer: Any, closure: Any) -> None:
        closure()
        optimizer.step(closure)

    net = seeded()
    object.__setattr__(net, "optimizer_step", twice)
    assert BareTrainer(net, max_epochs=1).fit(Sized(make_batches(2))).global_step == 2
    message = r"`optimizer_closure` must be called once per update, .* but got 'another call' .* in Net\.optimizer_step"
    with pytest.raises(RuntimeError, match=message):
        BareTrainer(net, max_epochs=1, accumulate_grad_batches=2).fit(Sized(make_batches(2)))


@pytest.mark.parametrize("overrides", [(), ("optimizer_step",)])
def test_no_graph_of_an_earlier_batch_is_alive_when_the_next_begins(overrides: Any) -> None:
    graphs = Graphs()

    class Watching(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            assert graphs.num_alive == 0
            return {"loss": graphs.watched(self.loss(batch))}

    net = override(seeded(Watching), *overrides)
    BareTrainer(net, max_epochs=1, accumulate_grad_batches=2).fit(Sized(make_batches(4)))
    assert graphs.num_watched == 4


def test_the_index_of_a_single_optimizer_is_given_to_a_step_that_names_it() -> None:
    class Naming(Net):
        def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> Any:
            self.indices.append(optimizer_idx)
            return self.loss(batch)

    net = seeded(Naming)
    net.indices = []
    BareTrainer(net, max_epochs=1).fit(Sized(make_batches(2)))
    assert net.indices == [0, 0]


@pytest.mark.parametrize("configure", [sgd, lbfgs])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda loss: loss.repeat(2, 3),
            r"`training_step` must return a loss with one element, but got one of shape \(2, 3\) in .*Spoiling\. R",
        ),
        (
            lambda loss: loss.detach(),
            r"`training_step` must return a loss that depends on parameters which .* of shape \(\), in .*Spoiling\. C",
        ),
        (lambda loss: torch.ones(4), r"without a graph, of shape \(4,\), in"),
    ],
)
def test_a_loss_that_cannot_be_differentiated_is_told_with_its_shape_and_what_to_do(
    spoil: Any, message: str, accumulate: int, configure: Any
) -> None:
    class Spoiling(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return {"loss": spoil(self.loss(batch))}

    accumulate = 1 if configure is lbfgs else accumulate
    with pytest.raises(LossError, match=message) as caught:
        BareTrainer(seeded(Spoiling, configure), max_epochs=1, accumulate_grad_batches=accumulate).fit(
            Sized(make_batches(2))
        )
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_loss_of_one_element_or_with_a_backward_of_its_own_is_fine_and_other_errors_stay() -> None:
    class Vector(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(batch).reshape(1, 1)

    class Own(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(batch).repeat(3)

        def backward(self, loss: Any) -> None:
            loss.mean().backward()

    class Twice(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            loss.backward()
            return loss

    by_torch = seeded()
    BareTrainer(by_torch, max_epochs=1).fit(Sized(make_batches(2)))
    for make in (Vector, Own):
        net = seeded(make)
        BareTrainer(net, max_epochs=1).fit(Sized(make_batches(2)))
        for one, other in zip(weights(net), weights(by_torch), strict=True):
            torch.testing.assert_close(one, other)
    with pytest.raises(RuntimeError, match="backward through the graph a second time") as caught:
        BareTrainer(seeded(Twice), max_epochs=1).fit(Sized(make_batches(2)))
    assert not isinstance(caught.value, LossError)
