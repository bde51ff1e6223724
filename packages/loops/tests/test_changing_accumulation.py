"""Accumulation windows whose length is set while a fit runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest
import torch
from bare_parts import BareTrainer, Net, Sized, Unsized, hooked, make_batches, same_bits, seeded, weights
from bare_ranks import ThreadedStrategy, on_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from sequence_parts import Plan, Recurrent, fit, plans, train_by_hand

from camshaft.loops import FitLimits, FitLoop

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def setting(lengths: Sequence[int]) -> Callable[..., Any]:
    """A hook that gives each epoch its length."""

    def set_length(trainer: BareTrainer, module: Any) -> None:
        trainer.fit_loop.accumulate_grad_batches = lengths[trainer.progress.current_epoch]

    return set_length


def updates_of(trainer: BareTrainer) -> Callable[..., Any]:
    """A hook that notes the updates so far after each batch, in `trainer.seen`."""

    def note(one: BareTrainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        trainer.seen.append(one.global_step)

    trainer.seen = []
    return note


def train(
    lengths: Sequence[int], num_batches: int, hook: str, *, given_length: int = 1, sized: bool = True
) -> list[int]:
    """Train with a length for each epoch, set in a hook. Returns the updates so far after each batch."""
    trainer = BareTrainer(seeded(), max_epochs=len(lengths), accumulate_grad_batches=given_length)
    trainer.callbacks = [hooked(**{hook: setting(lengths)}), hooked(on_train_batch_end=updates_of(trainer))]
    trainer.fit((Sized if sized else Unsized)(make_batches(num_batches)))
    assert trainer.fit_loop.accumulate_grad_batches == lengths[-1]
    return trainer.seen


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_what_an_epochs_start_sets_counts_from_its_first_batch(
    lengths: list[int], num_batches: int, given_length: int, sized: bool
) -> None:
    seen = train(lengths, num_batches, "on_train_epoch_start", given_length=given_length, sized=sized)
    expected, num_updates = [], 0
    for length in lengths:
        for batch_idx in range(num_batches):
            num_updates += (batch_idx + 1) % length == 0 or batch_idx + 1 == num_batches
            expected.append(num_updates)
    assert seen == expected


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_train_batch_end", "on_train_epoch_end"])
def test_what_is_set_later_counts_from_the_next_epoch_on(hook: str) -> None:
    assert train([3, 1, 2], 3, hook, given_length=2) == [0, 1, 2, 2, 2, 3, 4, 5, 6]
    assert train([3, 1, 2], 3, hook) == [1, 2, 3, 3, 3, 4, 5, 6, 7]


@settings(max_examples=60, deadline=None)
@given(plans(max_steps=-1), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 4))
def test_the_weights_are_those_of_training_by_hand(plan: Plan, lengths: list[int], given_length: int) -> None:
    """With several optimizers, splits along time, clipping, batches without a loss, and every place of zeroing."""
    plan = attrs.evolve(plan, num_epochs=len(lengths), accumulate=given_length)
    net, by_hand = seeded(Recurrent, plan), seeded(Recurrent, plan)
    trainer = fit(net, plan, callbacks=[hooked(on_train_epoch_start=setting(lengths))])
    optimizers = by_hand.make_optimizers()
    object.__setattr__(by_hand, "make_optimizers", lambda: optimizers)
    num_updates = 0
    for length in lengths:
        by_hand.plan = attrs.evolve(plan, num_epochs=1, accumulate=length)
        num_updates += train_by_hand(by_hand)
    assert trainer.global_step == num_updates
    assert same_bits(weights(net), weights(by_hand))


class SavesEverywhere:
    """Sets a length at the start of each epoch, and perhaps one inside of it; saves after every batch and epoch."""

    def __init__(self, lengths: Sequence[int], at_batch: dict[tuple[int, int], int]) -> None:
        self.lengths, self.at_batch = lengths, at_batch
        self.callback = hooked(
            on_train_epoch_start=self.start, on_train_batch_end=self.end_batch, on_train_epoch_end=self.end_epoch
        )

    def start(self, trainer: BareTrainer, module: Any) -> None:
        epoch = trainer.progress.current_epoch
        if epoch < len(self.lengths):  # later epochs keep what was set
            trainer.fit_loop.accumulate_grad_batches = self.lengths[epoch]

    def end_batch(self, trainer: BareTrainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        epoch = trainer.progress.current_epoch
        if (epoch, batch_idx) in self.at_batch:
            trainer.fit_loop.accumulate_grad_batches = self.at_batch[epoch, batch_idx]
        trainer.save_checkpoint(f"{epoch} {batch_idx}")

    def end_epoch(self, trainer: BareTrainer, module: Any) -> None:
        trainer.save_checkpoint(f"end of {trainer.progress.current_epoch}")


@settings(max_examples=25, deadline=None)
@given(
    plans(kind="sized", max_steps=-1),
    st.lists(st.integers(1, 4), min_size=1, max_size=2),
    st.integers(1, 4),
    st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 3)), st.integers(1, 4), max_size=3),
)
def test_going_on_is_exact_from_any_batch_or_epochs_end(
    plan: Plan, lengths: list[int], given_length: int, at_batch: dict[tuple[int, int], int]
) -> None:
    plan = attrs.evolve(plan, num_epochs=3, accumulate=given_length)
    net = seeded(Recurrent, plan)
    fast_forward = {"stateless_loaders": "fast_forward"}
    whole = fit(net, plan, callbacks=[SavesEverywhere(lengths, at_batch).callback], **fast_forward)
    for path in list(whole.files):
        other = seeded(Recurrent, plan, seed=5)
        callbacks = [SavesEverywhere(lengths, at_batch).callback]
        resumed = fit(other, plan, checkpoint=whole.load(path), callbacks=callbacks, **fast_forward)
        assert resumed.global_step == whole.global_step, path
        assert same_bits(weights(other), weights(net)), path
        if path not in ("end of 2", f"2 {len(plan.lengths) - 1}"):  # after these nothing is left to train
            assert resumed.fit_loop.accumulate_grad_batches == whole.fit_loop.accumulate_grad_batches


def fitted(net: Net, given_length: int, checkpoint: dict[str, Any] | None = None, **arguments: Any) -> BareTrainer:
    keywords = {"max_epochs": 1, "stateless_loaders": "fast_forward", **arguments}
    trainer = BareTrainer(net, accumulate_grad_batches=given_length, **keywords)
    return trainer.fit(Sized(make_batches(4)), checkpoint=checkpoint)


def stopped_inside(length: int, given_length: int) -> dict[str, Any]:
    """A checkpoint with an open window of a length that was set."""
    return fitted(seeded(), given_length, callbacks=[SavesEverywhere([length], {}).callback]).load("0 0")


def test_an_open_window_that_was_set_is_refused_only_if_today_was_given_another_length() -> None:
    checkpoint = stopped_inside(3, given_length=1)
    for today in (1, 3):
        assert fitted(seeded(), today, checkpoint).fit_loop.accumulate_grad_batches == 3
    message = r"`accumulate_grad_batches` must be that of the checkpoint \(3\), .* but got 2 \(int\) in fit"
    with pytest.raises(ValueError, match=message):
        fitted(seeded(), 2, checkpoint)


def test_a_checkpoint_from_before_lengths_could_be_set_goes_on() -> None:
    checkpoint = stopped_inside(2, given_length=2)
    for name in ("given_length", "next_length"):
        del checkpoint["fit"]["optimization"]["window"][name]
    resumed, whole = seeded(seed=5), seeded()
    assert fitted(resumed, 2, checkpoint).global_step == fitted(whole, 2).global_step == 2
    assert same_bits(weights(resumed), weights(whole))


def test_processes_go_on_averaging_after_an_epoch_that_ended_inside_a_window() -> None:
    """Epoch 0 is skipped where nothing is averaged; in epoch 1 every batch is an update of its own."""

    def skip(trainer: BareTrainer, module: Any, batch: Any, batch_idx: int) -> int | None:
        return -1 if trainer.progress.current_epoch == 0 and batch_idx == 1 else None

    def train_one(strategy: ThreadedStrategy) -> list[torch.Tensor]:
        net = seeded()
        callbacks = [hooked(on_train_epoch_start=setting([3, 1, 2]), on_train_batch_start=skip)]
        trainer = BareTrainer(net, strategy=strategy, callbacks=callbacks, max_epochs=3)
        trainer.fit(Sized(make_batches(3, seed=strategy.global_rank)))
        # a batch of epoch 0, the start of epoch 1, the windows of two and one in epoch 2, the end
        assert strategy.synced == [False, True, False, True, True, True]
        return weights(net)

    one, other = on_ranks(2, train_one)
    assert same_bits(one, other)


def test_what_the_optimizers_cannot_do_is_refused_where_it_is_set() -> None:
    class ByHand(Net):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None: ...

    class Shared(Net):
        def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> Any:
            return self.loss(batch)

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.parameters(), lr=0.1), torch.optim.SGD(self.head.parameters(), lr=0.1)]

    lbfgs = Net(lambda module: torch.optim.LBFGS(module.parameters(), max_iter=1))
    for module, rule in (
        (ByHand(), "1 under manual optimization, but got 2"),
        (Shared(), "1 if optimizers share parameters, whose gradients would mix"),
        (lbfgs, "1 with LBFGS, which evaluates the loss several times per update, but got 2"),
    ):
        trainer = BareTrainer(module, callbacks=[hooked(on_train_epoch_start=setting([1, 2]))], max_epochs=2)
        with pytest.raises(ValueError, match=f"`accumulate_grad_batches` must be {rule}") as caught:
            trainer.fit(Sized(make_batches(2)))
        assert any("on_train_epoch_start" in note for note in caught.value.__notes__)
        assert trainer.fit_loop.accumulate_grad_batches == 1  # what was refused has changed nothing


def test_without_an_optimizer_it_makes_no_difference() -> None:
    trainer = BareTrainer(Net(lambda module: None), max_epochs=2, accumulate_grad_batches=3)
    trainer.callbacks = [hooked(on_train_epoch_start=setting([3, 2]))]
    trainer.fit(Sized(make_batches(2)))
    assert trainer.global_step == 0 and trainer.fit_loop.accumulate_grad_batches == 2


def test_between_fits_it_is_an_argument_like_any_other() -> None:
    trainer = BareTrainer(seeded(), max_epochs=1)
    trainer.fit_loop.accumulate_grad_batches = 2
    assert trainer.fit(Sized(make_batches(4))).global_step == 2
    trainer.fit_loop.limits = FitLimits(max_epochs=2, num_sanity_val_steps=0)
    trainer.fit_loop.accumulate_grad_batches = 4
    assert trainer.fit(Sized(make_batches(4))).global_step == 3


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (2.0, TypeError), (True, TypeError), (None, TypeError)])
def test_what_is_no_positive_int_is_refused(value: Any, error: type[Exception]) -> None:
    loop = FitLoop()
    with pytest.raises(error, match=r"`accumulate_grad_batches` must be (at least 1|an int), but got"):
        loop.accumulate_grad_batches = value
    assert loop.accumulate_grad_batches == 1


def test_splits_of_batches_make_windows_of_the_length_that_was_set() -> None:
    plan = Plan(lengths=(4, 2), split_size=1, num_epochs=2)
    trainer = fit(seeded(Recurrent, plan), plan, callbacks=[hooked(on_train_epoch_start=setting([1, 4]))])
    assert trainer.global_step == 6 + 2
