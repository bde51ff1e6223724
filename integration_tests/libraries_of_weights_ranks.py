"""Train what peft and torchao change, whole and in two parts. Arguments: a folder, and kinds with their strategies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import test_libraries_of_weights as tested
import torch
from launching import report

FOLDER = Path(sys.argv[1])
RANKS: dict[str, Any] = {"accelerator": "cpu", "devices": 2}


def whole_values(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in state.items()}


def is_resumed_exactly(kind: type[tested.Net], strategy: str) -> bool:
    whole, parts = FOLDER / "whole", FOLDER / "parts"
    arguments = {**RANKS, "strategy": strategy}
    expected = whole_values(tested.fit(whole, kind, 2, **arguments))
    tested.fit(parts, kind, 1, **arguments)
    resumed = whole_values(tested.fit(parts, kind, 2, ckpt_path=parts / "1.ckpt", **arguments))
    return all(torch.equal(resumed[name], expected[name]) for name in expected)


for name, strategy in (case.split() for case in sys.argv[2:]):
    report(f"{name} {strategy}", is_resumed_exactly(getattr(tested, name), strategy))
try:
    tested.fit(FOLDER, tested.EightBitStates, 1, **RANKS, strategy="sharded")
except TypeError as error:
    report("refused", str(error))
