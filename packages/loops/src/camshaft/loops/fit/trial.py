"""Training batches for steps of a callback that leave no trace; see `FitLoop.trial`."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from camshaft.hooks_core.support.messages import must_be
from camshaft.loops.data.combined_loader import (
    CombinedLoader,
    copy_loader,
    end_workers,
    has_state,
    is_plain,
    is_stream,
    length_of,
    samplers_of,
)
from camshaft.loops.data.fit_data import FitData
from camshaft.loops.data.loaders import batch_mover, leaves_of
from camshaft.loops.evaluation.loops import ModuleModes
from camshaft.loops.metrics import StandaloneLog
from camshaft.loops.state.metric_state import metric_states, restore_metric_states
from camshaft.loops.state.random_state import isolated_randomness
from camshaft.loops.state.run import Run


class TrialBatches:
    """Batches of a loader, on their device; each pass over them begins anew.

    Args:
        loader: The loader.
        run: The run; its metric log gets each batch.
        num_batches: Maximum number of batches; inf takes all.

    Attributes:
        batch_size: That of the loader; None if it has none, or several.
    """

    def __init__(self, loader: Any, run: Run, num_batches: int | float) -> None:
        self._loader, self._run = loader, run
        self._num_batches = min(num_batches, length_of(loader))
        sizes = [getattr(one, "batch_size", None) for one in (loader, getattr(loader, "batch_sampler", None))]
        self.batch_size: int | None = sizes[0] or sizes[1]

    def __len__(self) -> int:
        if self._num_batches == float("inf"):
            raise TypeError(f"{type(self._loader).__name__} has no length. Give it `__len__`, or iterate.")
        return int(self._num_batches)

    def __iter__(self) -> Iterator[Any]:
        move, metrics = batch_mover(self._run), self._run.metrics
        for batch in islice(self._loader, None if self._num_batches == float("inf") else int(self._num_batches)):
            if move is not None:
                batch = move(batch, 0)
            if metrics is not None:
                metrics.batch = batch
            yield batch


@contextmanager
def in_trial(run: Run, data: FitData | None, *, reload: bool) -> Iterator[TrialBatches]:
    """Yield batches of a fit's data; see `FitLoop.trial`. Collective.

    Args:
        run: The run.
        data: The data of its fit; None before it is known.
        reload: Whether the loader is asked for anew.

    Raises:
        RuntimeError: If the training loader is not known yet, or the run is defined on logical ranks.
    """
    if data is None or data.loader is None:
        rule, action = "used when the training loader is known", "Use it from `on_fit_start` on."
        raise RuntimeError(must_be("trial", rule, None, "Trainer", action))
    with rollback(run, data):
        loader = _without_trace(data.reload_for_trial() if reload else data.loader)
        with _isolated(loader):
            yield TrialBatches(loader, run, float("inf") if reload else data.num_batches)


@contextmanager
def rollback(run: Run, data: FitData) -> Iterator[None]:
    """Restore random numbers, states of metrics, train/eval modes and logged values at the end of the block.

    Args:
        run: The run.
        data: The data of its fit, whose generators count beside the global ones.

    Raises:
        RuntimeError: If the run is defined on logical ranks, which a trial does not know.
    """
    if run.logical is not None:
        rule, action = "used without logical ranks", "Find out what it finds in a run without `logical_ranks`."
        raise RuntimeError(must_be("trial", rule, run.logical.count, "fit", action))
    metrics, modes, stage = metric_states(run.module), ModuleModes(run.module), run.stage
    try:
        with isolated_randomness(data.generators), _unlogged(run):
            run.stage = "train"
            yield
    finally:
        run.stage = stage
        modes.restore()
        restore_metric_states(run.module, metrics)


def _without_trace(loader: Any) -> Any:
    """Return a loader that reads the same without changing the state of the given one."""
    if isinstance(loader, CombinedLoader):
        return loader.with_loaders(_without_trace)
    if is_plain(loader) or type(loader).__module__.startswith("torchdata.stateful_dataloader"):
        order = {"batch_sampler": loader.batch_sampler}
        if is_stream(loader):
            order = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        elif loader.batch_sampler is None:
            order = {"batch_size": None, "sampler": loader.sampler}
        return copy_loader(loader, DataLoader, **order)
    if has_state(loader) or isinstance(loader, Iterator):
        rule = "a DataLoader, or one without a state that begins anew each time, to be tried out"
        raise ValueError(must_be("train loader", rule, loader, "Trainer.trial", "Pass a DataLoader."))
    return loader


@contextmanager
def _isolated(loader: Any) -> Iterator[None]:
    """Restore the states of datasets and samplers that have one."""
    leaves = leaves_of(loader)
    parts: Iterable[Any] = [part for leaf in leaves for part in (getattr(leaf, "dataset", None), *samplers_of(leaf))]
    remembered = [(part, copy.deepcopy(part.state_dict())) for part in parts if has_state(part)]
    try:
        yield
    finally:
        for part, state in remembered:
            part.load_state_dict(state)
        end_workers(leaves)


@contextmanager
def _unlogged(run: Run) -> Iterator[None]:
    """Discard everything that is logged."""
    metrics = run.metrics
    logs = [(vars(part), vars(part).get("_metric_log")) for part in run.module.modules()]
    alone = [(own, log) for own, log in logs if isinstance(log, StandaloneLog)]
    for own, _ in alone:
        own["_metric_log"] = StandaloneLog()
    try:
        with nullcontext() if metrics is None else metrics.trial():
            yield
    finally:
        for own, log in alone:
            own["_metric_log"] = log
