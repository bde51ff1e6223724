"""Which mode a module gets, what is refused before anything runs, and what going on inside an epoch needs."""

from __future__ import annotations

import itertools
import traceback
from typing import Any

import pytest
import torch
from bare_parts import (
    BareStrategy,
    BareTrainer,
    Net,
    Sized,
    adam,
    hooked,
    make_batches,
    same_bits,
    seeded,
    sgd,
    weights,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from sequence_parts import Plan, Recurrent, fit, make_sequences, plans

from camshaft.loops import FitLimits, OptimizationSettings, Run, StandardOptimizationFactory
from camshaft.loops.state.progress import FitProgress

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def two(module: Net) -> Any:
    return [sgd(module), adam(module)]


def test_several_optimizers_need_to_be_told_apart() -> None:
    message = "`number of optimizers` must be 1 under automatic optimization, unless `training_step` names"
    with pytest.raises(ValueError, match=message) as caught:
        BareTrainer(Net(two), max_epochs=1).fit(Sized(make_batches(1)))
    for way_out in ("Return `JointOptimizer(...)`", "take `optimizer_idx`", "set `automatic_optimization = False`"):
        assert way_out in str(caught.value)


class ByHand(Net):
    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int, optimizer_idx: Any = "default") -> None:
        self.given = optimizer_idx


def test_a_step_that_optimizes_by_hand_runs_once_for_all_optimizers() -> None:
    message = "`training_step` must be one without `optimizer_idx` under manual optimization"
    with pytest.raises(ValueError, match=message):
        BareTrainer(ByHand(two), max_epochs=1).fit(Sized(make_batches(1)))
    net = ByHand()
    BareTrainer(net, max_epochs=1).fit(Sized(make_batches(1)))
    assert net.given == "default"


def test_frequencies_are_refused_where_the_module_steps_by_itself() -> None:
    net = Net(lambda module: [{"optimizer": optimizer, "frequency": 2} for optimizer in two(module)])
    object.__setattr__(net, "automatic_optimization", False)
    message = r"`frequency` must be None under manual optimization, but got \[2, 2\]"
    with pytest.raises(ValueError, match=message):
        BareTrainer(net, max_epochs=1).fit(Sized(make_batches(1)))


def test_a_fit_that_counts_no_update_needs_a_number_of_epochs() -> None:
    message = "`max_epochs` must be set if there is no optimizer, since no update will ever be counted"
    with pytest.raises(ValueError, match=message):
        BareTrainer(Net(lambda module: None), max_steps=3).fit(Sized(make_batches(1)))


def mode_of(module: Any, **arguments: Any) -> Any:
    run = Run(verb="fit", module=module, strategy=BareStrategy(), trainer=None)
    run.resolve_hooks(("training_step",))
    factory = StandardOptimizationFactory()
    limits, settings = FitLimits(max_epochs=1), OptimizationSettings(**arguments)
    return factory.make_mode(run, factory.configure(run), FitProgress(), limits, settings)


def test_gradients_belong_in_a_checkpoint_where_they_wait_and_wherever_the_module_sees_to_them() -> None:
    module, seen = seeded(Recurrent, Plan(num_optimizers=2)), []
    mode = mode_of(module, accumulate_grad_batches=2)
    mode.num_batches = 3
    mode.start_epoch()
    for batch_idx, batch in enumerate(make_sequences(Plan())):
        mode.run_batch(batch, batch_idx, batch_idx == 2)
        seen.append((mode.holds_gradients, mode.keeps_gradients))
    assert seen == [(True, True), (False, False), (False, False)]
    mode.run_batch(batch, 0, False)
    mode.start_epoch()
    assert not mode.holds_gradients
    by_hand = mode_of(ByHand())
    assert (by_hand.holds_gradients, by_hand.keeps_gradients) == (False, True)


@pytest.mark.parametrize("automatic", [True, False])
def test_the_state_of_another_kind_of_optimization_is_refused(automatic: bool) -> None:
    automatically, by_hand = mode_of(Net()), mode_of(ByHand())
    one, other = (automatically, by_hand) if automatic else (by_hand, automatically)
    message = f"`optimization` must be that of {'automatic' if automatic else 'manual'} optimization"
    with pytest.raises(ValueError, match=message):
        one.load_state_dict(other.state_dict())
    one.load_state_dict(one.state_dict())
    two_of_them = mode_of(seeded(Recurrent, Plan(num_optimizers=2)))
    with pytest.raises(ValueError, match="`optimization` must be that of"):
        one.load_state_dict(two_of_them.state_dict())


@pytest.mark.parametrize("lengths", [(2, 1), (1, 2), (2, 3)])
def test_going_on_at_a_windows_end_with_another_length_averages_over_that(lengths: tuple[int, int]) -> None:
    net, by_hand, batches = seeded(), seeded(), make_batches(sum(lengths))
    its_optimizer = sgd(net)
    object.__setattr__(net, "configure_optimizers", lambda: its_optimizer)
    earlier, later = (mode_of(net, accumulate_grad_batches=length) for length in lengths)
    earlier.start_epoch()
    for batch_idx, batch in enumerate(batches[: lengths[0]]):
        earlier.run_batch(batch, batch_idx, False)
    later.load_state_dict(earlier.state_dict())
    for batch_idx, batch in enumerate(batches[lengths[0] :], lengths[0]):
        later.run_batch(batch, batch_idx, False)
    optimizer = sgd(by_hand)
    for window in (batches[: lengths[0]], batches[lengths[0] :]):
        optimizer.zero_grad()
        for batch in window:
            (by_hand.loss(batch) / len(window)).backward()
        optimizer.step()
    assert same_bits(weights(net), weights(by_hand))


def test_going_on_with_another_place_of_zeroing_still_zeroes_each_window_once() -> None:
    [batch] = make_batches(1)
    for place, other in itertools.permutations(("before_training_step", "before_backward", "after_optimizer_step"), 2):
        net, calls = seeded(), []
        object.__setattr__(net, "on_before_zero_grad", calls.append)
        earlier, later = mode_of(net, zero_grad=place), mode_of(net, zero_grad=other)
        earlier.start_epoch()
        earlier.run_batch(batch, 0, False)
        later.load_state_dict(earlier.state_dict())
        later.run_batch(batch, 1, False)
        assert len(calls) == 2


@settings(max_examples=40, deadline=None)
@given(plans(max_steps=-1, kind="sized"), st.data())
def test_a_fit_resumed_from_a_checkpoint_after_any_batch_gives_the_same_weights(
    plan: Plan, data: st.DataObject
) -> None:
    save_at = data.draw(st.integers(0, plan.num_epochs * len(plan.lengths) - 1))

    def save(trainer: Any, *_: Any) -> None:
        if trainer.progress.earlier_batches.started + trainer.progress.batches.started == save_at + 1:
            trainer.save_checkpoint("saved")

    module, resumed = seeded(Recurrent, plan), seeded(Recurrent, plan, seed=5)
    saving = fit(module, plan, callbacks=[hooked(on_train_batch_end=save)])
    torch.manual_seed(9)
    fit(resumed, plan, stateless_loaders="fast_forward", checkpoint=saving.load("saved"))
    assert same_bits(weights(resumed), weights(module))


@pytest.mark.parametrize(
    "plan",
    [Plan(), Plan(accumulate=2), Plan(split_size=2), Plan(num_optimizers=2), Plan(num_optimizers=2, split_size=2)],
    ids=["plain", "accumulation", "splits", "several optimizers", "several optimizers and splits"],
)
def test_six_frames_of_the_loops_lead_to_the_step(plan: Plan) -> None:
    depths: set[int] = set()

    class Deep(Recurrent):
        def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int, hiddens: Any = None) -> Any:
            files = [frame.filename for frame in traceback.extract_stack()]
            depths.add(sum("/src/camshaft/" in file or file.startswith("<camshaft") for file in files))
            return super().training_step(batch, batch_idx, optimizer_idx, hiddens)

    fit(seeded(Deep, plan), plan)
    assert depths == {6}
