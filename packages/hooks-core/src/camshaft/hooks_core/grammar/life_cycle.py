"""The life cycle of each verb in each era."""

from __future__ import annotations

from functools import lru_cache

from camshaft.hooks_core.catalogue import CATALOGUE
from camshaft.hooks_core.catalogue.registry import check_era
from camshaft.hooks_core.grammar import legacy, present
from camshaft.hooks_core.grammar.nodes import Call, Either, Maybe, Node, Repeat, Seq, Within, keep
from camshaft.hooks_core.grammar.present import Optimization
from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.spec import MODULE_ONLY_ERAS, VERBS

_WORDS = {"validate": "validation", "test": "test", "predict": "predict"}


def verbs_of(era: str | None) -> tuple[str, ...]:
    """The verbs that an era has; None stands for camshaft's own order."""
    check_era(era)
    return legacy.VERBS if era in MODULE_ONLY_ERAS else VERBS


@lru_cache(maxsize=64)
def life_cycle(verb: str, era: str | None = None, *, optimization: Optimization = "automatic") -> Node:
    """The order in which a verb calls its hooks.

    Hooks that provide something (loaders, optimizers, callbacks) stand at the place where camshaft asks for them; a
    checker leaves them out, since whoever needs them may ask at another moment.

    Args:
        verb: "fit", "validate", "test" or "predict".
        era: One of the five eras for the order in its document; None for camshaft's own.
        optimization: Who differentiates and steps: the loop ("automatic"), the module inside of `training_step`
            ("manual") or nobody ("none"). Matters to fit alone, since 2.0.

    Raises:
        ValueError: If there is no such era, or it has no such verb.
    """
    verbs = verbs_of(era)
    if verb not in verbs:
        whose = f"era {era}" if era else "camshaft"
        rule = f"one of {', '.join(verbs)} for {whose}"
        raise ValueError(must_be("verb", rule, verb, "life_cycle", "Pass one of these."))
    node = _legacy(verb, era) if era in MODULE_ONLY_ERAS else _present(verb, era, optimization)
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


def _present(verb: str, era: str | None, optimization: Optimization) -> Node:
    if verb == "fit":
        return present.fit(zero_before_step=era == "2.x", optimization=optimization)
    return present.evaluate(_WORDS[verb])


def _legacy(verb: str, era: str | None) -> Node:
    return legacy.fit(zero_before_backward=era == "0.7") if verb == "fit" else legacy.test()
