"""The release for which a receiver was written, the calls of its methods, and contradictions between them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs

from camshaft.compat.eras.evidence import calls_method, logs_by_itself, returns_logs
from camshaft.hooks_core import ERAS, Catalogue, Fault, HookSpec, Receiver
from camshaft.hooks_core.dispatch.binding import (
    Argument,
    BindingError,
    arguments_of,
    bind_hook,
    candidates,
    parameter_names,
)
from camshaft.hooks_core.dispatch.implementation import class_of, implementation, receiver_name, uses_parameter
from camshaft.hooks_core.dispatch.readings import MethodReading, ReceiverReading
from camshaft.hooks_core.eras import EARLIER_ERAS, EVERYDAY_NAMES, TODAY, Behaviour, behaviour_of
from camshaft.hooks_core.spec import CANONICAL_NAMES

_COULD_RETURN_LOGS = (
    "training_step",
    "training_step_end",
    "training_end",
    "training_epoch_end",
    "validation_end",
    "validation_epoch_end",
    "test_end",
    "test_epoch_end",
)
_LOG_BY_THEMSELVES = ("training_step", "validation_step", "test_step", *_COULD_RETURN_LOGS)

_SINCE_0_9 = frozenset(
    {"on_train_epoch_start", "on_train_batch_start", "on_train_batch_end", "on_validation_epoch_end"}
)
_SINCE_1_4 = frozenset({"on_before_backward", "on_before_optimizer_step"})
_ERAS_OF_CLOSURE = {"second_order_closure": ("0.5", "0.7", "0.8"), "optimizer_closure": ("1.x",)}
_CLOSURE_POSITION = 4

_STEP, _ZERO_GRAD, _CLOSURE = "optimizer_step", "optimizer_zero_grad", "optimizer_closure"

_WITHIN_UPDATE = ("on_before_optimizer_step", "configure_gradient_clipping")
"""Hooks of today's update, which runs backward, these and the step as one."""

_Contradiction = tuple[str, str]  # the method, and what is wrong with it and what to do


@attrs.frozen
class EraReading(ReceiverReading):
    """The era of a receiver; `version` is the release that it declares, or else an era.

    Attributes:
        is_declared: Whether it says so itself, by `hook_era`.
        returns_logs: Whether a step of it returns a dictionary with what to log.
    """

    is_declared: bool = False
    returns_logs: bool = False

    @property
    def behaviour(self) -> Behaviour:
        """The differences of its era from today's order and contracts."""
        return TODAY if self.version is None else behaviour_of(self.version)


def read_receivers(found: Sequence[tuple[Receiver, object]], catalogue: Catalogue) -> list[EraReading]:
    """Return which era each receiver of a run was written for, for `resolve(read=...)`. Nothing is called.

    Callbacks, data modules and strategies that do not declare their era share the module's, if that is an earlier one.
    Hooks that contradict each other are faults.

    Args:
        found: All receivers, each with its kind.
        catalogue: The hooks.

    Raises:
        ValueError: If the `hook_era` of a receiver is neither an era nor a release.
    """
    readings = in_era_of_module([read_era(receiver, kind, catalogue) for kind, receiver in found], catalogue)
    return [
        attrs.evolve(reading, faults=tuple(conflicts(receiver, reading, catalogue)))
        for reading, (_, receiver) in zip(readings, found, strict=True)
    ]


def read_era(receiver: object, kind: Receiver, catalogue: Catalogue) -> EraReading:
    """Find out which era a receiver was written for. Nothing is called.

    A class may declare it: `hook_era = "0.8"`, or any other release ("1.1.8"). Otherwise it belongs to an earlier era
    if it has a method that is a hook of earlier eras alone, or whose signature no arguments of today fill, or a
    step or epoch-end hook that returns `log` or `progress_bar`: to the era that fits most of these, then to the one
    whose names of arguments it uses most, then to the newest.

    Args:
        receiver: A callback, module, data module or strategy, or the class of one.
        kind: Which of these it is.
        catalogue: The hooks.

    Returns:
        What was found; methods that fit no era are left out.

    Raises:
        ValueError: If `hook_era` is neither an era nor a release from 0.4 to 2.x.
    """
    name = receiver_name(receiver)
    declared = getattr(receiver, "hook_era", None)
    if declared is not None:
        behaviour_of(declared, name)
    specs = [spec for method in sorted(candidates(receiver)) if (spec := catalogue.get(method)) is not None]
    specs = [spec for spec in specs if kind in spec.receivers]
    bound = {spec.name: _arguments_of_today(receiver, spec, kind) for spec in specs}
    of_today = {method: arguments for method, arguments in bound.items() if arguments is not None}
    old = [spec for spec in specs if spec.name not in of_today]
    evidence = [spec for spec in old if _is_evidence(receiver, spec, kind)]
    logs = kind is Receiver.MODULE and any(
        returns_logs(class_of(receiver), method)
        for step in _COULD_RETURN_LOGS
        if (method := implementation(receiver, step)) is not None
    )
    if declared is None and not evidence and not logs:
        return EraReading(name, kind, of_today=of_today)
    version = declared if declared is not None else _likeliest(receiver, kind, evidence, specs, logs)
    behaviour = behaviour_of(version)
    is_earlier = behaviour.era in EARLIER_ERAS
    own = specs if is_earlier else old
    read = ((spec.name, _read(receiver, spec, kind, behaviour.era, version)) for spec in own)
    methods = {method: reading for method, reading in read if reading is not None}
    of_today = {method: arguments for method, arguments in of_today.items() if method not in methods}
    return EraReading(
        name,
        kind,
        methods,
        of_today,
        version if is_earlier else None,
        is_declared=declared is not None,
        returns_logs=logs,
    )


def is_of_today(receiver: object, spec: HookSpec, kind: Receiver) -> bool:
    """Return whether a method is a hook of today that takes today's arguments."""
    return _arguments_of_today(receiver, spec, kind) is not None


def in_era_of_module(readings: Sequence[EraReading], catalogue: Catalogue) -> list[EraReading]:
    """Return the readings, where those that do not declare their era share the module's if that is an earlier one.

    The hooks of earlier eras that a callback has do not tell in which of them it was written; its company does.

    Args:
        readings: What was found out about each receiver.
        catalogue: The hooks.
    """
    version = next((one.version for one in readings if one.kind is Receiver.MODULE), None)
    if version is None:
        return list(readings)
    return [
        one if one.is_of_today or one.is_declared or one.kind is Receiver.MODULE else _moved(one, version, catalogue)
        for one in readings
    ]


def conflicts(receiver: object, reading: EraReading, catalogue: Catalogue) -> list[Fault]:
    """Return what keeps a receiver that has hooks of an earlier era from running; empty for one of today.

    Its hooks contradict each other, because what two eras do with them cannot both be done.

    Args:
        receiver: A callback, module, data module or strategy, or the class of one.
        reading: What was found out about it.
        catalogue: The hooks.
    """
    if not reading.methods and reading.is_of_today:
        return []
    own = set(candidates(receiver))  # not what a trace put on it
    return [
        Fault(reading.receiver, method, message)
        for method, message in _contradictions(receiver, reading, catalogue)
        if method in own
    ]


def _moved(reading: EraReading, version: str, catalogue: Catalogue) -> EraReading:
    """Return a reading with its methods at the moments of a version."""
    era = behaviour_of(version).era
    methods = {
        name: attrs.evolve(method, moments=catalogue[name].moments_in(era, version)) if method.moments else method
        for name, method in reading.methods.items()
    }
    return attrs.evolve(reading, version=version, methods=methods)


def _arguments_of_today(receiver: object, spec: HookSpec, kind: Receiver) -> tuple[Argument, ...] | None:
    """Return the arguments of a hook of today; None if it is none, or would lack the closure that an era gives it."""
    if not spec.is_current:
        return None
    arguments = _bound(receiver, spec, kind, None)
    if spec.name != "optimizer_step" or arguments is None or _gets_closure(arguments):
        return arguments
    lacks_it = any(map(_gets_closure, _fits(receiver, spec, kind).values()))
    return None if lacks_it else arguments


def _gets_closure(arguments: Iterable[Argument]) -> bool:
    return any(argument.source == "optimizer_closure" for argument in arguments)


def _is_evidence(receiver: object, spec: HookSpec, kind: Receiver) -> bool:
    """Return whether a method tells an era: it fits one, and is no namesake, which takes none of the arguments."""
    fitting = _fits(receiver, spec, kind)
    is_namesake = spec.kind == "override" and bool(spec.parameters) and not any(fitting.values())
    return bool(fitting) and spec.name not in EVERYDAY_NAMES and not is_namesake


def _likeliest(
    receiver: object, kind: Receiver, evidence: Iterable[HookSpec], specs: Iterable[HookSpec], logs: bool
) -> str:
    """Return the era that fits most of what is old; of several the one whose names are used most, then the one of whose
    hooks most take the first arguments and skip none, and then the newest."""
    num_fitting, num_names, num_unskipped = (dict.fromkeys(EARLIER_ERAS, 0) for _ in range(3))
    for spec in evidence:
        for era in _fits(receiver, spec, kind):
            num_fitting[era] += 1
    for era in EARLIER_ERAS:
        num_fitting[era] += logs and behaviour_of(era).returns_logs
        num_fitting[era] += _logs_by_itself(receiver, kind) and not behaviour_of(era).returns_logs
    for spec in specs:
        for era, arguments in _fits(receiver, spec, kind).items():
            num_names[era] += _num_shared_names(receiver, spec, kind, era)
            taken, provided = [one.source for one in arguments], arguments_of(spec, kind, era)
            num_unskipped[era] += taken == [CANONICAL_NAMES.get(name, name) for name in provided[: len(taken)]]
    ranks = {era: (num_fitting[era], num_names[era], num_unskipped[era], ERAS.index(era)) for era in EARLIER_ERAS}
    era = max(EARLIER_ERAS, key=lambda era: ranks[era])
    return _release(era, receiver, kind, {spec.name for spec in specs})


def _release(era: str, receiver: object, kind: Receiver, hooks: Iterable[str]) -> str:
    """Return the release within an era if the hooks reveal it; otherwise the era."""
    if era == "0.8" and kind is Receiver.MODULE and not _SINCE_0_9.isdisjoint(hooks):
        return "0.9"
    epoch_end = implementation(receiver, "on_train_epoch_end")
    if era == "1.x" and epoch_end is not None and _SINCE_1_4.isdisjoint(hooks):
        outputs = inspect.signature(epoch_end).parameters.get("outputs")
        if outputs is not None and outputs.default is inspect.Parameter.empty:
            return "1.3"
    return era


def _logs_by_itself(receiver: object, kind: Receiver) -> bool:
    methods = (implementation(receiver, name) for name in _LOG_BY_THEMSELVES)
    return kind is Receiver.MODULE and any(logs_by_itself(method) for method in methods if method is not None)


def _read(receiver: object, spec: HookSpec, kind: Receiver, era: str, version: str) -> MethodReading | None:
    """Return how an earlier era calls a method; None for one that is called as today."""
    fitting = _fits(receiver, spec, kind)
    best = max(
        fitting,
        key=lambda one: (_num_shared_names(receiver, spec, kind, one), one == era, ERAS.index(one)),
        default=None,
    )
    if best is None:
        return None
    arguments = fitting[best]
    if fitting.get(era) == arguments:
        best = era
    if spec.is_current:
        of_today = _arguments_of_today(receiver, spec, kind)
        is_same = of_today == arguments
        if is_same or (
            of_today is not None and not _means_otherwise(receiver, spec, kind, best, era, of_today, arguments)
        ):
            return None
    return MethodReading(spec.name, best, arguments, () if spec.is_current else spec.moments_in(era, version))


def _means_otherwise(
    receiver: object,
    spec: HookSpec,
    kind: Receiver,
    best: str,
    era: str,
    of_today: tuple[Argument, ...],
    of_era: tuple[Argument, ...],
) -> bool:
    """Return whether an era's arguments are meant where today's fit too: the signature has more of its names, or, where
    names do not tell, today's arguments are not the first of the era's."""
    num_of_era = _num_shared_names(receiver, spec, kind, best)
    num_of_today = _num_shared_names(receiver, spec, kind, None)
    if num_of_era != num_of_today or best != era or spec.kind == "step":
        return num_of_era > num_of_today
    return of_era[: len(of_today)] != of_today


def _fits(receiver: object, spec: HookSpec, kind: Receiver) -> dict[str, tuple[Argument, ...]]:
    """Return the earlier eras that know a hook and whose arguments a method can take, each with these."""
    method = implementation(receiver, spec.name)
    closure = _eras_of_closure(method) if spec.name == "optimizer_step" else EARLIER_ERAS
    found = {}
    for era in EARLIER_ERAS:
        if era in spec.eras and era in closure and kind in spec.receivers_in(era):
            arguments = _bound(receiver, spec, kind, era)
            if arguments is not None:
                found[era] = arguments
    return found


def _eras_of_closure(method: object) -> tuple[str, ...]:
    """Return the eras of an `optimizer_step`, by what it calls its closure, or else by whether it uses it: up to
    0.9 gradients are there when it is called, and from 1.0 on they are not unless it runs the closure."""
    assert callable(method)
    parameters = list(inspect.signature(method).parameters.values())
    for name, eras in _ERAS_OF_CLOSURE.items():
        if any(parameter.name == name for parameter in parameters):
            return eras
    if len(parameters) <= _CLOSURE_POSITION or parameters[_CLOSURE_POSITION].kind is inspect.Parameter.VAR_POSITIONAL:
        return EARLIER_ERAS
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return EARLIER_ERAS
    return ("1.x",) if uses_parameter(method, parameters[_CLOSURE_POSITION].name) else ("0.5", "0.7", "0.8")


def _bound(receiver: object, spec: HookSpec, kind: Receiver, era: str | None) -> tuple[Argument, ...] | None:
    method = implementation(receiver, spec.name)
    assert method is not None
    try:
        arguments = bind_hook(method, spec, kind, era)
    except BindingError:
        return None
    return tuple(argument.under_todays_name() for argument in arguments)


def _num_shared_names(receiver: object, spec: HookSpec, kind: Receiver, era: str | None) -> int:
    method = implementation(receiver, spec.name)
    assert method is not None
    return len(parameter_names(method) & {*arguments_of(spec, kind, era), *spec.optional_in(era)})


def _contradictions(receiver: object, reading: EraReading, catalogue: Catalogue) -> Iterator[_Contradiction]:
    if reading.is_of_today:
        yield from _declared_for_today(receiver, reading, catalogue)
        return
    step = implementation(receiver, _STEP) if reading.kind is Receiver.MODULE else None
    if step is None:
        return
    yield from [*_order(receiver, step, reading, catalogue[_STEP])] or [*_closure(step, reading)]
    yield from _within_update(receiver, reading)
    yield from _zeroes_twice(receiver, step, reading)


def _declared_for_today(receiver: object, reading: EraReading, catalogue: Catalogue) -> Iterator[_Contradiction]:
    declared = getattr(receiver, "hook_era", None)
    for name in reading.methods:
        spec = catalogue[name]
        eras = ", ".join(era for era in spec.eras if not spec.is_current or era not in ("2.0", "2.x"))
        what = "this hook" if not spec.is_current else "this signature of it"
        yield (
            name,
            f"`hook_era` says {declared!r}, but {what} belongs to the eras {eras}. Declare the release that it was "
            "written for, or mark it with `@not_a_hook` if it is a method of your own.",
        )


def _order(receiver: object, step: Callable[..., Any], reading: EraReading, spec: HookSpec) -> Iterator[_Contradiction]:
    """Report an `optimizer_step` of an era with another order than the class's."""
    follows = reading.behaviour.steps_after_backward
    method = reading.methods.get(_STEP)
    if method is None:
        if follows and is_of_today(receiver, spec, reading.kind) and _takes_todays_closure(step, spec):
            yield (
                _STEP,
                "its arguments are those of era 2.x, whose closure runs training_step and backward, but the class is "
                f"one of era {reading.version}, where backward has run by then. Take (epoch, batch_idx, optimizer, "
                "optimizer_idx, second_order_closure), or declare the release that it was written for as `hook_era`.",
            )
    elif not reading.is_declared and behaviour_of(method.era).steps_after_backward != follows:
        first, then = ("before it", "in its closure") if not follows else ("in its closure", "before it")
        yield (
            _STEP,
            f"it is one of era {method.era}, where backward runs {first}, but other hooks of the class are of era "
            f"{reading.version}, where backward runs {then}. Declare the release that it was written for as "
            "`hook_era`.",
        )


def _closure(step: Callable[..., Any], reading: EraReading) -> Iterator[_Contradiction]:
    """Report an `optimizer_step` that steps without its closure, which computes the gradients."""
    method = reading.methods.get(_STEP)
    if reading.behaviour.steps_after_backward or method is None:
        return
    name = _closure_name(step, method.arguments)
    if name is None or uses_parameter(step, name) or not calls_method(step, "step"):
        return  # who does not step either leaves batches out, which some releases allowed
    yield (
        _STEP,
        f"it leaves `{name}` alone, which runs training_step and backward in era {reading.version}, so nothing would "
        f'be learned. Call `optimizer.step(closure={name})`, or declare `hook_era = "0.9"` if it was written for a '
        "release where backward had run by then.",
    )


def _within_update(receiver: object, reading: EraReading) -> Iterator[_Contradiction]:
    if not reading.behaviour.steps_after_backward or _STEP not in reading.methods:
        return
    for name in _WITHIN_UPDATE:
        if implementation(receiver, name) is not None:
            yield (
                name,
                f"it is a part of the update of later releases, but the class has an `{_STEP}` of era "
                f"{reading.version}, which follows backward and is the whole update. Do this in `{_STEP}`.",
            )


def _zeroes_twice(receiver: object, step: Callable[..., Any], reading: EraReading) -> Iterator[_Contradiction]:
    """Report an `optimizer_step` that zeroes gradients beside a hook that zeroes them."""
    decides = reading.behaviour.steps_after_backward and behaviour_of("0.8").since > reading.behaviour.since
    if decides and calls_method(step, "zero_grad") and implementation(receiver, _ZERO_GRAD) is not None:
        yield (
            _ZERO_GRAD,
            f"era {reading.version} does not have it, and the class's `{_STEP}` zeroes gradients by itself. Call it "
            f'from there under another name, or declare `hook_era = "0.8"`, which calls both.',
        )


def _closure_name(step: Callable[..., Any], arguments: tuple[Argument, ...]) -> str | None:
    """Return a method's name for its closure; None if it takes none under a name of its own."""
    parameters = list(inspect.signature(step).parameters.values())
    if any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters):
        return None
    for position, argument in enumerate(arguments):
        if argument.source == _CLOSURE:
            return argument.keyword or parameters[position].name
    return None


def _takes_todays_closure(step: Callable[..., Any], spec: HookSpec) -> bool:
    """Return whether a method takes the closure of today, by its name or its place."""
    parameters = list(inspect.signature(step).parameters.values())
    if any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters):
        return False
    return len(parameters) >= len(spec.parameters) or any(one.name == _CLOSURE for one in parameters)
