"""The edits that make a class of an earlier era one of today, method by method."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import attrs

from camshaft.compat.eras.evidence import calls_method, returns_logs
from camshaft.compat.eras.reading import COULD_RETURN_LOGS, EraReading
from camshaft.compat.names.table import advice
from camshaft.hooks_core import CATALOGUE, Receiver
from camshaft.hooks_core.dispatch.binding import Argument, arguments_of
from camshaft.hooks_core.dispatch.implementation import class_of, implementation, uses_parameter
from camshaft.hooks_core.eras.binding import EraMethod
from camshaft.hooks_core.eras.hooks import EARLIER_HOOKS, EraSpec, hooks_of_eras

_STAGES = {
    "training_epoch_end": ("training", "train"),
    "validation_epoch_end": ("validation", "validation"),
    "test_epoch_end": ("test", "test"),
}
"""By hook of an epoch's end, its stage as steps and as hooks have it."""

_COLLECTING = """\
def __init__(self, ...):
    ...
    self.{stage}_outputs = []

def {stage}_step({step}):
    ...
    self.{stage}_outputs.append(output)  # detached, and only what the end of the epoch needs
    return output

def on_{word}_epoch_end(self):
    {outputs} = self.{stage}_outputs
    ...
    self.{stage}_outputs.clear()"""

_BY_HAND = """\
def __init__(self, ...):
    ...
    self.automatic_optimization = False

def training_step({parameters}):
    for {index}, optimizer in enumerate(self.optimizers()):
        self.toggle_optimizer(optimizer)
        loss = self.loss_of({arguments})  # what `training_step` computes now
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.untoggle_optimizer(optimizer)"""

_STEPPING = """\
def optimizer_step(self, {epoch}, {batch_idx}, {optimizer}, optimizer_closure):
    ...
    {optimizer}.step(closure=optimizer_closure)"""


@attrs.frozen
class Advice:
    """Advice about one method.

    Attributes:
        method: Its name.
        text: The edit in words.
        sketch: The code that comes in its place, or an empty string.
    """

    method: str
    text: str
    sketch: str = ""


def advise(receiver: object, reading: EraReading) -> list[Advice]:
    """Return the edits that make a receiver one of today, in the order of its methods' names.

    Args:
        receiver: A callback, module, data module or strategy, or the class of one.
        reading: What was found out about it.
    """
    found = [one for method in reading.methods.values() for one in _of_method(receiver, method, reading)]
    if reading.kind is Receiver.MODULE:
        found += _of_module(receiver, reading)
    found.sort(key=lambda advice: advice.method)
    if found and reading.is_declared:
        found.append(Advice("hook_era", "Remove it when all of this is done."))
    return found


def _of_method(receiver: object, method: EraMethod, reading: EraReading) -> Iterator[Advice]:
    name, spec, later = method.name, method.spec, _later_name(method.spec)
    function = implementation(receiver, name)
    assert function is not None
    named = partial(_name_in, function, method.arguments)
    told = advice().get(f"hook:{name}") or advice().get(f"hook:{later}")
    if told is not None:
        yield Advice(name, told)
    elif name == "training_step":
        return  # what is to be done depends on its arguments, and is said of those of today as well
    elif name == "optimizer_step":
        yield _of_optimizer_step(function, named, reading)
    elif later in _STAGES:
        stage, word = _STAGES[later]
        step, outputs = _as_written(receiver, f"{stage}_step"), named("outputs")
        text = f"Rename it to `on_{word}_epoch_end`, and collect what the steps return yourself."
        yield Advice(name, text, _COLLECTING.format(stage=stage, word=word, step=step, outputs=outputs))
    elif later in ("training_step_end", "validation_step_end", "test_step_end"):
        yield Advice(name, f"Do this at the end of `{later.removesuffix('_end')}`, with what that returns now.")
    elif name == "on_train_epoch_end":
        step = _as_written(receiver, "training_step")
        sketch = _COLLECTING.format(stage="training", word="train", step=step, outputs="outputs")
        text = "Take no `outputs`: collect what you need of each batch yourself."
        yield Advice(name, text, sketch if reading.kind is Receiver.MODULE else "")
    elif not spec.is_current and hooks_of_eras()[later].kind != spec.kind:  # it announces what another provides
        yield Advice(name, f"Do this at the beginning of `{later}`.")
    else:
        today = spec if spec.is_current else hooks_of_eras()[later]
        parameters = ", ".join(["self", *map(named, arguments_of(today, reading.kind))])
        yield Advice(name, _renaming(spec, later, method), f"def {today.name}({parameters}):")


def _renaming(spec: EraSpec, later: str, method: EraMethod) -> str:
    """Return what to do with a hook that has another name or other arguments today."""
    if spec.is_current:
        return "Take today's arguments."
    text = f"Rename it to `{later}`."
    if spec.condition:
        text += f" Act only where `{spec.condition}`."
    others = [f"`{name}`" for name in method.moments if name in CATALOGUE][1:]
    if others:
        text += f" It was called with {' and '.join(others)} as well: do it there too if it matters there."
    return text


def _of_optimizer_step(function: Callable[..., Any], named: Callable[..., str], reading: EraReading) -> Advice:
    text = "Take today's arguments, and hand the closure on: it runs training_step, zeroes gradients and runs backward."
    if reading.behaviour.steps_after_backward:
        text += " What looks at gradients belongs in `on_before_optimizer_step`."
    if calls_method(function, "zero_grad"):
        text += " Leave `zero_grad()` out."
    index = named("optimizer_idx", "")
    if index and uses_parameter(function, index):
        text += f" There is no `{index}`: with several optimizers, do this in `training_step`, by hand."
    names = {name: named(name) for name in ("epoch", "batch_idx", "optimizer")}
    return Advice("optimizer_step", text, _STEPPING.format(**names))


def _of_module(receiver: object, reading: EraReading) -> Iterator[Advice]:
    """Yield the advice about steps for each optimizer, about what is returned to be logged, and about zeroing."""
    step = implementation(receiver, "training_step")
    if step is not None:
        names = list(inspect.signature(step).parameters)
        index = next((name for name in names if name in ("optimizer_idx", "optimizer_i")), "")
        if not index and "training_step" in reading.methods:
            index = _name_in(step, reading.methods["training_step"].arguments, "optimizer_idx", "")
        if index:
            kept = [name for name in names if name != index]
            text = f"Take no `{index}`: set `automatic_optimization = False`, and step the optimizers by hand."
            parameters, arguments = ", ".join(["self", *kept]), ", ".join([*kept, index])
            yield Advice(
                "training_step", text, _BY_HAND.format(parameters=parameters, index=index, arguments=arguments)
            )
    for name in COULD_RETURN_LOGS:
        method = implementation(receiver, name)
        if method is not None and returns_logs(class_of(receiver), method):
            sketch = "self.log_dict(log)\nself.log_dict(progress_bar, prog_bar=True)"
            sketch += "\nreturn loss" if name == "training_step" else ""
            yield Advice(name, "Log what it returns as `log` and `progress_bar` by `self.log_dict`.", sketch)
    name = "on_before_zero_grad"
    if reading.behaviour.zero_grad == "after_optimizer_step" and implementation(receiver, name) is not None:
        yield Advice(
            name,
            "It comes before backward today, and came after the update. Do what needs the new weights, such as a "
            "moving average, in `on_train_batch_end(self, outputs, batch, batch_idx)`.",
        )


def _later_name(spec: EraSpec) -> str:
    """Return the name of a hook today, or its last one."""
    while spec.today and spec.today[0] in EARLIER_HOOKS:
        spec = EARLIER_HOOKS[spec.today[0]]
    return spec.today[0] if spec.today else spec.name


def _name_in(
    function: Callable[..., Any], arguments: tuple[Argument, ...], source: str, default: str | None = None
) -> str:
    """Return a method's name for one of its arguments; if it does not take it, the default or the argument's own."""
    parameters = list(inspect.signature(function).parameters.values())
    for position, argument in enumerate(arguments):
        if argument.source == source:
            if argument.keyword is not None:
                return argument.keyword
            if position < len(parameters) and parameters[position].kind is not inspect.Parameter.VAR_POSITIONAL:
                return parameters[position].name
    return ("pl_module" if source == "module" else source) if default is None else default


def _as_written(receiver: object, name: str) -> str:
    """Return the names of a method's parameters as its owner wrote them; today's if there is no such method."""
    method = implementation(receiver, name)
    if method is None:
        return "self, batch, batch_idx"
    return ", ".join(["self", *(str(one).partition(":")[0] for one in inspect.signature(method).parameters.values())])
