"""The release for which a receiver was written, the calls of its methods, and contradictions between them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import attrs

from camshaft.compat.eras.evidence import (
    calls_method,
    declared_function,
    logs_by_itself,
    makes_results,
    returns_logs,
    takes_index,
)
from camshaft.hooks_core import CATALOGUE, Catalogue, Fault, HookSpec, Receiver
from camshaft.hooks_core.dispatch.binding import (
    CANONICAL_NAMES,
    Argument,
    arguments_of,
    for_one_loader,
    parameter_names,
)
from camshaft.hooks_core.dispatch.candidates import candidates
from camshaft.hooks_core.dispatch.implementation import class_of, implementation, receiver_name, uses_parameter
from camshaft.hooks_core.dispatch.readings import ReceiverReading
from camshaft.hooks_core.eras.binding import EraMethod, fit_in, fits
from camshaft.hooks_core.eras.faults import faults_of_earlier
from camshaft.hooks_core.eras.hooks import EARLIER_ERAS, EARLIER_HOOKS, ERAS, EVERYDAY_NAMES, EraSpec, hooks_of_eras
from camshaft.hooks_core.eras.releases import TODAY, Behaviour, behaviour_of

COULD_RETURN_LOGS = (
    *("training_step", "training_step_end", "training_end", "training_epoch_end"),
    *("validation_end", "validation_epoch_end", "test_end", "test_epoch_end"),
)
"""Methods of a module whose return value was logged in 0.x."""

_LOG_BY_THEMSELVES = ("training_step", "validation_step", "test_step", *COULD_RETURN_LOGS)

_SINCE_0_9 = {"on_train_epoch_start", "on_train_batch_start", "on_train_batch_end", "on_validation_epoch_end"}
_SINCE_1_4 = {"on_before_backward", "on_before_optimizer_step"}
_REFUSED_BY_2 = frozenset({"training_epoch_end", "validation_epoch_end", "test_epoch_end"})
"""Hooks with which Lightning 2 refuses a module."""

_NAMES_OF_0_X = CANONICAL_NAMES.keys() - {"pl_module"}
_ERAS_OF_CLOSURE = {"second_order_closure": ("0.5", "0.7", "0.8"), "optimizer_closure": ("1.x",)}
_CLOSURE_POSITION = 4

_STEP, _ZERO_GRAD, _CLOSURE = "optimizer_step", "optimizer_zero_grad", "optimizer_closure"

_WITHIN_UPDATE = ("on_before_optimizer_step", "configure_gradient_clipping")
"""Hooks of today's update, which runs backward, these and the step as one."""

_Contradiction = tuple[str, str]  # the method, and what is wrong with it and what to do


@attrs.frozen
class EraReading(ReceiverReading):
    """The era of a receiver; `version` is the release that it declares, or else an era; see `ReceiverReading`.

    Attributes:
        is_declared: Whether it says so itself, by `hook_era`.
        returns_logs: Whether a step of it returns a dictionary with what to log.
        as_earlier: For a receiver of today that has hooks of an earlier era, its reading as one of that era.
    """

    names_are_own: ClassVar[bool] = True

    methods: Mapping[str, EraMethod] = attrs.field(factory=dict)
    hooks: Mapping[str, HookSpec] = attrs.field(default=EARLIER_HOOKS, repr=False)
    is_declared: bool = False
    returns_logs: bool = False
    as_earlier: EraReading | None = None

    @property
    def behaviour(self) -> Behaviour:
        """The differences of its era from today's order and contracts."""
        return TODAY if self.version is None else behaviour_of(self.version)


def read_receivers(
    found: Sequence[tuple[Receiver, object]], catalogue: Catalogue, *, is_earlier: bool = False
) -> list[EraReading]:
    """Return which era each receiver of a run was written for, for `resolve(read=...)`. Nothing is called.

    Callbacks, data modules and strategies that do not declare their era share the module's, if that is an earlier one.
    Hooks that contradict each other are faults.

    Args:
        found: All receivers, each with its kind.
        catalogue: The hooks.
        is_earlier: Whether the program is known to be written for an earlier release, which decides where classes do
            not.

    Raises:
        ValueError: If the `hook_era` of a receiver is neither an era nor a release.
    """
    readings = [read_era(receiver, kind, catalogue) for kind, receiver in found]
    if is_earlier:
        readings = [one.as_earlier or one for one in readings]
    readings = in_era_of_module(readings)
    return [
        attrs.evolve(reading, faults=tuple(faults_beside(receiver, reading)))
        for reading, (_, receiver) in zip(readings, found, strict=True)
    ]


def faults_beside(receiver: object, reading: EraReading) -> list[Fault]:
    """Return the faults of a receiver beside those that `resolve` finds: hooks of no era that it is of, and conflicts.

    Args:
        receiver: A callback, module, data module or strategy, or the class of one.
        reading: What was found out about it.
    """
    read, is_of_today = reading.methods.keys() | reading.of_today.keys(), reading.is_of_today
    faults = faults_of_earlier(receiver, reading.kind, read, is_of_today=is_of_today, is_dead=is_of_today)
    return [*faults, *conflicts(receiver, reading)]


def read_era(receiver: object, kind: Receiver, catalogue: Catalogue = CATALOGUE) -> EraReading:
    """Find out which era a receiver was written for. Nothing is called.

    A class may declare it: `hook_era = "0.8"`, or any other release ("1.1.8"). Otherwise it belongs to an earlier era
    if it has a method that is a hook of earlier eras alone, or whose signature no arguments of today fill, or a
    step or epoch-end hook that returns `log` or `progress_bar` while no step calls `self.log`: to the era that fits
    most of these, then to the one whose names of arguments it uses most, then to the newest. One whose steps make a
    `TrainResult` or `EvalResult` is of 0.9. One that Lightning 2 would run is of today, and such hooks of it are dead,
    unless they compute something and nothing in it is of 2.x alone.

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
    hooks = hooks_of_eras(catalogue)
    specs = [hooks[method] for method in sorted(candidates(receiver)) if method in hooks]
    found = [_Method(receiver, spec, kind) for spec in specs if kind in spec.receivers]
    bound = {method.spec.name: method.arguments_of_today() for method in found}
    of_today = {method: arguments for method, arguments in bound.items() if arguments is not None}
    old = [method for method in found if method.spec.name not in of_today]
    evidence = [method for method in old if method.is_evidence()]
    if kind is Receiver.MODULE and _is_told_index_by_hand(receiver):
        evidence += [method for method in found if method.spec.name == "training_step" and method not in old]
    results = kind is Receiver.MODULE and makes_results(receiver)
    logs = kind is Receiver.MODULE and any(
        returns_logs(class_of(receiver), method)
        for step in COULD_RETURN_LOGS
        if (method := implementation(receiver, step)) is not None
    )
    if declared is None and not evidence and not results and (not logs or _logs_by_itself(receiver, kind)):
        return EraReading(name, kind, of_today=of_today)
    by_results = "0.9" if results else None
    version = declared or by_results or _likeliest(receiver, kind, evidence, found, logs)
    behaviour = behaviour_of(version)
    is_earlier = behaviour.era in EARLIER_ERAS
    own = found if is_earlier else old
    read = ((method.spec.name, method.read_in(behaviour.era, version)) for method in own)
    methods = {method: reading for method, reading in read if reading is not None}
    reading = EraReading(
        name,
        kind,
        methods=methods,
        of_today={method: arguments for method, arguments in of_today.items() if method not in methods},
        version=version if is_earlier else None,
        is_declared=declared is not None,
        returns_logs=logs and behaviour.returns_logs,
    )
    if declared is None and _is_for_lightning_2(receiver, evidence, found, logs or results):
        return EraReading(name, kind, of_today=of_today, as_earlier=reading)
    return reading


def in_era_of_module(readings: Sequence[EraReading]) -> list[EraReading]:
    """Return the readings, where those that do not declare their era share the module's if that is an earlier one.

    The hooks of earlier eras that a callback has do not tell in which of them it was written; its company does.

    Args:
        readings: What was found out about each receiver.
    """
    version = next((one.version for one in readings if one.kind is Receiver.MODULE), None)
    if version is None:
        return list(readings)
    era, moved = behaviour_of(version).era, []
    for reading in [one.as_earlier or one for one in readings]:
        if not (reading.is_of_today or reading.is_declared or reading.kind is Receiver.MODULE):
            methods = {
                name: attrs.evolve(one, moments=EARLIER_HOOKS[name].moments_in(era, version)) if one.moments else one
                for name, one in reading.methods.items()
            }
            reading = attrs.evolve(reading, version=version, methods=methods)
        moved.append(reading)
    return moved


def conflicts(receiver: object, reading: EraReading) -> list[Fault]:
    """Return what keeps a receiver that has hooks of an earlier era from running; empty for one of today.

    Its hooks contradict each other, because what two eras do with them cannot both be done.

    Args:
        receiver: A callback, module, data module or strategy, or the class of one.
        reading: What was found out about it.
    """
    if not reading.methods and reading.is_of_today:
        return []
    own = set(candidates(receiver))  # not what a trace put on it
    return [
        Fault(reading.receiver, method, message)
        for method, message in _contradictions(receiver, reading)
        if method in own
    ]


@attrs.frozen(slots=False)  # for the cached property
class _Method:
    """A method of a receiver under the name of a hook."""

    receiver: object
    spec: EraSpec
    kind: Receiver

    @cached_property
    def function(self) -> Callable[..., Any]:
        function = declared_function(self.receiver, self.spec.name)
        assert function is not None
        return function

    def arguments_of_today(self) -> tuple[Argument, ...] | None:
        """Return the arguments of a hook of today; None if it is none, or would lack the closure that an era gives."""
        if not self.spec.is_current:
            return None
        arguments = fit_in(self.function, self.spec, self.kind, None)
        if self.spec.name != _STEP or arguments is None or _gets_closure(arguments):
            return arguments
        return None if any(map(_gets_closure, self.fits.values())) else arguments

    @cached_property
    def fits(self) -> dict[str, tuple[Argument, ...]]:
        """Return the earlier eras that know the hook and whose arguments the method can take, each with these."""
        eras = _eras_of_closure(self.function) if self.spec.name == _STEP else EARLIER_ERAS
        return fits(self.function, self.spec, self.kind, eras)

    def num_shared_names(self, era: str | None) -> int:
        """Return how many of its parameters have names that the hook's arguments have in an era."""
        names = {*arguments_of(self.spec.as_in(era), self.kind), *self.spec.optional_in(era)}
        return len(parameter_names(self.function) & names)

    @property
    def is_of_2_alone(self) -> bool:
        """True for a hook that is new in 2.x, or lost its `optimizer_idx` there and takes just what was left."""
        if not self.spec.is_current or self.spec.kind == "step" or self.arguments_of_today() is None:
            return False
        parameters = inspect.signature(self.function).parameters.values()
        if any(one.kind is one.VAR_POSITIONAL for one in parameters):
            return False
        provided = [arguments_of(self.spec.as_in(era), self.kind) for era in self.spec.eras if era in EARLIER_ERAS]
        return all("optimizer_idx" in map(_todays_name, names) and len(parameters) < len(names) for names in provided)

    def is_evidence(self) -> bool:
        """Return whether it tells an era: it fits one, and is no namesake, which takes none of the arguments."""
        fitting = self.fits
        is_namesake = self.spec.kind == "override" and bool(self.spec.parameters) and not any(fitting.values())
        return bool(fitting) and self.spec.name not in EVERYDAY_NAMES and not is_namesake

    def read_in(self, era: str, version: str) -> EraMethod | None:
        """Return how an earlier era calls it; None if it is called as today."""
        spec, fitting = self.spec, self.fits
        best = max(fitting, key=lambda one: (self.num_shared_names(one), one == era, ERAS.index(one)), default=None)
        if best is None:
            return None
        arguments = fitting[best]
        if fitting.get(era) == arguments:
            best = era
        of_today = self.arguments_of_today()
        if of_today is not None and not self._means_otherwise(best, era, of_today, arguments):
            return None
        of_one = arguments
        if spec.kind == "step" and spec.name != "predict_step":  # all others got the index of a single loader, too
            of_one = for_one_loader(self.function, spec.as_in(best), self.kind, arguments)
        moments = () if spec.is_current else spec.moments_in(era, version)
        place = [*EARLIER_HOOKS].index(spec.name) + 1 if moments else 0
        taken = {argument.source for argument in arguments}
        return EraMethod(
            hook=spec.as_in(best),
            arguments=arguments,
            arguments_of_one_loader=of_one,
            moments=moments,
            place=place - len(EARLIER_HOOKS) - 1 if spec.precedes else place,
            condition=spec.condition,
            fixed={name: value for name, value in spec.fixed.items() if name in taken},
            era=best,
            spec=spec,
        )

    def _means_otherwise(
        self, best: str, era: str, of_today: tuple[Argument, ...], of_era: tuple[Argument, ...]
    ) -> bool:
        """Return whether an era's arguments are meant where today's fit too: the signature has more of its names, or,
        where names do not tell, today's arguments are not the first of the era's."""
        if of_today == of_era:
            return False
        num_of_era, num_of_today = self.num_shared_names(best), self.num_shared_names(None)
        if num_of_era != num_of_today or best != era or self.spec.kind == "step":
            return num_of_era > num_of_today
        return of_era[: len(of_today)] != of_today


def _todays_name(name: str) -> str:
    return CANONICAL_NAMES.get(name, name)


def _gets_closure(arguments: Iterable[Argument]) -> bool:
    return any(argument.source == _CLOSURE for argument in arguments)


def _likeliest(
    receiver: object, kind: Receiver, evidence: Sequence[_Method], methods: Sequence[_Method], logs: bool
) -> str:
    """Return the era that fits most of what is old; of several the one whose names are used most, then the one of whose
    hooks most take the first arguments and skip none, and then the newest."""

    def rank(era: str) -> tuple[int, ...]:
        returns_logs = behaviour_of(era).returns_logs
        num_fitting = sum(era in method.fits for method in evidence)
        num_fitting += (logs and returns_logs) + (_logs_by_itself(receiver, kind) and not returns_logs)
        num_names = num_unskipped = 0
        for method in methods:
            if era in method.fits:
                num_names += method.num_shared_names(era)
                taken = [one.source for one in method.fits[era]]
                provided = arguments_of(method.spec.as_in(era), kind)
                num_unskipped += taken == [*map(_todays_name, provided[: len(taken)])]
        return num_fitting, num_names, num_unskipped, ERAS.index(era)

    era = max(EARLIER_ERAS, key=rank)
    return _release(era, receiver, kind, {method.spec.name for method in methods})


def _is_for_lightning_2(receiver: object, evidence: Sequence[_Method], methods: Sequence[_Method], logs: bool) -> bool:
    """Return whether Lightning 2 would run a class with what is old in it left out, and is meant to.

    Events and what is only shown are left-overs. With what computes something (`training_step_end`, returned logs) or
    has arguments by names of 0.x, the class has to have something that no earlier release would have called.
    """
    if takes_index(receiver):
        return False
    if any(method.spec.is_current or method.spec.name in _REFUSED_BY_2 for method in evidence):
        return False
    specs = [method.spec for method in evidence]
    computes = any(spec.kind == "override" or (spec.kind, spec.stage) == ("provide", "data") for spec in specs)
    has_names_of_0_x = any(not _NAMES_OF_0_X.isdisjoint(parameter_names(method.function)) for method in methods)
    if logs or computes or has_names_of_0_x:
        return any(method.is_of_2_alone for method in methods)
    return True


def _release(era: str, receiver: object, kind: Receiver, hooks: Iterable[str]) -> str:
    """Return the release within an era if the hooks reveal it; otherwise the era."""
    if era == "0.8" and kind is Receiver.MODULE and not _SINCE_0_9.isdisjoint(hooks):
        return "0.9"
    if era == "1.x" and kind is Receiver.MODULE and _is_told_index_by_hand(receiver):
        return "1.4"
    epoch_end = implementation(receiver, "on_train_epoch_end")
    if era == "1.x" and epoch_end is not None and _SINCE_1_4.isdisjoint(hooks):
        outputs = inspect.signature(epoch_end).parameters.get("outputs")
        if outputs is not None and outputs.default is inspect.Parameter.empty:
            return "1.3"
    return era


def _is_told_index_by_hand(receiver: object) -> bool:
    """Return whether a module optimizes by hand with a step that takes `optimizer_idx`, which later releases refuse."""
    return takes_index(receiver) and getattr(receiver, "automatic_optimization", True) is False


def _logs_by_itself(receiver: object, kind: Receiver) -> bool:
    methods = (implementation(receiver, name) for name in _LOG_BY_THEMSELVES)
    return kind is Receiver.MODULE and any(logs_by_itself(method) for method in methods if method is not None)


def _eras_of_closure(method: Callable[..., Any]) -> tuple[str, ...]:
    """Return the eras of an `optimizer_step`, by what it calls its closure, or else by whether it uses it: up to
    0.9 gradients are there when it is called, and from 1.0 on they are not unless it runs the closure."""
    parameters = inspect.signature(method).parameters
    for name, eras in _ERAS_OF_CLOSURE.items():
        if name in parameters:
            return eras
    takes_any = any(one.kind is one.VAR_POSITIONAL for one in parameters.values())
    if takes_any or len(parameters) <= _CLOSURE_POSITION:
        return EARLIER_ERAS
    return ("1.x",) if uses_parameter(method, list(parameters)[_CLOSURE_POSITION]) else ("0.5", "0.7", "0.8")


def _contradictions(receiver: object, reading: EraReading) -> Iterator[_Contradiction]:
    if reading.is_of_today:
        yield from _declared_for_today(receiver, reading)
        return
    step = implementation(receiver, _STEP) if reading.kind is Receiver.MODULE else None
    if step is None:
        return
    method, follows, era = reading.methods.get(_STEP), reading.behaviour.steps_after_backward, f"era {reading.version}"
    if method is None and follows and _takes_todays_closure(receiver, step, reading.kind):
        yield (
            _STEP,
            "its arguments are those of era 2.x, whose closure runs training_step and backward, but the class is "
            f"one of {era}, where backward has run by then. Take (epoch, batch_idx, optimizer, optimizer_idx, "
            "second_order_closure), or declare the release that it was written for as `hook_era`.",
        )
    elif method is None:
        pass
    elif not reading.is_declared and behaviour_of(method.era).steps_after_backward != follows:
        first, then = ("before it", "in its closure") if not follows else ("in its closure", "before it")
        yield (
            _STEP,
            f"it is one of era {method.era}, where backward runs {first}, but other hooks of the class are of {era}, "
            f"where backward runs {then}. Declare the release that it was written for as `hook_era`.",
        )
    elif not follows and (name := _unused_closure(step, method.arguments)) is not None:
        yield (
            _STEP,
            f"it leaves `{name}` alone, which runs training_step and backward in {era}, so nothing would be learned. "
            f'Call `optimizer.step(closure={name})`, or declare `hook_era = "0.9"` if it was written for a release '
            "where backward had run by then.",
        )
    for name in _WITHIN_UPDATE if follows and method is not None else ():
        if implementation(receiver, name) is not None:
            yield (
                name,
                f"it is a part of the update of later releases, but the class has an `{_STEP}` of {era}, which follows "
                f"backward and is the whole update. Do this in `{_STEP}`.",
            )
    decides = follows and behaviour_of("0.8").since > reading.behaviour.since
    if decides and calls_method(step, "zero_grad") and implementation(receiver, _ZERO_GRAD) is not None:
        yield (
            _ZERO_GRAD,
            f"{era} does not have it, and the class's `{_STEP}` zeroes gradients by itself. Call it from there under "
            'another name, or declare `hook_era = "0.8"`, which calls both.',
        )


def _declared_for_today(receiver: object, reading: EraReading) -> Iterator[_Contradiction]:
    for name, method in reading.methods.items():
        spec = method.spec
        eras = ", ".join(era for era in spec.eras if not spec.is_current or era not in ("2.0", "2.x"))
        what = "this hook" if not spec.is_current else "this signature of it"
        yield (
            name,
            f"`hook_era` says {getattr(receiver, 'hook_era', None)!r}, but {what} belongs to the eras {eras}. Declare "
            "the release that it was written for, or mark it with `@not_a_hook` if it is a method of your own.",
        )


def _unused_closure(step: Callable[..., Any], arguments: tuple[Argument, ...]) -> str | None:
    """Return the name of the closure of an `optimizer_step` that steps without it; None if it takes it, or does not
    step either and leaves batches out, which some releases allowed."""
    parameters = list(inspect.signature(step).parameters.values())
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return None
    found = [
        argument.keyword or parameters[position].name
        for position, argument in enumerate(arguments)
        if argument.source == _CLOSURE
    ]
    return found[0] if found and not uses_parameter(step, found[0]) and calls_method(step, "step") else None


def _takes_todays_closure(receiver: object, step: Callable[..., Any], kind: Receiver) -> bool:
    """Return whether a method takes the arguments of today, and among them the closure, by its name or its place."""
    spec, parameters = hooks_of_eras()[_STEP], inspect.signature(step).parameters
    has_closure = len(parameters) >= len(spec.parameters) or _CLOSURE in parameters
    takes_any = any(one.kind is one.VAR_POSITIONAL for one in parameters.values())
    return has_closure and not takes_any and _Method(receiver, spec, kind).arguments_of_today() is not None
