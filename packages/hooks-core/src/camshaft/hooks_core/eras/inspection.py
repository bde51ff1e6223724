"""Inspection of a class: how each of its hooks is called, by the catalogue alone. Nothing is instantiated."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

import attrs

from camshaft.hooks_core.bases import Callback, DataHooks, ModelHooks, StrategyHooks
from camshaft.hooks_core.catalogue import CATALOGUE, Catalogue
from camshaft.hooks_core.dispatch.candidates import candidates
from camshaft.hooks_core.dispatch.faults import Fault, examine
from camshaft.hooks_core.dispatch.implementation import mentions_method, method_of, receiver_name
from camshaft.hooks_core.eras.binding import EraMethod, fit_in, fits
from camshaft.hooks_core.eras.faults import find_faults
from camshaft.hooks_core.eras.hooks import ERAS, EVERYDAY_NAMES, EraSpec, catalogue_of, check_era, hooks_of_eras
from camshaft.hooks_core.eras.releases import TODAY, Behaviour, behaviour_of
from camshaft.hooks_core.spec import Receiver, ZeroGrad, kind_in_words
from camshaft.hooks_core.support.messages import must_be

_WIDTH = 100
_ZEROING: dict[ZeroGrad, str] = {
    "before_training_step": "before training_step",
    "before_backward": "before backward",
    "after_optimizer_step": "after the update",
}


@attrs.frozen
class HookMethod:
    """A method that is a hook of some era.

    Args:
        name: Its name.
        eras: The eras that know the hook for this kind of receiver and whose arguments its signature can take.
        era: The era as in which it is called; "2.x" for today, None if it is not called.
        call: The call as it is made; empty if it is not.
        when: The moment of the call, as a sentence without a period; empty if it is not called.
        returns: What its return value does; empty if it is not called.
    """

    name: str
    eras: tuple[str, ...]
    era: str | None = None
    call: str = ""
    when: str = ""
    returns: str = ""


@attrs.frozen
class Inspection:
    """Result of an inspection of a class.

    Args:
        kind: What its instances are taken for.
        methods: Its methods that are hooks of any era, by name.
        faults: What keeps it from running, and warnings.
        eras: The eras that fit all of its methods; empty if it has none.
        era: The era as a class of which it was inspected; None for today.
    """

    kind: Receiver
    methods: tuple[HookMethod, ...]
    faults: tuple[Fault, ...]
    eras: tuple[str, ...]
    era: str | None


def load_class(target: str) -> type:
    """Import a class by its name.

    Args:
        target: "MODULE:CLASS", such as "my_project.model:MyModel".

    Returns:
        The class.

    Raises:
        ValueError: If there is no such class. Whatever the module raises when it is imported is the cause.
    """
    module_name, _, class_name = target.partition(":")
    if not (module_name and class_name):
        raise ValueError(f"the target must be MODULE:CLASS, but got {target!r}. Write, say, my_project.model:MyModel.")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a user's module raises when it is imported
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"the module {module_name!r} cannot be imported ({reason}). Check its name.") from error
    try:
        found: object = attrgetter(class_name)(module)
    except AttributeError as error:
        raise ValueError(f"the module {module_name!r} has no class {class_name!r}. Check its name.") from error
    if not isinstance(found, type):
        raise ValueError(f"{target!r} must be a class, but it is of type {type(found).__name__}. Name the class.")
    return found


def inspect_class(
    klass: type, kind: Receiver | None = None, era: str | None = None, catalogue: Catalogue = CATALOGUE
) -> Inspection:
    """Inspect a class as one of today, or of an era. It is not instantiated.

    Args:
        klass: The class.
        kind: What its instances are; the default goes by the base class.
        era: The era; None stands for today.
        catalogue: The hooks.

    Returns:
        How each of its methods is called, and its faults.

    Raises:
        ValueError: If there is no such era, its document does not describe this kind of receiver, or the class's
            `hook_era` is neither an era nor a release.
    """
    check_era(era)
    kind = kind or kind_of(klass)
    if era is not None and not catalogue_of(era, catalogue).received_by(kind):
        rule = f"an era that describes hooks of a {kind_in_words(kind)}"
        raise ValueError(must_be("era", rule, era, "inspect_class", "Choose a later era."))
    faults = find_faults(klass, kind, catalogue) if era is None else _faults_in(era, klass, kind, catalogue)
    faulty = {fault.method for fault in faults}
    behaviour = TODAY if era is None else behaviour_of(era)
    methods: list[HookMethod] = []
    for spec in hooks_of(klass, kind, catalogue):
        eras = fitting_eras(klass, kind, spec)
        is_called = spec.name not in faulty and spec.is_in(era) and kind in spec.receivers_in(era)
        read = read_as(klass, kind, spec, era) if is_called else None
        method = called(read, eras, moment_of(read, behaviour), spec.returns) if read else HookMethod(spec.name, eras)
        methods.append(method)
    return Inspection(kind, tuple(methods), tuple(faults), common_eras(methods), era)


def _faults_in(era: str, klass: type, kind: Receiver, catalogue: Catalogue) -> list[Fault]:
    """Return the faults of a class of an era."""
    hooks = hooks_of_eras(catalogue)
    others = {name: spec for name, spec in hooks.items() if not (era in spec.eras and kind in spec.receivers_in(era))}
    known = {spec.name for spec in hooks_of(klass, kind, catalogue) if read_as(klass, kind, spec, era)}
    _, faults = examine(klass, kind, catalogue_of(era, catalogue), others, known)
    for name in sorted({*candidates(klass)} & others.keys()):
        spec = hooks[name]
        if kind in spec.receivers and name not in EVERYDAY_NAMES and not mentions_method(klass.__mro__, name):
            told = f"this hook belongs to the eras {', '.join(spec.eras)}, and era {era} does not call it."
            faults.append(Fault(receiver_name(klass), name, told))
    return sorted(faults, key=lambda fault: fault.method)


def kind_of(klass: type) -> Receiver:
    """Return what a class's instances are, by their base class; a module, where that does not say."""
    if issubclass(klass, Callback):
        return Receiver.CALLBACK
    if issubclass(klass, StrategyHooks):
        return Receiver.STRATEGY
    is_torch_module = any(base.__module__ == "torch.nn.modules.module" for base in klass.__mro__)
    if issubclass(klass, DataHooks) and not issubclass(klass, ModelHooks) and not is_torch_module:
        return Receiver.DATA
    return Receiver.MODULE


def hooks_of(klass: type, kind: Receiver, catalogue: Catalogue = CATALOGUE) -> list[EraSpec]:
    """Return the hooks of any era that a class implements, in the order of their names."""
    hooks = hooks_of_eras(catalogue)
    return [hooks[name] for name in sorted(candidates(klass)) if name in hooks and kind in hooks[name].receivers]


def fitting_eras(klass: type, kind: Receiver, spec: EraSpec) -> tuple[str, ...]:
    """Return the eras that know a hook for a kind of receiver and whose arguments a class's method can take."""
    return tuple(fits(method_of(klass, spec.name), spec, kind))


def common_eras(methods: Sequence[HookMethod]) -> tuple[str, ...]:
    """Return the eras that fit all methods; empty if there are none."""
    return tuple(era for era in ERAS if methods and all(era in method.eras for method in methods))


def read_as(klass: type, kind: Receiver, spec: EraSpec, era: str | None) -> EraMethod | None:
    """Return how a class's method is called as a hook of an era; None if its signature does not fit.

    Args:
        klass: The class.
        kind: What its instances are.
        spec: The hook.
        era: The era; None stands for today.
    """
    arguments = fit_in(method_of(klass, spec.name), spec, kind, era)
    if arguments is None:
        return None
    moments = spec.moments_in(era) if era is not None and not spec.is_current else ()
    return EraMethod(hook=spec.as_in(era), arguments=arguments, moments=moments, era=era or ERAS[-1], spec=spec)


def moment_of(method: EraMethod, behaviour: Behaviour) -> str:
    """Return when a method is called, in words that follow its name.

    Args:
        method: The method.
        behaviour: What its module's era did otherwise.
    """
    spec = method.spec
    if method.moments and spec.kind != "event":
        return f"as {_joined(method.moments)}, its later name"
    if method.moments:
        condition = " if the user interrupts" if spec.condition else ""
        return f"just {'before' if spec.precedes else 'after'} {_joined(method.moments)}{condition}"
    if method.name == "optimizer_step":
        if behaviour.steps_after_backward:
            return "after backward, for each optimizer"
        return "for each optimizer; its closure runs training_step and backward"
    if method.name == "on_before_zero_grad":
        return f"before gradients are zeroed, {_ZEROING[behaviour.zero_grad]}"
    if method.name == "training_step":
        by_optimizer = any(argument.source == "optimizer_idx" for argument in method.arguments)
        return "for each optimizer" if by_optimizer else "for each batch"
    when = spec.when.partition(":")[0].rstrip(".").replace("`", "")
    default = ", in place of the default" if spec.kind == "override" and spec.is_current else ""
    return when[0].lower() + when[1:] + default


def order_of(behaviour: Behaviour) -> list[str]:
    """Return where a release departs from today's order, a line for each point."""
    lines = []
    if behaviour.zero_grad != TODAY.zero_grad:
        lines.append(f"gradients are zeroed {_ZEROING[behaviour.zero_grad]}")
    if behaviour.train_start_comes_first:
        lines.append("on_train_start comes before the sanity check")
    if behaviour.epoch_ends_before_validation:
        lines.append("a training epoch ends before the validation at its end")
    return lines


def inspection_text(name: str, inspection: Inspection) -> str:
    """Return an inspection as text: how each method is called, then the faults.

    Args:
        name: The class's name.
        inspection: The inspection.
    """
    kind, era = kind_in_words(inspection.kind), inspection.era
    if era is None:
        return text_of(f"{name}, a {kind}", inspection, "it runs with today's hooks")
    title, verdict = f"{name}, as a {kind} of era {era}", f"these are hooks of era {era}"
    return text_of(title, inspection, verdict, era, _order(inspection))


def text_of(title: str, inspection: Inspection, verdict: str, version: str = "", order: Sequence[str] = ()) -> str:
    """Return an inspection as text.

    Args:
        title: The first line.
        inspection: The inspection.
        verdict: What is said of a class that has hooks and no faults.
        version: The release whose order the next argument describes.
        order: Where it departs from today's order.
    """
    lines = [title]
    for method in inspection.methods:
        lines += ["", *_lines_of(method)]
    if order:
        lines += ["", f"In era {version}", *(f"  {line}" for line in order)]
    return "\n".join([*lines, "", _verdict(inspection, verdict), *(f"  {fault}" for fault in inspection.faults)])


def as_data(name: str, inspection: Inspection) -> dict[str, Any]:
    """Return an inspection as plain values.

    Args:
        name: The class's name.
        inspection: The inspection.
    """
    return {
        "name": name,
        "kind": str(inspection.kind),
        "era": inspection.era or ERAS[-1],
        "methods": [attrs.asdict(method) for method in inspection.methods],
        "order": _order(inspection),
        "faults": [attrs.asdict(fault) for fault in inspection.faults],
    }


def wrapped_lines(label: str, text: str) -> list[str]:
    """Return a text in lines of the width of a page, behind a label."""
    return textwrap.wrap(text, _WIDTH, initial_indent=label, subsequent_indent=" " * len(label), break_on_hyphens=False)


def called(method: EraMethod, eras: tuple[str, ...], when: str, returns: str) -> HookMethod:
    """Return a method that is called as it was read.

    Args:
        method: The method as it was read.
        eras: The eras that know it.
        when: The moment of its call, as a sentence.
        returns: What its return value means.
    """
    call = f"{method.name}({', '.join(str(argument) for argument in method.arguments)})"
    return HookMethod(method.name, eras, method.era, call, when, returns)


def _order(inspection: Inspection) -> list[str]:
    is_of_module = inspection.kind is Receiver.MODULE
    return order_of(behaviour_of(inspection.era)) if inspection.era is not None and is_of_module else []


def _lines_of(method: HookMethod) -> Iterator[str]:
    if method.era is None:
        yield f"{method.name}: not called"
        yield f"  fits      {' '.join(method.eras) or 'no era'}"
        return
    yield method.call
    others = [era for era in method.eras if era != method.era]
    yield f"  era       {method.era}" + (f" (fits {', '.join(others)} too)" if others else "")
    yield from wrapped_lines("  when      ", method.when)
    if method.returns != "ignored":
        yield from wrapped_lines("  returns   ", method.returns)


def _verdict(inspection: Inspection, of_methods: str) -> str:
    num_faults = sum(not fault.is_warning for fault in inspection.faults)
    if num_faults:
        return f"{num_faults} fault{'s' if num_faults != 1 else ''}:"
    found = of_methods if inspection.methods else "it implements no hooks"
    return f"No faults: {found}{':' if inspection.faults else '.'}"


def _joined(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
