"""Logging torchmetrics objects: the batch's value to the step, what they compute to the epoch, reset at its end."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torchmetrics
from metric_log_parts import Rig
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score, MulticlassPrecision

from camshaft.loops.metrics import MetricLogging


class Logging(MetricLogging, torch.nn.Module):
    """A module of one's own."""


def test_a_metric_gives_the_batchs_value_to_the_step_and_its_own_to_the_epoch() -> None:
    rig = Rig(log_every_n_steps=1)
    metric = torchmetrics.MeanMetric()
    rig.start_training()
    for value, weight in ((1.0, 3), (5.0, 1)):
        rig.batch(torch.ones(2))
        metric(torch.tensor(value), torch.tensor(weight))
        rig.log("mean", metric, on_step=True, on_epoch=True, prog_bar=True)
        rig.end_batch()
        assert rig.metrics.progress_bar_metrics == {"mean_step": value}
    assert rig.end_epoch() == [{"mean_epoch": 2.0}]
    assert [row for _, row in rig.logger.rows] == [
        {"mean_step": 1.0, "epoch": 0},
        {"mean_step": 5.0, "epoch": 0},
        {"mean_epoch": 2.0, "epoch": 0},
    ]


def test_a_metric_is_reset_when_its_epoch_ends_and_not_before() -> None:
    rig = Rig()
    metric = torchmetrics.MeanMetric()
    for value in (1.0, 5.0):
        rig.start_evaluation()
        rig.batch(torch.ones(2))
        metric.update(torch.tensor(value))
        rig.log("mean", metric)
        rig.metrics.moment = "epoch"
        assert float(rig.metrics.callback_metrics["mean"]) == value
        assert metric.update_count == 1
        assert rig.end_epoch() == [{"mean": value}]
        assert metric.update_count == 0
        assert float(rig.metrics.callback_metrics["mean"]) == value


def test_a_metric_that_is_logged_for_steps_only_is_reset_too() -> None:
    rig = Rig()
    metric = torchmetrics.MeanMetric()
    rig.start_training()
    metric(torch.tensor(1.0))
    rig.log("mean", metric)
    assert rig.end_epoch() == [{}]
    assert metric.update_count == 0


def test_an_epoch_that_was_cut_off_is_reset_when_the_next_one_starts() -> None:
    rig = Rig()
    metric = torchmetrics.MeanMetric()
    rig.start_training()
    metric(torch.tensor(1.0))
    rig.log("mean", metric, on_step=False, on_epoch=True)
    rig.start_training()
    assert metric.update_count == 0


def test_a_metric_computes_once_for_an_epoch() -> None:
    class Counting(torchmetrics.MeanMetric):
        num_computed = 0

        def compute(self) -> torch.Tensor:
            type(self).num_computed += 1
            return super().compute()

    rig = Rig()
    metric = Counting()
    rig.start_evaluation()
    for value in (1.0, 2.0):
        metric.update(torch.tensor(value))
        rig.log("mean", metric)
    rig.metrics.moment = "epoch"
    for _ in range(3):
        assert float(rig.metrics.callback_metrics["mean"]) == 1.5
    rig.end_epoch()
    assert Counting.num_computed == 1


def test_an_updated_metric_has_no_value_for_the_step() -> None:
    rig = Rig()
    metric = torchmetrics.MeanMetric()
    rig.start_training()
    metric.update(torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"`value` must be a metric that was called with the batch.*Call `metric\("):
        rig.log("mean", metric)


def test_a_metric_that_computes_several_numbers_is_refused() -> None:
    rig = Rig()
    metric = MulticlassAccuracy(3, average=None)
    rig.start_evaluation()
    metric.update(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 1]))
    rig.log("accuracy", metric)
    with pytest.raises(ValueError, match="`value` must be a metric that computes one number"):
        rig.end_epoch()


def test_a_name_stands_for_one_metric() -> None:
    rig = Rig()
    rig.start_evaluation()
    rig.log("mean", torchmetrics.MeanMetric())
    with pytest.raises(ValueError, match="`value` must be the same metric in every call of an epoch"):
        rig.log("mean", torchmetrics.MeanMetric())
    rig.log("number", 1.0, batch_size=1)
    with pytest.raises(TypeError, match="`value` must be a number or a tensor as at first"):
        rig.log("number", torchmetrics.MeanMetric(), batch_size=1)
    with pytest.raises(ValueError, match="`reduce_fx` must be left out for a metric"):
        rig.log("other", torchmetrics.MeanMetric(), reduce_fx="max")


@pytest.mark.parametrize("update_only", [False, True])
def test_a_collection_with_shared_states_is_logged_metric_by_metric(update_only: bool) -> None:
    metrics = [MulticlassAccuracy(3), MulticlassPrecision(3), MulticlassF1Score(3)]
    collection = torchmetrics.MetricCollection([metric.clone() for metric in metrics], prefix="val_")
    rig = Rig()
    module = Logging()
    rig.metrics.attach(module)
    for epoch in range(2):
        rig.start_evaluation()
        expected = torchmetrics.MetricCollection([metric.clone() for metric in metrics], prefix="val_")
        generator = torch.Generator().manual_seed(epoch)
        for _ in range(4):
            rig.batch(torch.ones(8))
            predicted, labels = torch.randint(3, (2, 8), generator=generator)
            expected.update(predicted, labels)
            (collection.update if update_only else collection)(predicted, labels)
            module.log_dict(collection)
        (result,) = rig.end_epoch()
        assert result == pytest.approx({name: float(value) for name, value in expected.compute().items()})
        assert set(result) == {"val_MulticlassAccuracy", "val_MulticlassPrecision", "val_MulticlassF1Score"}


def test_a_collection_is_logged_by_log_dict() -> None:
    rig = Rig()
    rig.start_evaluation()
    with pytest.raises(TypeError, match="Log each of its values with `log_dict`"):
        rig.log("all", torchmetrics.MetricCollection([torchmetrics.MeanMetric()]))


def test_torchmetrics_is_not_imported_by_the_log() -> None:
    code = "import sys, camshaft.loops.metrics.log; sys.exit('torchmetrics' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
