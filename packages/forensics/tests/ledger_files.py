"""Ledgers of runs that nobody trained."""

from __future__ import annotations

import copy
from typing import Any

from camshaft.forensics.ledger.ledger_file import LedgerFile, json_of

HEADER = {"world_size": 1, "data_ranks": [0], "seed": "0", "versions": {"torch": "2.13"}, "first_step": 1}
LINE = {
    "epoch": 0,
    "batches": [0],
    "samples": [[[4, 2]]],
    "random": [{"torch": "00"}],
    "loss": [["float32:3f800000"]],
    "norm": [["float64:3ff0000000000000"]],
}
WEIGHTS = {"weights": {"a": "11", "b": "22"}, "optimizer": {"0.exp_avg.a": "33"}, "settings": [[{"lr": 0.1}]]}


def lines_of(num_steps: int, weights_every: int = 4) -> list[dict[str, Any]]:
    """Lines for so many updates, all alike."""
    lines = [{"step": step, **LINE} for step in range(1, num_steps + 1)]
    for line in lines[::weights_every]:
        line.update(WEIGHTS)
    return copy.deepcopy(lines)


def write(path: Any, lines: list[dict[str, Any]], **header: Any) -> Any:
    """Write a ledger."""
    file = LedgerFile(path)
    file.begin(HEADER | header)
    file.append([json_of(line) for line in lines])
    file.sync()
    file.close()
    return path
