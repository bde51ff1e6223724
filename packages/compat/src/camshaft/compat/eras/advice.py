"""The edits that make a class of an earlier era one of today, method by method."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from camshaft.compat.eras.evidence import calls_method, returns_logs
from camshaft.compat.eras.reading import COULD_RETURN_LOGS, EraReading
from camshaft.compat.names.table import advice
from camshaft.hooks_core import CATALOGUE, HookSpec, Receiver
from camshaft.hooks_core.dispatch.binding import Argument, arguments_of
from camshaft.hooks_core.dispatch.implementation import class_of, implementation, uses_parameter
from camshaft.hooks_core.eras.binding import EraMethod
from camshaft.hooks_core.eras.hooks import EARLIER_HOOKS, EraSpec, hooks_of_eras

_STAGES = {"training_epoch_end": "training", "validation_epoch_end": "validation", "test_epoch_end": "test"}
_SEVERAL_STEPS = ("training_step_end", "validation_step_end", "test_step_end")


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
    found: list[Advice] = []
    for method in reading.methods.values():
        found += _of_method(receiver, method, reading)
    if reading.kind is Receiver.MODULE:
        found += _of_step(receiver, reading)
        found += _of_returned_logs(receiver)
        found += _of_zeroing(receiver, reading)
    found.sort(key=lambda advice: advice.method)
    if found and reading.is_declared:
        found.append(Advice("hook_era", "Remove it when all of this is done."))
    return found


def _of_method(receiver: object, method: EraMethod, reading: EraReading) -> Iterator[Advice]:
    name = method.name
    spec = method.spec
    function = implementation(receiver, name)
    assert function is not None
    later = _later_name(spec)
    if f"hook:{name}" in advice():
        yield Advice(name, advice()[f"hook:{name}"])
    elif name == "training_step":
        return  # what is to be done depends on its arguments, and is said of those of today as well
    elif name == "optimizer_step":
        yield _of_optimizer_step(function, method, reading)
    elif later in _STAGES:
        stage = _STAGES[later]
        step = _signature_as_written(receiver, f"{stage}_step")
        outputs = _parameter_name(function, method.arguments, "outputs")
        text = f"Rename it to `on_{_word(stage)}_epoch_end`, and collect what the steps return yourself."
        yield Advice(name, text, _collecting(stage, _word(stage), step, outputs))
    elif later in _SEVERAL_STEPS:
        yield Advice(name, f"Do this at the end of `{later.removesuffix('_end')}`, with what that returns now.")
    elif name == "on_train_epoch_end":
        step = _signature_as_written(receiver, "training_step") if reading.kind is Receiver.MODULE else ""
        text = "Take no `outputs`: collect what you need of each batch yourself."
        yield Advice(name, text, _collecting("training", "train", step, "outputs") if step else "")
    elif spec.is_current:
        yield Advice(name, "Take today's arguments.", _signature(spec, reading.kind, function, method))
    else:
        yield _of_moments(spec, later, function, method, reading)


def _of_moments(
    spec: EraSpec, later: str, function: Callable[..., Any], method: EraMethod, reading: EraReading
) -> Advice:
    """Return the advice about a hook that goes by another name today."""
    if f"hook:{later}" in advice():
        return Advice(spec.name, advice()[f"hook:{later}"])
    moments, today = [name for name in method.moments if name in CATALOGUE], hooks_of_eras()[later]
    if today.kind != spec.kind:  # it announces what another provides
        return Advice(spec.name, f"Do this at the beginning of `{later}`.")
    text = f"Rename it to `{later}`."
    if spec.condition:
        text += f" Act only where `{spec.condition}`."
    if moments[1:]:
        others = " and ".join(f"`{name}`" for name in moments[1:])
        text += f" It was called with {others} as well: do it there too if it matters there."
    return Advice(spec.name, text, _signature(today, reading.kind, function, method))


def _of_optimizer_step(function: Callable[..., Any], method: EraMethod, reading: EraReading) -> Advice:
    text = "Take today's arguments, and hand the closure on: it runs training_step, zeroes gradients and runs backward."
    if reading.behaviour.steps_after_backward:
        text += " What looks at gradients belongs in `on_before_optimizer_step`."
    if calls_method(function, "zero_grad"):
        text += " Leave `zero_grad()` out."
    optimizer_idx = _parameter_name(function, method.arguments, "optimizer_idx", "")
    epoch, batch_idx, optimizer = (
        _parameter_name(function, method.arguments, name) for name in ("epoch", "batch_idx", "optimizer")
    )
    if optimizer_idx and uses_parameter(function, optimizer_idx):
        text += f" There is no `{optimizer_idx}`: with several optimizers, do this in `training_step`, by hand."
    sketch = f"""\
def optimizer_step(self, {epoch}, {batch_idx}, {optimizer}, optimizer_closure):
    ...
    {optimizer}.step(closure=optimizer_closure)"""
    return Advice("optimizer_step", text, sketch)


def _of_step(receiver: object, reading: EraReading) -> Iterator[Advice]:
    """Yield the advice about a step that is called for each optimizer."""
    step = implementation(receiver, "training_step")
    if step is None:
        return
    names = list(inspect.signature(step).parameters)
    index = next((name for name in names if name in ("optimizer_idx", "optimizer_i")), None)
    if index is None and "training_step" in reading.methods:
        index = _parameter_name(step, reading.methods["training_step"].arguments, "optimizer_idx", "") or None
    if index is None:
        return
    kept = [name for name in names if name != index]
    text = f"Take no `{index}`: set `automatic_optimization = False`, and step the optimizers by hand."
    yield Advice("training_step", text, _manual_optimization(kept, index))


def _of_returned_logs(receiver: object) -> Iterator[Advice]:
    for name in COULD_RETURN_LOGS:
        method = implementation(receiver, name)
        if method is not None and returns_logs(class_of(receiver), method):
            text = "Log what it returns as `log` and `progress_bar` by `self.log_dict`."
            sketch = "self.log_dict(log)\nself.log_dict(progress_bar, prog_bar=True)"
            yield Advice(name, text, f"{sketch}\nreturn loss" if name == "training_step" else sketch)


def _of_zeroing(receiver: object, reading: EraReading) -> Iterator[Advice]:
    name = "on_before_zero_grad"
    if reading.behaviour.zero_grad == "after_optimizer_step" and implementation(receiver, name) is not None:
        yield Advice(
            name,
            "It comes before backward today, and came after the update. Do what needs the new weights, such as a "
            "moving average, in `on_train_batch_end(self, outputs, batch, batch_idx)`.",
        )


def _later_name(spec: EraSpec) -> str:
    """Return the name of a hook today, or its last one."""
    while spec.today:
        later = spec.today[0]
        if later not in EARLIER_HOOKS:
            return later
        spec = EARLIER_HOOKS[later]
    return spec.name


def _word(stage: str) -> str:
    return "train" if stage == "training" else stage


def _signature(spec: HookSpec, kind: Receiver, function: Callable[..., Any], method: EraMethod) -> str:
    """Return the signature that a method should have, with its own names for the arguments that it has already."""
    names = [_parameter_name(function, method.arguments, source) for source in arguments_of(spec, kind)]
    return f"def {spec.name}({', '.join(['self', *names])}):"


def _parameter_name(
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


def _signature_as_written(receiver: object, name: str) -> str:
    """Return the names of a method's parameters as its owner wrote them; today's if there is no such method."""
    method = implementation(receiver, name)
    if method is None:
        return "self, batch, batch_idx"
    return ", ".join(["self", *(str(one).partition(":")[0] for one in inspect.signature(method).parameters.values())])


def _collecting(stage: str, word: str, step: str, outputs: str) -> str:
    """Return a step that collects its outputs, and the hook at the epoch's end that takes them.

    Args:
        stage: "training", "validation" or "test".
        word: The stage as the names of its hooks have it.
        step: The parameters of the step.
        outputs: What the hook calls the outputs.
    """
    kept = f"self.{stage}_outputs"
    return f"""\
def __init__(self, ...):
    ...
    {kept} = []

def {stage}_step({step}):
    ...
    {kept}.append(output)  # detached, and only what the end of the epoch needs
    return output

def on_{word}_epoch_end(self):
    {outputs} = {kept}
    ...
    {kept}.clear()"""


def _manual_optimization(parameters: Sequence[str], index: str) -> str:
    """Return a step that steps several optimizers by hand.

    Args:
        parameters: The names of its parameters without that of the optimizer's index.
        index: The name of the optimizer's index.
    """
    return f"""\
def __init__(self, ...):
    ...
    self.automatic_optimization = False

def training_step({", ".join(["self", *parameters])}):
    for {index}, optimizer in enumerate(self.optimizers()):
        self.toggle_optimizer(optimizer)
        loss = self.loss_of({", ".join([*parameters, index])})  # what `training_step` computes now
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.untoggle_optimizer(optimizer)"""
