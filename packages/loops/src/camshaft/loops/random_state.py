"""The state of every random number generator that training draws from."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def random_state() -> dict[str, Any]:
    """The state of Python's, NumPy's (if imported), torch's and every CUDA device's generator, as plain values."""
    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": [version, torch.tensor(numbers, dtype=torch.int64), gauss],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        keys = torch.tensor(keys.astype("int64"))
        state["numpy"] = [name, keys, int(position), int(has_gauss), float(cached)]
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    """Put every generator back into a state that `random_state` returned."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
    torch.set_rng_state(state["torch"].cpu())
    if "cuda" in state and torch.cuda.is_available():
        for device_idx, device_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(device_state.cpu(), device_idx)
    if "numpy" in state:
        try:
            import numpy
        except ImportError:
            return  # nothing can draw from a generator that is not there
        name, keys, *rest = state["numpy"]
        numpy.random.set_state((name, keys.numpy().astype("uint32"), *rest))


@contextmanager
def isolated_randomness() -> Iterator[None]:
    """Whatever is drawn inside leaves the generators as they were before."""
    state = random_state()
    try:
        yield
    finally:
        restore_random_state(state)
