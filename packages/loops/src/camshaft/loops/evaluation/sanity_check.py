"""The sanity check: validation before training, without a trace."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from typing import Any

import torch
from torch import nn

from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.support.messages import note_errors
from camshaft.loops.data.combined_loader import end_workers, has_state, samplers_of
from camshaft.loops.evaluation.loops import ValidationLoop
from camshaft.loops.state.metric_state import metric_states, restore_metric_states
from camshaft.loops.state.random_state import are_same, isolated_randomness
from camshaft.loops.state.run import Run


def check_sanity(run: Run, validation: ValidationLoop, num_steps: int) -> None:
    """Validate some batches, and forget logged values and progress. Collective.

    Hooks: on_sanity_check_start, those of validation, on_sanity_check_end.

    Args:
        validation: The loop that validates in this fit.
        num_steps: Number of batches to take of each loader; -1 takes all.
    """
    run.hooks.on_sanity_check_start()
    validation.run_epoch(run, num_sanity_batches(validation, num_steps), is_trial=True)
    run.hooks.on_sanity_check_end()
    if run.metrics is not None:
        run.metrics.discard()
    validation.progress.reset()


def num_sanity_batches(validation: ValidationLoop, num_steps: int) -> list[int | float]:
    """Return the number of batches to take of each validation loader; `num_steps` of -1 takes all."""
    return [num_batches if num_steps == -1 else min(num_steps, num_batches) for num_batches in validation.num_batches]


@contextmanager
def isolated_check(run: Run, validation: ValidationLoop, generators: Sequence[torch.Generator]) -> Iterator[None]:
    """Restore afterwards whatever has a state that has changed, by a copy of it; see `copied`. Collective.

    Of a callback and of the data module that is what they keep in checkpoints, and likewise of a validation loader's
    dataset and samplers; of metrics, the state of every metric among the module's submodules; and random numbers.
    Worker processes that would live on are stopped, since their state cannot be restored.

    Args:
        run: The run.
        validation: The loop that validates.
        generators: The loaders' own generators.
    """
    loaders, metrics = validation.loaders, metric_states(run.module)
    parts = [part for loader in loaders for part in (getattr(loader, "dataset", None), *samplers_of(loader))]
    names = ("state_dict", "load_state_dict")
    owners: list[Any] = [*run.callbacks, run.data, *filter(has_state, parts)]
    owners = [owner for owner in owners if all(implementation(owner, name) is not None for name in names)]
    before = [copied(_state_of(owner, run)) for owner in owners]
    with isolated_randomness(generators):
        yield
    is_changed = [not _is_same(state, _state_of(owner, run)) for owner, state in zip(owners, before, strict=True)]
    if run.strategy.world_size > 1:  # what one process loads, all do: loading may be collective
        is_changed = [any(of_ranks) for of_ranks in zip(*run.strategy.all_gather(is_changed), strict=True)]
    for owner, state in compress(zip(owners, before, strict=True), is_changed):
        with note_errors(owner, "load_state_dict", run.position):
            owner.load_state_dict(state)
    restore_metric_states(run.module, metrics)
    end_workers(loaders)


def _state_of(owner: Any, run: Run) -> Any:
    with note_errors(owner, "state_dict", run.position):
        return owner.state_dict()


def _is_same(before: Any, after: Any) -> bool:
    try:
        return are_same(before, after)
    except Exception:  # what cannot be compared may have changed
        return False


def copied(state: Any, memo: dict[int, Any] | None = None) -> Any:
    """Return a copy of a state that later changes of it do not reach, with itself where it cannot be copied.

    A tensor in a graph is copied without the graph, as by a checkpoint, so that who gets the copy can copy it again.
    Modules and optimizers, which a state can only refer to, and what `copy.deepcopy` refuses, such as locks and open
    files, are the same in the copy. What is shared stays shared.

    Args:
        state: Containers in any nesting, of anything.
        memo: The copies by the originals' ids, as for `copy.deepcopy`.
    """
    memo = {} if memo is None else memo
    if id(state) in memo:
        return memo[id(state)]
    if isinstance(state, (nn.Module, torch.optim.Optimizer)):
        return state
    result: Any
    if isinstance(state, torch.Tensor) and not state.is_leaf:
        result = state.detach().clone()
    elif isinstance(state, dict):
        memo[id(state)] = result = copy.copy(state)
        result.update({key: copied(value, memo) for key, value in state.items()})
    elif isinstance(state, list):
        memo[id(state)] = result = copy.copy(state)
        result[:] = [copied(value, memo) for value in state]
    elif isinstance(state, tuple):
        values = [copied(value, memo) for value in state]
        result = type(state)(*values) if hasattr(state, "_fields") else tuple(values)
    else:
        try:
            return copy.deepcopy(state, memo)
        except Exception:  # whatever its class refuses with
            result = state
    memo[id(state)] = result
    return result
