"""Without a metric log, the last values are kept and the calls are checked alike."""

from __future__ import annotations

import pytest
import torch
import torchmetrics

from camshaft.loops.metrics import StandaloneLog


def test_the_last_value_of_each_name_is_kept() -> None:
    log = StandaloneLog()
    weight = torch.tensor(2.0, requires_grad=True)
    log.log("loss", weight * 3)
    log.log("loss", weight * 4)
    log.log("rate", 0.1, on_step=False, on_epoch=True)
    log.log("rate", 0.2)
    assert log.logged_metrics == {"loss": torch.tensor(8.0), "rate": 0.2}
    assert not log.logged_metrics["loss"].requires_grad


def test_a_value_does_not_change_with_its_tensor() -> None:
    log = StandaloneLog()
    total = torch.tensor(1.0)
    log.log("total", total)
    total.add_(1)
    assert log.logged_metrics == {"total": torch.tensor(1.0)}


def test_a_metric_counts_as_what_it_gave_for_the_batch_or_else_computes() -> None:
    log = StandaloneLog()
    metric = torchmetrics.MeanMetric()
    metric.update(torch.tensor(1.0))
    log.log("mean", metric)
    assert log.logged_metrics == {"mean": torch.tensor(1.0)}
    metric(torch.tensor(3.0))
    log.log("mean", metric)
    assert log.logged_metrics == {"mean": torch.tensor(3.0)}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"value": "a"}, TypeError, "`value` must be a number"),
        ({"value": torch.ones(2)}, ValueError, "Reduce it first"),
        ({"value": 1.0, "on_step": False, "on_epoch": False}, ValueError, "`on_step or on_epoch` must be True"),
        ({"value": 1.0, "on_epoch": True, "reduce_fx": "median"}, ValueError, "`reduce_fx` must be 'mean'"),
        ({"value": 1.0, "batch_size": "2"}, TypeError, "`batch_size` must be a number"),
    ],
)
def test_calls_are_checked_as_in_a_run(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        StandaloneLog().log("x", **arguments)
