from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from camshaft.hooks_core import Callback, resolve
from camshaft.hooks_core.support.processes import track_run
from camshaft.strategies.launch.peers import (
    OwnPosition,
    ProcessPosition,
    describe_positions,
    frames_of,
    missing_ranks,
    position_of,
    stack_of_run,
)

BACKWARD = ProcessPosition("fit, stage train, epoch 2, batch 17", collective="backward", num_collectives=40)


@pytest.fixture
def blocked() -> Iterator[Callable[[Callable[[Callable[[], object]], object]], int]]:
    """Starts a thread that calls what it is given with a function that blocks there; returns the thread's number."""
    go_on, threads = threading.Event(), []

    def start(call: Callable[[Callable[[], object]], object]) -> int:
        is_there = threading.Event()

        def block() -> None:
            is_there.set()
            go_on.wait(60)

        threads.append(threading.Thread(target=call, args=(block,)))
        threads[-1].start()
        assert is_there.wait(60)
        return int(threads[-1].ident or 0)

    yield start
    go_on.set()
    for thread in threads:
        thread.join(60)


def test_a_position_holds_the_run_the_innermost_hook_and_the_line(blocked: Any) -> None:
    class Hanging(Callback):
        def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
            trainer()

    def run(block: Callable[[], None]) -> None:
        hooks = resolve(callbacks=[Hanging()], trainer=block)
        with track_run(lambda: "fit, stage validate, epoch 1"):
            hooks.on_validation_epoch_end()

    thread_id = blocked(run)
    position = OwnPosition().look()
    assert position.text == "fit, stage validate, epoch 1, hook `on_validation_epoch_end`"
    assert position.line.endswith(" in wait")
    line = position_of([frame for frame in frames_of(thread_id) if "test_process" in frame.f_code.co_filename], "").line
    assert line.startswith(f"{Path(__file__).name}:") and line.endswith(" in block")
    assert "trainer()" in stack_of_run(), "that of the run's thread"


def test_outside_of_a_run_the_main_thread_is_looked_at() -> None:
    position = OwnPosition().look()
    assert position.text == "outside of a run" and not position.collective
    assert "test_outside_of_a_run" in stack_of_run()


def test_time_counts_from_when_a_process_came_to_its_hook_whatever_lines_it_runs() -> None:
    own = OwnPosition()
    first = own.look()
    time.sleep(0.02)
    second = own.look()
    assert second.since == first.since and second.seen > first.seen
    assert second.line != first.line
    with track_run(lambda: "fit, epoch 0"):
        assert own.look().since > first.since


def test_who_failed_in_a_collective_stays_there_also_in_one_that_has_no_name() -> None:
    own = OwnPosition()
    with track_run(lambda: "fit, epoch 3"):
        try:
            raise RuntimeError("gloo: Timed out waiting")
        except RuntimeError as error:
            own.freeze(error)
    assert own.look().text == "fit, epoch 3, collective `wait`"
    assert own.leave().text == "its script has ended"


@pytest.mark.parametrize("module", ["parallel", "ddp", "ddp_replica", "sharding.steps", "launch.collectives"])
def test_a_thread_that_waits_inside_of_the_strategies_is_in_a_collective(module: str) -> None:
    names: dict[str, Any] = {"__name__": f"camshaft.strategies.{module}", "sys": sys}
    exec("def exchange():\n    return [sys._getframe()]", names)
    assert position_of(names["exchange"](), "").collective == "exchange"


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ({0: BACKWARD, 1: evolve(BACKWARD, collective="")}, [1]),
        ({0: BACKWARD, 1: ProcessPosition(has_left=True, num_collectives=39), 2: BACKWARD}, [1]),
        ({0: evolve(BACKWARD, num_collectives=39, collective="reduce"), 1: BACKWARD}, [0]),
        ({0: BACKWARD, 1: BACKWARD}, []),
        ({}, []),
    ],
)
def test_missing_is_who_waits_in_no_collective_or_else_has_entered_fewer(positions: Any, expected: list[int]) -> None:
    assert missing_ranks(positions) == expected


def test_missing_ranks_are_described_first_and_ranks_at_the_same_place_together() -> None:
    now = time.time()
    hanging = ProcessPosition(
        "fit, stage train, epoch 2, batch 17", "training_step", num_collectives=39, line="a.py:7 in f", since=now - 31.2
    )
    positions = {rank: evolve(BACKWARD, since=now - 30.1 + rank, seen=now) for rank in range(12)} | {1: hanging}
    missing, hung, others = describe_positions(positions, [1], 1.0).splitlines()
    assert missing == "Rank 1 is missing in a collective that others wait in:"
    where = "fit, stage train, epoch 2, batch 17, "
    assert hung == f"rank 1: {where}hook `training_step`, since 31 s (at a.py:7 in f); 39 collectives entered"
    ranks = "ranks 0, 2, 3, 4, 5, 6, 7, 8 and 3 more"
    assert others == f"{ranks}: {where}collective `backward`, since 30 s; 40 collectives entered"


def test_a_process_that_no_longer_tells_where_it_is_is_said_to_be_silent() -> None:
    silent = evolve(BACKWARD, since=time.time() - 50, seen=time.time() - 40)
    _, described = describe_positions({0: silent}, [], 1.0).splitlines()
    assert "since 50 s; no sign of life for 40 s" in described


def test_ranks_that_have_called_fewer_collectives_are_told_apart_from_those_that_do_not_come() -> None:
    behind = {0: BACKWARD, 1: evolve(BACKWARD, num_collectives=38), 2: evolve(BACKWARD, num_collectives=39)}
    head = "Ranks 1, 2 have entered fewer collectives than others; every rank must call the same ones:"
    assert describe_positions(behind, missing_ranks(behind), 1.0).startswith(head)
    elsewhere = {0: BACKWARD, 1: evolve(BACKWARD, collective="all_gather")}
    head = "Every rank waits, but not in the same collective; every rank must call the same ones:"
    assert describe_positions(elsewhere, missing_ranks(elsewhere), 1.0).startswith(head)
    assert describe_positions({0: BACKWARD}, [], 1.0).startswith("The ranks were last seen here:")
