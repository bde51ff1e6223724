"""A metric log that is saved after any batch and loaded into a new one goes on as if nothing had happened."""

from __future__ import annotations

import io
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_log_parts import Position, Rig
from metric_log_scripts import Player, Script, bits, scripts, spread

from camshaft.loops.metrics import MetricLog
from camshaft.loops.metrics import values as metric_values
from camshaft.loops.metrics.values import NUM_WATCHED, load_tensor


def played_whole(script: Script) -> list[Any]:
    player = Player(script)
    for _ in player.play():
        pass
    return player.seen


@settings(deadline=None, max_examples=80)
@given(scripts(), st.data())
def test_a_run_that_was_stopped_after_any_batch_is_seen_to_go_on_as_one_that_was_not(script: Script, data) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metric_values, "BLOCK_SIZE", data.draw(st.sampled_from([2, 3, 128])))
        expected = played_whole(script)
        saving, stops = Player(script), []
        for place in saving.play():
            stops.append((place, len(saving.seen), saving.save()))
        assert saving.seen == expected, "saving changes nothing"
        if not stops:
            return
        place, num_seen, checkpoint = data.draw(st.sampled_from(stops))
        resumed = Player(script)
        state = resumed.load(checkpoint, place)["metrics"]
        if state["train"] is not None:
            assert bits(resumed.rig.metrics.state_dict()) == bits(state)
        for _ in resumed.play(place):
            pass
        assert resumed.seen == expected[num_seen:]


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def resumed(rig: Rig, log_every_n_steps: int = 50) -> Rig:
    """A new log in the place of one that is in the middle of an epoch."""
    other = Rig(log_every_n_steps)
    other.progress.global_step = rig.progress.global_step
    other.metrics.start_epoch("train")
    other.metrics.load_state_dict(through_a_file(rig.metrics.state_dict()))
    other.metrics.moment = "batch"
    return other


@pytest.mark.parametrize("reduce_fx", ["mean", "sum", spread])
@pytest.mark.parametrize("num_before", [1, 127, 128, 129, 384])
def test_values_are_folded_where_they_would_have_been(reduce_fx: Any, num_before: int) -> None:
    values = torch.randn(385, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1e6

    def log(rig: Rig, some: torch.Tensor) -> None:
        for value in some:
            rig.log("x", value.clone(), on_epoch=True, reduce_fx=reduce_fx, batch_size=3)

    whole = Rig()
    whole.start_training()
    log(whole, values)
    stopped = Rig()
    stopped.start_training()
    log(stopped, values[:num_before])
    other = resumed(stopped)
    log(other, values[num_before:])
    assert bits(other.end_epoch()) == bits(whole.end_epoch())


def test_what_was_learnt_about_the_tensors_of_a_name_is_still_known(training: Rig) -> None:
    total = torch.zeros(())
    for _ in range(NUM_WATCHED):
        total += 1
        training.log("fresh", torch.ones(()))
        training.log("total", total)
    other = resumed(training)
    fresh = torch.ones(())
    other.log("fresh", fresh)
    assert other.metrics.callback_metrics["fresh"].data_ptr() == fresh.data_ptr()
    for _ in range(2 * NUM_WATCHED):
        other.log("total", torch.ones(()))
    other.log("total", total)
    total += 100
    assert float(other.metrics.callback_metrics["total"]) == NUM_WATCHED


def test_what_comes_later_does_not_change_a_state(training: Rig) -> None:
    total = torch.zeros(())
    for _ in range(3):
        total += 1
        training.log("total", total, on_epoch=True)
    state = training.metrics.state_dict()
    before = through_a_file(state)
    total += 100
    training.log("total", total, on_epoch=True)
    training.end_epoch()
    assert bits(through_a_file(state)) == bits(before)


def test_a_state_can_be_loaded_several_times(training: Rig) -> None:
    training.log("x", torch.tensor(1.0), on_epoch=True)
    state = training.metrics.state_dict()
    for _ in range(2):
        other = Rig()
        other.metrics.start_epoch("train")
        other.metrics.load_state_dict(state)
        other.metrics.moment = "batch"
        other.metrics.callback_metrics["x"].fill_(9.0)
        other.log("x", torch.tensor(2.0), on_epoch=True)
        assert other.end_epoch() == [{"x_epoch": 1.5}]


def test_taking_a_state_reads_no_value(training: Rig) -> None:
    for name, reduce_fx in (("a", "mean"), ("b", "max"), ("c", spread)):
        training.log(name, torch.ones((), device="meta"), on_epoch=True, reduce_fx=reduce_fx)
    state = training.metrics.state_dict()
    assert [entry["name"] for entry in state["train"]["entries"]] == ["a", "b", "c"]


def test_a_value_that_was_sent_is_not_sent_again_and_one_that_was_not_is() -> None:
    rig = Rig(log_every_n_steps=2)
    rig.start_training()
    for names in ("ab", "a", "b"):
        for name in names:
            rig.log(name, 1.0)
        rig.end_batch()
    assert rig.logger.rows == [(1, {"a": 1.0, "b": 1.0, "epoch": 0})]
    other = resumed(rig, log_every_n_steps=2)
    assert set(other.metrics.callback_metrics) == {"a", "b"}
    other.end_batch()
    assert other.logger.rows == [(3, {"b": 1.0, "epoch": 0})]


def test_batches_of_evaluation_are_counted_on(evaluating: Rig) -> None:
    evaluating.batch(torch.ones(2))
    evaluating.log("loss", 1.0, on_step=True)
    evaluating.end_epoch()
    other = Rig()
    other.metrics.load_state_dict(through_a_file(evaluating.metrics.state_dict()))
    other.start_evaluation()
    other.batch(torch.ones(2))
    other.log("loss", 2.0, on_step=True)
    other.end_epoch()
    assert (evaluating.logger.rows[0], other.logger.rows[0]) == ((0, {"loss_step": 1.0}), (1, {"loss_step": 2.0}))


def test_what_the_epoch_logged_before_is_superseded(training: Rig) -> None:
    training.log("x", 1.0, on_epoch=True)
    other = Rig()
    other.metrics.start_epoch("train")
    other.log("x", 50.0, reduce_fx="max")
    other.log("y", 50.0)  # the same call as below
    other.metrics.load_state_dict(training.metrics.state_dict())
    other.metrics.moment = "batch"
    other.log("x", 3.0, on_epoch=True)
    other.metrics.moment = "epoch"
    other.log("y", 4.0)
    assert other.end_epoch() == [{"x_epoch": 2.0, "y": 4.0}]


def test_a_state_from_between_two_epochs_leaves_the_new_one_empty(training: Rig) -> None:
    training.log("x", 1.0, on_epoch=True, prog_bar=True)
    training.end_epoch()
    other = resumed(training)
    assert bits(other.metrics.callback_metrics) == bits(training.metrics.callback_metrics)
    assert other.metrics.progress_bar_metrics == {"x_step": 1.0, "x_epoch": 1.0}
    assert other.end_epoch() == [{}]


def test_values_of_an_epoch_need_an_epoch_that_has_begun(training: Rig) -> None:
    state = training.metrics.state_dict()
    with pytest.raises(RuntimeError, match=r"`load_state_dict` must be called after `start_epoch\(\"train\"\)`.*Start"):
        Rig().metrics.load_state_dict(state)


@pytest.mark.parametrize(
    "change", [{"on_step": False}, {"on_epoch": False}, {"reduce_fx": "sum"}, {"prog_bar": True}, {"logger": False}]
)
@pytest.mark.parametrize("reduce_fx", ["mean", torch.mean, spread])
def test_a_name_must_be_logged_the_same_way_after_a_resume(change: dict[str, Any], reduce_fx: Any) -> None:
    options = {"on_step": True, "on_epoch": True, "reduce_fx": reduce_fx, "prog_bar": False, "logger": True}
    rig = Rig()
    rig.start_training()
    rig.log("x", 1.0, **options)
    other = resumed(rig)
    (field,) = change
    with pytest.raises(ValueError, match=f"`{field}` must be the same in every call of an epoch"):
        other.log("x", 1.0, **{**options, **change})
    other.log("x", 2.0, **options)
    assert set(other.end_epoch()[0]) == {"x_epoch"}


def test_a_function_of_ones_own_is_taken_from_the_next_call(training: Rig) -> None:
    training.log("x", 1.0, on_epoch=True, reduce_fx=lambda values: values.sum())
    other = resumed(training)
    other.metrics.moment = "epoch"
    assert set(other.metrics.callback_metrics) == {"x", "x_step"}, "the step's"
    other.metrics.moment = "batch"
    other = resumed(other)  # saved again before it was known
    other.log("x", 2.0, on_epoch=True, reduce_fx=lambda values: values.sum())
    assert other.end_epoch() == [{"x_epoch": 3.0}]


def test_a_metric_is_taken_from_the_next_call() -> None:
    rig = Rig(log_every_n_steps=2)
    rig.start_training()
    metric = torchmetrics.MeanMetric()
    metric(torch.tensor(1.0))
    rig.log("x", metric, on_step=True, on_epoch=True)
    other = resumed(rig, log_every_n_steps=2)
    assert bits(other.metrics.callback_metrics) == bits(rig.metrics.callback_metrics)
    with pytest.raises(ValueError, match=r"the same metric in every call of an epoch, but got 1\.0"):
        other.log("x", 1.0, on_step=True, on_epoch=True)
    metric(torch.tensor(2.0))
    other.log("x", metric, on_step=True, on_epoch=True)
    with pytest.raises(ValueError, match="`value` must be the same metric in every call of an epoch"):
        other.log("x", torchmetrics.MeanMetric(), on_step=True, on_epoch=True)
    assert other.end_epoch() == [{"x_epoch": 1.5}]
    assert metric.update_count == 0


def test_a_number_does_not_become_a_metric(training: Rig) -> None:
    training.log("x", 1.0)
    with pytest.raises(TypeError, match="`value` must be a number or a tensor as at first"):
        resumed(training).log("x", torchmetrics.MeanMetric())


@pytest.mark.parametrize("kind", ["metric", "function"])
def test_a_value_that_cannot_be_reduced_any_more_is_left_out_with_a_warning(kind: str, training: Rig) -> None:
    training.log("kept", 1.0, on_epoch=True)
    if kind == "metric":
        training.log("x", torchmetrics.MeanMetric(), on_step=False, on_epoch=True)
    else:
        training.log("x", 1.0, on_epoch=True, reduce_fx=spread)
    other = resumed(training)
    with pytest.warns(RuntimeWarning, match=r"`x` must be logged again between a resume and the end of its epoch"):
        assert other.end_epoch() == [{"kept_epoch": 1.0}]


def test_another_interval_of_sending_holds_at_once() -> None:
    rig = Rig(log_every_n_steps=50)
    rig.start_training()
    for _ in range(3):
        rig.log("x", 1.0)
        rig.end_batch()
    other = resumed(rig, log_every_n_steps=2)
    other.end_batch()
    assert other.logger.rows == [(3, {"x": 1.0, "epoch": 0})]


def test_a_state_of_a_log_without_loggers_does_not_stop_the_sending() -> None:
    silent = MetricLog(loggers=[], log_every_n_steps=2, progress=Position())
    silent.start_epoch("train")
    other = Rig(log_every_n_steps=2)
    other.metrics.start_epoch("train")
    other.metrics.load_state_dict(silent.state_dict())
    other.metrics.moment = "batch"
    for _ in range(2):
        other.log("x", 1.0)
        other.end_batch()
    assert len(other.logger.rows) == 1


def test_an_update_that_was_due_but_not_sent_is_sent_with_the_next() -> None:
    rig = Rig(log_every_n_steps=2)
    rig.start_training()
    rig.log("x", 1.0)
    rig.progress.global_step = 2  # beside the batch, as manual optimization may in a hook
    rig.end_batch(is_update=False)
    other = resumed(rig, log_every_n_steps=2)
    for each in (rig, other):
        each.end_batch()
    assert other.logger.rows == rig.logger.rows == [(2, {"x": 1.0, "epoch": 0})]


class Name(StrEnum):
    LOSS = "loss"


def test_subclasses_of_plain_values_are_saved_as_plain_values() -> None:
    class Special(torch.Tensor):
        pass

    rig = Rig()
    rig.start_training()
    rig.log(Name.LOSS, torch.tensor(1.0).as_subclass(Special), on_epoch=True, batch_size=np.float64(2))
    rig.log("number", 1.0, on_epoch=True, batch_size=np.float64(2), prog_bar=np.True_)
    other = resumed(rig)
    assert type(other.metrics.callback_metrics["loss"]) is torch.Tensor
    other.log(Name.LOSS, torch.tensor(4.0), on_epoch=True, batch_size=1)
    assert other.end_epoch() == [{"loss_epoch": 2.0, "number_epoch": 1.0}]


@pytest.mark.gpu
def test_tensors_return_to_their_device(training: Rig, accelerator: str, without_waiting: Callable[[], Any]) -> None:
    for _ in range(130):
        training.log("x", torch.ones((), device=accelerator), on_epoch=True)
    training.end_epoch()
    training.start_training()
    for _ in range(130):
        training.log("x", torch.ones((), device=accelerator), on_epoch=True)
        training.log("y", torch.ones((), device=accelerator), on_epoch=True, reduce_fx=spread)
    with without_waiting():
        state = training.metrics.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    other = Rig()
    other.metrics.start_epoch("train")
    other.metrics.load_state_dict(torch.load(file, weights_only=True, map_location="cpu"))
    current = torch.device(accelerator, torch.accelerator.current_device_index())
    assert {value.device for value in other.metrics.callback_metrics.values()} == {current}
    other.metrics.moment = "batch"
    for each in (training, other):
        each.log("x", torch.ones((), device=accelerator), on_epoch=True)
        each.log("y", torch.ones((), device=accelerator), on_epoch=True, reduce_fx=spread)
        each.metrics.moment = "epoch"
    assert bits(other.metrics.callback_metrics) == bits(training.metrics.callback_metrics)


@pytest.mark.parametrize("device", ["xpu:0", "mps:0", "cuda:77"])
def test_a_tensor_whose_device_is_missing_is_loaded_somewhere(device: str) -> None:
    loaded = load_tensor({"tensor": torch.tensor(3.0), "device": device})
    assert float(loaded) == 3.0
    if not torch.accelerator.is_available():
        assert loaded.device.type == "cpu"
