"""At which releases earlier eras changed how they optimized, beside what `Behaviour` knows."""

from __future__ import annotations

from camshaft.hooks_core.implementation import receiver_name
from camshaft.loops.run import Run

COUNTS_UPDATES = (1, 6)
"""From here on `global_step` counts updates; before, it counted the batches that end an accumulation window."""

NEEDS_THE_CLOSURE = (1, 5)
"""From here on `optimizer_step` must call its closure; before, an override could leave a batch out."""

REFUSES_INDEX_BY_HAND = (1, 5)
"""From here on a step that optimizes by hand must not ask for `optimizer_idx`; before, it got 0."""

ZEROES_BY_HAND = (1, 1)
"""From here on, and before 1.2, the step of an optimizer zeroes its gradients also where the module steps it."""

TURNS_BY_EPOCH = (1, 3)
"""From here on the frequencies of optimizers count from each epoch's start; before, from the fit's."""

_OF_ERAS = {"1.x": (1, 5), "2.x": (2, 1)}


def release_of(run: Run) -> tuple[int, ...]:
    """The release for which a run's module was written, as far as it is known, such as (1, 4)."""
    name = receiver_name(run.module)
    version = next((reading.version for reading in run.hooks.readings if reading.receiver == name), None)
    if version is None:
        return run.hooks.behaviour.since
    return _OF_ERAS.get(version) or tuple(int(part) for part in version.split("."))
