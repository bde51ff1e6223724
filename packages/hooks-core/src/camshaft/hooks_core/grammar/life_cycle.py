"""The life cycle of each verb in each era."""

from __future__ import annotations

from functools import lru_cache

from camshaft.hooks_core.catalogue import CATALOGUE
from camshaft.hooks_core.catalogue.registry import check_era
from camshaft.hooks_core.grammar import legacy, present
from camshaft.hooks_core.grammar.nodes import Call, Either, Maybe, Node, Repeat, Seq, Within, keep
from camshaft.hooks_core.grammar.optimization import Optimization, by_split, optimization_in_line
from camshaft.hooks_core.grammar.optimization import optimization as optimize
from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.spec import MODULE_ONLY_ERAS, VERBS, ZERO_GRADS, ZeroGrad

_WORDS = {"validate": "validation", "test": "test", "predict": "predict"}

_PLACES_OF_ERAS: dict[str, ZeroGrad] = {
    "0.5": "after_optimizer_step",
    "0.7": "before_backward",
    "0.8": "after_optimizer_step",
    "2.0": "before_backward",
    "2.x": "before_training_step",
}


def verbs_of(era: str | None) -> tuple[str, ...]:
    """The verbs that an era has; None stands for camshaft's own order."""
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
    """The order in which a verb calls its hooks.

    Hooks that provide something (loaders, optimizers, callbacks) stand at the place where camshaft asks for them; a
    checker leaves them out, since whoever needs them may ask at another moment.

    Args:
        verb: "fit", "validate", "test" or "predict".
        era: One of the five eras for the order in its document; None for camshaft's own.
        optimization: Who differentiates and steps: the loop ("automatic"), the module inside of `training_step`
            ("manual") or nobody ("none"). Matters to fit alone, since 2.0.
        zero_grad: Where the loop zeroes gradients in fit: "before_training_step", "before_backward" or
            "after_optimizer_step". None takes the place in the era's document; camshaft's own is "before_backward".

    Raises:
        ValueError: If there is no such era, or it has no such verb; if `zero_grad` is none of the three places, is
            another than that of the era's document, or is given although the loop does not optimize.
    """
    verbs = verbs_of(era)
    if verb not in verbs:
        whose = f"era {era}" if era else "camshaft"
        rule = f"one of {', '.join(verbs)} for {whose}"
        raise ValueError(must_be("verb", rule, verb, "life_cycle", "Pass one of these."))
    place = _zero_grad(era, optimization, zero_grad)
    node = _legacy(verb, place) if era in MODULE_ONLY_ERAS else _present(verb, era, optimization, place)
    known = frozenset(spec.name for spec in CATALOGUE.values() if (era in spec.eras if era else spec.is_current))
    return keep(node, known)


def after_an_exception(*, while_tearing_down: bool = False) -> Node:
    """What follows when anything raised during a verb.

    Args:
        while_tearing_down: Whether it was raised by a `teardown`; a run may then have left the part that reports
            exceptions, but still owes the other receivers theirs.
    """
    saves = Repeat(Call("on_save_checkpoint"), each="checkpoint that a receiver asks for")
    report = Seq(Within("on_exception", saves), saves)
    if while_tearing_down:
        return Either(Seq(report, "teardown"), Seq("teardown", Maybe(report, when="if it is reported")))
    return Seq(report, "teardown")


def _zero_grad(era: str | None, optimization: Optimization, chosen: ZeroGrad | None) -> ZeroGrad:
    """Where gradients are zeroed, checked against the era and the kind of optimization."""
    documented = _PLACES_OF_ERAS[era] if era else None
    if chosen is None:
        return documented or "before_backward"
    if chosen not in ZERO_GRADS:
        rule = f"one of {', '.join(ZERO_GRADS)}"
        raise ValueError(must_be("zero_grad", rule, chosen, "life_cycle", "Pass one of these."))
    if optimization != "automatic":
        how = "manual optimization" if optimization == "manual" else "no optimization"
        rule = f"None with {how}, where the loop zeroes no gradients"
        raise ValueError(must_be("zero_grad", rule, chosen, "life_cycle", "Leave it out."))
    if documented not in (None, chosen):
        rule = f"{documented}, as the document of era {era} has it"
        raise ValueError(must_be("zero_grad", rule, chosen, "life_cycle", "Leave out one of the two."))
    return chosen


def _present(verb: str, era: str | None, optimization: Optimization, zero_grad: ZeroGrad) -> Node:
    if verb != "fit":
        return present.evaluate(_WORDS[verb])
    if era == "2.x" and optimization == "automatic":
        return present.fit(optimization_in_line())
    one = optimize(optimization, zero_grad)
    return present.fit(one if era else by_split(one))


def _legacy(verb: str, zero_grad: ZeroGrad) -> Node:
    return legacy.fit(zero_before_backward=zero_grad == "before_backward") if verb == "fit" else legacy.test()
