"""Earlier eras as data: differences of their releases from today; measured where the documents are silent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Literal

import attrs

from camshaft.hooks_core.spec import ZeroGrad
from camshaft.hooks_core.support.messages import must_be

EpochOutputs = Literal["last_optimizer", "by_optimizer", "by_batch"]
"""The form of a training epoch's outputs with several optimizers: the dictionaries of the last one alone, a list for
each optimizer with an item for each batch, or a list for each batch with an item for each optimizer."""


@attrs.frozen(kw_only=True)
class Behaviour:
    """Differences of a release from today's order and contracts.

    Attributes:
        since: The first version that does it, such as (0, 8).
        era: Name of the era whose hooks and signatures it has.
        steps_after_backward: Whether forward and backward run before `optimizer_step`, whose closure evaluates them
            again; else they run inside of it, by its closure.
        zero_grad: Where gradients are zeroed.
        step_zeroes: Whether `optimizer_step` zeroes the gradients as well, so that one that is overridden decides by
            itself when.
        train_start_comes_first: Whether `on_train_start` comes before the sanity check.
        epoch_outputs: What `training_epoch_end` gets where there are several optimizers.
        epoch_ends_before_validation: Whether the end hooks of a training epoch come before the validation at its end.
        returns_logs: Whether steps and epoch-end hooks return dictionaries with what to log.
        freezes_other_optimizers: Whether the parameters of other optimizers require no gradients while one is at work.
        steps_schedulers_by_hand: Whether learning-rate schedulers are stepped under manual optimization as well.
        keeps_last_epoch: Whether `current_epoch` is the index of the last epoch after a fit, and not that of the next.
        finds_unused_parameters: Whether several processes allow a loss that depends on some of the parameters only,
            unless set otherwise. (Those from 1.1.3 to 1.2.3 raised an error about it.)
    """

    since: tuple[int, ...]
    era: str
    steps_after_backward: bool = False
    zero_grad: ZeroGrad = "before_backward"
    step_zeroes: bool = False
    train_start_comes_first: bool = False
    epoch_outputs: EpochOutputs = "by_batch"
    epoch_ends_before_validation: bool = False
    returns_logs: bool = False
    freezes_other_optimizers: bool = True
    steps_schedulers_by_hand: bool = False
    keeps_last_epoch: bool = True
    finds_unused_parameters: bool = True


_BEHAVIOURS = [
    Behaviour(**facts | {"since": tuple(facts["since"])})
    for facts in json.loads(Path(__file__).with_name("releases.json").read_text(encoding="utf-8"))
]

TODAY = _BEHAVIOURS[-1]
"""The order and contracts of today."""

_VERSIONS_OF_ERAS = {"1.x": "1.5", "2.x": "2.1"}
"""Release that stands for an era by default: of 1.x the last before `[batch][optimizer]`."""

_RELEASE = re.compile(r"(0\.([4-9]|10)|1\.[0-9]|2\.\d+)(\.\d+)*")


def behaviour_of(version: str, where: str = "behaviour_of") -> Behaviour:
    """Return the differences of a release from today.

    Args:
        version: An era of the catalogue ("0.8", "1.x"), or any version from 0.4 on ("1.1.8").
        where: The caller, for errors.

    Raises:
        ValueError: If it is neither an era nor a release from 0.4 to 2.x.
    """
    numbers = _VERSIONS_OF_ERAS.get(version, version) if isinstance(version, str) else ""
    if not _RELEASE.fullmatch(numbers):
        rule = 'a release from "0.4" to "2.x", such as "0.8" or "1.1.8", or one of the eras "1.x" and "2.x"'
        raise ValueError(must_be("hook_era", rule, version, where, "Name the release that the code was written for."))
    parts = tuple(int(part) for part in numbers.split("."))
    return next(behaviour for behaviour in reversed(_BEHAVIOURS) if behaviour.since <= parts)
