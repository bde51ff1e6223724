from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.monitors.throughput import (
    PEAK_TERAFLOPS,
    Throughput,
    get_available_flops,
    measure_flops,
    multiplies_in_tf32,
    peak_flops,
)


def test_rates_are_those_between_the_first_and_the_last_update_of_the_window() -> None:
    throughput = Throughput(available_flops=1000.0, window_size=2)
    throughput.update(time=1.0, batches=1, samples=4, lengths=40, flops=7)
    assert throughput.compute() == {"time": 1.0, "batches": 1, "samples": 4, "lengths": 40}
    throughput.update(time=3.0, batches=2, samples=8, lengths=80, flops=100)
    throughput.update(time=3.5, batches=3, samples=10, lengths=90, flops=100)
    throughput.update(time=4.0, batches=4, samples=12, lengths=100, flops=100)
    assert throughput.compute() == {
        "time": 4.0,
        "batches": 4,
        "samples": 12,
        "lengths": 100,
        "device/batches_per_sec": 2.0,
        "device/samples_per_sec": 4.0,
        "device/items_per_sec": 20.0,
        "device/flops_per_sec": 200.0,
        "device/mfu": 0.2,
    }


def test_rates_of_all_processes_count_each_replica_once_and_its_devices_share_its_work() -> None:
    throughput = Throughput(available_flops=100.0, world_size=4, num_data_ranks=2, separator="|")
    throughput.update(time=0.0, batches=0, samples=0, flops=0)
    throughput.update(time=2.0, batches=4, samples=16, flops=400)
    metrics = throughput.compute()
    assert metrics["batches_per_sec"] == 4.0 and metrics["device|batches_per_sec"] == 1.0
    assert metrics["samples_per_sec"] == 16.0 and metrics["device|samples_per_sec"] == 4.0
    assert metrics["flops_per_sec"] == 400.0 and metrics["device|flops_per_sec"] == 100.0
    assert metrics["device|mfu"] == 1.0


@given(
    st.lists(st.tuples(st.floats(0.01, 10), st.integers(1, 7), st.integers(0, 64)), min_size=2, max_size=60),
    st.integers(1, 20),
)
def test_the_window_holds_at_least_its_batches_and_no_update_more_than_that_needs(
    steps: list[tuple[float, int, int]], window_size: int
) -> None:
    throughput = Throughput(window_size=window_size)
    totals = [(0.0, 0, 0)]
    for seconds, batches, samples in steps:
        time, all_batches, all_samples = totals[-1]
        totals.append((time + seconds, all_batches + batches, all_samples + samples))
    for time, batches, samples in totals:
        throughput.update(time=time, batches=batches, samples=samples)
    last = totals[-1]
    first = [one for one in totals[:-1] if one[1] <= last[1] - window_size][-1:] or totals[:1]
    expected = (last[2] - first[0][2]) / (last[0] - first[0][0])
    assert throughput.compute()["device/samples_per_sec"] == pytest.approx(expected)


def test_after_a_reset_the_next_update_is_a_first_one() -> None:
    throughput = Throughput()
    throughput.update(time=5.0, batches=5, samples=5)
    throughput.reset()
    assert throughput.compute() == {}
    throughput.update(time=1.0, batches=1, samples=1)
    assert throughput.compute() == {"time": 1.0, "batches": 1, "samples": 1}


@pytest.mark.parametrize(
    ("field", "update"),
    [
        ("time", {"time": 1.0, "batches": 2, "samples": 2, "lengths": 2}),
        ("batches", {"time": 2.0, "batches": 0, "samples": 2, "lengths": 2}),
        ("samples", {"time": 2.0, "batches": 2, "samples": 0, "lengths": 2}),
        ("lengths", {"time": 2.0, "batches": 2, "samples": 2, "lengths": 0}),
        ("lengths", {"time": 2.0, "batches": 2, "samples": 2}),
    ],
)
def test_totals_that_shrink_are_refused(field: str, update: dict[str, float]) -> None:
    throughput = Throughput()
    throughput.update(time=1.0, batches=1, samples=1, lengths=1)
    with pytest.raises(InvalidArgumentError, match=f"`{field}` must be .* in Throughput.update"):
        throughput.update(**update)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"), [("world_size", 0), ("window_size", 0), ("num_data_ranks", 3), ("available_flops", 0.0)]
)
def test_arguments_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(InvalidArgumentError, match=f"`{field}` must be"):
        Throughput(**{"world_size": 2, field: value})  # type: ignore[arg-type]


def test_flops_of_a_linear_layer_are_two_for_each_multiplication_also_on_the_meta_device() -> None:
    with torch.device("meta"):
        model, batch = nn.Linear(32, 8), torch.randn(4, 32)
    forward = measure_flops(model, lambda: model(batch))
    assert forward == 2 * 4 * 32 * 8
    # the gradient of the weights is as large a product; the inputs need none
    assert measure_flops(model, lambda: model(batch), lambda outputs: outputs.sum()) == 2 * forward


def test_measuring_flops_leaves_gradients_as_they_were_also_after_an_error() -> None:
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    held = [parameter.grad for parameter in model.parameters()]
    values = [gradient.clone() for gradient in held if gradient is not None]
    measure_flops(model, lambda: model(torch.ones(3, 2)), torch.sum)
    with pytest.raises(RuntimeError, match="scalar"):
        measure_flops(model, lambda: model(torch.ones(3, 2)), lambda outputs: outputs)
    assert all(parameter.grad is gradient for parameter, gradient in zip(model.parameters(), held, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(held, values, strict=True) if a is not None)


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA B200", 2250),
        ("NVIDIA GH200 480GB", 989.5),
        ("NVIDIA H200", 989.5),
        ("NVIDIA H200 NVL", 835.5),
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA A30", 165),
        ("NVIDIA A40", 149.7),
        ("NVIDIA A10", 125),
        ("NVIDIA A10G", 70),
        ("NVIDIA L4", 121),
        ("NVIDIA L40", 181.05),
        ("NVIDIA L40S", 362.05),
        ("Tesla T4", 65),
        ("Tesla V100-SXM2-16GB", 125),
        ("Tesla V100-PCIE-32GB", 112),
        ("Tesla V100S-PCIE-32GB", 130),
        ("NVIDIA RTX A6000", 154.8),
        ("NVIDIA RTX 6000 Ada Generation", 364.2),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 3080", 59.5),
        ("AMD Instinct MI300X", 1307.4),
        ("AMD Instinct MI250X", 191.5),
    ],
)
def test_a_gpu_is_found_by_what_torch_calls_it(name: str, teraflops: float) -> None:
    assert peak_flops(name, torch.float16) == teraflops * 1e12


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 3080 Ti",
        "NVIDIA A100X",
        "x",
    ],
)
def test_other_devices_and_parts_of_one_have_no_peak(name: str) -> None:
    assert peak_flops(name, torch.float16) is None


def test_every_entry_is_faster_in_lower_precision() -> None:
    for double, single, tf32, half, bfloat16 in PEAK_TERAFLOPS.values():
        assert half > (tf32 or single) >= single >= (double or 0.0)
        assert bfloat16 in (None, half)
    assert peak_flops("Tesla T4", torch.bfloat16) is None
    assert peak_flops("NVIDIA A100-SXM4-40GB", torch.bfloat16) == 312e12


def test_a_cpu_has_no_known_peak() -> None:
    assert get_available_flops(torch.device("cpu"), torch.float32) is None


def test_tf32_is_seen_however_it_was_chosen() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "ieee"
        assert not multiplies_in_tf32()
        matmul.fp32_precision = "tf32"
        assert multiplies_in_tf32()
    finally:
        matmul.fp32_precision = before
