"""Logging never reads a tensor's value, and keeps a bounded number of tensors."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from metric_log_parts import Rig
from torch.utils._python_dispatch import TorchDispatchMode

READING = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal", "aten::nonzero"}


class NoReading(TorchDispatchMode):
    """Fails on operations that must wait for a device to give a value to Python."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func._schema.name not in READING, f"{func} reads a value"
        return func(*args, **(kwargs or {}))


def log_many(rig: Rig, make_value, num_steps: int = 400) -> None:
    for step in range(num_steps):
        rig.batch([torch.ones(step % 3 + 1)])
        rig.log("step", make_value())
        rig.log("mean", make_value(), on_epoch=True)
        rig.log("sum", make_value(), on_epoch=True, reduce_fx="sum")
        rig.log("max", make_value(), on_epoch=True, reduce_fx="max")
        rig.log("std", make_value(), on_epoch=True, reduce_fx=torch.std)
        rig.end_batch()


def test_the_guard_notices_reading() -> None:
    with pytest.raises(AssertionError, match="reads a value"), NoReading():
        float(torch.ones(()))


def test_logging_reads_nothing_between_two_sendings() -> None:
    rig = Rig(log_every_n_steps=1000)
    rig.start_training()
    weight = torch.ones((), requires_grad=True)
    with NoReading():
        log_many(rig, lambda: weight * 2)
    assert rig.logger.rows == []
    rig.end_epoch()
    assert rig.logger.rows[0][1]["mean_epoch"] == 2.0


def test_logging_and_reading_callback_metrics_work_where_values_cannot_be_read_at_all() -> None:
    rig = Rig(log_every_n_steps=1000)
    rig.start_training()
    log_many(rig, lambda: torch.ones((), device="meta"))
    rig.metrics.moment = "epoch"
    assert all(value.device.type == "meta" for value in rig.metrics.callback_metrics.values())
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        rig.end_epoch()


def test_sending_takes_one_transfer_for_all_values(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(log_every_n_steps=1)
    rig.start_training()
    transfers = []
    to_list = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: transfers.append(self.shape) or to_list(self))
    for name in "abc":
        rig.log(name, torch.ones(()), on_epoch=True)
    with NoReading():
        rig.end_batch()
        assert transfers == [(3,)]
        rig.end_epoch()
    assert transfers == [(3,), (6,)]
    assert len(rig.logger.rows) == 2


@pytest.mark.parametrize("make_value", [lambda: torch.ones(()) * 2, lambda: 2.0])
def test_memory_does_not_grow_with_the_number_of_steps(make_value) -> None:
    rig = Rig(log_every_n_steps=10**6)
    rig.start_training()

    def num_tensors(num_steps: int) -> int:
        for _ in range(num_steps):
            rig.batch([torch.ones(2)])
            rig.log("x", make_value(), on_epoch=True)
            rig.log("y", make_value(), on_epoch=True, reduce_fx="min")
            rig.end_batch()
        gc.collect()
        return sum(1 for item in gc.get_objects() if type(item) is torch.Tensor)

    before = num_tensors(2000)
    assert num_tensors(3000) <= before + 2 * 128


def test_memory_of_an_evaluation_that_logs_its_steps_does_not_grow() -> None:
    rig = Rig()
    rig.start_evaluation()

    def num_tensors(num_steps: int) -> int:
        for _ in range(num_steps):
            rig.batch([torch.ones(2)])
            rig.log("x", torch.ones(()), on_step=True)
        gc.collect()
        return sum(1 for item in gc.get_objects() if type(item) is torch.Tensor)

    before = num_tensors(500)
    assert num_tensors(1500) <= before + 2 * 128


@pytest.mark.gpu
def test_logging_does_not_wait_for_a_gpu(accelerator: str, without_waiting: Callable[[], Any]) -> None:
    rig = Rig(log_every_n_steps=1000)
    rig.start_training()
    value = torch.ones((), device=accelerator)
    log_many(rig, lambda: value * 2, num_steps=10)
    with without_waiting():
        log_many(rig, lambda: value * 2)
        rig.metrics.moment = "epoch"
        assert rig.metrics.callback_metrics["mean"].device.type == accelerator
    assert rig.end_epoch()[0]["mean_epoch"] == 2.0
