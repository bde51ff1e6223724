"""One process plays one of many ranks, on torch's fake process group."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

from camshaft.strategies import DDPStrategy, ParallelStrategy, ShardedStrategy

RANK, WORLD_SIZE = 3, 64


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    dist.init_process_group("fake", rank=RANK, world_size=WORLD_SIZE, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def test_every_other_rank_has_the_values_of_this_one() -> None:
    strategy = ParallelStrategy(accelerator="cpu")
    strategy.connect()
    assert (strategy.global_rank, strategy.world_size) == (RANK, WORLD_SIZE)
    assert strategy.broadcast({"a": 1}, src=60) == {"a": 1}
    assert strategy.all_gather("a") == ["a"] * WORLD_SIZE
    assert strategy.start_max([1, 2])() == [1, 2]
    assert strategy.reduce(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    strategy.barrier()


def test_nobody_watches_for_failures_of_ranks_that_are_not_there() -> None:
    before = set(threading.enumerate())
    strategy = ParallelStrategy(accelerator="cpu")
    strategy.connect()
    assert strategy._group is not None and strategy._group.watch is None
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("has_views", [False, True])
def test_gradients_of_replicas_are_reduced_in_buckets_without_a_reducer(has_views: bool) -> None:
    strategy = DDPStrategy(accelerator="cpu", bucket_cap_mb=1, gradient_as_bucket_view=has_views)
    strategy.connect()
    module = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(3)))  # a bucket each
    strategy.setup_module(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    strategy.setup_optimizers([optimizer])
    step = strategy.wrap_step(lambda: module(torch.ones(2, 512)).sum())

    def reductions(is_last: bool) -> int:
        strategy.set_gradient_sync(is_last)
        with CommDebugMode() as counted:
            strategy.backward(step())
        return counted.get_total_counts()

    assert [reductions(is_last) for is_last in (True, False, False, True)] == [3, 0, 0, 3]
    strategy.optimizer_step(optimizer)
    strategy.teardown()


def test_a_sharded_module_keeps_the_part_of_the_rank_that_is_played() -> None:
    strategy = ShardedStrategy(accelerator="cpu", data_parallel_replicas=2)
    strategy.connect()
    assert strategy.device_mesh.shape == (2, 32, 1)
    module = nn.Linear(4, 64, bias=False)
    weight = module.weight.detach().clone()
    strategy.setup_module(module)
    assert isinstance(module.weight, DTensor)
    assert torch.equal(module.weight.to_local(), weight[2 * RANK : 2 * RANK + 2])
    step = strategy.wrap_step(lambda: module(torch.ones(2, 4)).sum())
    strategy.backward(step())
    assert module.weight.grad is not None
    strategy.teardown()
