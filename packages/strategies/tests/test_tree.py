"""`tree_reduce`: sums over logical ranks. Run as a script by several processes, this file reduces parts of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from launching import report, run_ranks
from logical_reference import tree_sum
from torch import Tensor

from camshaft.strategies import DDPStrategy, tree_reduce
from camshaft.strategies.tree import PartialSums, sum_rows, tree_norm

NUM_PARTS = 8
SHAPES = ((3, 5), (), (7,), (0,), (2, 2, 2))


def part_of(rank: int) -> list[Tensor]:
    """Tensors of several dtypes, with signed zeros, infinities and values whose sums round; one is not contiguous."""
    generator = torch.Generator().manual_seed(rank)
    tensors = [torch.randn(shape, generator=generator) * 10 ** (rank % 3) for shape in SHAPES]
    tensors[2][:3] = torch.tensor([-0.0, float("inf"), 0.0 if rank else -0.0])
    reals = torch.randn(2, 6, 4, generator=generator)
    return [*tensors, reals[0].bfloat16(), reals[1].double().T, torch.complex(reals[0], reals[1])]


def bits(tensors: Sequence[Tensor]) -> list[tuple[torch.dtype, torch.Size, bytes]]:
    return [(one.dtype, one.shape, one.contiguous().view(-1).view(torch.uint8).numpy().tobytes()) for one in tensors]


EXPECTED = [tree_sum(tensors) for tensors in zip(*map(part_of, range(NUM_PARTS)), strict=True)]


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_one_process_sums_along_the_tree(op: Any) -> None:
    divisor = NUM_PARTS if op == "mean" else 1
    assert bits(tree_reduce(map(part_of, range(NUM_PARTS)), op=op)) == bits([one / divisor for one in EXPECTED])


@pytest.mark.parametrize("number", [1, 2, 4, 8])
def test_rows_are_summed_along_the_tree(number: int) -> None:
    rows = torch.stack([part_of(rank)[0].flatten() for rank in range(number)])
    assert bits([sum_rows(rows.clone())]) == bits([tree_sum(list(rows))])


def test_the_order_of_additions_is_one_that_shows() -> None:
    in_turn = [sum(tensors[1:], tensors[0]) for tensors in zip(*map(part_of, range(NUM_PARTS)), strict=True)]
    assert bits(in_turn) != bits(EXPECTED)


@pytest.mark.processes
@pytest.mark.parametrize("num_processes", [2, 4, pytest.param(8, marks=pytest.mark.exhaustive)])
def test_several_processes_have_the_same_bits(num_processes: int) -> None:
    for found in run_ranks(Path(__file__), num_processes).succeeded().named:
        assert found["sum"] == bits(EXPECTED)
        assert found["mean"] == bits([one / NUM_PARTS for one in EXPECTED])
        assert found["large"] == bits([large(0) + large(1)])


def large(half: int) -> Tensor:
    """More than what travels at once."""
    return torch.arange(9 * 2**20, dtype=torch.float32) * 0.1 ** (half + 1)


def test_parts_stay_as_they_are() -> None:
    parts = [part_of(rank) for rank in range(4)]
    reduced = tree_reduce(parts, op="mean")
    assert [bits(part) for part in parts] == [bits(part_of(rank)) for rank in range(4)]
    alone = tree_reduce(parts[:1])
    assert bits(alone) == bits(parts[0])
    pointers = {one.data_ptr() for part in parts for one in part if one.numel()}
    assert not pointers & {one.data_ptr() for one in [*reduced, *alone] if one.numel()}


def test_sums_of_a_few_ranks_are_held_at_a_time() -> None:
    sums = PartialSums()
    held = []
    for _ in range(16):
        sums.add([torch.ones(1)])
        held.append([one.item() for (one,) in sums.newest_first() if one is not None])
    assert held[6] == [1, 2, 4]
    assert held[15] == [16]
    assert max(map(len, held)) == 4


@pytest.mark.parametrize("number", [0, 3, 6])
def test_other_numbers_than_powers_of_two_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match=f"`parts` must be a power of two, but got {number}"):
        tree_reduce([[torch.ones(1)]] * number)


def test_parts_that_differ_in_number_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`parts` must be as many tensors as the first part \(1\), but got 2"):
        tree_reduce([[torch.ones(1)], [torch.ones(1)] * 2])


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(ValueError, match="`op` must be 'sum' or 'mean', but got 'max'"):
        tree_reduce([[torch.ones(1)]], op="max")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`op` must be 'sum' for integers, but got 'mean'"):
        tree_reduce([[torch.ones(1, dtype=torch.int64)]] * 2, op="mean")
    assert tree_reduce([[torch.ones(1, dtype=torch.int64)]] * 2) == [torch.tensor([2])]


if __name__ == "__main__":
    DDPStrategy(accelerator="cpu", timeout=120).connect()
    num_own = NUM_PARTS // dist.get_world_size()
    own = range(dist.get_rank() * num_own, (dist.get_rank() + 1) * num_own)
    report("sum", bits(tree_reduce(map(part_of, own))))
    report("mean", bits(tree_reduce(map(part_of, own), op="mean")))
    half = dist.get_rank() * 2 // dist.get_world_size()
    is_first = dist.get_rank() % max(1, dist.get_world_size() // 2) == 0
    report("large", bits(tree_reduce([[large(half) * is_first]])))


@pytest.mark.parametrize(
    "gradients",
    [
        [torch.arange(35.0).view(5, 7).sin(), torch.tensor(2.0), torch.zeros(0, 3), torch.ones(6)],
        [torch.linspace(-1, 1, 30, dtype=torch.float64).view(2, 3, 5), torch.ones(3)],
        [torch.tensor([3 + 4j, 1 - 2j])],
        [torch.full((4, 3), 300.0, dtype=torch.float16)],
    ],
)
def test_the_norm_is_that_of_all_elements_in_single_precision_or_wider(gradients: list[Tensor]) -> None:
    before = [gradient.clone() for gradient in gradients]
    norm = tree_norm(gradients)
    assert all(map(torch.equal, gradients, before))
    expected = math.sqrt(sum(gradient.to(torch.complex128).abs().square().sum().item() for gradient in gradients))
    assert norm.item() == pytest.approx(expected, rel=1e-6)
    assert norm.dtype == (torch.float64 if gradients[0].dtype == torch.float64 else torch.float32)
