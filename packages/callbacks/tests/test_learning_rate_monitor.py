"""Which learning rates are logged, under which names and when."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from recording_trainer import RecordingTrainer
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.monitors.learning_rate_monitor import LearningRateMonitor

Rows = list[tuple[int | None, dict[str, float]]]


class ListLogger:
    def __init__(self) -> None:
        self.rows: Rows = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))


def parameter() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(1))


def sgd(lr: float = 0.5, **arguments: Any) -> SGD:
    return SGD([parameter()], lr=lr, **arguments)


def config(scheduler: Any, interval: str = "epoch", name: str | None = None) -> Any:
    return SimpleNamespace(scheduler=scheduler, interval=interval, name=name)


def trainer_of(callback: Any, optimizers: list[Any], *configs: Any, every: int = 1) -> RecordingTrainer:
    return RecordingTrainer(
        ".",
        callbacks=[callback],
        optimizers=optimizers,
        lr_scheduler_configs=list(configs),
        log_every_n_steps=every,
        loggers=[ListLogger()],
    )


def train(trainer: RecordingTrainer, num_epochs: int = 2, num_batches: int = 2, starts: bool = True) -> Rows:
    """Each scheduler steps at its interval."""
    callback = trainer.callbacks[0]
    if starts:
        trainer.begin()
        callback.on_train_start(trainer, None)
    for _ in range(num_epochs):
        callback.on_train_epoch_start(trainer, None)
        for batch_idx in range(num_batches):
            callback.on_train_batch_start(trainer, None, None, batch_idx)
            trainer.train_batch(batch_idx)
            step_schedulers(trainer, "step")
        step_schedulers(trainer, "epoch")
        trainer.current_epoch += 1
    rows: Rows = trainer.loggers[0].rows
    return rows


def step_schedulers(trainer: RecordingTrainer, interval: str) -> None:
    for one in trainer.lr_scheduler_configs:
        if one.interval == interval:
            one.scheduler.optimizer.step()
            one.scheduler.step(*[0.0] * isinstance(one.scheduler, ReduceLROnPlateau))


def test_each_scheduler_is_logged_at_its_own_interval_with_the_rate_of_the_update_to_come() -> None:
    fast, slow = sgd(), Adam([parameter()], lr=0.25)
    configs = config(ExponentialLR(fast, 0.5), "step"), config(ExponentialLR(slow, 0.5))
    rows = train(trainer_of(LearningRateMonitor(), [fast, slow], *configs))
    assert rows == [
        (0, {"lr-Adam": 0.25}),
        (0, {"lr-SGD": 0.5}),
        (1, {"lr-SGD": 0.25}),
        (2, {"lr-Adam": 0.125}),
        (2, {"lr-SGD": 0.125}),
        (3, {"lr-SGD": 0.0625}),
    ]


@pytest.mark.parametrize(("interval", "steps"), [("step", [0, 1, 2, 3]), ("epoch", [0, 2])])
def test_one_interval_may_hold_for_all(interval: str, steps: list[int]) -> None:
    one, other = sgd(), Adam([parameter()], lr=0.25)
    callback = LearningRateMonitor(logging_interval=interval)
    rows = train(trainer_of(callback, [one, other], config(ExponentialLR(one, 0.5), "step")))
    assert [step for step, _ in rows] == steps
    assert all(metrics.keys() == {"lr-SGD", "lr-Adam"} for _, metrics in rows)
    assert callback.lrs["lr-SGD"] == [metrics["lr-SGD"] for _, metrics in rows]


def test_without_a_scheduler_rates_are_logged_by_epochs_and_by_steps_at_the_trainers_interval() -> None:
    rate = {"lr-SGD": 0.5}
    assert train(trainer_of(LearningRateMonitor(), [sgd()], every=3)) == [(0, rate), (2, rate), (2, rate)]
    assert train(trainer_of(LearningRateMonitor("step"), [sgd()], every=3)) == [(2, rate)]
    assert train(trainer_of(LearningRateMonitor("step"), [sgd()], every=0)) == []
    assert train(trainer_of(LearningRateMonitor(), [])) == []


def test_an_update_of_several_batches_has_one_row_at_most() -> None:
    callback = LearningRateMonitor("step")
    trainer = trainer_of(callback, [sgd()])
    trainer.begin()
    callback.on_train_start(trainer, None)
    for batch_idx in range(4):
        callback.on_train_batch_start(trainer, None, None, batch_idx)
        trainer.train_batch(batch_idx, is_update=batch_idx % 2 == 1)
    assert [step for step, _ in trainer.loggers[0].rows] == [0, 1]


def names(optimizers: list[Optimizer], *configs: Any) -> list[str]:
    rows = train(trainer_of(LearningRateMonitor("epoch"), list(optimizers), *configs), num_epochs=1)
    return list(rows[0][1])


def test_names_come_from_configurations_or_classes_and_are_told_apart() -> None:
    one, two, three = sgd(), sgd(), sgd()
    assert names([one, two, three]) == ["lr-SGD", "lr-SGD-1", "lr-SGD-2"]
    named = config(ExponentialLR(two, 0.5), name="mine")
    assert names([one, two, three], named) == ["lr-SGD", "mine", "lr-SGD-1"]
    same = config(ExponentialLR(one, 0.5), name="mine"), config(ExponentialLR(two, 0.5), name="mine")
    assert names([one, two], *same) == ["mine", "mine-1"]
    both = config(ExponentialLR(one, 0.5), name="warm"), config(ReduceLROnPlateau(one), "step", name="plateau")
    assert names([one], *both) == ["warm", "plateau"]


def test_groups_are_told_apart_by_name_or_number_also_those_that_come_later() -> None:
    plain = SGD([{"params": [parameter()]}, {"params": [parameter()], "lr": 0.1}], lr=0.5)
    assert names([plain]) == ["lr-SGD/pg1", "lr-SGD/pg2"]
    named = SGD([{"params": [parameter()], "name": "body"}, {"params": [parameter()]}], lr=0.5)
    assert names([named]) == ["lr-SGD/body", "lr-SGD/pg2"]
    twice = SGD([{"params": [parameter()], "name": "body"}, {"params": [parameter()], "name": "body"}], lr=0.5)
    assert names([twice]) == ["lr-SGD/body", "lr-SGD/body-1"]
    growing = sgd()
    trainer = trainer_of(LearningRateMonitor("epoch"), [growing])
    train(trainer, num_epochs=1)
    growing.add_param_group({"params": [parameter()], "lr": 0.1})
    rows = train(trainer, num_epochs=1, starts=False)
    assert {name: len(rates) for name, rates in trainer.callbacks[0].lrs.items()} == {"lr-SGD/pg1": 2, "lr-SGD/pg2": 1}
    assert [list(metrics) for _, metrics in rows] == [["lr-SGD"], ["lr-SGD/pg1", "lr-SGD/pg2"]]


def test_momentum_and_weight_decay_are_logged_on_request() -> None:
    optimizers = [sgd(momentum=0.75, weight_decay=0.5), Adam([parameter()], betas=(0.5, 0.9)), Plain([parameter()])]
    callback = LearningRateMonitor("epoch", log_momentum=True, log_weight_decay=True)
    trainer = trainer_of(callback, optimizers)
    _, metrics = train(trainer)[0]
    assert {name: float(value) for name, value in trainer.callback_metrics.items()} == pytest.approx(metrics)
    assert metrics == {
        "lr-SGD": 0.5,
        "lr-SGD-momentum": 0.75,
        "lr-SGD-weight_decay": 0.5,
        "lr-Adam": 0.001,
        "lr-Adam-momentum": 0.5,
        "lr-Adam-weight_decay": 0.0,
        "lr-Plain": 1.0,
        "lr-Plain-momentum": 0.0,
    }
    assert callback.last_momentum_values == {"lr-SGD-momentum": 0.75, "lr-Adam-momentum": 0.5, "lr-Plain-momentum": 0.0}
    assert callback.last_weight_decay_values["lr-SGD-weight_decay"] == 0.5


class Plain(Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": torch.tensor(1.0)})


def test_momentum_that_no_optimizer_has_warns() -> None:
    trainer = trainer_of(LearningRateMonitor(log_momentum=True), [Plain([parameter()])])
    with pytest.warns(RuntimeWarning, match="`log_momentum` is set, but an optimizer has no momentum"):
        train(trainer)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(
        InvalidArgumentError, match="`logging_interval` must be 'step', 'epoch' or None, but got 'batch'"
    ):
        LearningRateMonitor("batch")
    trainer = RecordingTrainer(".", callbacks=[LearningRateMonitor()])
    with pytest.raises(InvalidArgumentError, match=r"`logger` must be set on the trainer, .* but got None"):
        trainer.begin()
    trainer.begin("test")


@pytest.mark.parametrize("stop", range(5))
def test_going_on_logs_what_was_not_logged_yet(stop: int) -> None:
    """Each update is one of two batches, of which the first is logged before it."""

    def run(trainer: RecordingTrainer, batches: range) -> Rows:
        callback = trainer.callbacks[0]
        callback.on_train_start(trainer, None)
        for batch_idx in batches:
            callback.on_train_batch_start(trainer, None, None, batch_idx)
            trainer.train_batch(batch_idx, is_update=batch_idx % 2 == 1)
        rows: Rows = trainer.loggers[0].rows
        return rows

    one, other = LearningRateMonitor(), LearningRateMonitor()
    earlier, later = trainer_of(one, [sgd()]), trainer_of(other, [sgd()])
    rows = run(earlier, range(stop))
    buffer = io.BytesIO()
    torch.save(one.state_dict(), buffer)
    other.load_state_dict(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True))
    later.global_step = earlier.global_step
    rows += run(later, range(stop, 6))
    assert [step for step, _ in rows] == [0, 1, 2]
    assert other.lrs == {"lr-SGD": [0.5, 0.5, 0.5]}
    assert LearningRateMonitor("step").state_key != one.state_key
