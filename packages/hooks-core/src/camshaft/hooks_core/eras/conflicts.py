"""Receivers whose hooks contradict each other, because what two eras do with them cannot both be done."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from camshaft.hooks_core.binding import Argument
from camshaft.hooks_core.catalogue import Catalogue
from camshaft.hooks_core.eras.behaviour import behaviour_of
from camshaft.hooks_core.eras.evidence import calls_method, uses_parameter
from camshaft.hooks_core.eras.reading import EraReading, is_of_today
from camshaft.hooks_core.implementation import implementation
from camshaft.hooks_core.spec import HookSpec, Receiver

_STEP, _ZERO_GRAD, _CLOSURE = "optimizer_step", "optimizer_zero_grad", "optimizer_closure"

_WITHIN_UPDATE = ("on_before_optimizer_step", "configure_gradient_clipping")
"""Hooks of today's update, which runs backward, these and the step as one."""


@attrs.frozen
class Conflict:
    """A method that contradicts the rest of its class: its name, and what is wrong and what to do."""

    method: str
    message: str


def conflicts(receiver: object, reading: EraReading, catalogue: Catalogue) -> list[Conflict]:
    """What keeps a receiver that has hooks of an earlier era from running; empty for one of today.

    Args:
        receiver: A callback, module, data module or strategy, or the class of one.
        reading: What was found out about it.
        catalogue: The hooks.
    """
    if not reading.methods and reading.is_of_today:
        return []
    if reading.is_of_today:
        return list(_declared_for_today(receiver, reading, catalogue))
    step = implementation(receiver, _STEP) if reading.kind is Receiver.MODULE else None
    if step is None:
        return []
    found = [*_order(receiver, step, reading, catalogue[_STEP])] or [*_closure(step, reading)]
    return [*found, *_within_update(receiver, reading), *_zeroes_twice(receiver, step, reading)]


def _declared_for_today(receiver: object, reading: EraReading, catalogue: Catalogue) -> Iterator[Conflict]:
    declared = getattr(receiver, "hook_era", None)
    for name in reading.methods:
        spec = catalogue[name]
        eras = ", ".join(era for era in spec.eras if not spec.is_current or era not in ("2.0", "2.x"))
        what = "this hook" if not spec.is_current else "this signature of it"
        yield Conflict(
            name,
            f"`hook_era` says {declared!r}, but {what} belongs to the eras {eras}. Declare the release that it was "
            "written for, or mark it with `@not_a_hook` if it is a method of your own.",
        )


def _order(receiver: object, step: Callable[..., Any], reading: EraReading, spec: HookSpec) -> Iterator[Conflict]:
    """An `optimizer_step` of an era whose order is not that of the class."""
    follows = reading.behaviour.steps_after_backward
    method = reading.methods.get(_STEP)
    if method is None:
        if follows and is_of_today(receiver, spec, reading.kind) and _takes_closure(step, spec):
            yield Conflict(
                _STEP,
                "its arguments are those of era 2.x, whose closure runs training_step and backward, but the class is "
                f"one of era {reading.version}, where backward has run by then. Take (epoch, batch_idx, optimizer, "
                "optimizer_idx, second_order_closure), or declare the release that it was written for as `hook_era`.",
            )
    elif not reading.is_declared and behaviour_of(method.era).steps_after_backward != follows:
        first, then = ("before it", "in its closure") if not follows else ("in its closure", "before it")
        yield Conflict(
            _STEP,
            f"it is one of era {method.era}, where backward runs {first}, but other hooks of the class are of era "
            f"{reading.version}, where backward runs {then}. Declare the release that it was written for as "
            "`hook_era`.",
        )


def _closure(step: Callable[..., Any], reading: EraReading) -> Iterator[Conflict]:
    """An `optimizer_step` that nothing would be learned by."""
    method = reading.methods.get(_STEP)
    if reading.behaviour.steps_after_backward or method is None:
        return
    name = _name_of(step, method.arguments)
    if name is None or uses_parameter(step, name) or not calls_method(step, "step"):
        return  # who does not step either leaves batches out, which some releases allowed
    yield Conflict(
        _STEP,
        f"it leaves `{name}` alone, which runs training_step and backward in era {reading.version}, so nothing would "
        f'be learned. Call `optimizer.step(closure={name})`, or declare `hook_era = "0.9"` if it was written for a '
        "release where backward had run by then.",
    )


def _within_update(receiver: object, reading: EraReading) -> Iterator[Conflict]:
    if not reading.behaviour.steps_after_backward or _STEP not in reading.methods:
        return
    for name in _WITHIN_UPDATE:
        if implementation(receiver, name) is not None:
            yield Conflict(
                name,
                f"it is a part of the update of later releases, but the class has an `{_STEP}` of era "
                f"{reading.version}, which follows backward and is the whole update. Do this in `{_STEP}`.",
            )


def _zeroes_twice(receiver: object, step: Callable[..., Any], reading: EraReading) -> Iterator[Conflict]:
    """An `optimizer_step` that decides when gradients are zeroed, beside a hook that decides how."""
    decides = reading.behaviour.steps_after_backward and behaviour_of("0.8").since > reading.behaviour.since
    if decides and calls_method(step, "zero_grad") and implementation(receiver, _ZERO_GRAD) is not None:
        yield Conflict(
            _ZERO_GRAD,
            f"era {reading.version} does not have it, and the class's `{_STEP}` zeroes gradients by itself. Call it "
            f'from there under another name, or declare `hook_era = "0.8"`, which calls both.',
        )


def _name_of(step: Callable[..., Any], arguments: tuple[Argument, ...]) -> str | None:
    """What a method calls its closure; None if it takes none under a name of its own."""
    parameters = list(inspect.signature(step).parameters.values())
    if any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters):
        return None
    for position, argument in enumerate(arguments):
        if argument.source == _CLOSURE:
            return argument.keyword or parameters[position].name
    return None


def _takes_closure(step: Callable[..., Any], spec: HookSpec) -> bool:
    """Whether a method takes the closure of today, by its name or its place."""
    parameters = list(inspect.signature(step).parameters.values())
    if any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters):
        return False
    return len(parameters) >= len(spec.parameters) or any(one.name == _CLOSURE for one in parameters)
