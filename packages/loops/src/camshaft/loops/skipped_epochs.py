"""Skipping the rest of an epoch, which several processes do together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from camshaft.hooks_core.catalogue import CATALOGUE
from camshaft.hooks_core.implementation import implementation
from camshaft.hooks_core.method_source import returns_anything
from camshaft.hooks_core.spec import SKIP_EPOCH
from camshaft.loops.run import Run


def batch_start_of_all(run: Run) -> Callable[[Any, int], Any]:
    """`on_train_batch_start`, which skips the rest of the epoch in all processes if it does in one.

    A process that skipped alone would leave the others waiting for its gradients. They ask each other at every batch,
    but only with several processes and where the code of a receiver returns anything there; as all run the same code,
    all do or none.

    Args:
        run: A run with its hooks resolved.

    Returns:
        The hook; the very one of the run where nobody has to ask. The other one is collective.
    """
    hook: Callable[[Any, int], Any] = run.hooks.on_train_batch_start
    if run.strategy.world_size == 1 or not _may_skip(run):
        return hook
    reduce = run.strategy.reduce

    def batch_start(batch: Any, batch_idx: int) -> Any:
        skips = hook(batch, batch_idx) == SKIP_EPOCH
        return SKIP_EPOCH if reduce(torch.tensor(int(skips)), "max").item() else None

    return batch_start


def _may_skip(run: Run) -> bool:
    names = [spec.name for spec in CATALOGUE.values() if spec.can_skip_epoch]
    receivers = [*run.callbacks, run.data, run.module, run.strategy]
    methods = [implementation(receiver, name) for receiver in receivers if receiver is not None for name in names]
    return any(returns_anything(method) for method in methods if method is not None)
