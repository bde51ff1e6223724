"""Published values of the metric log, and calls that it refuses."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from metric_log_parts import Position, Rig
from torch import nn

from camshaft.loops.metrics import MetricLog


def numbers(metrics: dict) -> dict:
    return {name: float(value) for name, value in metrics.items()}


def test_a_training_batch_logs_to_the_step_by_default(training: Rig) -> None:
    for value in (1.0, 3.0):
        training.batch(torch.ones(2))
        training.log("loss", torch.tensor(value))
    assert numbers(training.metrics.callback_metrics) == {"loss": 3.0}
    assert training.end_epoch() == [{}]
    assert numbers(training.metrics.callback_metrics) == {"loss": 3.0}


def test_an_evaluation_batch_logs_to_the_epoch_by_default(evaluating: Rig) -> None:
    for value in (1.0, 3.0):
        evaluating.batch(torch.ones(2))
        evaluating.log("loss", torch.tensor(value))
        assert evaluating.metrics.callback_metrics == {}
    assert evaluating.end_epoch() == [{"loss": 2.0}]
    assert numbers(evaluating.metrics.callback_metrics) == numbers(evaluating.metrics.logged_metrics) == {"loss": 2.0}


def test_logging_to_both_adds_suffixes_and_keeps_the_plain_name_for_callbacks(training: Rig) -> None:
    for value in (1.0, 3.0):
        training.batch(torch.ones(2))
        training.log("loss", torch.tensor(value), on_epoch=True, prog_bar=True)
        assert numbers(training.metrics.callback_metrics) == {"loss": value, "loss_step": value}
        assert training.metrics.progress_bar_metrics == {"loss_step": value}
    training.end_epoch()
    assert numbers(training.metrics.callback_metrics) == {"loss": 2.0, "loss_step": 3.0, "loss_epoch": 2.0}
    assert numbers(training.metrics.logged_metrics) == {"loss_step": 3.0, "loss_epoch": 2.0}
    assert training.metrics.progress_bar_metrics == {"loss_step": 3.0, "loss_epoch": 2.0}


def test_what_a_callback_sets_among_the_values_stays_until_it_is_logged(training: Rig) -> None:
    metrics = training.metrics
    metrics.callback_metrics["lr"] = torch.tensor(0.5)
    metrics.callback_metrics.update({"loss": 7.0}, time=1.0)
    assert numbers(metrics.callback_metrics) == {"lr": 0.5, "loss": 7.0, "time": 1.0}
    training.batch(torch.ones(2))
    training.log("loss", torch.tensor(2.0))
    assert numbers(metrics.callback_metrics) == {"lr": 0.5, "loss": 2.0, "time": 1.0}
    for copied in (copy.deepcopy(metrics.callback_metrics), pickle.loads(pickle.dumps(metrics.callback_metrics))):
        copied["lr"] = 1.0
        assert type(copied) is dict and numbers(metrics.callback_metrics)["lr"] == 0.5
    assert metrics.logged_metrics.keys() == {"loss"}


def test_the_running_epochs_values_can_be_read_at_its_end_before_it_is_over(training: Rig) -> None:
    for value in (1.0, 3.0):
        training.batch(torch.ones(2))
        training.log("loss", torch.tensor(value), on_epoch=True)
    training.metrics.moment = "epoch"
    training.log("accuracy", 0.5)
    assert numbers(training.metrics.callback_metrics) == {
        "loss": 2.0,
        "loss_step": 3.0,
        "loss_epoch": 2.0,
        "accuracy": 0.5,
    }
    assert numbers(training.metrics.logged_metrics) == {"loss_step": 3.0, "loss_epoch": 2.0, "accuracy": 0.5}


def test_a_new_epoch_starts_from_nothing_but_what_was_published_stays() -> None:
    rig = Rig()
    for values in ((1.0, 3.0), (10.0, 20.0)):
        rig.start_training()
        for value in values:
            rig.batch(torch.ones(2))
            rig.log("loss", torch.tensor(value), on_epoch=True)
        rig.end_epoch()
    assert numbers(rig.metrics.callback_metrics) == {"loss": 15.0, "loss_step": 20.0, "loss_epoch": 15.0}
    rig.start_training()
    rig.batch(torch.ones(2))
    rig.log("loss", torch.tensor(7.0), on_epoch=True)
    assert numbers(rig.metrics.callback_metrics) == {"loss": 7.0, "loss_step": 7.0, "loss_epoch": 15.0}


def test_validation_within_training_leaves_the_training_epoch_going(training: Rig) -> None:
    training.batch(torch.ones(2))
    training.log("loss", torch.tensor(1.0), on_epoch=True)
    training.start_evaluation()
    training.batch(torch.ones(2))
    training.log("loss_of_validation", torch.tensor(5.0))
    assert training.end_epoch() == [{"loss_of_validation": 5.0}]
    training.metrics.enter("train", "batch")
    training.batch(torch.ones(2))
    training.log("loss", torch.tensor(3.0), on_epoch=True)
    training.end_epoch()
    assert numbers(training.metrics.callback_metrics) == {
        "loss": 2.0,
        "loss_step": 3.0,
        "loss_epoch": 2.0,
        "loss_of_validation": 5.0,
    }


def test_each_of_several_loaders_has_names_and_results_of_its_own() -> None:
    rig = Rig()
    rig.start_evaluation(num_dataloaders=2)
    for dataloader_idx, value in ((0, 1.0), (1, 5.0), (0, 3.0)):
        rig.batch(torch.ones(2), dataloader_idx)
        rig.log("loss", torch.tensor(value))
        rig.log(f"own_{dataloader_idx}", value, add_dataloader_idx=False)
    rig.metrics.moment = "epoch"
    rig.log("all", 7.0)
    assert rig.end_epoch() == [
        {"loss/dataloader_idx_0": 2.0, "own_0": 2.0, "all": 7.0},
        {"loss/dataloader_idx_1": 5.0, "own_1": 5.0, "all": 7.0},
    ]


def test_loaders_must_not_share_a_name_without_their_index() -> None:
    rig = Rig()
    rig.start_evaluation(num_dataloaders=2)
    rig.batch(torch.ones(2), 0)
    rig.log("loss", 1.0, add_dataloader_idx=False)
    rig.batch(torch.ones(2), 1)
    with pytest.raises(ValueError, match=r"`add_dataloader_idx` must be True, or the name one of its own"):
        rig.log("loss", 1.0, add_dataloader_idx=False)


def test_discarding_leaves_no_trace() -> None:
    rig = Rig()
    metric = torchmetrics.MeanMetric()
    rig.start_evaluation()
    rig.batch(torch.ones(2))
    rig.log("loss", torch.tensor(1.0), on_step=True, on_epoch=True, prog_bar=True)
    metric(torch.tensor(4.0))
    rig.log("mean", metric)
    rig.metrics.discard()
    assert rig.metrics.callback_metrics == rig.metrics.logged_metrics == rig.metrics.progress_bar_metrics == {}
    assert rig.logger.rows == []
    assert metric.update_count == 0
    with pytest.raises(RuntimeError, match="`log` must be called in a hook or step"):
        rig.log("loss", 1.0)


def test_clearing_forgets_what_was_published_and_what_was_cut_off() -> None:
    rig = Rig()
    metric = torchmetrics.MeanMetric()
    rig.start_evaluation()
    rig.log("loss", 1.0, prog_bar=True)
    rig.end_epoch()
    rig.start_training()
    metric(torch.tensor(4.0))
    rig.log("mean", metric, prog_bar=True)
    rig.metrics.clear()
    assert rig.metrics.callback_metrics == rig.metrics.logged_metrics == rig.metrics.progress_bar_metrics == {}
    assert metric.update_count == 0
    rig.progress.global_step = 8
    rig.start_evaluation()
    rig.log("loss", 1.0)
    rig.end_epoch()
    assert rig.logger.rows[-1] == (8, {"loss": 1.0, "epoch": 0})


def test_a_mean_is_weighted_by_the_size_of_the_first_tensor_in_the_batch(evaluating: Rig) -> None:
    batches = [{"text": ["a"], "nested": [("b", torch.ones(3, 5))]}, {"nested": torch.ones(1, 7)}]
    for batch, value in zip(batches, (1.0, 5.0), strict=True):
        evaluating.batch(batch)
        evaluating.log("loss", torch.tensor(value))
        evaluating.log("given", torch.tensor(value), batch_size=2)
    assert evaluating.end_epoch() == [{"loss": 2.0, "given": 3.0}]


def test_a_batch_without_a_tensor_needs_a_batch_size(evaluating: Rig) -> None:
    evaluating.batch(["a", "b"])
    evaluating.log("largest", 1.0, reduce_fx="max")
    with pytest.raises(ValueError, match=r"`batch` must contain a tensor .* \(list\) in log\. Pass `batch_size`"):
        evaluating.log("loss", 1.0)


@pytest.mark.parametrize(
    ("batch_size", "error"),
    [
        (torch.ones(2), TypeError),
        (torch.tensor(-2), ValueError),
        ("2", TypeError),
        (-1, ValueError),
        (float("nan"), ValueError),
    ],
)
def test_a_batch_size_must_be_a_number(batch_size: object, error: type[Exception], evaluating: Rig) -> None:
    with pytest.raises(error, match="`batch_size` must be a number, 0 or more"):
        evaluating.log("loss", 1.0, batch_size=batch_size)


def test_a_batch_is_let_go_once_its_size_is_known(evaluating: Rig) -> None:
    batch = torch.ones(2)
    evaluating.batch(batch)
    evaluating.log("loss", 1.0)
    assert evaluating.metrics.batch.batch is None


def test_an_epochs_hooks_log_to_the_epoch_only() -> None:
    rig = Rig()
    rig.metrics.start_epoch("train")
    rig.log("rate", 0.5)
    with pytest.raises(
        ValueError, match=r"`on_step` must be False outside of a batch, but got True \(bool\) in log\('x'"
    ):
        rig.log("x", 1.0, on_step=True)
    assert rig.end_epoch() == [{"rate": 0.5}]


def test_asking_for_neither_step_nor_epoch_is_refused(training: Rig) -> None:
    with pytest.raises(ValueError, match="`on_step or on_epoch` must be True"):
        training.log("x", 1.0, on_step=False, on_epoch=False)
    with pytest.raises(ValueError, match="`on_step or on_epoch` must be True"):
        training.log("x", 1.0, on_step=False)


@pytest.mark.parametrize("change", [{"on_step": False}, {"on_epoch": False}, {"reduce_fx": "sum"}, {"prog_bar": True}])
def test_a_name_must_be_logged_the_same_way_throughout_an_epoch(change: dict, training: Rig) -> None:
    options = {"on_step": True, "on_epoch": True, "reduce_fx": "mean", "prog_bar": False}
    training.log("x", 1.0, **options)
    (field,) = change
    with pytest.raises(ValueError, match=f"`{field}` must be the same in every call of an epoch"):
        training.log("x", 1.0, **{**options, **change})
    training.start_training()
    training.log("x", 1.0, **{**options, **change})


def test_writing_a_default_out_is_no_change(training: Rig) -> None:
    training.log("x", 1.0)
    training.log("x", 2.0, on_step=True, on_epoch=False)
    assert numbers(training.metrics.callback_metrics) == {"x": 2.0}


def test_logging_before_any_epoch_is_refused() -> None:
    rig = Rig()
    rig.metrics.moment = "batch"
    with pytest.raises(RuntimeError, match=r"`log` must be called in a hook or step .*Move it"):
        rig.log("x", 1.0)


def test_a_stage_can_only_be_entered_within_its_epoch(training: Rig) -> None:
    with pytest.raises(RuntimeError, match=r"`stage` must be one whose epoch has begun \(train\), but got 'test'"):
        training.metrics.enter("test", "batch")


@pytest.mark.parametrize("value", ["0.5", None, [1.0], 1j, {"a": 1.0}])
def test_a_value_that_is_no_number_is_refused(value: object, training: Rig) -> None:
    with pytest.raises(TypeError, match=r"`value` must be a number, a tensor with one element .* in log\('x'\)"):
        training.log("x", value)


def test_a_tensor_with_several_elements_is_refused_whenever_it_comes(training: Rig) -> None:
    for _ in range(30):
        training.log("x", torch.ones(()))
    with pytest.raises(ValueError, match=r"got shape \(2, 3\) \(Tensor\) in log\('x'\). Reduce it first"):
        training.log("x", torch.ones(2, 3))
    with pytest.raises(TypeError, match="`value` must be a real tensor"):
        training.log("y", torch.ones((), dtype=torch.complex64))


@pytest.mark.parametrize(
    "value",
    [
        2,
        True,
        np.float32(2),
        torch.tensor([[2]]),
        torch.tensor(2, dtype=torch.bfloat16),
        nn.Parameter(torch.tensor([2.0]), requires_grad=False),
    ],
)
def test_every_kind_of_number_can_be_logged(value: object, training: Rig) -> None:
    training.log("x", value, on_epoch=True)
    assert training.metrics.callback_metrics["x"].shape == ()
    assert training.end_epoch() == [{"x_epoch": float(value)}]


@pytest.mark.parametrize("value", [0.1, 3, torch.tensor(3), torch.tensor(0.5).half()])
def test_values_without_a_wider_type_are_handed_out_in_the_default_type(value: object, training: Rig) -> None:
    training.log("x", value)
    for metrics in (training.metrics.callback_metrics, training.metrics.logged_metrics):
        assert metrics["x"].dtype == torch.float32
    assert float(training.metrics.callback_metrics["x"]) == float(torch.tensor(float(value)))
    training.log("y", torch.tensor(0.1, dtype=torch.float64))
    assert training.metrics.callback_metrics["y"].dtype == torch.float64


def test_a_name_must_be_a_string(training: Rig) -> None:
    with pytest.raises(TypeError, match="`name` must be a string, but got 3"):
        training.log(3, 1.0)


@pytest.mark.parametrize("sync_dist", [None, True, False])
def test_reducing_over_processes_is_the_identity_for_one(sync_dist: bool | None, training: Rig) -> None:
    training.log("x", 1.0, on_epoch=True, sync_dist=sync_dist)
    assert training.end_epoch() == [{"x_epoch": 1.0}]


def test_a_negative_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="`log_every_n_steps` must be 0 or more, but got -1"):
        MetricLog(loggers=[], log_every_n_steps=-1, progress=Position())


def test_values_that_are_not_finite_are_logged_as_they_are(training: Rig) -> None:
    training.log("x", torch.tensor(float("nan")), prog_bar=True)
    assert np.isnan(training.metrics.progress_bar_metrics["x"])


@pytest.mark.parametrize("batch_size", [4, torch.tensor(4), torch.tensor([4.0]), np.int64(4), np.float32(4)])
def test_a_batch_size_may_be_a_number_of_any_kind(batch_size: Any, evaluating: Rig) -> None:
    evaluating.log("a", 1.0, batch_size=batch_size)
    evaluating.log("a", 2.0, batch_size=1)
    assert evaluating.end_epoch() == [{"a": 6 / 5}]


@pytest.mark.parametrize(("reduce_fx", "value"), [("MEAN", 1.5), ("Avg", 1.5), ("SUM", 3), ("Max", 2), ("MIN", 1)])
def test_the_name_of_a_reduction_may_be_written_in_capitals(reduce_fx: str, value: float, evaluating: Rig) -> None:
    for each in (1.0, 2.0):
        evaluating.log("a", each, batch_size=1, reduce_fx=reduce_fx)
    assert evaluating.end_epoch() == [{"a": value}]


def test_none_as_logger_sends_to_loggers(evaluating: Rig) -> None:
    evaluating.log("a", 1.0, logger=None, batch_size=1)
    assert evaluating.end_epoch() == [{"a": 1.0}]
