from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from camshaft.strategies.checkpoints.writer import StagingBuffers


def snapshot(buffers: StagingBuffers, tensors: list[Tensor]) -> list[Tensor]:
    staged = [buffers.add(tensor) for tensor in tensors]
    buffers.copy()
    return staged


def base(dtype: torch.dtype) -> Tensor:
    return (torch.arange(60) % 7).to(dtype).reshape(5, 12)


DTYPES = [torch.float32, torch.bfloat16, torch.bool, torch.uint8, torch.int64, torch.complex128, torch.float8_e4m3fn]
VIEWS = {
    "all": lambda tensor: tensor,
    "rows": lambda tensor: tensor[1:3],
    "transposed": lambda tensor: tensor.t(),
    "columns": lambda tensor: tensor[:, 3:8:2],
    "one": lambda tensor: tensor[2, 3],
    "none": lambda tensor: tensor[:0],
    "expanded": lambda tensor: tensor[:, :1].expand(5, 4),
}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(DTYPES), st.sampled_from(sorted(VIEWS))), max_size=8))
def test_a_snapshot_equals_tensors_that_change_afterwards(parts: list[tuple[int, torch.dtype, str]]) -> None:
    bases = {(number, dtype): base(dtype) for number, dtype, _ in parts}
    tensors = [VIEWS[view](bases[number, dtype]) for number, dtype, view in parts]
    expected = [tensor.clone() for tensor in tensors]
    buffers = StagingBuffers()
    for _ in range(2):  # the second reuses the memory of the first
        staged = snapshot(buffers, tensors)
        for tensor in bases.values():
            tensor.zero_()
        for copy, tensor in zip(staged, expected, strict=True):
            assert (copy.dtype, copy.size()) == (tensor.dtype, tensor.size())
            assert torch.equal(copy.to(torch.complex128), tensor.to(torch.complex128))
        for (_, dtype), tensor in bases.items():
            tensor.copy_(base(dtype))


def test_the_memory_of_a_snapshot_is_used_again() -> None:
    buffers = StagingBuffers()
    tensors = [torch.randn(1000), torch.randn(77)]
    first = [tensor.data_ptr() for tensor in snapshot(buffers, tensors)]
    assert [tensor.data_ptr() for tensor in snapshot(buffers, tensors)] == first
    larger = snapshot(buffers, [*tensors, torch.randn(5000)])
    assert all(torch.equal(one, two) for one, two in zip(larger, tensors, strict=False))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a platform that forks")
def test_memory_is_not_copied_on_write_after_a_fork() -> None:
    buffers = StagingBuffers()
    weights = torch.zeros(1000)
    (staged,) = snapshot(buffers, [weights])
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(here, 1)  # the parent has taken the next snapshot
        os._exit(int(staged[5]))
    snapshot(buffers, [weights + 7])
    os.write(there, b"x")
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7  # the same memory, not a copy on writing
    os.close(here)
    os.close(there)


def test_tensors_that_share_memory_are_copied_once_and_share_it_again() -> None:
    weights = torch.randn(100, 10)
    staged = snapshot(StagingBuffers(), [weights, weights.detach(), weights[50:]])
    assert staged[0].data_ptr() == staged[1].data_ptr()
    assert staged[2].data_ptr() == staged[0].data_ptr() + 50 * 10 * 4
    assert len({tensor.untyped_storage().data_ptr() for tensor in staged}) == 1


def test_of_a_large_storage_only_what_is_looked_at_is_copied() -> None:
    (staged,) = snapshot(StagingBuffers(), [torch.arange(100_000)[500:510]])
    assert staged.untyped_storage().nbytes() < 200
    assert staged.tolist() == list(range(500, 510))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(),
        torch.tensor([1 + 2j]).conj(),
        torch.nn.Parameter(torch.ones(3)),
        torch.ones(3, requires_grad=True) * 2,
    ],
    ids=["sparse", "conjugate view", "parameter", "with a gradient"],
)
def test_unusual_tensors_are_copied_too(tensor: Tensor) -> None:
    (staged,) = snapshot(StagingBuffers(), [tensor])
    assert not staged.requires_grad
    assert torch.equal(staged.to_dense(), tensor.detach().to_dense())
    assert staged.layout is tensor.layout


def test_what_was_forgotten_is_not_copied() -> None:
    buffers = StagingBuffers()
    forgotten = buffers.add(torch.ones(3))
    buffers.forget()
    (staged,) = snapshot(buffers, [torch.zeros(2)])
    assert forgotten.numel() == 0
    assert staged.tolist() == [0, 0]


@pytest.mark.gpu
def test_tensors_on_a_gpu_are_copied_to_pinned_memory_that_is_kept(accelerator: str) -> None:
    buffers = StagingBuffers()
    weights = torch.randn(1000, 10, device=accelerator)
    tensors = [weights, weights[5:7].t(), torch.ones(3), torch.tensor(4.0, device=accelerator)]
    expected = [tensor.cpu().clone() for tensor in tensors]
    first = snapshot(buffers, tensors)
    pointers = [tensor.data_ptr() for tensor in first]
    weights.zero_()
    assert all(torch.equal(one, two) for one, two in zip(first, expected, strict=True))
    assert first[0].is_pinned()
    assert [tensor.data_ptr() for tensor in snapshot(buffers, tensors)] == pointers
