"""Rows that the metric log sends to loggers, and their steps."""

from __future__ import annotations

import torch
from metric_log_parts import Rig


def test_training_steps_are_sent_every_so_many_updates_for_the_index_of_the_update() -> None:
    rig = Rig(log_every_n_steps=2)
    rig.start_training()
    for value in range(5):
        rig.batch(torch.ones(2))
        rig.log("loss", torch.tensor(float(value)))
        rig.log("rate", 0.1)
        rig.end_batch()
    assert rig.logger.rows == [(1, {"loss": 1.0, "rate": 0.1, "epoch": 0}), (3, {"loss": 3.0, "rate": 0.1, "epoch": 0})]


def test_batches_that_do_not_update_are_not_counted() -> None:
    rig = Rig(log_every_n_steps=2)
    rig.start_training()
    for batch_idx in range(8):
        rig.log("loss", float(batch_idx))
        rig.end_batch(is_update=batch_idx % 2 == 1)
    assert [(step, row["loss"]) for step, row in rig.logger.rows] == [(1, 3.0), (3, 7.0)]


def test_several_updates_in_one_batch_do_not_miss_the_interval() -> None:
    rig = Rig(log_every_n_steps=2)
    rig.start_training()
    for batch_idx in range(3):
        rig.log("loss", float(batch_idx))
        rig.progress.global_step += 2
        rig.end_batch()
    assert [step for step, _ in rig.logger.rows] == [2, 5, 8]


def test_a_resumed_run_keeps_to_the_multiples_of_the_interval() -> None:
    rig = Rig(log_every_n_steps=10)
    rig.progress.global_step = 25
    rig.start_training()
    for _ in range(10):
        rig.log("loss", 1.0)
        rig.end_batch()
    assert [step for step, _ in rig.logger.rows] == [29]


def test_an_interval_of_zero_sends_epochs_only() -> None:
    rig = Rig(log_every_n_steps=0)
    rig.start_training()
    for _ in range(3):
        rig.log("loss", 1.0, on_epoch=True)
        rig.end_batch()
    rig.end_epoch()
    assert rig.logger.rows == [(2, {"loss_epoch": 1.0, "epoch": 0})]


def test_a_value_is_sent_only_if_it_was_logged_since_the_last_time() -> None:
    rig = Rig(log_every_n_steps=2)
    rig.start_training()
    for batch_idx in range(6):
        rig.log("always", 1.0)
        if batch_idx in (0, 5):
            rig.log("sometimes", 2.0)
        rig.end_batch()
    assert ["sometimes" in row for _, row in rig.logger.rows] == [True, False, True]
    assert float(rig.metrics.callback_metrics["sometimes"]) == 2.0


def test_values_that_are_not_meant_for_loggers_are_not_sent() -> None:
    rig = Rig(log_every_n_steps=1)
    rig.start_training()
    rig.log("shown", 1.0, logger=False, prog_bar=True, on_epoch=True)
    rig.end_batch()
    assert rig.end_epoch() == [{}]
    assert rig.logger.rows == []
    assert rig.metrics.logged_metrics == {}
    assert rig.metrics.progress_bar_metrics == {"shown_step": 1.0, "shown_epoch": 1.0}


def test_a_value_called_step_takes_the_place_of_the_step() -> None:
    rig = Rig()
    rig.start_evaluation()
    rig.batch(torch.ones(1))
    rig.log("step", 7.0)
    rig.log("loss", 1.0)
    rig.end_epoch()
    assert rig.logger.rows == [(7, {"loss": 1.0})]


def test_loggers_are_saved_after_an_epoch() -> None:
    rig = Rig(log_every_n_steps=1)
    rig.start_training()
    rig.log("loss", 1.0, on_epoch=True)
    rig.end_batch()
    assert rig.logger.num_saves == 0
    rig.end_epoch()
    assert rig.logger.num_saves == 1


def test_evaluation_by_itself_is_logged_for_the_number_of_updates_so_far() -> None:
    rig = Rig()
    rig.progress.global_step, rig.progress.current_epoch = 8, 2
    rig.start_evaluation("test")
    rig.batch(torch.ones(1))
    rig.log("loss", 1.0)
    rig.end_epoch()
    assert rig.logger.rows == [(8, {"loss": 1.0, "epoch": 2})]


def test_evaluation_batches_are_counted_per_loader_and_on_through_epochs() -> None:
    rig = Rig()
    for _ in range(2):
        rig.start_evaluation(num_dataloaders=2)
        for dataloader_idx, value in ((0, 0.0), (0, 1.0), (1, 2.0)):
            rig.batch(torch.ones(2), dataloader_idx)
            rig.log("loss", torch.tensor(value), on_step=True, on_epoch=True)
        rig.end_epoch()
    first, second = "loss_step/dataloader_idx_0", "loss_step/dataloader_idx_1"
    epoch = (0, {"loss_epoch/dataloader_idx_0": 0.5, "loss_epoch/dataloader_idx_1": 2.0, "epoch": 0})
    assert rig.logger.rows == [
        (0, {first: 0.0}),
        (1, {first: 1.0}),
        (0, {second: 2.0}),
        epoch,
        (2, {first: 0.0}),
        (3, {first: 1.0}),
        (1, {second: 2.0}),
        epoch,
    ]


def test_long_evaluations_are_sent_in_blocks() -> None:
    rig = Rig()
    rig.start_evaluation()
    for value in range(200):
        rig.batch(torch.ones(1))
        rig.log("loss", torch.tensor(float(value)), on_step=True)
    assert 0 < len(rig.logger.rows) < 200
    rig.end_epoch()
    assert rig.logger.rows[:200] == [(value, {"loss_step": float(value)}) for value in range(200)]


def test_discarded_batches_are_not_counted() -> None:
    rig = Rig()
    for keep in (False, True):
        rig.start_evaluation()
        rig.batch(torch.ones(1))
        rig.log("loss", 1.0, on_step=True, on_epoch=False)
        rig.end_epoch() if keep else rig.metrics.discard()
    assert rig.logger.rows == [(0, {"loss": 1.0})]


def test_a_fit_is_logged_as_users_of_lightning_expect() -> None:
    """The rows that Lightning 2.6 writes for the same calls; only evaluation batches are numbered by what they log."""
    rig = Rig(log_every_n_steps=2)
    for epoch in range(2):
        rig.progress.current_epoch = epoch
        rig.start_training()
        for batch_idx in range(4):
            rig.batch(torch.ones(2))
            rig.log("loss", float(4 * epoch + batch_idx), on_epoch=True)
            rig.log("rate", 0.5)
            rig.end_batch()
        rig.start_evaluation()
        for value in (1.0, 2.0):
            rig.batch(torch.ones(2))
            rig.log("val_loss", value, on_step=True, on_epoch=True)
        rig.metrics.moment = "epoch"
        rig.log("val_whole", 3.0)
        rig.end_epoch()
        rig.metrics.enter("train", "epoch")
        rig.log("whole", 4.0)
        rig.end_epoch()
    assert rig.logger.rows == [
        (1, {"loss_step": 1.0, "rate": 0.5, "epoch": 0}),
        (3, {"loss_step": 3.0, "rate": 0.5, "epoch": 0}),
        (0, {"val_loss_step": 1.0}),
        (1, {"val_loss_step": 2.0}),
        (3, {"val_loss_epoch": 1.5, "val_whole": 3.0, "epoch": 0}),
        (3, {"loss_epoch": 1.5, "whole": 4.0, "epoch": 0}),
        (5, {"loss_step": 5.0, "rate": 0.5, "epoch": 1}),
        (7, {"loss_step": 7.0, "rate": 0.5, "epoch": 1}),
        (2, {"val_loss_step": 1.0}),
        (3, {"val_loss_step": 2.0}),
        (7, {"val_loss_epoch": 1.5, "val_whole": 3.0, "epoch": 1}),
        (7, {"loss_epoch": 5.5, "whole": 4.0, "epoch": 1}),
    ]
