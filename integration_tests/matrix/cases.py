"""The cases of the matrix."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

TOLERANCES = {
    "32-true": 2e-6,
    "64-true": 1e-13,
    "bf16-mixed": 1e-2,
    "16-mixed": 2e-3,
    "bf16-true": 1e-2,
    "16-true": 1e-2,
}
"""By precision, on CPUs; weights are about 0.3, and learn about 0.1."""

CLIPPING: dict[str, dict[str, Any]] = {
    "unclipped": {},
    "norm": {"gradient_clip_val": 0.05},
    "value": {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
}


@dataclass(frozen=True)
class Case:
    """One training; `size` ranks run it, each on a device of a kind."""

    strategy: str
    precision: str
    accumulate: int
    clipping: str
    size: int
    device: str = "cpu"

    @property
    def tolerance(self) -> float:
        """By how much a weight may differ from that on one device; GPUs sum in orders of their own."""
        return TOLERANCES[self.precision] * (1 if self.device == "cpu" else 5)

    @property
    def name(self) -> str:
        return f"{self.strategy}-{self.precision}-{self.accumulate}-{self.clipping}"

    @property
    def arguments(self) -> dict[str, Any]:
        """Of the trainer."""
        return {"accumulate_grad_batches": self.accumulate, **CLIPPING[self.clipping]}


def cases(size: int, device: str = "cpu") -> list[Case]:
    """Everything with everything in the usual precision; in the others, what precision has to do with."""
    on_few, on_four = ["ddp", "sharded", "sharded-offloaded"], ["ddp", "sharded", "replicated", "tensor-parallel"]
    strategies = on_few if size <= 2 else on_four
    found = [
        Case(strategy, "32-true", accumulate, clipping, size, device)
        for strategy, accumulate, clipping in product(strategies, (1, 4), CLIPPING)
    ]
    if size <= 2:
        others = [precision for precision in TOLERANCES if precision != "32-true"]
        found += [
            Case(strategy, precision, accumulate, clipping, size, device)
            for strategy, precision, (accumulate, clipping) in product(
                ("ddp", "sharded"), others, ((1, "unclipped"), (4, "norm"))
            )
        ]
    return found
