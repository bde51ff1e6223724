"""What the processes tell each other."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from camshaft.hooks_core.protocols import ReduceOp, Strategy
from camshaft.strategies.conformance.trial import Trial, same, shown

_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)
_LATE_SECONDS = 0.15


def broadcast_gives_all_the_value_of_one(trial: Trial) -> None:
    """`broadcast` returns the value of the process `src`, the first by default, on every process."""
    strategy = _connected(trial)
    rank, size = trial.ranks.rank, trial.ranks.size
    for src in range(size):
        received = strategy.broadcast(_anything(rank), src)
        trial.expect_equal(received, _anything(src), f"what rank {src} broadcasts")
    trial.expect_equal(strategy.broadcast(f"of {rank}"), "of 0", "what is broadcast by default")
    for src in (0, size - 1):
        tensor = torch.full((2,), float(rank), device=strategy.device)
        trial.expect_equal(
            strategy.broadcast(tensor, src).cpu(), torch.full((2,), float(src)), f"a tensor that rank {src} broadcasts"
        )
        kept = torch.full((2,), float(rank))
        trial.expect_equal(tensor.cpu(), kept, "the argument of `broadcast`, afterwards,")


def all_gather_gives_all_values_in_order(trial: Trial) -> None:
    """`all_gather` returns the values of all processes in the order of their ranks, on every process."""
    strategy = _connected(trial)
    rank, size = trial.ranks.rank, trial.ranks.size
    trial.expect_equal(
        strategy.all_gather(_anything(rank)), [_anything(src) for src in range(size)], "what is gathered"
    )
    trial.expect_equal(strategy.all_gather(None), [None] * size, "nothing, gathered,")
    own = torch.full((2,), float(rank), device=strategy.device)
    gathered = [value.cpu() for value in strategy.all_gather(own)]
    trial.expect_equal(gathered, [torch.full((2,), float(src)) for src in range(size)], "the tensors that are gathered")


def reduce_combines_element_by_element(trial: Trial) -> None:
    """`reduce` gives mean, sum, max or min over the processes, whatever the dtype; its argument stays as it is."""
    strategy = _connected(trial)
    rank, size = trial.ranks.rank, trial.ranks.size
    for device in dict.fromkeys(("cpu", strategy.device.type)):
        place = strategy.device if device == strategy.device.type else torch.device(device)
        for dtype in _DTYPES:
            tensors = [_of_rank(src, dtype) for src in range(size)]
            for op in get_args(ReduceOp):
                own = tensors[rank].to(place)
                _expect_reduced(trial, strategy, own, tensors, op)
        own = torch.tensor(2**53 + rank, device=place)  # too large for floating point
        largest = torch.tensor(2**53 + size - 1)
        trial.expect_equal(strategy.reduce(own, "max").cpu(), largest, "the largest of 64-bit integers")
        own = torch.tensor(rank, dtype=torch.float64, device=place)
        mean = torch.tensor((size - 1) / 2, dtype=torch.float64)  # halves have no rounding
        trial.expect_equal(strategy.reduce(own).cpu(), mean, "what is reduced by default, the mean,")


def barriers_wait_for_all(trial: Trial) -> None:
    """`barrier` returns when every process has called it, not before."""
    strategy = _connected(trial)
    rank, size = trial.ranks.rank, trial.ranks.size
    strategy.barrier()
    for late in range(size):
        note = trial.directory / f"late.{late}"
        if rank == late:
            time.sleep(_LATE_SECONDS)
            note.touch()
        strategy.barrier()
        trial.expect(note.exists(), f"`barrier` must wait for rank {late}", f"it returned before rank {late} called it")
        trial.settle()


def _connected(trial: Trial) -> Strategy:
    strategy = trial.make_strategy()
    strategy.connect()
    return strategy


def _anything(rank: int) -> dict[str, Any]:
    """Something that can be pickled, of another size on each rank."""
    return {
        "rank": rank,
        "tuple": (rank, [None, 0.5]),
        "set": {rank, "x"},
        "path": Path(f"folder{rank}"),
        "text": "é" * (1 + 100 * rank),
        "tensor": torch.arange(3 * rank + 1, dtype=torch.float64),
    }


def _of_rank(rank: int, dtype: torch.dtype) -> Tensor:
    """A tensor that does not lie in memory row by row."""
    if dtype is torch.bool:
        return torch.tensor([[True, False], [rank == 0, rank != 0]]).T
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]) + torch.tensor([[rank], [-rank]])
    return values.abs().to(dtype).T


def _expect_reduced(trial: Trial, strategy: Strategy, own: Tensor, tensors: list[Tensor], op: ReduceOp) -> None:
    what = f"`reduce` of {own.dtype} on {own.device.type} by {op!r}"
    before = own.clone()
    result = strategy.reduce(own, op)
    trial.expect(same(own, before), f"{what} must leave its argument as it is", "it changed")
    stacked = torch.stack(tensors).double()
    reduced = {"mean": stacked.mean(0), "sum": stacked.sum(0), "max": stacked.amax(0), "min": stacked.amin(0)}[op]
    if not trial.expect(isinstance(result, Tensor), f"{what} must be a tensor", f"got {result!r}"):
        return
    trial.expect_equal(result.device.type, own.device.type, f"the device of {what}")
    if own.is_floating_point():
        trial.expect_equal(result.dtype, own.dtype, f"the dtype of {what}")
    # others than means are exact here; means may be rounded as the dtype is, those of integers as 32 bits are
    eps = torch.finfo(own.dtype if own.is_floating_point() else torch.float32).eps if op == "mean" else 0.0
    close = result.shape == reduced.shape and torch.allclose(result.cpu().double(), reduced, rtol=4 * eps, atol=0.0)
    trial.expect(close, f"{what} must be {shown(reduced)}", f"got {shown(result)}")
