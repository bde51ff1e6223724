"""What is said about a receiver of an earlier era when its run starts."""

from __future__ import annotations

from camshaft.hooks_core.catalogue import CATALOGUE, Catalogue
from camshaft.hooks_core.eras.behaviour import Behaviour
from camshaft.hooks_core.eras.reading import EraReading, MethodReading
from camshaft.hooks_core.spec import Receiver, ZeroGrad

_WORDS = {Receiver.DATA: "data module"}
_ZEROING: dict[ZeroGrad, str] = {
    "before_training_step": "before training_step",
    "before_backward": "before backward",
    "after_optimizer_step": "after the update",
}
_WITH_ONE = "with one process it is not called"
_OTHERWISE = {
    "configure_apex": "when fit is set up in mixed precision, with torch's own in place of `amp`: apex is no more",
    "configure_ddp": f"where several processes run, to wrap the model when fit is set up; {_WITH_ONE}",
    "init_ddp_connection": f"where several processes run, to join them unless they have joined; {_WITH_ONE}",
}
"""What stands in the place of the moment of hooks that are called under some conditions only."""


def kind_in_words(kind: Receiver) -> str:
    """How a kind of receiver is called in a sentence."""
    return _WORDS.get(kind, str(kind))


def describe(reading: EraReading, catalogue: Catalogue = CATALOGUE) -> str:
    """What was found out about a receiver, in lines for its owner: to print once when a run starts.

    Args:
        reading: What was found out.
        catalogue: The hooks.

    Returns:
        The text; empty for a receiver of today.
    """
    if not reading.methods and reading.is_of_today:
        return ""
    lines = [f"{reading.receiver} {_standing(reading)}"]
    for method in reading.methods.values():
        call = f"{method.name}({', '.join(str(argument) for argument in method.arguments)})"
        lines.append(f"  {call}: {moment_of(method, reading.behaviour, catalogue)}")
    if reading.returns_logs:
        lines.append("  what a step or an epoch's end returns as `log` and `progress_bar` is logged")
    lines += [f"  {line}" for line in order_of(reading)]
    if not reading.is_declared:
        lines.append('If it was written for another release, name that in the class: `hook_era = "..."`.')
    return "\n".join(lines)


def moment_of(method: MethodReading, behaviour: Behaviour, catalogue: Catalogue = CATALOGUE) -> str:
    """When a method of an earlier era is called, in words that follow its name.

    Args:
        method: The method.
        behaviour: What its module's era did otherwise.
        catalogue: The hooks.
    """
    spec = catalogue[method.name]
    if method.name in _OTHERWISE:
        return _OTHERWISE[method.name]
    if method.moments and spec.kind != "event":
        return f"as {_both(method.moments)}, its later name"
    if method.moments:
        condition = " if the user interrupts" if spec.condition else ""
        return f"just {'before' if spec.precedes else 'after'} {_both(method.moments)}{condition}"
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
    return when[0].lower() + when[1:]


def order_of(reading: EraReading) -> list[str]:
    """Where a module's era departs from today's order, a line for each; empty for one of today and for what is none."""
    if reading.kind is not Receiver.MODULE or reading.is_of_today:
        return []
    behaviour = reading.behaviour
    lines = []
    if behaviour.zero_grad != "before_backward":
        lines.append(f"gradients are zeroed {_ZEROING[behaviour.zero_grad]}")
    if behaviour.train_start_comes_first:
        lines.append("on_train_start comes before the sanity check")
    if behaviour.epoch_ends_before_validation:
        lines.append("a training epoch ends before the validation at its end")
    return lines


def _standing(reading: EraReading) -> str:
    kind = kind_in_words(reading.kind)
    if reading.is_of_today:
        return f"is a {kind} of today; these of its hooks are of an earlier era, and are called as there:"
    if reading.is_declared:
        return f"is declared to be a {kind} of era {reading.version}. What is called as there:"
    return f"is taken for a {kind} of era {reading.version}. What is called as there:"


def _both(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
