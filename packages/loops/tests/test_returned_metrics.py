"""Values that steps and epoch ends return are logged beside those that the module logs itself."""

from __future__ import annotations

import torch
from metric_log_parts import Rig


def test_what_a_training_step_returned_is_sent_at_the_logging_interval() -> None:
    rig = Rig(log_every_n_steps=2)
    rig.start_training()
    for value in (1.0, 2.0, 3.0, 4.0):
        rig.batch()
        rig.metrics.log_returned({"loss": torch.tensor(value)}, logger=True, prog_bar=False)
        rig.end_batch()
    assert rig.logger.rows == [(1, {"loss": 2.0, "epoch": 0}), (3, {"loss": 4.0, "epoch": 0})]


def test_readers_of_a_name_are_those_of_all_that_was_returned_for_it() -> None:
    rig = Rig(log_every_n_steps=1)
    rig.start_training()
    for logger, prog_bar in ((False, False), (True, False), (False, True), (False, False)):
        rig.metrics.log_returned({"loss": 1.5}, logger=logger, prog_bar=prog_bar)
    assert rig.metrics.progress_bar_metrics == {"loss": 1.5} and rig.metrics.callback_metrics["loss"] == 1.5
    rig.end_batch()
    assert rig.logger.rows == [(0, {"loss": 1.5, "epoch": 0})]


def test_an_epochs_end_may_return_a_name_that_steps_returned() -> None:
    rig = Rig(log_every_n_steps=1)
    rig.start_training()
    rig.metrics.log_returned({"loss": 1.0}, logger=True, prog_bar=True)
    rig.end_batch()
    rig.metrics.moment = "epoch"
    rig.metrics.log_returned({"loss": 3.0, "step": 7}, logger=True, prog_bar=False)
    rig.end_epoch()
    assert rig.logger.rows == [(0, {"loss": 1.0, "epoch": 0}), (7, {"loss": 3.0})]
    assert rig.metrics.callback_metrics["loss"] == 3.0


def test_what_the_module_logs_itself_for_an_epoch_is_not_mixed_with_what_its_end_returns() -> None:
    rig = Rig()
    rig.start_evaluation()
    for value in (1.0, 2.0):
        rig.batch(torch.ones(2))
        rig.log("val_loss", value)
    rig.metrics.moment = "epoch"
    rig.metrics.log_returned({"val_loss": 10.0, "other": 1.0}, logger=True, prog_bar=True)
    assert rig.end_epoch() == [{"val_loss": 1.5, "other": 1.0}]


def test_what_evaluation_steps_return_is_averaged_over_the_batches() -> None:
    rig = Rig()
    rig.start_evaluation()
    for size, value, readers in ((1, 1.0, (True, False)), (3, 2.0, (False, True))):
        rig.batch(torch.ones(size))
        rig.metrics.log_returned({"acc": value}, logger=readers[0], prog_bar=readers[1])
    assert rig.end_epoch() == [{"acc": 1.5}]
