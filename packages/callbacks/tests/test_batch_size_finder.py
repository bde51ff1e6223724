from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from camshaft.callbacks.finders.batch_size_finder import free_memory, is_out_of_memory, search


def run(mode: str, limit: int, start: int, largest: int, max_trials: int = 100) -> tuple[int | None, list[int]]:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= limit

    return search(mode, fits, start=start, largest=lambda: largest, max_trials=max_trials), tried


@given(st.integers(0, 300), st.integers(1, 64), st.integers(64, 400))
def test_bisecting_finds_the_largest_that_fits(limit: int, start: int, largest: int) -> None:
    found, tried = run("binsearch", limit, start, largest)
    assert found == (min(limit, largest) or None)
    assert len(tried) == len(set(tried)) <= 20 and max(tried) <= max(start, largest)


@given(st.integers(0, 300), st.integers(1, 64), st.integers(64, 400))
def test_doubling_finds_more_than_half_of_it(limit: int, start: int, largest: int) -> None:
    found, tried = run("power", limit, start, largest)
    if limit == 0:
        assert found is None and tried[-1] == 1
    else:
        assert found is not None
        assert found <= min(limit, largest) <= 2 * found + 1


@given(st.integers(0, 300), st.integers(1, 6), st.sampled_from(["power", "binsearch"]))
def test_there_are_no_more_trials_than_allowed(limit: int, max_trials: int, mode: str) -> None:
    found, tried = run(mode, limit, 2, 400, max_trials)
    assert len(tried) <= max_trials
    assert found == max((size for size in tried if size <= limit), default=None)


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
