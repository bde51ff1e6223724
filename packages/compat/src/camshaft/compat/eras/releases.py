"""The release of a run's module, and the releases at which optimization changed, beyond `Behaviour`."""

from __future__ import annotations

from typing import Any

from camshaft.compat.eras.evidence import takes_index
from camshaft.compat.eras.reading import read_era
from camshaft.hooks_core.eras.releases import TODAY, Behaviour
from camshaft.hooks_core.spec import Receiver
from camshaft.loops import Run

COUNTS_UPDATES = (1, 6)
"""From here on `global_step` counts updates; before, it counted the batches that end an accumulation window."""

LIMITS_ARE_NUMBERS = (1, 5)
"""From here on `trainer.max_steps` is -1 if there is no limit; before, it was None."""

LEAVES_SAMPLERS = (1, 6)
"""From here on the sampler of a training loader stays where a full last batch left it; before, it came to its end."""

REFUSES_INDEX_BY_HAND = (1, 5)
"""From here on a step that optimizes by hand must not ask for `optimizer_idx`; before, it got 0."""

ZEROES_BY_HAND = (1, 1)
"""From here on, and before 1.2, the step of an optimizer zeroes its gradients also where the module steps it."""

TURNS_BY_EPOCH = (1, 3)
"""From here on the frequencies of optimizers count from each epoch's start; before, from the fit's."""

REFUSES_NO_STEP = (1, 5)
"""From here on an evaluation without its step is an error; before, it was left out."""

REFUSES_OTHER_OPTIONS = (1, 4)
"""From here on a name must be logged with the same options at each call of a hook; before, the latest ones counted."""

MODES_ARE_MIN = (1, 3)
"""From here on what watches a metric takes less for better unless told otherwise; before, the name told, and a
`ModelCheckpoint` without `monitor` watched `val_loss`."""

_OF_ERAS = {"1.x": (1, 5), "2.x": (2, 1)}


def behaviour_in(run: Run | None) -> Behaviour:
    """Return the differences of the release of a run's module from today's order and contracts.

    Args:
        run: The run; without one, or before its hooks are resolved, there are no differences.
    """
    reading = _reading_of_module(run)
    behaviour: Behaviour = TODAY if reading is None else reading.behaviour
    return behaviour


def release_of(run: Run | None) -> tuple[int, ...]:
    """Return the release for which a run's module was written, as far as it is known, such as (1, 4).

    Args:
        run: As for `behaviour_in`.
    """
    reading = _reading_of_module(run)
    if reading is None or reading.version is None:
        return TODAY.since
    return _release(reading.version)


def _release(version: str) -> tuple[int, ...]:
    return _OF_ERAS.get(version) or tuple(int(part) for part in version.split("."))


def may_log_with_other_options(run: Run) -> bool:
    """Return whether the release of a run's module may have let each call of `log` have other options."""
    reading = _reading_of_module(run)
    if reading is None:  # all of 1.x had the argument, which alone does not tell the release
        return takes_index(run.module)
    return is_any_of_1_x(run) or release_of(run) < REFUSES_OTHER_OPTIONS


def may_count_each_optimizer(run: Run) -> bool:
    """Return whether the release of a run's module may have counted a step for each of several optimizers."""
    return is_any_of_1_x(run) or release_of(run) >= COUNTS_UPDATES


def may_evaluate_nothing(module: object, *, is_earlier: bool) -> bool:
    """Return whether a module's release may have left out an evaluation without its step, as up to 1.4.

    Args:
        module: The module.
        is_earlier: As for `read_receivers`.
    """
    reading = read_era(module, Receiver.MODULE)
    if reading.version is None:
        return not reading.is_declared and (is_earlier or takes_index(module))
    return reading.version == "1.x" or _release(reading.version) < REFUSES_NO_STEP


def is_any_of_1_x(run: Run | None) -> bool:
    """Return whether a run's module is of 1.x, and of which release of it is not known."""
    reading = _reading_of_module(run)
    return reading is not None and reading.version == "1.x"


def _reading_of_module(run: Run | None) -> Any:
    """Return the `EraReading` of the module; None if all of it is of today."""
    if run is None or getattr(run, "hooks", None) is None:  # a refused run has no hooks
        return None
    return next((reading for reading in run.hooks.readings if reading.kind is Receiver.MODULE), None)
