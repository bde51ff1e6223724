"""Reports on receivers of earlier eras: at the start of a run, and of `python -m camshaft.compat check`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import attrs

from camshaft.compat.eras.advice import Advice
from camshaft.compat.eras.reading import EraReading, faults_beside, read_era
from camshaft.hooks_core import CATALOGUE, Catalogue, Receiver
from camshaft.hooks_core.dispatch.faults import examine
from camshaft.hooks_core.eras import inspection
from camshaft.hooks_core.eras.binding import EraMethod
from camshaft.hooks_core.eras.hooks import EARLIER_HOOKS, ERAS, EraSpec
from camshaft.hooks_core.eras.inspection import HookMethod, Inspection
from camshaft.hooks_core.eras.releases import Behaviour
from camshaft.hooks_core.spec import kind_in_words

_WITH_ONE = "with one process it is not called"
_OTHERWISE = {
    "configure_apex": "when fit is set up in mixed precision, with torch's own in place of `amp`: apex is no more",
    "configure_ddp": f"where several processes run, to wrap the model when fit is set up; {_WITH_ONE}",
    "init_ddp_connection": f"where several processes run, to join them unless they have joined; {_WITH_ONE}",
}
"""The moments of hooks that are called under some conditions only."""


@attrs.frozen
class EraInspection(Inspection):
    """The inspection of a class of any era.

    Args:
        reading: Which era it is taken to be of.
    """

    reading: EraReading


def describe(reading: EraReading) -> str:
    """Return what was found out about a receiver, in lines for its owner: to print once when a run starts.

    Args:
        reading: What was found out.

    Returns:
        The text; empty for a receiver of today.
    """
    if not reading.methods and reading.is_of_today:
        return ""
    lines = [f"{reading.receiver} {_standing(reading)}"]
    for method in reading.methods.values():
        call = f"{method.name}({', '.join(str(argument) for argument in method.arguments)})"
        lines.append(f"  {call}: {moment_of(method, reading.behaviour)}")
    if reading.returns_logs:
        lines.append("  what a step or an epoch's end returns as `log` and `progress_bar` is logged")
    lines += [f"  {line}" for line in order_of(reading)]
    if not reading.is_declared:
        lines.append('If it was written for another release, name that in the class: `hook_era = "..."`.')
    return "\n".join(lines)


def inspect_class(klass: type, kind: Receiver | None = None, catalogue: Catalogue = CATALOGUE) -> EraInspection:
    """Inspect a class as one of the era that it was written for. It is not instantiated.

    Args:
        klass: The class.
        kind: What its instances are; the default goes by the base class.
        catalogue: The hooks.

    Raises:
        ValueError: If its `hook_era` is neither an era nor a release.
    """
    kind = kind or inspection.kind_of(klass)
    reading = read_era(klass, kind, catalogue)
    _, faults = examine(klass, kind, catalogue, EARLIER_HOOKS, reading.methods)
    faults = sorted([*faults, *faults_beside(klass, reading)], key=lambda fault: fault.method)
    faulty = {fault.method for fault in faults}
    hooks = inspection.hooks_of(klass, kind, catalogue)
    methods = tuple(_method(klass, spec, reading, faulty) for spec in hooks)
    era = None if reading.is_of_today else reading.behaviour.era
    return EraInspection(kind, methods, tuple(faults), inspection.common_eras(methods), era, reading)


def moment_of(method: EraMethod, behaviour: Behaviour) -> str:
    """Return when camshaft.compat calls a method, in words that follow its name.

    Args:
        method: The method.
        behaviour: What its module's era did otherwise.
    """
    return _OTHERWISE.get(method.name) or inspection.moment_of(method, behaviour)


def order_of(reading: EraReading) -> list[str]:
    """Return where a module's era departs from today's order, a line for each point; empty for what is no module."""
    return inspection.order_of(reading.behaviour) if reading.kind is Receiver.MODULE else []


def inspection_text(name: str, found: EraInspection) -> str:
    """Return what becomes of each method of a class, and what is wrong with it.

    Args:
        name: The class's name.
        found: What was found out about it.
    """
    reading, kind = found.reading, kind_in_words(found.kind)
    if reading.is_of_today:
        standing, verdict = f"a {kind}", "it runs with today's hooks"
    else:
        told = "as it declares" if reading.is_declared else "by its hooks; another is declared by `hook_era`"
        standing = f"a {kind} of era {reading.version}, {told}"
        verdict = f"it runs as a {kind} of era {reading.version}"
    return inspection.text_of(f"{name}, {standing}", found, verdict, reading.version or "", order_of(reading))


def advice_text(advice: Sequence[Advice]) -> str:
    """Return the edits that make a class one of today, method by method.

    Args:
        advice: The edits.
    """
    if not advice:
        return "Nothing is to be edited: nothing of it belongs to an earlier era."
    lines = ["To make it a class of era 2.x:"]
    for one in advice:
        lines += ["", one.method, *inspection.wrapped_lines("  ", one.text)]
        if one.sketch:
            lines += ["", textwrap.indent(one.sketch, "      ")]
    return "\n".join(lines)


def as_data(name: str, found: EraInspection, advice: Sequence[Advice] | None) -> dict[str, Any]:
    """Return the same as plain values.

    Args:
        name: The class's name.
        found: What was found out about it.
        advice: The edits; None leaves them out.
    """
    reading = found.reading
    data = inspection.as_data(name, found)
    data |= {"era": reading.version or ERAS[-1], "declared": reading.is_declared, "order": order_of(reading)}
    if advice is not None:
        data["advice"] = [attrs.asdict(one) for one in advice]
    return data


def _standing(reading: EraReading) -> str:
    kind = kind_in_words(reading.kind)
    if reading.is_of_today:
        return f"is a {kind} of today; these of its hooks are of an earlier era, and are called as there:"
    taken = "declared to be" if reading.is_declared else "taken for"
    return f"is {taken} a {kind} of era {reading.version}. What is called as there:"


def _method(klass: type, spec: EraSpec, reading: EraReading, faulty: set[str]) -> HookMethod:
    eras = inspection.fitting_eras(klass, reading.kind, spec)
    method = reading.methods.get(spec.name)
    if method is None and spec.is_current:
        method = inspection.read_as(klass, reading.kind, spec, None)
        if method is not None and reading.behaviour.era in eras:
            method = attrs.evolve(method, era=reading.behaviour.era)
    if method is None or spec.name in faulty:
        return HookMethod(spec.name, eras)
    logs = "; `log` and `progress_bar` in a dictionary are logged" if reading.returns_logs else ""
    returns = spec.returns + (logs if spec.kind == "step" else "")
    return inspection.called(method, eras, moment_of(method, reading.behaviour), returns)
