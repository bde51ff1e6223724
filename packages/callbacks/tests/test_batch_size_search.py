"""The search for the largest size that fits, against what it must find."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from camshaft.callbacks.finders.batch_size_finder import Found, SearchMode, search


def run(mode: SearchMode, limit: int, start: int, largest: int, max_trials: int = 100) -> tuple[Found, list[int]]:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= limit

    return search(mode, fits, start=start, largest=lambda: largest, max_trials=max_trials), tried


@given(st.integers(0, 300), st.integers(1, 64), st.integers(64, 400))
def test_bisecting_finds_the_largest_that_fits(limit: int, start: int, largest: int) -> None:
    found, tried = run("binsearch", limit, start, largest)
    assert found.size == (min(limit, largest) or None)
    assert len(tried) == len(set(tried)) <= 20 and max(tried) <= max(start, largest)


@given(st.integers(0, 300), st.integers(1, 64), st.integers(64, 400))
def test_doubling_finds_more_than_half_of_it(limit: int, start: int, largest: int) -> None:
    found, tried = run("power", limit, start, largest)
    if limit == 0:
        assert found.size is None and tried[-1] == 1
    else:
        assert found.size is not None
        assert found.size <= min(limit, largest) <= 2 * found.size + 1


@given(st.integers(0, 300), st.integers(1, 6), st.sampled_from(["power", "binsearch"]))
def test_there_are_no_more_trials_than_allowed(limit: int, max_trials: int, mode: SearchMode) -> None:
    found, tried = run(mode, limit, 2, 400, max_trials)
    assert len(tried) <= max_trials
    assert found.size == max((size for size in tried if size <= limit), default=None)
