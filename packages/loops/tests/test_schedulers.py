"""When learning-rate schedulers step, and with what."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Net, Sized, StepsByHand, hooked, make_batches, seeded, sgd
from recording_sink import RecordingSink
from torch.optim.lr_scheduler import ReduceLROnPlateau

from camshaft.hooks_core.protocols import MetricSink

pytestmark = pytest.mark.filterwarnings("ignore:There is a `validation_step`")

_: MetricSink = RecordingSink()


class Counting:
    """A scheduler that notes the number of updates at each of its steps, and what it got."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []
        self.trainer: Any = None

    def step(self, *metric: Any) -> None:
        self.steps.append((self.trainer.progress.current_epoch, self.trainer.global_step, *metric))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def fit(settings: dict[str, Any], *, callbacks: Any = (), metrics: Any = None, net: Any = Net, **arguments: Any) -> Any:
    scheduler = Counting()

    def configure(module: Any) -> Any:
        return {"optimizer": sgd(module), "lr_scheduler": {"scheduler": scheduler, **settings}}

    trainer = BareTrainer(
        seeded(net, configure), callbacks=callbacks, metrics=metrics, **{"max_epochs": 2, **arguments}
    )
    scheduler.trainer = trainer
    trainer.fit(Sized(make_batches(3)), Sized(make_batches(1)))
    return scheduler.steps


def test_by_default_it_steps_after_each_epoch() -> None:
    assert fit({}) == [(0, 3), (1, 6)]


def test_by_epoch_with_a_frequency() -> None:
    assert fit({"frequency": 2}, max_epochs=5) == [(1, 6), (3, 12)]


def test_by_update() -> None:
    assert fit({"interval": "step"}) == [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (1, 6)]


def test_by_update_with_a_frequency_that_goes_on_across_epochs() -> None:
    assert fit({"interval": "step", "frequency": 2}) == [(0, 2), (1, 4), (1, 6)]


def test_by_update_counts_updates_and_not_batches() -> None:
    assert fit({"interval": "step"}, accumulate_grad_batches=2) == [(0, 1), (0, 2), (1, 3), (1, 4)]


def test_an_epoch_that_is_skipped_counts_and_one_that_training_leaves_does_not() -> None:
    callback = hooked(on_train_batch_start=lambda trainer, module, batch, batch_idx: -1 if batch_idx == 1 else None)
    assert fit({}, callbacks=[callback]) == [(0, 1), (1, 2)]
    assert fit({}, max_steps=4) == [(0, 3)]
    assert fit({}, max_steps=6) == [(0, 3), (1, 6)]


def test_a_batch_without_a_loss_is_no_step() -> None:
    class Skipping(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None if batch_idx == 1 else self.loss(batch)

    assert fit({"interval": "step"}, net=Skipping, max_epochs=1) == [(0, 1), (0, 2)]


@pytest.mark.parametrize(("interval", "expected"), [("epoch", [(0, 3, 5.0)]), ("step", [(0, 3, 5.0)])])
def test_what_it_monitors_is_read_after_validation(interval: str, expected: list[Any]) -> None:
    sink = RecordingSink()
    callback = hooked(on_validation_end=lambda *_: sink.values.update(val_loss=torch.tensor(5.0)))
    settings = {"monitor": "val_loss", "interval": interval, "frequency": 1 if interval == "epoch" else 3}
    assert fit(settings, callbacks=[callback], metrics=sink, max_epochs=1) == expected


def test_a_scheduler_on_plateau_lowers_the_learning_rate() -> None:
    def configure(module: Any) -> Any:
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}

    sink = RecordingSink(val_loss=torch.tensor(1.0))
    trainer = BareTrainer(seeded(Net, configure), metrics=sink, max_epochs=3)
    trainer.fit(Sized(make_batches(1)))
    assert trainer.fit_loop.optimization.optimizers[0].param_groups[0]["lr"] == 0.25


def test_of_two_by_update_only_the_one_that_monitors_waits_for_validation() -> None:
    schedulers, order = [Counting(), Counting()], []

    def configure(module: Any) -> Any:
        monitored = {"scheduler": schedulers[0], "interval": "step", "monitor": "loss"}
        return [sgd(module)], [monitored, {"scheduler": schedulers[1], "interval": "step"}]

    schedulers[0].step = lambda metric: order.append("monitored")
    schedulers[1].step = lambda: order.append("plain")
    callback = hooked(
        on_train_batch_end=lambda *_: order.append("batch end"), on_validation_end=lambda *_: order.append("validation")
    )
    sink = RecordingSink(loss=torch.tensor(1.0))
    trainer = BareTrainer(
        seeded(Net, configure), callbacks=[callback], metrics=sink, max_epochs=1, val_check_interval=2
    )
    trainer.fit(Sized(make_batches(2)), Sized(make_batches(1)))
    assert order == ["plain", "batch end", "monitored", "plain", "batch end", "validation", "monitored"]


def test_an_override_steps_in_its_place() -> None:
    class Own(Net):
        def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
            scheduler.step("own", metric)

    assert fit({}, net=Own, max_epochs=1) == [(0, 3, "own", None)]
    sink = RecordingSink(loss=torch.tensor(2.0))
    assert fit({"monitor": "loss"}, net=Own, metrics=sink, max_epochs=1) == [(0, 3, "own", torch.tensor(2.0))]


@pytest.mark.parametrize(("metrics", "logged"), [(None, "nothing was logged"), ("sink", "loss")])
def test_a_monitored_value_that_nobody_logged_is_an_error(metrics: Any, logged: str) -> None:
    sink = RecordingSink(loss=torch.tensor(1.0)) if metrics else None
    message = rf"`monitor` must be a logged value \({logged}\), but got 'val_loss' \(str\) in .* of Counting"
    with pytest.raises(LookupError, match=message):
        fit({"monitor": "val_loss"}, metrics=sink)


def test_a_monitored_value_that_nobody_logged_is_a_warning_if_it_is_not_strict() -> None:
    with pytest.warns(UserWarning, match="`monitor` must be a logged value"):
        assert fit({"monitor": "val_loss", "strict": False}, metrics=RecordingSink()) == []


@pytest.mark.parametrize("interval", ["epoch", "step"])
def test_who_optimizes_by_hand_steps_schedulers_by_hand(interval: str) -> None:
    module = type("Own", (StepsByHand,), {"interval": interval})()
    trainer = BareTrainer(module, max_epochs=1).fit(Sized(make_batches(3)))
    assert trainer.fit_loop.optimization.schedulers[0].interval == interval
    assert module.optimizer.param_groups[0]["lr"] == 1.0


def test_a_scheduler_on_plateau_needs_no_monitor_where_the_module_steps_it() -> None:
    class OnPlateau(StepsByHand):
        def configure_optimizers(self) -> Any:
            self.optimizer = sgd(self)
            self.plateau = ReduceLROnPlateau(self.optimizer, factor=0.5, patience=0)
            return {"optimizer": self.optimizer, "lr_scheduler": self.plateau}

        def training_step(self, batch: Any, batch_idx: int) -> None:
            super().training_step(batch, batch_idx)
            self.plateau.step(1.0)

    module = seeded(OnPlateau)
    BareTrainer(module, max_epochs=1).fit(Sized(make_batches(3)))
    assert module.optimizer.param_groups[0]["lr"] == 0.1 / 4


def test_what_an_optimizers_monitor_names_reaches_its_scheduler_on_plateau() -> None:
    def configure(module: Any) -> Any:
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": plateau, "monitor": "val_loss"}

    trainer = BareTrainer(seeded(Net, configure), metrics=RecordingSink(val_loss=torch.tensor(1.0)), max_epochs=3)
    trainer.fit(Sized(make_batches(1)))
    assert trainer.fit_loop.optimization.optimizers[0].param_groups[0]["lr"] == 0.25


def test_a_value_is_no_epoch_for_schedulers_that_are_not_of_plateaus() -> None:
    class ByEpochs(Counting):
        def step(self, epoch: int, metric: Any = None) -> None:  # type: ignore[override]
            self.steps.append((epoch, metric))

    class Own(Net):
        def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
            scheduler.step(7, metric)

    scheduler = ByEpochs()

    def configure(module: Any) -> Any:
        return {"optimizer": sgd(module), "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}

    sink = RecordingSink(val_loss=torch.tensor(1.0))
    BareTrainer(seeded(Own, configure), metrics=sink, max_epochs=1).fit(Sized(make_batches(1)))
    assert scheduler.steps == [(7, None)]


def test_a_step_that_asks_for_more_is_an_error_before_training_unless_a_hook_steps_it() -> None:
    class ByEpochs(Counting):
        def step(self, epoch: int) -> None:  # type: ignore[override]
            self.steps.append((epoch,))

    def configure(module: Any) -> Any:
        return [sgd(module)], [ByEpochs()]

    trainer = BareTrainer(seeded(Net, configure), max_epochs=1)
    with pytest.raises(TypeError, match=r"`step` must be callable without arguments, but got .step\(epoch: .*Override"):
        trainer.fit(Sized(make_batches(1)))
    assert trainer.progress.total_batches == 0


def test_nothing_warns_where_everything_is_as_it_should_be() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit({"interval": "step"})
