from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from camshaft.strategies.launch import starts
from camshaft.strategies.launch.starts import agree_on_start, restart_count

NUM_RANKS = 3


@pytest.fixture(autouse=True)
def agreed_by_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "_agreed", None)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2 * NUM_RANKS) as pool:
        yield pool


def begin(pool: ThreadPoolExecutor, store: HashStore, *ranks: int, seconds: float = 60) -> list[Future[int]]:
    return [pool.submit(agree_on_start, store, rank, NUM_RANKS, timedelta(seconds=seconds)) for rank in ranks]


def test_ranks_agree_whoever_comes_first_and_keys_of_earlier_starts_do_not_count(pool: ThreadPoolExecutor) -> None:
    store = HashStore()
    for number in range(4):
        early = begin(pool, store, *([1, 2] if number % 2 else [0, 1]))
        with pytest.raises(TimeoutError):
            early[-1].result(0.1)
        late = begin(pool, store, *([0] if number % 2 else [2]))
        assert [future.result(60) for future in early + late] == [number] * NUM_RANKS
        assert restart_count() == number


def test_a_start_that_was_ended_while_it_waited_is_left_behind(pool: ThreadPoolExecutor) -> None:
    store = HashStore()
    for future in begin(pool, store, 0, 2, seconds=0.2):
        with pytest.raises(RuntimeError, match=r"Ranks \[1\] of 3 did not start|Rank 0, or another rank"):
            future.result(60)
    assert [future.result(60) for future in begin(pool, store, 2, 1, 0)] == [1] * NUM_RANKS


def test_a_count_of_the_agent_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "two")
    with pytest.raises(ValueError, match="`TORCHELASTIC_RESTART_COUNT` must be a number from 0, but got 'two'"):
        restart_count()
