"""To which era a receiver belongs, by what it overrides and how, and how each of its old methods is called."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping

import attrs

from camshaft.hooks_core.binding import Argument, BindingError, parameter_names
from camshaft.hooks_core.catalogue import Catalogue
from camshaft.hooks_core.eras.behaviour import TODAY, Behaviour, behaviour_of
from camshaft.hooks_core.eras.evidence import logs_by_itself, returns_logs, uses_parameter
from camshaft.hooks_core.implementation import class_of, implementation, receiver_name
from camshaft.hooks_core.methods import arguments_of, bind_hook, candidates
from camshaft.hooks_core.spec import CANONICAL_NAMES, ERAS, HookSpec, Receiver

EARLIER_ERAS = tuple(era for era in ERAS if era not in ("2.0", "2.x"))
"""The eras whose code does not run on today's protocol as it is."""

EVERYDAY_NAMES = frozenset({"summarize", "init_optimizers", "restore_weights"})
"""Names of old hooks that a class of today may well use for a method of its own: no evidence by themselves."""

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


@attrs.frozen
class MethodReading:
    """A method that is called as an earlier era did.

    Attributes:
        name: Its name.
        era: The era whose arguments it gets.
        arguments: These, under the names that hooks of today have for them.
        moments: The hooks of today in whose moments it is called; empty for one that has a moment of its own.
    """

    name: str
    era: str
    arguments: tuple[Argument, ...]
    moments: tuple[str, ...] = ()


@attrs.frozen
class EraReading:
    """What was found out about a receiver.

    Attributes:
        receiver: Its name.
        version: The version that it was written for, as it declares it, or else an era; None for one of today.
        is_declared: Whether it says so itself, by `hook_era`.
        methods: Its methods of earlier eras, by name.
        returns_logs: Whether a step of it returns a dictionary with what to log.
        kind: What it is.
        of_today: Its methods that are called as today, by name, each with its arguments.
    """

    receiver: str
    version: str | None = None
    is_declared: bool = False
    methods: Mapping[str, MethodReading] = attrs.field(factory=dict)
    returns_logs: bool = False
    kind: Receiver = Receiver.MODULE
    of_today: Mapping[str, tuple[Argument, ...]] = attrs.field(factory=dict, repr=False)

    @property
    def behaviour(self) -> Behaviour:
        """Where its era departs from today's order and contracts."""
        return TODAY if self.version is None else behaviour_of(self.version)

    @property
    def is_of_today(self) -> bool:
        """Whether nothing of it belongs to an earlier era."""
        return self.version is None


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
        return EraReading(name, kind=kind, of_today=of_today)
    version = declared if declared is not None else _likeliest(receiver, kind, evidence, specs, logs)
    behaviour = behaviour_of(version)
    is_earlier = behaviour.era in EARLIER_ERAS
    own = specs if is_earlier else old
    read = ((spec.name, _read(receiver, spec, kind, behaviour.era, version)) for spec in own)
    methods = {method: reading for method, reading in read if reading is not None}
    of_today = {method: arguments for method, arguments in of_today.items() if method not in methods}
    return EraReading(name, version if is_earlier else None, declared is not None, methods, logs, kind, of_today)


def is_of_today(receiver: object, spec: HookSpec, kind: Receiver) -> bool:
    """Whether a method is a hook of today that takes today's arguments."""
    return _arguments_of_today(receiver, spec, kind) is not None


def _arguments_of_today(receiver: object, spec: HookSpec, kind: Receiver) -> tuple[Argument, ...] | None:
    """What a method gets as a hook of today; None if it is none, or would lack the closure that an era gives it."""
    if not spec.is_current:
        return None
    arguments = _bound(receiver, spec, kind, None)
    if spec.name != "optimizer_step" or arguments is None or _takes_closure(arguments):
        return arguments
    lacks_it = any(map(_takes_closure, _fits(receiver, spec, kind).values()))
    return None if lacks_it else arguments


def _takes_closure(arguments: Iterable[Argument]) -> bool:
    return any(argument.source == "optimizer_closure" for argument in arguments)


def _is_evidence(receiver: object, spec: HookSpec, kind: Receiver) -> bool:
    """Whether a method tells an era: it fits one, and is more than a namesake, which takes none of its arguments."""
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
    """An era's release that departs from the rest of it, where hooks tell; else the era."""
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
    """How a method is called that an earlier era knows otherwise than today; None for one that is called as today."""
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
    """Whether an era's arguments are meant where today's fit as well: the signature has more of its names, or, where
    names do not tell, today's arguments are not the first of the era's."""
    num_of_era = _num_shared_names(receiver, spec, kind, best)
    num_of_today = _num_shared_names(receiver, spec, kind, None)
    if num_of_era != num_of_today or best != era or spec.kind == "step":
        return num_of_era > num_of_today
    return of_era[: len(of_today)] != of_today


def _fits(receiver: object, spec: HookSpec, kind: Receiver) -> dict[str, tuple[Argument, ...]]:
    """The earlier eras that know a hook and whose arguments a method can take, each with these."""
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
    """The eras that an `optimizer_step` may be of, by what it calls its closure, or else by whether it uses it: up to
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
