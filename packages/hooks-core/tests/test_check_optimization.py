"""What the checker says of a loop that keeps its own books of accumulation windows, splits and several optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import handwritten_loop
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import First, Second, departure

from camshaft.hooks_core import ModelHooks, StrategyHooks, not_a_hook, resolve
from camshaft.hooks_core.check import check
from camshaft.hooks_core.conformance import Scenario
from camshaft.hooks_core.spec import ZERO_GRADS, ZeroGrad
from camshaft.hooks_core.trace import Trace

OVERRIDES = ("optimizer_step", "optimizer_zero_grad", "tbptt_split_batch", "lr_scheduler_step")


@attrs.frozen(kw_only=True)
class Plan:
    """How the loop optimizes.

    Args:
        zero_grad: Where it zeroes gradients.
        num_batches: Batches of the one epoch.
        num_splits: Splits of each batch.
        num_optimizers: Optimizers, each with a step of its own.
        window: Splits of an accumulation window.
        num_evaluations: How often an update evaluates its closure.
        without_loss: Which calls of `training_step` return None, counted over the run.
        overrides: The overrides of the module.
    """

    zero_grad: ZeroGrad = "before_backward"
    num_batches: int = 2
    num_splits: int = 1
    num_optimizers: int = 1
    window: int = 1
    num_evaluations: int = 1
    without_loss: frozenset[int] = frozenset()
    overrides: tuple[str, ...] = OVERRIDES


class Model(handwritten_loop.Model):
    """A model that follows the plan.

    Args:
        plan: The plan.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.num_steps = 0

    def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> float | None:  # type: ignore[override]
        self.num_steps += 1
        return None if self.num_steps - 1 in self.plan.without_loss else 0.5

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        for _ in range(self.plan.num_evaluations):
            optimizer_closure()

    def tbptt_split_batch(self, batch: Any, split_size: int) -> list[Any]:
        return [batch] * split_size

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None: ...

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None: ...


class Loop(handwritten_loop.Trainer):
    """Zeroes and holds gradients by optimizer."""

    plan: Plan

    def fit(self) -> None:
        self.num_splits_begun = 0
        self.zeroed: set[int] = set()
        self.held: set[int] = set()
        self.applied = False
        super().fit()

    def optimize(self, epoch: int, batch_idx: int) -> Any:
        plan, hooks = self.plan, self.hooks
        split = hooks.tbptt_split_batch
        parts = split("batch", plan.num_splits) if split and plan.num_splits > 1 else ["batch"] * plan.num_splits
        num_splits = plan.num_batches * plan.num_splits
        for part in parts:
            if self.num_splits_begun % plan.window == 0:
                self.zeroed, self.held = set(), set()
            self.num_splits_begun += 1
            updates = self.num_splits_begun % plan.window == 0 or self.num_splits_begun == num_splits
            for optimizer_idx in range(plan.num_optimizers):
                self.optimize_one(part, batch_idx, optimizer_idx, updates)
        if hooks.lr_scheduler_step is not None:
            hooks.lr_scheduler_step("scheduler", None)
        return None

    def optimize_one(self, batch: Any, batch_idx: int, optimizer_idx: int, updates: bool) -> None:
        plan, hooks = self.plan, self.hooks

        def closure() -> Any:
            if plan.window == 1:  # each evaluation begins anew
                self.zeroed.discard(optimizer_idx)
                self.held.discard(optimizer_idx)
            if plan.zero_grad == "before_training_step":
                self.zero_once(optimizer_idx)
            outputs = hooks.training_step(batch, batch_idx, optimizer_idx)
            if outputs is not None:
                if plan.zero_grad == "before_backward":
                    self.zero_once(optimizer_idx)
                hooks.on_before_backward(outputs)
                hooks.on_after_backward()
                self.held.add(optimizer_idx)
            if updates and optimizer_idx in self.held:
                hooks.on_before_optimizer_step(optimizer_idx)
                self.applied = True
            return outputs

        self.applied = False
        if updates and hooks.optimizer_step is not None:
            hooks.optimizer_step(0, batch_idx, optimizer_idx, closure)
        else:
            closure()
        if self.applied and plan.zero_grad == "after_optimizer_step":
            self.zero(optimizer_idx)

    def zero_once(self, optimizer_idx: int) -> None:
        if optimizer_idx not in self.zeroed:
            self.zero(optimizer_idx)
        self.zeroed.add(optimizer_idx)

    def zero(self, optimizer_idx: int) -> None:
        self.hooks.on_before_zero_grad(optimizer_idx)
        if self.hooks.optimizer_zero_grad is not None:
            self.hooks.optimizer_zero_grad(0, 0, optimizer_idx)


def run(plan: Plan, loop: type[Loop] = Loop) -> Trace:
    trace = Trace()
    scenario = Scenario(name="test", verb="fit", description="", num_batches=plan.num_batches)
    left_out = {name: getattr(ModelHooks, name) for name in OVERRIDES if name not in plan.overrides}
    model = type("Model", (Model,), {name: _no_hook(method) for name, method in left_out.items()})
    hooks = resolve(
        callbacks=[trace.record(First(), "callback"), trace.record(Second(), "callback")],
        module=trace.record(model(plan), "module"),
        strategy=trace.record(StrategyHooks(), "strategy"),
    )
    type("Planned", (loop,), {"plan": plan})(scenario, hooks).run()
    return trace


def _no_hook(method: Any) -> Any:
    return not_a_hook(lambda *arguments, **others: method(*arguments, **others))


def hooks_of_batches(trace: Trace, *names: str) -> Iterator[str]:
    """The chosen hooks of the module between the first batch's start and the last one's end."""
    return (
        event.hook for event in trace if event.kind == "enter" and event.label == "module:Model" and event.hook in names
    )


PLANS = st.builds(
    Plan,
    zero_grad=st.sampled_from(ZERO_GRADS),
    num_batches=st.integers(1, 3),
    num_splits=st.integers(1, 3),
    num_optimizers=st.integers(1, 3),
    window=st.integers(1, 4),
    without_loss=st.frozensets(st.integers(0, 20), max_size=8),
    overrides=st.lists(st.sampled_from(OVERRIDES), unique=True).map(tuple),
)


@given(plan=PLANS)
def test_right_books_are_accepted_whatever_is_split_accumulated_or_without_loss(plan: Plan) -> None:
    check(run(plan), "fit", zero_grad=plan.zero_grad)


@given(plan=PLANS, num_evaluations=st.integers(2, 3))
def test_a_closure_may_be_evaluated_several_times(plan: Plan, num_evaluations: int) -> None:
    plan = attrs.evolve(plan, window=1, num_evaluations=num_evaluations, overrides=OVERRIDES)
    check(run(plan), "fit", zero_grad=plan.zero_grad)


ZERO, STEP, BACKWARD, UPDATE = "on_before_zero_grad", "training_step", "on_before_backward", "on_before_optimizer_step"


@pytest.mark.parametrize(
    ("zero_grad", "order"),
    [
        ("before_training_step", [ZERO, STEP, BACKWARD, UPDATE]),
        ("before_backward", [STEP, ZERO, BACKWARD, UPDATE]),
        ("after_optimizer_step", [STEP, BACKWARD, UPDATE, ZERO]),
    ],
)
def test_each_place_of_zeroing_is_the_only_one_that_is_accepted(zero_grad: ZeroGrad, order: list[str]) -> None:
    trace = run(Plan(zero_grad=zero_grad, num_batches=1, overrides=()))
    assert list(hooks_of_batches(trace, *order)) == order
    check(trace, "fit", zero_grad=zero_grad)
    for other in ZERO_GRADS:
        if other != zero_grad:
            error = departure(trace, zero_grad=other)
            assert f"show fit --zero-grad {other}` prints." in str(error)


@pytest.mark.parametrize("zero_grad", ["before_backward", "after_optimizer_step"])
def test_zeroing_for_a_batch_without_loss_departs_unless_it_comes_first(zero_grad: ZeroGrad) -> None:
    plan = Plan(zero_grad="before_training_step", num_batches=1, without_loss=frozenset({0}), overrides=())
    check(run(plan), "fit", zero_grad="before_training_step")
    error = departure(run(plan), zero_grad=zero_grad)
    assert error.event is not None
    assert error.event.hook == ZERO


def test_a_window_whose_first_batch_has_no_loss_is_not_zeroed_again_where_zeroing_comes_first() -> None:
    class Again(Loop):
        def zero_once(self, optimizer_idx: int) -> None:
            if not self.held:
                self.zero(optimizer_idx)

    # The override shows which batch updates; without it, the first batch could be an update without anything to apply.
    no_loss, overrides = frozenset({0}), ("optimizer_step",)
    plan = Plan(zero_grad="before_training_step", num_batches=3, window=3, without_loss=no_loss, overrides=overrides)
    check(run(plan), "fit", zero_grad="before_training_step")
    error = departure(run(plan, Again), zero_grad="before_training_step")
    assert error.event is not None
    assert error.event.hook == ZERO
    assert "training_step on module:Model" in error.expected


def test_zeroing_before_backward_as_well_as_after_the_update_departs() -> None:
    class Twice(Loop):
        def zero(self, optimizer_idx: int) -> None:
            super().zero(optimizer_idx)
            super().zero(optimizer_idx)

    error = departure(
        run(Plan(zero_grad="after_optimizer_step", num_batches=1), Twice), zero_grad="after_optimizer_step"
    )
    assert error.event is not None
    assert error.event.hook == ZERO


def test_an_update_that_is_not_followed_by_zeroing_departs_where_it_should_be() -> None:
    class Never(Loop):
        def zero(self, optimizer_idx: int) -> None: ...

    plan = Plan(zero_grad="after_optimizer_step", num_batches=1, overrides=("optimizer_step",))
    error = departure(run(plan, Never), zero_grad="after_optimizer_step")
    assert error.expected == ("on_before_zero_grad on callback:First",)


def test_zeroing_inside_of_optimizer_step_departs_where_it_follows_the_update() -> None:
    plan = Plan(zero_grad="before_backward", num_batches=1)
    error = departure(run(plan), zero_grad="after_optimizer_step")
    assert error.event is not None
    assert (error.event.hook, error.expected) == (ZERO, ("on_before_backward on callback:First",))


def test_an_optimizer_without_any_loss_in_its_window_need_not_be_zeroed_after_it() -> None:
    plan = Plan(zero_grad="after_optimizer_step", num_optimizers=2, num_batches=1, without_loss=frozenset({1}))
    trace = run(plan)
    assert list(hooks_of_batches(trace, ZERO)) == [ZERO]
    check(trace, "fit", zero_grad="after_optimizer_step")


def test_a_window_goes_on_over_splits_and_batches() -> None:
    trace = run(Plan(num_batches=2, num_splits=3, window=4, overrides=("tbptt_split_batch",)))
    shown = list(hooks_of_batches(trace, "tbptt_split_batch", STEP, ZERO, UPDATE))
    assert shown == [
        *["tbptt_split_batch", STEP, ZERO, STEP, STEP],
        *["tbptt_split_batch", STEP, UPDATE, STEP, ZERO, STEP, UPDATE],
    ]
    check(trace, "fit")


def test_an_optimizer_whose_first_step_has_no_loss_is_zeroed_in_the_next_split() -> None:
    plan = Plan(num_batches=2, num_optimizers=2, window=2, without_loss=frozenset({1}), overrides=())
    trace = run(plan)
    assert list(hooks_of_batches(trace, STEP, ZERO, UPDATE)) == [STEP, ZERO, STEP, STEP, UPDATE, STEP, ZERO, UPDATE]
    check(trace, "fit")


def test_zeroing_what_every_optimizer_holds_departs() -> None:
    class Forgetful(Loop):
        def zero_once(self, optimizer_idx: int) -> None:
            self.zero(optimizer_idx)

    error = departure(run(Plan(num_batches=2, num_optimizers=2, window=2, overrides=()), Forgetful))
    assert error.event is not None
    assert (error.event.hook, error.expected) == (ZERO, ("on_before_backward on callback:First",))


def test_schedulers_step_after_the_whole_batch() -> None:
    class Eager(Loop):
        def optimize_one(self, batch: Any, batch_idx: int, optimizer_idx: int, updates: bool) -> None:
            super().optimize_one(batch, batch_idx, optimizer_idx, updates)
            self.hooks.lr_scheduler_step("scheduler", None)

    plan = Plan(num_batches=1, num_splits=2, overrides=("lr_scheduler_step",))
    check(run(plan), "fit")
    error = departure(run(plan, Eager))
    assert error.event is not None
    assert error.event.hook == STEP


def test_a_batch_is_split_once_and_before_its_steps() -> None:
    class Twice(Loop):
        def optimize(self, epoch: int, batch_idx: int) -> Any:
            self.hooks.tbptt_split_batch("batch", 2)
            return super().optimize(epoch, batch_idx)

    error = departure(run(Plan(num_splits=2), Twice))
    assert error.event is not None
    assert error.event.hook == "tbptt_split_batch"

    class Late(Loop):
        def optimize(self, epoch: int, batch_idx: int) -> Any:
            outputs = super().optimize(epoch, batch_idx)
            self.hooks.tbptt_split_batch("batch", 2)
            return outputs

    error = departure(run(Plan(num_splits=1), Late))
    assert error.event is not None
    assert error.event.hook == "tbptt_split_batch"


def test_a_split_batch_without_a_step_departs() -> None:
    class Idle(Loop):
        def optimize_one(self, batch: Any, batch_idx: int, optimizer_idx: int, updates: bool) -> None: ...

    error = departure(run(Plan(num_splits=2, overrides=("tbptt_split_batch",)), Idle))
    assert error.expected == ("training_step on module:Model",)


@pytest.mark.parametrize("optimization", ["manual", "none"])
def test_a_place_of_zeroing_for_a_run_in_which_the_loop_does_not_optimize_is_an_error(optimization: Any) -> None:
    with pytest.raises(ValueError, match="`zero_grad` must be None with"):
        check(Trace(), "fit", optimization=optimization, zero_grad="before_backward")
