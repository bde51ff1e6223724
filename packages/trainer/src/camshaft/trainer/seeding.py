"""Seeds for all random number generators."""

from __future__ import annotations

import logging
import os
import random
from operator import index
from typing import Any

import torch

from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.loops.state.random_state import SEED_WORKERS_VARIABLE

GLOBAL_SEED_VARIABLE = "PL_GLOBAL_SEED"
"""Environment variable that holds the seed, for processes that are started."""

_log = logging.getLogger(__name__)


def seed_everything(seed: int | None = None, workers: bool = False, verbose: bool = True) -> int:
    """Seed Python's, NumPy's (if installed) and torch's generators, on every device.

    Workers of a `DataLoader` are seeded by torch from the loader's generator or else from torch's own, so this covers
    them too. They are alike in all processes that draw alike, unless `workers` is true. The environment variables
    `PL_GLOBAL_SEED` and `PL_SEED_WORKERS` say what was chosen.

    Args:
        seed: From 0 to 2**32 - 1, the range that NumPy accepts; a text of digits is taken as well. None takes that of
            `PL_GLOBAL_SEED`, or else 0, with a warning.
        workers: If true, loaders of verbs that begin from now on seed their workers by worker and rank, as in
            Lightning; a loader that has a `worker_init_fn` keeps it.
        verbose: If true, the seed is logged, as information of the logger `camshaft.trainer.seeding`.

    Returns:
        The seed.

    Raises:
        ValueError: If it is out of range, or no int.
    """
    chosen = _checked(seed)
    if verbose:
        _log.info("Seed set to %d", chosen)
    os.environ[GLOBAL_SEED_VARIABLE] = str(chosen)
    os.environ[SEED_WORKERS_VARIABLE] = str(int(workers))
    random.seed(chosen)
    torch.manual_seed(chosen)
    try:
        import numpy
    except ImportError:
        return chosen
    numpy.random.seed(chosen)
    return chosen


def _checked(seed: Any) -> int:
    where = "seed_everything"
    if seed is None:
        seed, where = os.environ.get(GLOBAL_SEED_VARIABLE), f"{GLOBAL_SEED_VARIABLE} for seed_everything"
        if seed is None:
            warn_user("seed_everything got no seed and uses 0. Pass one.")
            seed = 0
    try:
        chosen = int(seed) if isinstance(seed, str) else index(seed)
    except (TypeError, ValueError):
        chosen = -1
    if isinstance(seed, bool) or not 0 <= chosen < 2**32:
        raise ValueError(must_be("seed", "an int from 0 to 2**32 - 1", seed, where, "Pass another."))
    return chosen
