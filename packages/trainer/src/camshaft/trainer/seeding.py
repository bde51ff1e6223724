"""Seeding every random number generator at once."""

from __future__ import annotations

import random

import torch

from camshaft.hooks_core.messages import must_be


def seed_everything(seed: int) -> int:
    """Seed Python's, NumPy's (if installed) and torch's generators, on every device.

    Workers of a `DataLoader` are seeded from torch's generator, so this covers them too.

    Args:
        seed: From 0 to 2**32 - 1, the range that NumPy accepts.

    Returns:
        The seed.

    Raises:
        ValueError: If it is out of range, or no int.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ValueError(must_be("seed", "an int from 0 to 2**32 - 1", seed, "seed_everything", "Pass another."))
    random.seed(seed)
    torch.manual_seed(seed)
    try:
        import numpy
    except ImportError:
        return seed
    numpy.random.seed(seed)
    return seed
