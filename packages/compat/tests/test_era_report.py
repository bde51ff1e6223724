from __future__ import annotations

import pytest

from camshaft.compat.eras import describe, read_era
from camshaft.hooks_core import CATALOGUE, Receiver


class Gan:
    def training_step(self, batch, batch_nb, optimizer_i):
        return {"loss": batch, "log": {"loss": batch}}

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_idx, second_order_closure=None):
        optimizer.step()

    def on_epoch_start(self): ...

    def on_batch_start(self, batch): ...

    def validation_end(self, outputs): ...

    def on_post_performance_check(self): ...


class Watching:
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx): ...

    def on_keyboard_interrupt(self, trainer, pl_module): ...


def test_it_says_what_was_found_and_how_it_is_called() -> None:
    assert describe(read_era(Gan, Receiver.MODULE, CATALOGUE)).splitlines() == [
        "Gan is taken for a module of era 0.8. What is called as there:",
        "  on_batch_start(batch): just before on_train_batch_start",
        "  on_epoch_start(): just before on_train_epoch_start",
        "  on_post_performance_check(): just after on_validation_end and on_test_end",
        "  optimizer_step(epoch, batch_idx, optimizer, optimizer_idx, optimizer_closure): after backward, for each "
        "optimizer",
        "  training_step(batch, batch_idx, optimizer_idx): for each optimizer",
        "  validation_end(outputs): as validation_epoch_end, its later name",
        "  what a step or an epoch's end returns as `log` and `progress_bar` is logged",
        "  gradients are zeroed after the update",
        "  on_train_start comes before the sanity check",
        'If it was written for another release, name that in the class: `hook_era = "..."`.',
    ]


def test_a_callback_has_no_order_of_its_own() -> None:
    assert describe(read_era(Watching, Receiver.CALLBACK, CATALOGUE)).splitlines() == [
        "Watching is taken for a callback of era 1.x. What is called as there:",
        "  on_keyboard_interrupt(trainer, module): just before on_exception if the user interrupts",
        "  on_train_batch_end(trainer, module, outputs, batch, batch_idx, dataloader_idx): after a training batch and "
        "its update",
        'If it was written for another release, name that in the class: `hook_era = "..."`.',
    ]


def test_what_is_declared_is_not_asked_for() -> None:
    class Declared:
        hook_era = "1.1.8"

        def training_epoch_end(self, outputs): ...

    assert describe(read_era(Declared, Receiver.MODULE, CATALOGUE)).splitlines() == [
        f"{Declared.__qualname__} is declared to be a module of era 1.1.8. What is called as there:",
        "  training_epoch_end(outputs): when a training epoch ends, with what its steps returned",
        "  gradients are zeroed after the update",
        "  a training epoch ends before the validation at its end",
    ]


def test_an_update_of_1_x_has_its_closure() -> None:
    class Stepping:
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_idx, optimizer_closure): ...

    text = describe(read_era(Stepping, Receiver.MODULE, CATALOGUE))
    assert "): for each optimizer; its closure runs training_step and backward\n" in text


@pytest.mark.parametrize("receiver", [type("Today", (), {}), type("Declared", (), {"hook_era": "2.x"})])
def test_there_is_nothing_to_say_of_today(receiver: type) -> None:
    assert describe(read_era(receiver, Receiver.MODULE, CATALOGUE)) == ""
