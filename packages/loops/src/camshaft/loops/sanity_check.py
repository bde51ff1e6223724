"""Trying validation before training, so that nothing of it is left."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from camshaft.hooks_core.implementation import implementation
from camshaft.hooks_core.notes import noting
from camshaft.loops.evaluation_loops import ValidationLoop
from camshaft.loops.metric_state import metric_states, restore_metric_states
from camshaft.loops.random_state import isolated_randomness
from camshaft.loops.run import Run


def check_sanity(
    run: Run, validation: ValidationLoop, num_batches: list[int | float], generators: Sequence[torch.Generator]
) -> None:
    """Validate some batches and forget everything: logged values, states of metrics, callbacks and data module, random
    numbers, progress. Collective.

    Of a callback and of the data module that is what they keep in checkpoints; of metrics, the state of every metric
    among the module's submodules.

    Hooks: on_sanity_check_start, those of validation, on_sanity_check_end.

    Args:
        run: The run.
        validation: The loop that validates in this fit.
        num_batches: How many batches to take of each loader.
        generators: The loaders' own generators.
    """
    metrics = metric_states(run.module)
    with isolated_randomness(generators), _isolated_receivers(run):
        run.hooks.on_sanity_check_start()
        validation.run_epoch(run, num_batches, is_trial=True)
        run.hooks.on_sanity_check_end()
    if run.metrics is not None:
        run.metrics.discard()
    restore_metric_states(run.module, metrics)
    validation.progress.reset()


@contextmanager
def _isolated_receivers(run: Run) -> Iterator[None]:
    """Put the memory of callbacks and data module back, of those that have one."""
    remembered: list[tuple[object, Any]] = []
    for receiver in [*run.callbacks, *([] if run.data is None else [run.data])]:
        save, load = implementation(receiver, "state_dict"), implementation(receiver, "load_state_dict")
        if save is not None and load is not None:
            with noting(receiver, "state_dict", run.position):
                remembered.append((receiver, copy.deepcopy(save())))
    yield
    for receiver, state in remembered:
        with noting(receiver, "load_state_dict", run.position):
            receiver.load_state_dict(state)  # type: ignore[attr-defined]
