"""Optimizers that are replaced while a fit runs: the weights are those of a loop written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bare_parts import BareTrainer, Net, Sized, StepsByHand, adam, hooked, make_batches, same_bits, seeded, sgd, weights
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.optim import LBFGS, Optimizer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

NUM_BATCHES, NUM_EPOCHS = 4, 3
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": sgd,
    "adam": adam,
    "lbfgs": lambda net: LBFGS(net.parameters(), lr=0.1, max_iter=2),
}


def replacing(hook: str, before: int, make: Callable[[Any], Any]) -> Any:
    """A callback whose hook replaces the optimizers once, before the batch of that number in the fit."""

    def replace(trainer: BareTrainer, module: Any, *arguments: Any) -> None:
        in_epoch = arguments[-1] + (hook == "on_train_batch_end") if arguments else 0
        number = trainer.fit_loop.progress.current_epoch * NUM_BATCHES + in_epoch
        if number >= before and not hasattr(trainer, "was_replaced"):
            trainer.was_replaced = True
            trainer.fit_loop.replace_optimizers([make(module)])

    return hooked(**{hook: replace})


def by_hand(net: Net, names: tuple[str, str], before: int, window: int) -> int:
    """Train in the same way by hand. Returns the number of updates."""
    optimizer, num_updates = OPTIMIZERS[names[0]](net), 0
    for number in range(NUM_EPOCHS * NUM_BATCHES):
        if number == before:
            optimizer = OPTIMIZERS[names[1]](net)
        position, batch = number % NUM_BATCHES % window, make_batches(NUM_BATCHES)[number % NUM_BATCHES]

        def closure(first: bool = position == 0, batch: Any = batch) -> Any:
            if first:
                net.zero_grad()
            loss = net.loss(batch) / window
            loss.backward()
            return loss

        if position + 1 < window:
            closure()
        else:
            optimizer.step(closure)
            num_updates += 1
    return num_updates


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([("sgd", "adam"), ("adam", "sgd"), ("sgd", "lbfgs"), ("lbfgs", "adam")]),
    st.sampled_from(["on_train_epoch_start", "on_train_batch_start", "on_train_batch_end"]),
    st.integers(1, NUM_EPOCHS * NUM_BATCHES - 1),
    st.sampled_from([1, 2, 4]),
)
@example(("sgd", "adam"), "on_train_batch_start", 5, 4)
def test_it_trains_on_with_them_from_the_next_batch(
    names: tuple[str, str], hook: str, before: int, window: int
) -> None:
    if "lbfgs" in names:
        window = 1
    if hook == "on_train_epoch_start":
        before = -(-before // NUM_BATCHES) * NUM_BATCHES
    net, expected = seeded(Net, OPTIMIZERS[names[0]]), seeded()
    callback = replacing(hook, before, OPTIMIZERS[names[1]])
    trainer = BareTrainer(net, callbacks=[callback], max_epochs=NUM_EPOCHS, accumulate_grad_batches=window)
    trainer.fit(Sized(make_batches(NUM_BATCHES)))
    assert trainer.global_step == by_hand(expected, names, before, window)
    assert same_bits(weights(net), weights(expected))


def test_what_is_set_before_the_first_epoch_takes_the_place_of_the_configured_one() -> None:
    net, expected = seeded(Net, sgd), seeded(Net, adam)
    BareTrainer(net, callbacks=[replacing("on_fit_start", 0, adam)], max_epochs=2).fit(Sized(make_batches(3)))
    BareTrainer(expected, max_epochs=2).fit(Sized(make_batches(3)))
    assert same_bits(weights(net), weights(expected))


def test_an_accumulation_that_was_set_during_the_fit_stays() -> None:
    def accumulate(trainer: BareTrainer, *_: Any) -> None:
        trainer.fit_loop.accumulate_grad_batches = 2

    callbacks = [hooked(on_train_epoch_start=accumulate), replacing("on_train_batch_end", 5, adam)]
    trainer = BareTrainer(seeded(), callbacks=callbacks, max_epochs=2)
    trainer.fit(Sized(make_batches(4)))
    assert (trainer.global_step, trainer.fit_loop.accumulate_grad_batches) == (4, 2)


def test_steps_of_manual_optimization_are_counted_of_the_new_ones_alone() -> None:
    net = seeded(StepsByHand)

    def make(module: Any) -> Optimizer:
        module.first, module.optimizer = module.optimizer, adam(module)
        return module.optimizer  # type: ignore[no-any-return]

    trainer = BareTrainer(net, callbacks=[replacing("on_train_batch_start", 2, make)], max_epochs=2)
    trainer.fit(Sized(make_batches(4)))
    assert trainer.global_step == 8 and len(net.optimizer.state) == 4
    assert trainer.fit_loop.optimization.optimizers == [net.optimizer] and not net.first._optimizer_step_pre_hooks


class InTheStep(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.loop.replace_optimizers([sgd(self)])


@pytest.mark.parametrize(
    ("net", "replace", "error", "message"),
    [
        (InTheStep, None, RuntimeError, "`optimizers` must be set between the steps of two batches"),
        (Net, [sgd, sgd], ValueError, r"`optimizers` must be as many as before \(1\) under automatic optimization"),
        (Net, [lambda net: 1], TypeError, "`return value` must be an optimizer"),
    ],
)
def test_what_cannot_be_done_raises(net: Any, replace: Any, error: type[Exception], message: str) -> None:
    def hook(trainer: BareTrainer, module: Any, *_: Any) -> None:
        object.__setattr__(module, "loop", trainer.fit_loop)
        if replace is not None:
            trainer.fit_loop.replace_optimizers([make(module) for make in replace])

    with pytest.raises(error, match=message):
        BareTrainer(seeded(net), callbacks=[hooked(on_train_batch_start=hook)], max_epochs=1).fit(
            Sized(make_batches(2))
        )


def test_without_a_fit_that_runs_it_raises() -> None:
    trainer = BareTrainer(seeded(), max_epochs=1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="`optimizers` must be set while a fit runs"):
            trainer.fit_loop.replace_optimizers([sgd(trainer.module)])
        trainer.fit(Sized(make_batches(2)))
