from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from launching import run_ranks
from torch import nn

from camshaft.strategies.launch import collectives
from camshaft.strategies.launch.collectives import from_bytes, reduce, to_bytes

FOUR_RANKS = """
import torch
from torch import nn
from camshaft.strategies import ParallelStrategy
from launching import report

strategy = ParallelStrategy(accelerator="cpu", devices=4, timeout=60)
strategy.connect()
rank = strategy.global_rank

value = {"rank": rank, "tensor": torch.full((2,), float(rank)), "text": "x" * 10 ** rank}
report(strategy.broadcast(value, src=2)["tensor"].tolist())
report(strategy.broadcast(value)["rank"])
report([len(gathered["text"]) for gathered in strategy.all_gather(value)])
report(strategy.broadcast(nn.Linear(1, 1) if rank == 3 else None, src=3).weight.requires_grad)

def reduced(values, dtype, *ops):
    tensor = torch.tensor(values, dtype=dtype)
    before = tensor.clone()
    results = [strategy.reduce(tensor, op) for op in ops]
    assert torch.equal(tensor, before), "the argument changed"
    report([(str(result.dtype).removeprefix("torch."), result.tolist()) for result in results])

every = ("mean", "sum", "max", "min")
reduced([rank, -rank], torch.float32, *every)
reduced(rank + 0.5, torch.float64, *every)
reduced([rank == 1, True, False], torch.bool, *every)
reduced([rank, 100], torch.uint8, *every)
reduced([-rank, 100], torch.int8, *every)
reduced([rank, 30000], torch.int16, *every)
reduced([rank, 60000], torch.uint16, *every)
reduced([rank, 2 ** 40], torch.int64, *every)
reduced([rank, 30000.0], torch.float16, *every)
reduced([rank, 2.0], torch.bfloat16, *every)
reduced([rank + 1j], torch.complex64, "mean", "sum")
reduced([[]], torch.float32, "mean")

columns = torch.arange(6.0).reshape(2, 3).T * (rank + 1)
leaf = columns.clone().requires_grad_()
result = strategy.reduce(leaf, "sum")
report((result.tolist(), result.requires_grad))

try:
    strategy.broadcast(1, src=4)
except ValueError as error:
    report(str(error))
strategy.barrier()

waits = [strategy.start_max([rank, -rank, 7]) for _ in range(2)]
strategy.reduce(columns)
report([wait() for wait in waits])
"""


@pytest.mark.processes
def test_four_ranks_tell_each_other_values_of_every_kind() -> None:
    outcome = run_ranks(FOUR_RANKS, 4).succeeded()
    assert all(report == outcome.reports[0] for report in outcome.reports)
    *reports, maxima = outcome.reports[0]
    assert maxima == [[3, 0, 7]] * 2
    (of_second, of_first, lengths, requires_grad, floats, doubles, bools, *integers), rest = reports[:11], reports[11:]
    uint8, int8, int16, uint16 = integers
    int64, half, brain, complexes, empty, (summed, carries_gradient), error = rest
    assert (of_second, of_first, lengths, requires_grad) == ([2.0, 2.0], 0, [1, 10, 100, 1000], True)
    assert floats == [("float32", values) for values in ([1.5, -1.5], [6.0, -6.0], [3.0, 0.0], [0.0, -3.0])]
    assert doubles == [("float64", value) for value in (2.0, 8.0, 3.5, 0.5)]
    assert bools == [
        ("float32", [0.25, 1.0, 0.0]),
        ("int64", [1, 4, 0]),
        ("bool", [True, True, False]),
        ("bool", [False, True, False]),
    ]
    assert uint8 == [("float32", [1.5, 100.0]), ("int64", [6, 400]), ("uint8", [3, 100]), ("uint8", [0, 100])]
    assert int8 == [("float32", [-1.5, 100.0]), ("int64", [-6, 400]), ("int8", [0, 100]), ("int8", [-3, 100])]
    assert int16 == [("float32", [1.5, 3e4]), ("int64", [6, 120000]), ("int16", [3, 30000]), ("int16", [0, 30000])]
    assert uint16 == [("float32", [1.5, 6e4]), ("int64", [6, 240000]), ("uint16", [3, 60000]), ("uint16", [0, 60000])]
    assert int64 == [("float32", [1.5, 2.0**40]), ("int64", [6, 2**42]), ("int64", [3, 2**40]), ("int64", [0, 2**40])]
    # The mean of what adds up to more than 65504 is right; the sum is not in the dtype's range.
    assert half == [("float16", values) for values in ([1.5, 3e4], [6.0, math.inf], [3.0, 3e4], [0.0, 3e4])]
    assert brain == [("bfloat16", values) for values in ([1.5, 2.0], [6.0, 8.0], [3.0, 2.0], [0.0, 2.0])]
    assert complexes == [("complex64", [1.5 + 1j]), ("complex64", [6 + 4j])]
    assert empty == [("float32", [[]])]
    assert summed == [[0.0, 30.0], [10.0, 40.0], [20.0, 50.0]] and not carries_gradient
    assert error.startswith("`src` must be from 0 to 3, but got 4 (int) in broadcast")


DTYPES = (torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float32)


@given(st.sampled_from(DTYPES), st.sampled_from(("mean", "sum", "max", "min")), st.lists(st.integers(0, 1), max_size=3))
def test_with_one_process_values_stay_in_the_dtype_that_several_give(
    dtype: torch.dtype, op: str, data: list[int]
) -> None:
    tensor = torch.tensor(data, dtype=dtype)
    result = reduce(tensor, op, None, 1)  # type: ignore[arg-type]
    assert result.tolist() == data
    is_float = dtype.is_floating_point
    expected = torch.float32 if op == "mean" else torch.int64 if op == "sum" else dtype
    assert result.dtype == (dtype if is_float else expected)
    assert not data or result.data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize(
    ("tensor", "op", "message"),
    [
        (torch.ones(1), "median", "`op` must be one of mean, sum, max, min, but got 'median'"),
        (
            torch.ones(1, dtype=torch.complex64),
            "max",
            "`op` must be 'mean' or 'sum' for torch.complex64, but got 'max'",
        ),
    ],
)
def test_a_reduction_that_there_is_not_is_refused(tensor: torch.Tensor, op: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reduce(tensor, op, None, 1)  # type: ignore[arg-type]


def test_what_is_sent_keeps_what_it_is() -> None:
    shared = torch.arange(3)
    sent = {"twice": [shared, shared], "parameter": nn.Parameter(torch.ones(2)), "set": {1, 2}, "none": None}
    received = from_bytes(to_bytes(sent))
    assert received["twice"][0] is received["twice"][1]
    assert type(received["parameter"]) is nn.Parameter
    assert received["set"] == {1, 2} and received["none"] is None


def test_an_error_of_the_backend_says_in_which_collective_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives.dist, "get_rank", lambda: 1)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(collectives.dist, "all_reduce", fail)
    with pytest.raises(RuntimeError, match="Connection closed") as caught:
        collectives.wait_for_all(None)  # type: ignore[arg-type]
    assert caught.value.__notes__ == ["Raised on rank 1 in the collective `barrier`, which every rank must call."]


@pytest.mark.gpu
def test_an_accelerators_tensors_come_out_on_the_receivers_device(accelerator: str) -> None:
    sent = {"weights": nn.Parameter(torch.ones(2, device=accelerator)), "on_cpu": torch.zeros(1)}
    received = from_bytes(to_bytes(sent))
    assert received["weights"].device == torch.device(accelerator, torch.accelerator.current_device_index())
    assert type(received["weights"]) is nn.Parameter and received["weights"].requires_grad
    assert received["on_cpu"].device.type == "cpu"
