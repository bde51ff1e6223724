"""The life cycle of each verb in each era."""

from __future__ import annotations

from functools import lru_cache

import attrs

from camshaft.hooks_core.catalogue import CATALOGUE, check_era
from camshaft.hooks_core.eras import Behaviour, behaviour_of
from camshaft.hooks_core.grammar import legacy, present
from camshaft.hooks_core.grammar.nodes import Call, Either, Maybe, Node, Repeat, Seq, Within, keep, with_parts
from camshaft.hooks_core.grammar.present import Optimization, by_split
from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.spec import MODULE_ONLY_ERAS, VERBS, ZERO_GRADS, HookSpec, ZeroGrad

_WORDS = {"validate": "validation", "test": "test", "predict": "predict"}

_PLACES_OF_ERAS: dict[str, tuple[ZeroGrad, ...]] = {
    "0.5": ("after_optimizer_step",),
    "0.7": ("before_backward",),
    "0.8": ("after_optimizer_step",),
    "1.x": ("before_backward", "after_optimizer_step"),  # 1.0 and 1.1 had the latter
    "2.0": ("before_backward",),
    "2.x": ("before_training_step",),
}

_OLD_HOOKS = tuple(spec for spec in CATALOGUE.values() if not spec.is_current)


def verbs_of(era: str | None) -> tuple[str, ...]:
    """Return the verbs that an era has; None stands for camshaft's own order."""
    check_era(era)
    return legacy.VERBS if era in MODULE_ONLY_ERAS else VERBS


@lru_cache(maxsize=64)
def life_cycle(
    verb: str,
    era: str | None = None,
    *,
    optimization: Optimization = "automatic",
    zero_grad: ZeroGrad | None = None,
) -> Node:
    """Return the order in which a verb calls its hooks.

    Hooks that provide something (loaders, optimizers, callbacks) stand at the place where camshaft asks for them; a
    checker leaves them out, since a loop may ask at another moment.

    Args:
        verb: "fit", "validate", "test" or "predict".
        era: One of the eras, for the order in its document, or for 1.x the one that was measured; None for camshaft's
            own.
        optimization: Backward and update by the loop ("automatic"), by the module inside of `training_step` ("manual")
            or not at all ("none"). Matters to fit alone, since 2.0.
        zero_grad: Where the loop zeroes gradients in fit: "before_training_step", "before_backward" or
            "after_optimizer_step". None takes the era's (first) place; camshaft's own is "before_backward".

    Raises:
        ValueError: If there is no such era, or it has no such verb; if `zero_grad` is none of the three places, is
            none of the era's, or is given although the loop does not optimize.
    """
    verbs = verbs_of(era)
    if verb not in verbs:
        whose = f"era {era}" if era else "camshaft"
        rule = f"one of {', '.join(verbs)} for {whose}"
        raise ValueError(must_be("verb", rule, verb, "life_cycle", "Pass one of these."))
    place = _zero_grad(era, optimization, zero_grad)
    if era in MODULE_ONLY_ERAS:
        node = legacy.fit(behaviour_of(era)) if verb == "fit" else legacy.test()
    else:
        node = _present(verb, era, optimization, place)
    known = frozenset(spec.name for spec in CATALOGUE.values() if (era in spec.eras if era else spec.is_current))
    return keep(node, known)


@lru_cache(maxsize=64)
def life_cycle_of_version(
    verb: str,
    version: str,
    *,
    moments: str | None = None,
    optimization: Optimization = "automatic",
    zero_grad: ZeroGrad | None = None,
) -> Node:
    """Return the order in which camshaft runs a module of an earlier release, with the hooks of today around it.

    Args:
        verb: "fit", "validate", "test" or "predict".
        version: The version, as `behaviour_of` takes it.
        moments: The version that says in which moments of today its hooks are called, where the module is of today and
            other receivers are not; None for the same.
        optimization: As `life_cycle` takes it.
        zero_grad: As `life_cycle` takes it; None for the version's own place.

    Raises:
        ValueError: If there is no such verb, `version` is none, or `zero_grad` is given although the loop does not
            optimize.
    """
    life_cycle(verb, optimization=optimization, zero_grad=zero_grad)  # for its errors
    behaviour = behaviour_of(version)
    node = _of_version(verb, behaviour, optimization, zero_grad or behaviour.zero_grad)
    era = behaviour_of(moments or version).era
    return _with_old_hooks(keep(node, frozenset(CATALOGUE)), era, moments or version)


def after_an_exception(*, while_tearing_down: bool = False) -> Node:
    """Return the order of calls after an exception in a verb.

    Args:
        while_tearing_down: Whether it was raised by a `teardown`; a run may then have left the part that reports
            exceptions, but still owes the other receivers theirs.
    """
    saves = Repeat(Call("on_save_checkpoint"), each="checkpoint that a receiver asks for")
    interrupted = Maybe(Call("on_keyboard_interrupt"), when="if the user interrupted the verb")
    report = Seq(interrupted, Within("on_exception", saves), saves)
    if while_tearing_down:
        return Either(Seq(report, "teardown"), Seq("teardown", Maybe(report, when="if it is reported")))
    return Seq(report, "teardown")


def _zero_grad(era: str | None, optimization: Optimization, chosen: ZeroGrad | None) -> ZeroGrad:
    """Return the place where gradients are zeroed, checked against the era and the kind of optimization."""
    documented = _PLACES_OF_ERAS[era] if era else None
    if chosen is None:
        return documented[0] if documented else "before_backward"
    if chosen not in ZERO_GRADS:
        rule = f"one of {', '.join(ZERO_GRADS)}"
        raise ValueError(must_be("zero_grad", rule, chosen, "life_cycle", "Pass one of these."))
    if optimization != "automatic":
        how = "manual optimization" if optimization == "manual" else "no optimization"
        rule = f"None with {how}, where the loop zeroes no gradients"
        raise ValueError(must_be("zero_grad", rule, chosen, "life_cycle", "Leave it out."))
    if documented is not None and chosen not in documented:
        rule = f"{' or '.join(documented)}, as era {era} has it"
        raise ValueError(must_be("zero_grad", rule, chosen, "life_cycle", "Leave out one of the two."))
    return chosen


def _present(verb: str, era: str | None, optimization: Optimization, zero_grad: ZeroGrad) -> Node:
    if verb != "fit":
        node = present.evaluate(_WORDS[verb])
    elif era == "2.x" and optimization == "automatic":
        node = present.fit(present.optimization_in_line())
    elif era in ("2.0", "2.x"):
        node = present.fit(present.optimization(optimization, zero_grad))
    else:
        one = by_split(present.optimization(optimization, zero_grad))
        node = present.fit(one, may_validate_after_epoch=era == "1.x")
    return _with_old_hooks(node, era) if era == "1.x" else node


def _of_version(verb: str, behaviour: Behaviour, optimization: Optimization, zero_grad: ZeroGrad) -> Node:
    if verb != "fit":
        return present.evaluate(_WORDS[verb])
    if optimization == "automatic" and behaviour.steps_after_backward:
        one = present.optimization_after_backward(zero_grad, step_zeroes=behaviour.step_zeroes)
    else:
        one = present.optimization(optimization, zero_grad)
    late = behaviour.epoch_ends_before_validation
    return present.fit(by_split(one), behaviour, may_validate_after_epoch=late)


def _with_old_hooks(node: Node, era: str, version: str | None = None) -> Node:
    """Return a life cycle with the hooks that an earlier era has in its moments.

    Args:
        node: A life cycle of today's hooks.
        era: The era that says which moments these are.
        version: The release of it, if that is known.
    """
    before: dict[str, list[HookSpec]] = {}
    after: dict[str, list[HookSpec]] = {}
    for spec in _OLD_HOOKS:
        for moment in spec.moments_in(era, version):
            (before if spec.precedes else after).setdefault(moment, []).append(spec)

    def inserted(part: Node) -> Node:
        own = with_parts(part, inserted)
        if not isinstance(part, Call | Within) or (part.hook not in before and part.hook not in after):
            return own
        first, last = before.get(part.hook, []), after.get(part.hook, [])
        return Seq(*(_call(old, part) for old in first), own, *(_call(old, part) for old in last))

    return inserted(node)


def _call(spec: HookSpec, moment: Call | Within) -> Node:
    """Return the call of an old hook in a moment of today; its result means the same as there."""
    call = Call(spec.name)
    if spec.can_skip_epoch and isinstance(moment, Call):
        call = attrs.evolve(moment, hook=spec.name)
    if CATALOGUE[moment.hook].kind == "provide":
        return Maybe(call, when=f"if `{moment.hook}` is asked")
    return Maybe(call, when=f"if {spec.condition}") if spec.condition else call
