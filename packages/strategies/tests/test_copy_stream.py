"""Batches on a copy stream of their own: what moves there, and that steps wait for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from camshaft.strategies import SingleDeviceStrategy, TorchStrategy


class Wrapped:
    """A batch class that moves itself, and hides its tensor."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def to(self, device: torch.device) -> Wrapped:
        return Wrapped(self.values.to(device))


def test_on_the_cpu_nothing_changes() -> None:
    batch = {"x": torch.ones(2), "name": "a"}
    moved = SingleDeviceStrategy("cpu", copy_stream=True).batch_to_device(batch)
    assert moved["x"] is batch["x"] and moved["name"] == "a"


def test_a_device_without_streams_is_refused_with_the_first_batch() -> None:
    strategy = TorchStrategy(torch.device("meta"), copy_stream=True)
    with pytest.raises(ValueError, match="`copy_stream` must be False on meta, which has no streams, but got True"):
        strategy.batch_to_device(torch.ones(2))


@pytest.mark.simulated
def test_each_plain_tensor_of_the_host_is_copied_aside_and_recorded_on_the_stream_of_the_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded: list[Any] = []
    inner = Tensor.record_stream
    monkeypatch.setattr(Tensor, "record_stream", lambda self, stream: (recorded.append(stream), inner(self, stream)))
    strategy = SingleDeviceStrategy("sim:1", copy_stream=True)
    strategy.connect()
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    there = torch.ones(1, device="sim:1")
    batch = {"x": torch.ones(2).pin_memory(), "rest": [torch.ones(3), packed, Wrapped(torch.ones(1)), there, "a"]}
    moved = strategy.batch_to_device(batch)
    x, (y, packed_there, wrapped, same, text) = moved["x"], moved["rest"]
    assert {x.device, y.device, packed_there.data.device, wrapped.values.device} == {torch.device("sim:1")}
    assert isinstance(packed_there, PackedSequence) and packed_there.batch_sizes.device.type == "cpu"
    assert same is there and text == "a"
    assert recorded == [torch.accelerator.current_stream("sim:1")] * 2
    assert strategy._copies is not None and strategy._copies._stream not in recorded
    strategy.teardown()
    assert strategy._copies is None


@pytest.mark.simulated
def test_late_copies_are_waited_for_by_the_steps() -> None:
    import simulated_device

    strategy, stream = SingleDeviceStrategy("sim", copy_stream=True), torch.Stream("sim")
    strategy.connect()
    total, unsynchronised = torch.zeros(4, device="sim"), torch.zeros(4, device="sim")
    with simulated_device.late_copies():
        for step in range(5):
            batch = torch.full((4,), float(step)).pin_memory()
            total += strategy.batch_to_device([batch])[0]
            with stream:
                moved = batch.to("sim", non_blocking=True)
            unsynchronised += moved  # which shows that a missing wait is noticed
    assert total.tolist() == [10.0] * 4 != unsynchronised.tolist()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_copy_ends_while_the_step_before_is_still_computed() -> None:
    strategy = SingleDeviceStrategy("cuda", copy_stream=True)
    batch = torch.ones(1 << 20).pin_memory()
    strategy.batch_to_device(batch)  # makes the stream
    assert strategy._copies is not None
    torch.cuda._sleep(2_000_000_000)  # about a second
    moved = strategy.batch_to_device(batch)
    strategy._copies._stream.synchronize()
    assert not torch.cuda.current_stream().query()
    assert moved.sum().item() == 1 << 20
