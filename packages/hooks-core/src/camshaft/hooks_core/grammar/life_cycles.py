"""The life cycle of each verb."""

from __future__ import annotations

from functools import lru_cache

from camshaft.hooks_core.grammar import present
from camshaft.hooks_core.grammar.nodes import Call, Either, Maybe, Node, Repeat, Seq, Within
from camshaft.hooks_core.grammar.present import Optimization, by_split
from camshaft.hooks_core.spec import VERBS, ZERO_GRADS, ZeroGrad
from camshaft.hooks_core.support.messages import must_be

WORDS = {"validate": "validation", "test": "test", "predict": "predict"}
"""The verbs of evaluation, with the word that the names of their hooks have."""


@lru_cache(maxsize=64)
def life_cycle(verb: str, *, optimization: Optimization = "automatic", zero_grad: ZeroGrad | None = None) -> Node:
    """Return the order in which a verb calls its hooks.

    Hooks that provide something (loaders, optimizers, callbacks) stand at the place where camshaft asks for them; a
    checker leaves them out, since a loop may ask at another moment.

    Args:
        verb: "fit", "validate", "test" or "predict".
        optimization: Backward and update by the loop ("automatic"), by the module inside of `training_step` ("manual")
            or not at all ("none"). Matters to fit alone.
        zero_grad: Where the loop zeroes gradients in fit: "before_training_step", "before_backward" (by default) or
            "after_optimizer_step".

    Raises:
        ValueError: If there is no such verb, or if `zero_grad` is none of the three places, or is given although the
            loop does not optimize.
    """
    if verb not in VERBS:
        rule = f"one of {', '.join(VERBS)} for camshaft"
        raise ValueError(must_be("verb", rule, verb, "life_cycle", "Pass one of these."))
    check_zero_grad(zero_grad, optimization)
    if verb != "fit":
        return present.evaluate(WORDS[verb])
    return present.fit(by_split(present.optimization(optimization, zero_grad or "before_backward")))


def check_zero_grad(chosen: ZeroGrad | None, optimization: Optimization) -> None:
    """Raise `ValueError` if there is no such place of zeroing, or one is given although the loop does not optimize."""
    if chosen is None:
        return
    rule = f"None with {'no' if optimization == 'none' else optimization} optimization"
    if chosen not in ZERO_GRADS:
        rule = f"one of {', '.join(ZERO_GRADS)}"
    if chosen not in ZERO_GRADS or optimization != "automatic":
        raise ValueError(must_be("zero_grad", rule, chosen, "life_cycle", "Leave it out, or pass another."))


def after_an_exception(*, while_tearing_down: bool = False) -> Node:
    """Return the order of calls after an exception in a verb.

    Args:
        while_tearing_down: Whether it was raised by a `teardown`; a run may then have left the part that reports
            exceptions, but still owes the other receivers theirs.
    """
    saves = Repeat(Call("on_save_checkpoint"), each="checkpoint that a receiver asks for")
    report = Seq(Within("on_exception", saves), saves)
    if while_tearing_down:
        return Either(Seq(report, "teardown"), Seq("teardown", Maybe(report, when="if it is reported")))
    return Seq(report, "teardown")
