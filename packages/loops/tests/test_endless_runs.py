"""Runs that would never end."""

from __future__ import annotations

from typing import Any

import pytest
from bare_parts import BareStrategy, BareTrainer, Net, Sized, hooked, make_batches, seeded

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

MESSAGE = r"`training_step` must return a loss in some batch of each epoch, where nothing else can end training \({}\)"


class Without(Net):
    """Has a loss in the first epochs, and none from then on."""

    num_epochs_with = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch) if trainer_of(self).progress.current_epoch < self.num_epochs_with else None


def trainer_of(module: Any) -> Any:
    return vars(module)["its_trainer"]


def fit(module: Any, **arguments: Any) -> BareTrainer:
    trainer = BareTrainer(module, **arguments)
    vars(module)["its_trainer"] = trainer
    return trainer.fit(Sized(make_batches(3)))


@pytest.mark.parametrize("num_epochs_with", [0, 2])
@pytest.mark.parametrize(
    ("arguments", "limits"),
    [({"max_epochs": -1}, "max_epochs=-1, max_steps=-1"), ({"max_steps": 10}, "max_epochs=None, max_steps=10")],
)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_epoch_without_any_loss_is_an_error_where_only_updates_could_end_the_run(
    num_epochs_with: int, arguments: dict[str, Any], limits: str, accumulate: int
) -> None:
    module = seeded(Without)
    module.num_epochs_with = num_epochs_with
    message = f"{MESSAGE.format(limits)}, but got no update in epoch {num_epochs_with} in Without"
    with pytest.raises(RuntimeError, match=message):
        fit(module, accumulate_grad_batches=accumulate, **arguments)
    assert trainer_of(module).progress.current_epoch == num_epochs_with + 1


def test_an_epoch_without_any_step_is_one_under_manual_optimization() -> None:
    class ByHand(Net):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.loss(batch).backward()

    message = r"`training_step` must step an optimizer in some batch of each epoch, .* in .*ByHand\. Step one of"
    with pytest.raises(RuntimeError, match=message):
        fit(seeded(ByHand), max_steps=5)


def stop(trainer: Any, module: Any) -> None:
    if trainer.progress.current_epoch == 2:
        trainer.fit_loop.should_stop = True


class Stopping(Without):
    def on_train_epoch_end(self) -> None:
        if trainer_of(self).progress.current_epoch == 2:
            trainer_of(self).fit_loop.should_stop = True


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (Without, {"max_epochs": 3}),
        (Without, {"max_time": {"seconds": 0.2}}),
        (Without, {"max_epochs": -1, "callbacks": [hooked(on_train_epoch_end=stop)]}),
        (Stopping, {"max_epochs": -1}),
    ],
)
def test_what_something_else_may_end_goes_on_without_a_loss(make: Any, arguments: dict[str, Any]) -> None:
    trainer = fit(seeded(make), **arguments)
    assert trainer.global_step == 0
    assert trainer.progress.current_epoch >= 3


def test_updates_that_overflow_go_on() -> None:
    class Overflowing(BareStrategy):
        """Skips the updates of the first two epochs."""

        num_steps = 0

        @property
        def has_skipped_step(self) -> bool:  # type: ignore[override]
            return self.num_steps <= 6

        def optimizer_step(self, optimizer: Any, closure: Any = None) -> Any:
            self.num_steps += 1
            return None if self.has_skipped_step else super().optimizer_step(optimizer, closure)

    trainer = fit(seeded(), strategy=Overflowing(), max_steps=4)
    assert (trainer.global_step, trainer.strategy.num_steps) == (4, 10)


def test_an_epoch_whose_batches_are_skipped_is_none_without_updates() -> None:
    def skip(trainer: Any, module: Any, batch: Any, batch_idx: int) -> int | None:
        return -1 if trainer.progress.current_epoch == 0 else None

    assert fit(seeded(), callbacks=[hooked(on_train_batch_start=skip)], max_steps=3).global_step == 3


def test_the_rest_of_an_epoch_after_a_resume_may_be_without_updates() -> None:
    class Half(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(batch) if batch_idx == 0 else None

    def save(trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            trainer.save_checkpoint("inside")

    saved = fit(seeded(Half), callbacks=[hooked(on_train_batch_end=save)], max_epochs=1).load("inside")
    trainer = BareTrainer(seeded(Half), max_steps=3, stateless_loaders="fast_forward")
    assert trainer.fit(Sized(make_batches(3)), checkpoint=saved).global_step == 3
