"""Values of the logical ranks of a process in one step."""

from __future__ import annotations

from typing import Any


class OfRanks(list[Any]):
    """Values of the logical ranks that a process plays, such as their batches of a step, in the order of ranks."""
