"""Logical ranks: the same bits on any number of processes. Run as a script by several, this file trains the cases."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import report, run_ranks
from logical_reference import CASES, NUM_RANKS, digest, train, train_by_hand

from camshaft.strategies import DDPStrategy, SingleDeviceStrategy

# the others have buffers, or a precision of their own
BY_HAND = ["transformer", "transformer, accumulating and clipping", "branches", "branches, accumulating"]


@functools.cache
def digests(num_processes: int) -> list[dict[str, Any]]:
    """Return what each process found, by case."""
    return run_ranks(Path(__file__), num_processes, args=[str(NUM_RANKS)]).succeeded().named


@functools.cache
def of_one_process(name: str) -> dict[str, Any]:
    case = CASES[name]
    arguments = {key: value for key, value in case.arguments.items() if key == "precision"}
    return train(SingleDeviceStrategy("cpu", logical_ranks=NUM_RANKS, **arguments), case)


@pytest.mark.parametrize("name", BY_HAND)
def test_one_process_trains_as_by_hand(name: str) -> None:
    weights = train_by_hand(CASES[name])
    assert digest(weights) == digest(list(of_one_process(name)["module"].values()))


@pytest.mark.processes
@pytest.mark.parametrize("num_processes", [1, 2, 4])
@pytest.mark.parametrize("name", CASES)
def test_any_number_of_processes_has_the_same_bits(num_processes: int, name: str) -> None:
    assert digests(num_processes)[0][name] == digest(of_one_process(name))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, case in CASES.items():
        strategy = DDPStrategy(accelerator="cpu", logical_ranks=int(sys.argv[1]), timeout=120, **case.arguments)
        strategy.connect()
        report(name, digest(train(strategy, case)))
