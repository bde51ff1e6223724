"""The order of hooks in each era: by its document, by measurement (1.x), and as camshaft runs modules of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import attrs

from camshaft.hooks_core.catalogue import CATALOGUE, Catalogue
from camshaft.hooks_core.eras import legacy
from camshaft.hooks_core.eras.hooks import (
    EARLIER_HOOKS,
    ERAS,
    MODULE_ONLY_ERAS,
    EraSpec,
    catalogue_of,
    check_era,
    hooks_of_eras,
)
from camshaft.hooks_core.eras.releases import behaviour_of
from camshaft.hooks_core.grammar import life_cycle as life_cycle_of_today
from camshaft.hooks_core.grammar import present
from camshaft.hooks_core.grammar.conditions import Condition, Variation
from camshaft.hooks_core.grammar.life_cycles import WORDS, check_zero_grad
from camshaft.hooks_core.grammar.nodes import (
    Call,
    Either,
    If,
    Maybe,
    Node,
    Repeat,
    Seq,
    Within,
    inserted,
    keep,
    unless,
)
from camshaft.hooks_core.grammar.present import Optimization
from camshaft.hooks_core.spec import VERBS, Receiver, ZeroGrad
from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.trace import Trace

_PLACES_OF_ERAS: dict[str, tuple[ZeroGrad, ...]] = {
    "0.5": ("after_optimizer_step",),
    "0.7": ("before_backward",),
    "0.8": ("after_optimizer_step",),
    "1.x": ("before_backward", "after_optimizer_step"),  # 1.0 and 1.1 had the latter
    "2.0": ("before_backward",),
    "2.x": ("before_training_step",),
}


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
    """Return the order in which a verb calls its hooks in an era.

    Args:
        verb: "fit", "validate", "test" or "predict".
        era: One of the eras, for the order in its document, or for 1.x the one that was measured; None for camshaft's
            own.
        optimization: As `grammar.life_cycle` takes it. Matters since 2.0.
        zero_grad: Where the loop zeroes gradients in fit. None takes the era's (first) place.

    Raises:
        ValueError: If there is no such era, or it has no such verb; if `zero_grad` is none of the three places, is
            none of the era's, or is given although the loop does not optimize.
    """
    if era is None:
        return life_cycle_of_today(verb, optimization=optimization, zero_grad=zero_grad)
    verbs = verbs_of(era)
    if verb not in verbs:
        rule = f"one of {', '.join(verbs)} for era {era}"
        raise ValueError(must_be("verb", rule, verb, "life_cycle", "Pass one of these."))
    check_zero_grad(zero_grad, optimization)
    documented = _PLACES_OF_ERAS[era]
    if zero_grad not in (None, *documented):
        rule = f"{' or '.join(documented)}, as era {era} has it"
        raise ValueError(must_be("zero_grad", rule, zero_grad, "life_cycle", "Leave out one of the two."))
    place = zero_grad or documented[0]
    if era in MODULE_ONLY_ERAS:
        node = legacy.fit(behaviour_of(era)) if verb == "fit" else legacy.test()
    elif verb != "fit":
        node = present.evaluate(WORDS[verb])
    elif era == "2.x" and optimization == "automatic":
        node = present.fit(_optimization_in_line())
    elif era in ("2.0", "2.x"):
        node = present.fit(present.optimization(optimization, place))
    else:
        one = present.by_split(present.optimization(optimization, place))
        node = present.fit(one, may_validate_after_epoch=True)
    if era == "1.x":
        node = with_old_hooks(node, era)
    return keep(node, frozenset(name for name, spec in hooks_of_eras().items() if era in spec.eras))


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
    node = life_cycle_of_today(verb, optimization=optimization, zero_grad=zero_grad)  # for its errors, too
    behaviour = behaviour_of(version)
    if verb == "fit":
        place = zero_grad or behaviour.zero_grad
        if optimization == "automatic" and behaviour.steps_after_backward:
            one = _optimization_after_backward(place, step_zeroes=behaviour.step_zeroes)
        else:
            one = present.optimization(optimization, place)
        node = present.fit(
            present.by_split(one),
            train_start_first=behaviour.train_start_comes_first,
            may_validate_after_epoch=behaviour.epoch_ends_before_validation,
        )
    return with_old_hooks(node, behaviour_of(moments or version).era, moments or version)


def cycle_of_trace(
    trace: Trace, verb: str, optimization: Optimization, zero_grad: ZeroGrad | None, catalogue: Catalogue = CATALOGUE
) -> tuple[Node, Callable[[Node], Node], Catalogue]:
    """Return the order that a trace of an era follows, or one of camshaft's with receivers of earlier eras.

    The other arguments are those of `life_cycle`.

    Returns:
        The life cycle, what adds the old hooks to another part of the order, and the hooks.
    """
    if trace.protocol is not None:
        moments = trace.protocol
        cycle = life_cycle(verb, moments, optimization=optimization, zero_grad=zero_grad)
        known = catalogue_of(moments, catalogue)
    else:
        versions = [one.version for one in trace.participants if one.version]
        of_module = [one.version for one in trace.participants if one.version and one.kind is Receiver.MODULE]
        # camshaft's order for a module of an earlier release, or for one of today beside such receivers
        version, moments = (of_module or [ERAS[-1]])[0], (of_module or versions)[0]
        cycle = life_cycle_of_version(verb, version, moments=moments, optimization=optimization, zero_grad=zero_grad)
        known = Catalogue(hooks_of_eras(catalogue).values())
        known.registered |= catalogue.registered
        known.places |= catalogue.places
    return cycle, lambda node: with_old_hooks(node, behaviour_of(moments).era, moments), known


def _optimization_after_backward(zero_grad: ZeroGrad, *, step_zeroes: bool = False) -> Node:
    """Return the optimization of a batch where forward and backward come before `optimizer_step`, as up to 0.9.

    An optimizer that uses its closure evaluates them again, inside of `optimizer_step`.

    Args:
        zero_grad: Where the loop zeroes gradients.
        step_zeroes: Whether `optimizer_step` zeroes them instead, after each step.
    """
    by_default = Maybe("optimizer_zero_grad", when="by default")
    zero_inside = Seq("on_before_zero_grad", by_default) if step_zeroes else Seq()
    zero_after = present.ZERO if zero_grad == "after_optimizer_step" and not step_zeroes else Seq()
    zero_before = present.ZERO_FIRST if zero_grad == "before_backward" else Seq()
    again = Seq(present.STEP, present.backward_of_loss())
    further = Repeat(again, each="further evaluation, by an optimizer that asks for it")
    by_closure = Repeat(Seq(again, present.BEFORE_UPDATE), each="evaluation by the optimizer", at_least=1)
    before, inside = (Within("optimizer_step", _steps(one, zero_inside)) for one in (further, by_closure))
    either = Either(
        Seq(present.BEFORE_UPDATE, before, label="before the step"), Seq(inside, label="by the step's closure")
    )
    stepping = Seq(either, zero_after)
    held = If(Condition.HELD, Maybe(stepping, when="if they are applied anyway"))
    applied = unless(Condition.NO_LOSS, Seq(zero_before, present.BACKWARD, stepping))
    without_update = Seq(present.STEP, present.backward_of_loss(zero=zero_before))
    update = Seq(present.STEP, applied, If(Condition.NO_LOSS, held))
    return present.by_window(update, without_update, opens_with_first_batch=False)


def _steps(evaluations: Node, zero: Node) -> Node:
    """Return the body of `optimizer_step`: each step of the optimizer with what follows it."""
    return Repeat(Seq(evaluations, zero), each="step of the optimizer") if zero != Seq() else evaluations


def _optimization_in_line() -> Node:
    """Return the optimization of a batch in the document of 2.x: zeroing first, `optimizer_step` alone at the end."""
    applied = Seq(present.BACKWARD, present.BEFORE_UPDATE, "optimizer_step")
    held = If(Condition.NO_LOSS, present.update_of_held_gradients("optimizer_step"))
    update = Seq(present.ZERO_FIRST, present.STEP, unless(Condition.NO_LOSS, applied), held)
    without_update = Seq(present.ZERO_FIRST, present.STEP, present.backward_of_loss())
    return present.by_window(update, without_update, opens_with_first_batch=True)


_JOIN = Maybe("init_ddp_connection", when="if several processes run and have not joined")
_OVERRIDES = Either(
    "init_optimizers", "configure_apex", "configure_ddp", "on_post_move_to_device", "restore_weights", "summarize"
)
_IN_PLACE_OF_DEFAULTS = Repeat(
    _OVERRIDES, each="part of the set-up that the module overrides", variation=Variation.RARE
)
_INIT = Maybe(Seq("on_init_start", "on_init_end"), when="when the trainer is made")
_EPOCH_END = Maybe("training_epoch_end", when="unless no batch was run", left_out_if=Condition.SKIPPED)
_BEFORE: dict[str, Node] = {
    "configure_callbacks": Seq(_INIT, _JOIN),
    "setup": _IN_PLACE_OF_DEFAULTS,
    "on_validation_epoch_end": Call("validation_epoch_end"),
    "on_test_epoch_end": Call("test_epoch_end"),
    "on_train_epoch_end": _EPOCH_END,
}
_AFTER: dict[str, Node] = {
    "configure_callbacks": _JOIN,
    "configure_optimizers": _IN_PLACE_OF_DEFAULTS,
    "on_train_batch_end": Maybe("get_progress_bar_dict", when="if a progress bar is drawn"),
    "validation_step": Call("validation_step_end"),
    "test_step": Call("test_step_end"),
}
"""Hooks that have no moment of today, where runners of eras call them."""

_STEP_END = Call("training_step_end", clears=Condition.NO_LOSS)
_AFTER_STEP = Seq(
    If(Condition.NO_LOSS, Maybe(_STEP_END, when="if it is called anyway")),
    unless(Condition.NO_LOSS, "training_step_end"),
)


def with_old_hooks(node: Node, era: str, version: str | None = None) -> Node:
    """Return a life cycle of today's hooks with those that an earlier era has, in its moments.

    Args:
        node: A life cycle of today's hooks.
        era: The era that says which moments these are.
        version: The release of it, if that is known.
    """

    def without_moments(part: Call | Within) -> tuple[Node, Node]:
        if isinstance(part, Call) and part.sets is Condition.NO_LOSS:
            return Seq(), _AFTER_STEP
        return _BEFORE.get(part.hook, Seq()), _AFTER.get(part.hook, Seq())

    def in_moments(part: Call | Within) -> tuple[Node, Node]:
        old = [spec for spec in EARLIER_HOOKS.values() if part.hook in spec.moments_in(era, version)]
        first, last = ([_call(one, part) for one in old if one.precedes is before] for before in (True, False))
        return Seq(*first), Seq(*last)

    return inserted(inserted(node, without_moments), in_moments)


def _call(spec: EraSpec, moment: Call | Within) -> Node:
    """Return the call of an old hook in a moment of today; its result means the same as there."""
    call = Call(spec.name)
    if spec.can_skip_epoch and isinstance(moment, Call):
        call = attrs.evolve(moment, hook=spec.name)
    of_moment = CATALOGUE.get(moment.hook) or EARLIER_HOOKS[moment.hook]
    if of_moment.kind == "provide":
        return Maybe(call, when=f"if `{moment.hook}` is asked")
    return Maybe(call, when=f"if {spec.condition}") if spec.condition else call
