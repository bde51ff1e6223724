"""Which errors say that memory ran out."""

from __future__ import annotations

import pytest
import torch

from camshaft.callbacks.finders.batch_size_finder import free_memory, is_out_of_memory


def test_what_torch_raises_on_the_cpu_counts() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**50, dtype=torch.int8)
    assert is_out_of_memory(raised.value)
    free_memory()


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (MemoryError(), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_kinds(error: BaseException, counts: bool) -> None:
    assert is_out_of_memory(error) is counts


def test_what_was_caused_by_it_counts() -> None:
    error = KeyError("batch")
    error.__cause__ = MemoryError()
    assert is_out_of_memory(error)
