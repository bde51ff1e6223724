from __future__ import annotations

import time
from typing import Any

import pytest
from recording_trainer import OneProcess

from camshaft.callbacks.checkpoints.files import TimeInterval


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


class Broadcasting(OneProcess):
    """Rank 0 of two."""

    world_size = 2

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def broadcast(self, value: Any, src: int = 0) -> Any:
        self.sent.append(value)
        return value


class Receiving(Broadcasting):
    """Rank 1, which hears what rank 0 sent."""

    global_rank = 1

    def broadcast(self, value: Any, src: int = 0) -> Any:
        return self.sent.pop(0)


def test_one_process_looks_at_the_clock_after_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    interval = TimeInterval(10.0)
    over = []
    for _ in range(30):
        clock.now += 1.0
        over.append(interval.is_over(OneProcess()))  # type: ignore[arg-type]
    assert [idx + 1 for idx, is_over in enumerate(over) if is_over] == [10, 20, 30]


def test_ranks_are_due_at_the_same_batches_and_seldom_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    strategy = Broadcasting()
    first, second = TimeInterval(100.0), TimeInterval(100.0)
    over = []
    for _ in range(4000):
        clock.now += 0.1
        over.append(first.is_over(strategy))  # type: ignore[arg-type]
    due = [idx + 1 for idx, is_over in enumerate(over) if is_over]
    assert len(due) == 3 and all(abs(batch - 1000 * (idx + 1)) <= 3 * (idx + 1) for idx, batch in enumerate(due))
    assert len(strategy.sent) < 100
    receiving = Receiving()
    receiving.sent = strategy.sent
    assert [second.is_over(receiving) for _ in range(4000)] == over  # type: ignore[arg-type]
