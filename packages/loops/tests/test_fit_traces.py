"""Whatever fit is configured with, it calls its hooks in the order of its life cycle."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from bare_parts import (
    LOADER_KINDS,
    SIZED_KINDS,
    BareStrategy,
    BareTrainer,
    Net,
    adam,
    hooked,
    make_batches,
    make_loader,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from overriding_parts import OVERRIDES, Data, override
from torch.optim.lr_scheduler import StepLR

from camshaft.hooks_core import Callback
from camshaft.hooks_core.check import check
from camshaft.hooks_core.trace import Trace

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

FIT_OVERRIDES = sorted(name for name in OVERRIDES if "_test_" not in name and "_predict_" not in name)


@attrs.frozen(kw_only=True)
class Plan:
    """One fit."""

    num_epochs: int
    num_batches: int
    num_val_batches: list[int]
    kind: str
    val_kind: str
    sanity_steps: int
    val_check_interval: int | float
    check_val_every_n_epoch: int | None
    accumulate: int
    clip_val: float | None
    overrides: frozenset[str]
    optimization: str
    scheduler: tuple[str, int] | None
    none_at: frozenset[int]
    skip: tuple[str, int] | None
    stop: tuple[str, int] | None
    save_at: str | None
    max_steps: int
    inference_mode: bool


@st.composite
def plans(draw: Any) -> Plan:
    kind = draw(st.sampled_from(LOADER_KINDS))
    num_batches = draw(st.integers(1, 5))
    counts_across_epochs = draw(st.booleans()) and draw(st.booleans())
    interval: Any = st.integers(1, num_batches + (3 if counts_across_epochs else 0))
    if not counts_across_epochs:
        interval |= st.sampled_from([1.0, 0.5, 0.34]) if kind in SIZED_KINDS else st.just(1.0)
    optimization = draw(st.sampled_from(["automatic", "automatic", "automatic", "manual", "none"]))
    accumulate = draw(st.integers(1, 3)) if optimization != "manual" else 1
    overrides = draw(st.frozensets(st.sampled_from(FIT_OVERRIDES)))
    if optimization == "manual":
        overrides -= {"optimizer_step", "optimizer_zero_grad", "backward", "configure_gradient_clipping"}
    return Plan(
        num_epochs=draw(st.integers(1, 3)),
        num_batches=num_batches,
        num_val_batches=draw(st.lists(st.integers(0, 2), max_size=2)),
        kind=kind,
        val_kind=draw(st.sampled_from(LOADER_KINDS)),
        sanity_steps=draw(st.sampled_from([0, 1, 2, -1])),
        val_check_interval=draw(interval),
        check_val_every_n_epoch=None if counts_across_epochs else draw(st.integers(1, 2)),
        accumulate=accumulate,
        clip_val=draw(st.sampled_from([None, 0.5])) if optimization != "manual" else None,
        overrides=overrides,
        optimization=optimization,
        scheduler=draw(st.none() | st.tuples(st.sampled_from(["step", "epoch"]), st.integers(1, 2))),
        none_at=draw(st.frozensets(st.integers(0, 4), max_size=2)),
        skip=draw(st.none() | st.tuples(st.sampled_from(["callback", "module", "strategy"]), st.integers(0, 4))),
        stop=draw(st.none() | st.tuples(st.sampled_from(STOPPING_HOOKS), st.integers(0, 4))),
        save_at=draw(st.none() | st.sampled_from(SAVING_HOOKS)),
        max_steps=draw(st.sampled_from([-1, -1, 1, 3])),
        inference_mode=draw(st.booleans()),
    )


STOPPING_HOOKS = ["on_train_start", "on_train_batch_start", "on_train_batch_end", "on_validation_end"]
SAVING_HOOKS = [
    *["on_fit_start", "on_train_start", "on_train_batch_start", "on_after_backward", "on_validation_batch_end"],
    *["on_train_epoch_end", "on_train_end"],
]


class Monitor(Callback):
    monitors = True


class After(Callback):
    after_module = frozenset({"on_train_batch_start", "on_train_batch_end", "on_validation_start", "on_after_backward"})


class Planned(Callback):
    """Skips, stops and saves where the plan says, counting calls from 0."""

    def __init__(self, plan: Plan) -> None:
        if plan.stop is not None:
            self._count(plan.stop[0], plan.stop[1], lambda trainer: setattr(trainer.fit_loop, "should_stop", True))
        if plan.save_at is not None and (plan.stop is None or plan.save_at != plan.stop[0]):
            self._count(plan.save_at, 0, lambda trainer: trainer.save_checkpoint("saved"))

    def _count(self, hook: str, number: int, act: Any) -> None:
        calls: list[int] = []

        def counted(trainer: Any, *_: Any) -> None:
            calls.append(0)
            if len(calls) == number + 1:
                act(trainer)

        setattr(self, hook, counted)


class PlannedNet(Net):
    def __init__(self, plan: Plan) -> None:
        super().__init__(adam)
        self.plan = plan
        self.automatic_optimization = plan.optimization != "manual"

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.automatic_optimization:
            return None if batch_idx in self.plan.none_at else {"loss": self.loss(batch), "extra": batch_idx}
        if batch_idx in self.plan.none_at:
            return None
        self.optimizer.zero_grad()
        self.loss(batch).backward()
        self.optimizer.step()
        return "whatever"

    def configure_optimizers(self) -> Any:
        if self.plan.optimization == "none":
            return None
        self.optimizer = adam(self)
        if self.plan.scheduler is None:
            return self.optimizer
        interval, frequency = self.plan.scheduler
        settings = {"scheduler": StepLR(self.optimizer, 1, 0.5), "interval": interval, "frequency": frequency}
        return {"optimizer": self.optimizer, "lr_scheduler": settings}


def record_fit(plan: Plan) -> tuple[Trace, BareTrainer]:
    module = override(PlannedNet(plan), *plan.overrides)
    callbacks: list[Any] = [Planned(plan), Monitor(), After()]
    strategy = BareStrategy()
    if plan.skip is not None:
        who, at = plan.skip
        if who == "callback":
            callbacks.append(hooked("Skip", on_train_batch_start=lambda *args: -1 if args[3] == at else None))
        else:
            owner = module if who == "module" else strategy
            object.__setattr__(owner, "on_train_batch_start", lambda batch, batch_idx: -1 if batch_idx == at else None)
    data = Data()
    trace = Trace()
    for callback in callbacks:
        trace.record(callback, "callback")
    trace.record(data, "data")
    trace.record(module, "module")
    trace.record(strategy, "strategy")
    trainer = BareTrainer(
        module,
        callbacks=callbacks,
        data=data,
        strategy=strategy,
        accumulate_grad_batches=plan.accumulate,
        gradient_clip_val=plan.clip_val,
        inference_mode=plan.inference_mode,
        max_epochs=plan.num_epochs,
        max_steps=plan.max_steps,
        num_sanity_val_steps=plan.sanity_steps,
        val_check_interval=plan.val_check_interval,
        check_val_every_n_epoch=plan.check_val_every_n_epoch,
    )
    val = [make_loader(plan.val_kind, make_batches(number)) for number in plan.num_val_batches]
    trainer.fit(make_loader(plan.kind, make_batches(plan.num_batches)), val)
    return trace, trainer


@settings(max_examples=80, deadline=None)
@given(plans())
def test_every_fit_follows_the_life_cycle(plan: Plan) -> None:
    trace, trainer = record_fit(plan)
    check(trace, "fit")
    calls = [event.hook for event in trace if event.kind == "enter" and event.receiver_kind == "module"]
    starts = calls.count("on_train_batch_start")
    if plan.skip is None and plan.stop is None and plan.max_steps == -1:
        assert starts == plan.num_epochs * plan.num_batches
        assert calls.count("training_step") == starts
        assert trainer.progress.total_batches == starts
    assert calls.count("on_train_epoch_start") == calls.count("on_train_epoch_end")
    assert calls.count("setup") == calls.count("teardown") == 1


def test_an_override_is_not_asked_to_zero_gradients_that_wait_for_an_update() -> None:
    module, calls = Net(), []
    module.on_validation_model_zero_grad = lambda: calls.append(trainer.progress.total_batches)
    trainer = BareTrainer(module, max_epochs=1, accumulate_grad_batches=2, val_check_interval=1)
    trainer.fit(make_loader("sized", make_batches(5)), make_loader("sized", make_batches(1)))
    assert calls == [2, 4, 5]
