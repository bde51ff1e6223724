"""Letting all processes draw the same random numbers."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def shared_randomness(broadcast: Callable[[Any], Any]) -> Iterator[None]:
    """While it is entered, Python's, NumPy's (if imported) and torch's CPU generators are as on the first process.

    Collective. A generator that was in the same state goes on with the one that it is left in, as if this process had
    been alone; one that was seeded otherwise gets its own state back, so that it stays different.

    Args:
        broadcast: Returns on every process what the first passes.
    """
    own = _states()
    first = broadcast(own)
    others = {name: state for name, state in own.items() if first.get(name) != state}
    _set_states({name: first[name] for name in others if name in first})
    try:
        yield
    finally:
        _set_states(others)


def _states() -> dict[str, Any]:
    """The states as plain values, which can be compared."""
    states: dict[str, Any] = {"torch": torch.get_rng_state().numpy().tobytes(), "python": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        states["numpy"] = (name, keys.tolist(), *rest)
    return states


def _set_states(states: dict[str, Any]) -> None:
    if "torch" in states:
        torch.set_rng_state(torch.frombuffer(bytearray(states["torch"]), dtype=torch.uint8))
    if "python" in states:
        random.setstate(states["python"])
    numpy = sys.modules.get("numpy")
    if "numpy" in states and numpy is not None:
        name, keys, *rest = states["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype="uint32"), *rest))
