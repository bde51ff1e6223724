"""Random numbers of a loader's worker processes that differ between all workers of all processes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

SEED_WORKERS_VARIABLE = "PL_SEED_WORKERS"
"""Environment variable that asks for it, as `seed_everything(workers=True)` sets it: "1" or "0"."""

_MASK = (1 << 64) - 1
_FINALIZER = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)  # of MurmurHash3
_LCG_MULTIPLIER = 6364136223846793005  # Knuth's, modulo 2**64


def seed_worker(worker_id: int, rank: int | None = None) -> None:
    """Seed torch, Python and NumPy (if installed) in a worker process; for `DataLoader(worker_init_fn=...)`.

    The seeds follow from the loader's base seed, which is drawn anew for each iteration from the loader's generator or
    else from torch's, from the worker and from the process's rank. They are those of Lightning.

    Args:
        worker_id: Index of the worker.
        rank: Rank of the process whose loader it is; None takes that of the environment, else 0.
    """
    if rank is None:
        rank = int(os.environ.get("RANK", 0))
    base_seed = torch.initial_seed() - worker_id
    of_torch, high, low, _ = _mixed(base_seed, worker_id, rank, count=4)
    torch.manual_seed(of_torch)
    random.seed((high << 32) | low)
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(numpy.random.SeedSequence([base_seed, worker_id, rank]).generate_state(4))


def seed_workers(loaders: Iterable[Any], rank: int) -> None:
    """Let the workers of data loaders be seeded by `seed_worker`, if the environment asks for it.

    A loader that has a `worker_init_fn` keeps it. Nothing else is read or drawn, so a run that is resumed goes on with
    what its workers had drawn, as without.

    Args:
        loaders: Loaders of any kind.
        rank: Rank of this process.
    """
    if os.environ.get(SEED_WORKERS_VARIABLE, "0") in ("", "0"):
        return
    for loader in loaders:
        if isinstance(loader, DataLoader) and loader.num_workers > 0 and loader.worker_init_fn is None:
            loader.worker_init_fn = partial(seed_worker, rank=rank)


def _mixed(base_seed: int, worker_id: int, rank: int, *, count: int) -> list[int]:
    """Seeds of 64 bits that share no pattern with those of a neighbour."""
    state = (base_seed << 32) | (worker_id << 16) | rank
    for multiplier in _FINALIZER:
        state = ((state ^ (state >> 33)) * multiplier) & _MASK
    state ^= state >> 33
    seeds = []
    for _ in range(count):
        state = (state * _LCG_MULTIPLIER + 1) & _MASK
        seeds.append(state)
    return seeds
