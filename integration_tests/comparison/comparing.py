"""Comparing what the two frameworks did, beyond the table of differences to the bit."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import attrs
import torch

from comparison.configuration import Configuration
from comparison.difference import Difference
from comparison.differences import DIFFERENCES
from comparison.frameworks import CAMSHAFT, LIGHTNING, Framework
from comparison.recording import Call, Recording
from comparison.running import record

_NUM_SHOWN_BEFORE = 4


class Mismatch(AssertionError):
    """The frameworks did not do the same.

    Args:
        what: The part of the recording that differs.
        message: How.
    """

    def __init__(self, what: str, message: str) -> None:
        super().__init__(f"{what}: {message}")
        self.what = what


def is_comparable(configuration: Configuration, differences: Sequence[Difference] = DIFFERENCES) -> bool:
    """Whether no difference changes the whole run."""
    return not any(difference.excludes(configuration) for difference in differences)


def compare(
    configuration: Configuration,
    differences: Sequence[Difference] = DIFFERENCES,
    ours: Framework = CAMSHAFT,
    lightning: Framework = LIGHTNING,
) -> None:
    """Run a configuration on both frameworks and compare everything.

    Args:
        configuration: What to run.
        differences: Those that are allowed for.
        ours: What runs in camshaft's place.
        lightning: What runs in Lightning's place.

    Raises:
        Mismatch: At the first thing that differs.
    """
    prepared = functools.reduce(lambda prepared, difference: difference.prepare(prepared), differences, configuration)

    def adapt(module_class: Any) -> Any:
        for difference in differences:
            module_class = difference.adapt(module_class, configuration)
        return module_class

    theirs, own = record(lightning, prepared, adapt), record(ours, configuration)
    for difference in differences:
        difference.align(theirs, own, configuration)
    check_same(theirs, own)


def check_same(theirs: Recording, own: Recording) -> None:
    """Raise `Mismatch` unless two recordings are the same."""
    _check_calls(theirs.calls, own.calls)
    for what in ("raised", "progress", "returned", "callback_metrics", "checkpoints", "loading"):
        if _differ(getattr(theirs, what), getattr(own, what)):
            raise Mismatch(what, f"Lightning has\n  {getattr(theirs, what)}\ncamshaft has\n  {getattr(own, what)}")
    if len(theirs.rows) != len(own.rows):
        raise Mismatch("rows", f"Lightning has those of {len(theirs.rows)} verbs, camshaft of {len(own.rows)}")
    for there, here in zip(theirs.rows, own.rows, strict=True):
        _check_rows(there, here)
    if theirs.weights.keys() != own.weights.keys():
        raise Mismatch("weights", f"Lightning has {list(theirs.weights)}, camshaft has {list(own.weights)}")
    for name, weight in theirs.weights.items():
        if not torch.allclose(weight, own.weights[name], rtol=0, atol=0, equal_nan=True):
            raise Mismatch("weights", f"{name} is\n  {weight}\non Lightning and\n  {own.weights[name]}\non camshaft")


def _differ(one: Any, other: Any) -> bool:
    """Return whether two values differ; NaNs, as of a run that diverges, do not."""
    if isinstance(one, Call) and isinstance(other, Call):
        one, other = (attrs.asdict(call, recurse=False) for call in (one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() != other.keys() or any(_differ(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and type(one) is type(other):
        return len(one) != len(other) or any(map(_differ, one, other))
    return bool(one != other and (one == one or other == other))


def _check_calls(theirs: Sequence[Call], own: Sequence[Call]) -> None:
    for index in range(max(len(theirs), len(own))):
        there = theirs[index] if index < len(theirs) else None
        here = own[index] if index < len(own) else None
        if _differ(there, here):
            before = "".join(f"\n  {call}" for call in own[max(0, index - _NUM_SHOWN_BEFORE) : index])
            message = f"Lightning called\n  {there}\ncamshaft called\n  {here}\nafter{before or ' nothing'}"
            raise Mismatch(f"call {index}", message)


def _check_rows(theirs: Sequence[dict[str, float]], own: Sequence[dict[str, float]]) -> None:
    for index in range(max(len(theirs), len(own))):
        there = theirs[index] if index < len(theirs) else None
        here = own[index] if index < len(own) else None
        if _differ(there, here):
            raise Mismatch(f"row {index}", f"Lightning wrote\n  {there}\ncamshaft wrote\n  {here}")
