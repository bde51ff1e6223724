"""Seeding, as functions of earlier releases."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from camshaft.hooks_core.user_warnings import warn_user
from camshaft.loops.worker_seeds import SEED_WORKERS_VARIABLE
from camshaft.loops.worker_seeds import seed_worker as pl_worker_init_function
from camshaft.trainer.seeding import GLOBAL_SEED_VARIABLE as _VARIABLE
from camshaft.trainer.seeding import seed_everything as _seed_everything

__all__ = ["isolate_rng", "pl_worker_init_function", "reset_seed", "seed_everything"]


def seed_everything(seed: Any = None, workers: bool = False, verbose: bool = True) -> int:
    """Seed every generator; see `camshaft.trainer.seed_everything`.

    Args:
        seed: The seed, or a text of it. None takes that of the variable `PL_GLOBAL_SEED`, or draws one and says which.
        workers: As in `camshaft.trainer.seed_everything`.
        verbose: Likewise.

    Returns:
        The seed.

    Raises:
        ValueError: If it is out of range, or no number.
    """
    if seed is None:
        seed = os.environ.get(_VARIABLE)
    if seed is None:
        seed = random.randint(0, 2**32 - 1)
        warn_user(f"seed_everything was given no seed, and took {seed}.")
    return _seed_everything(int(seed), workers=workers, verbose=verbose)


def reset_seed() -> None:
    """Seed again with the last seed of `seed_everything`, if there was one."""
    if _VARIABLE in os.environ:
        workers = os.environ.get(SEED_WORKERS_VARIABLE, "0") not in ("", "0")
        _seed_everything(int(os.environ[_VARIABLE]), workers=workers, verbose=False)


@contextmanager
def isolate_rng(include_cuda: bool = True) -> Iterator[None]:
    """Put generators back as they were, after the body of a `with` statement."""
    devices = list(range(torch.cuda.device_count())) if include_cuda and torch.cuda.is_available() else []
    python_state = random.getstate()
    try:
        import numpy
    except ImportError:
        numpy = None  # type: ignore[assignment]
    numpy_state = None if numpy is None else numpy.random.get_state()
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy_state is not None:
                numpy.random.set_state(numpy_state)
