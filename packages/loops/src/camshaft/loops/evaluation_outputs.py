"""What the steps of an evaluation returned, for the hooks of earlier eras at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from camshaft.loops.kept_outputs import goes_to_cpu, kept
from camshaft.loops.returned_logs import log_returned
from camshaft.loops.run import Run

if TYPE_CHECKING:
    from camshaft.loops.evaluation import StageHooks

_ENDS = {"validate": "validation_epoch_end", "test": "test_epoch_end"}


def end_as_era(hooks: StageHooks, run: Run, stage: str, num_loaders: int) -> StageHooks:
    """The hooks of an evaluation for a module of an earlier era; those of a module of today stay as they are.

    The end hook of the era gets the outputs of all steps, a list for one loader and a list of lists for several; what
    it returns to be logged is logged. In a process that had no batch, where others did, it is left out: those eras gave
    each process some, and code that puts outputs together fails without any. In eras whose steps return what to log,
    and without such a hook, the mean over the batches of what steps return is logged.

    Args:
        hooks: The stage's hooks.
        run: The run.
        stage: "validate" or "test"; other stages have no such hook.
        num_loaders: Number of loaders.
    """
    end = getattr(run.hooks, _ENDS[stage]) if stage in _ENDS else None
    if end is None:
        if stage in _ENDS and run.hooks.behaviour.returns_logs and run.metrics is not None:
            return attrs.evolve(hooks, step=_logged(hooks, run))
        return hooks
    outputs: list[list[Any]] = [[] for _ in range(num_loaders)]
    num_steps = [0] * num_loaders
    on_cpu = goes_to_cpu(run)

    def step(batch: Any, batch_idx: int, dataloader_idx: int) -> Any:
        num_steps[dataloader_idx] += 1
        returned = hooks.step(batch, batch_idx, dataloader_idx)
        if returned is not None:
            outputs[dataloader_idx].append(kept(returned, on_cpu=on_cpu))
        return returned

    def epoch_end() -> None:
        of_loaders, outputs[:] = list(outputs), []  # what is handed on is the receiver's to keep
        if any(num_steps) or run.strategy.world_size == 1:
            with _explaining(num_steps, run):
                log_returned(run.metrics, end(of_loaders[0] if num_loaders == 1 else of_loaders))
        del of_loaders
        hooks.epoch_end()

    return attrs.evolve(hooks, step=step, epoch_end=epoch_end)


@contextmanager
def _explaining(num_steps: list[int], run: Run) -> Iterator[None]:
    """Say with an error that this process has outputs of some loaders only, where that may be the reason."""
    try:
        yield
    except Exception as error:
        if run.strategy.world_size > 1 and not all(num_steps):
            error.add_note(
                f"Loader {num_steps.index(0)} has fewer batches than there are processes, and none for this one: its "
                "list of outputs is empty. Give each loader a batch for every process, by a smaller batch size."
            )
        raise


def _logged(hooks: StageHooks, run: Run) -> Any:
    def step(batch: Any, batch_idx: int, dataloader_idx: int) -> Any:
        returned = hooks.step(batch, batch_idx, dataloader_idx)
        log_returned(run.metrics, returned)
        return returned

    return step
