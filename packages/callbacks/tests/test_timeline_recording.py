from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from camshaft.callbacks.profiling.timeline_recording import DurationHistogram

DURATIONS = st.lists(st.integers(0, 10**13), min_size=1, max_size=60)


def histogram(durations: list[int]) -> DurationHistogram:
    counted = DurationHistogram()
    counted.add(durations[: len(durations) // 2])
    counted.add(durations[len(durations) // 2 :])
    return counted


@given(DURATIONS, st.integers(1, 100))
def test_a_percentile_is_the_nearest_rank_one_within_a_hundred_and_twenty_eighth(
    durations: list[int], percent: int
) -> None:
    exact = sorted(durations)[-(-percent * len(durations) // 100) - 1]
    assert histogram(durations).percentile_ns(percent) == pytest.approx(exact, rel=1 / 128, abs=0)


@given(DURATIONS, DURATIONS)
def test_merging_counts_as_if_all_had_been_added_to_one(some: list[int], others: list[int]) -> None:
    merged, whole = histogram(some), histogram([*some, *others])
    merged.merge(histogram(others))
    merged.merge(DurationHistogram())
    facts = [(one.num, one.total_ns, one.min_ns, one.max_ns, one.percentile_ns(90)) for one in (merged, whole)]
    assert facts[0] == facts[1] == (len([*some, *others]), sum(some + others), min(some + others), *facts[0][3:])


def test_small_durations_are_exact_and_nothing_has_percentile_zero() -> None:
    assert histogram([1, 2, 3, 127]).percentile_ns(75) == 3
    assert histogram([5]).percentile_ns(1) == 5
    assert DurationHistogram().percentile_ns(50) == 0


def test_buckets_are_bounded_however_many_durations_there_are() -> None:
    counted = histogram(list(range(0, 2**17)))
    assert len(counted._counts) <= 128 + 64 * 10
    assert counted.num == 2**17
