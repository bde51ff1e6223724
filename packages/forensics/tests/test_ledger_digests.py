from __future__ import annotations

import json
import math
import random
from collections import OrderedDict
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

from camshaft.forensics.ledger import digests
from camshaft.forensics.ledger.digests import (
    BatchDigest,
    TorchGenerators,
    digest_of,
    digests_of,
    settings_of,
    slow_generators,
    states_of,
    weights_of,
)
from camshaft.hooks_core import StrategyDefaults

DTYPES = [torch.bool, torch.uint8, torch.int16, torch.float16, torch.bfloat16, torch.float32, torch.float64]
DTYPES += [torch.float8_e4m3fn, torch.complex64, torch.complex128]


def strided(dim: int, split_factor: int) -> Any:
    from torch.distributed.tensor.placement_types import _StridedShard

    return _StridedShard(dim, split_factor=split_factor)


def digest_over_ranks(tensor: Tensor, mesh_shape: tuple[int, int], placements: list[Any]) -> int:
    """The sum of the digests that the ranks of a mesh have, one after the other."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    total = 0
    for rank in range(math.prod(mesh_shape)):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=math.prod(mesh_shape))
        try:
            mesh = init_device_mesh("cpu", mesh_shape)
            total += int(digest_of(distribute_tensor(tensor, mesh, placements, src_data_rank=None)))
        finally:
            dist.destroy_process_group()
    return (total + 2**63) % 2**64 - 2**63


@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    mesh_shape=st.sampled_from([(2, 2), (1, 3), (3, 1)]),
    data=st.data(),
)
def test_a_digest_is_the_same_however_a_tensor_is_sharded(
    shape: list[int], mesh_shape: tuple[int, int], data: st.DataObject
) -> None:
    dims = st.integers(0, len(shape) - 1)
    placement = st.one_of(dims.map(Shard), st.just(Replicate()))
    both_of_one = dims.map(lambda dim: [strided(dim, mesh_shape[1]), Shard(dim)])
    placements = data.draw(st.one_of(st.lists(placement, min_size=2, max_size=2), both_of_one))
    tensor = torch.randn(shape)
    assert digest_over_ranks(tensor, mesh_shape, placements) == int(digest_of(tensor)), (shape, placements)


def test_partial_sums_have_no_digest() -> None:
    with pytest.raises(TypeError, match="`tensor` must be sharded or replicated"):
        digest_over_ranks(torch.ones(2), (1, 1), [Partial(), Replicate()])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_bit_and_each_place_counts(dtype: torch.dtype) -> None:
    size = torch.empty((), dtype=dtype).element_size()
    bits = torch.randint(0, 2 if dtype is torch.bool else 256, (6 * size,), dtype=torch.uint8)
    tensor = bits.view(dtype)
    whole = int(digest_of(tensor))
    assert int(digest_of(tensor.reshape(2, 3).t().contiguous().t())) == whole  # strides do not count
    for place in range(len(bits)):
        for bit in range(1 if dtype is torch.bool else 8):
            bits[place] ^= 1 << bit
            assert int(digest_of(bits.view(dtype))) != whole, (place, bit)
            bits[place] ^= 1 << bit
    if len(set(tensor.tolist())) > 1 and not torch.equal(bits[:size], bits[size : 2 * size]):
        assert int(digest_of(tensor[[1, 0, 2, 3, 4, 5]])) != whole


def test_signs_of_zeros_and_of_two_elements_count() -> None:
    values = torch.randn(64)
    found = {int(digest_of(values)), int(digest_of(torch.zeros(3))), int(digest_of(-torch.zeros(3)))}
    for one in range(0, 64, 7):
        for other in range(one):
            flipped = values.clone()
            flipped[[one, other]] *= -1
            found.add(int(digest_of(flipped)))
    assert len(found) == 3 + sum(range(0, 64, 7))


def test_chunks_and_sparse_tensors_give_the_digest_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(7, 9)
    whole = int(digest_of(tensor))
    assert int(digest_of(tensor.to_sparse())) == whole
    monkeypatch.setattr(digests, "NUM_PER_CHUNK", 10)
    assert int(digest_of(tensor)) == whole and int(digest_of(torch.zeros(0))) == 0


class TwoRanks(StrategyDefaults):
    """One of two processes; it remembers what is reduced."""

    world_size = 2

    def __init__(self, rank: int) -> None:
        self.global_rank = rank
        self.device = torch.device("cpu")
        self.reduced: list[Tensor] = []

    def reduce(self, tensor: Any, op: Any = "mean", *, reduce_op: str | None = None) -> Any:
        assert op == "sum"
        self.reduced.append(tensor)
        return tensor


def test_replicas_count_once_and_all_tensors_take_one_reduction() -> None:
    tensors = {"a": torch.randn(3), "b": torch.randn(2, 2)}
    ranks = [TwoRanks(0), TwoRanks(1)]
    first, second = (digests_of(tensors, rank, rank.device) for rank in ranks)
    assert first.tolist() == [int(digest_of(one)) for one in tensors.values()] and second.tolist() == [0, 0]
    assert [len(rank.reduced) for rank in ranks] == [1, 1]


def test_weights_states_and_settings_have_names() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.LazyLinear(2))
    foreign = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([{"params": [*module[0].parameters()]}, {"params": [foreign], "lr": 0.5}], lr=0.1)
    (module[1](module[0](torch.randn(4, 2))).sum() + foreign.sum()).backward()
    optimizer.step()
    assert list(weights_of(module)) == [
        *("0.weight", "0.bias", "1.weight", "1.bias"),
        *("1.running_mean", "1.running_var", "1.num_batches_tracked"),
    ]
    states = states_of(module, [optimizer])
    assert set(states) == {
        f"0.{key}.{name}" for key in ("step", "exp_avg", "exp_avg_sq") for name in ("0.weight", "0.bias", "group1.0")
    }
    assert states["0.exp_avg.group1.0"] is optimizer.state[foreign]["exp_avg"]
    assert [group["lr"] for group in settings_of([optimizer])[0]] == [0.1, 0.5]


def test_a_batch_is_told_by_structure_types_shapes_bits_and_plain_values() -> None:
    tensor = torch.arange(6.0)

    class Graph:
        def __init__(self, nodes: Tensor) -> None:
            self.nodes = nodes

    batches: list[Any] = [
        *(tensor, [tensor], (tensor,), {"x": tensor}, {"y": tensor}, OrderedDict(x=tensor)),
        *(tensor.reshape(2, 3), tensor.double(), tensor + 1, tensor.numpy(), tensor.numpy() + 1, Graph(tensor)),
        *(Graph(tensor + 1), [tensor, "a"], [tensor, "b"], [tensor, None], [tensor, 1], [tensor, 1.0], [tensor, b"a"]),
    ]
    found = [BatchDigest(batch).hex() for batch in batches]
    assert len(set(found)) == len(batches)
    assert BatchDigest({"x": tensor.clone()}).hex() == BatchDigest({"x": tensor}).hex()


def test_generators_are_told_apart_by_what_was_drawn() -> None:
    generators = TorchGenerators(torch.device("cpu"))
    torch.manual_seed(0)
    found = []
    for draws in (0, 1, 0, 1):
        torch.rand(draws)
        found.append(generators.read())
    assert found[0] != found[1] == found[2] != found[3]
    torch.manual_seed(0)
    assert generators.read() == TorchGenerators(torch.device("cpu")).read() == found[0]
    assert set(json.loads(found[0])) == {"torch"}

    random.seed(0)
    before = slow_generators()
    assert slow_generators() == before and set(before) >= {"python"}
    random.random()
    assert slow_generators()["python"] != before["python"]
    if "numpy" in before:
        import numpy

        numpy.random.rand()
        assert slow_generators()["numpy"] != before["numpy"]


@pytest.mark.gpu
def test_digests_on_a_gpu_are_those_on_the_cpu(accelerator: str) -> None:
    device = torch.device(accelerator)
    tensor = torch.randn(7, 5)
    assert int(digest_of(tensor.to(device))) == int(digest_of(tensor))
    assert BatchDigest([tensor.to(device), 1]).hex() == BatchDigest([tensor, 1]).hex()
    generators = TorchGenerators(device)
    before = json.loads(generators.read())
    torch.rand(1, device=device)
    after = json.loads(generators.read())
    assert before["device"] != after["device"] and before["torch"] == after["torch"]
