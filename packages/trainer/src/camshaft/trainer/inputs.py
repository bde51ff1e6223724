"""What a verb was given to work on: a module, loaders, a data module."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from torch import nn

from camshaft.hooks_core import is_overridden
from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.spec import Verb

_LOADER_HOOKS = ("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")


def choose_module(verb: Verb, given: Any, previous: Any) -> nn.Module:
    """The module that was given, else the one of the verb before.

    Of what `torch.compile(module)` returned it is the module itself, whose own calls are compiled from then on.

    Raises:
        TypeError: If it is no module, there is none, or it relies on another framework's trainer.
    """
    module = previous if given is None else _compiled_in_place(given)
    if not isinstance(module, nn.Module):
        rule = "a module (torch.nn.Module), or None after an earlier verb"
        raise TypeError(must_be("model", rule, module, f"Trainer.{verb}", "Pass a module."))
    if any(base.__name__ == "LightningModule" for base in type(module).__mro__):
        rule = "a TrainingModule or plain torch.nn.Module, as a LightningModule works with Lightning's trainer alone"
        action = "Let its class inherit from camshaft.trainer.TrainingModule."
        raise TypeError(must_be("model", rule, type(module).__qualname__, f"Trainer.{verb}", action))
    return module


def _compiled_in_place(given: Any) -> Any:
    """The module behind one that `torch.compile` wrapped, which has no hooks of its own; anything else as it is."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")  # which nobody needs who compiles nothing
    if dynamo is None or not isinstance(given, dynamo.OptimizedModule):
        return given
    module = given._orig_mod
    if module._compiled_call_impl is None:
        # what `module.compile()` does, with the backend and the options of the wrapper
        module._compiled_call_impl = given.dynamo_ctx(module._call_impl)
    return module


def choose_data(verb: Verb, loaders: dict[str, Any], datamodule: Any, previous: Any) -> tuple[dict[str, Any], Any]:
    """The loaders by stage and the data module, which may have been passed in the first loader's place.

    Args:
        verb: The verb.
        loaders: What was passed as loaders, by stage.
        datamodule: What was passed as data module.
        previous: The data module of the verb before, if it ran on the same module; it is taken if nothing was passed.

    Raises:
        TypeError: If the data module provides no loader.
        ValueError: If both were passed, so that it is not clear which to take.
    """
    stage, first = next(iter(loaders.items()))
    if datamodule is None and _provides_loaders(first) and not isinstance(first, Iterable):
        loaders, datamodule = {**loaders, stage: None}, first
    has_loaders = any(loader is not None for loader in loaders.values())
    if datamodule is None:
        return loaders, None if has_loaders else previous
    if has_loaders:
        rule = "None if loaders are passed"
        raise ValueError(must_be("datamodule", rule, datamodule, f"Trainer.{verb}", "Pass one of the two."))
    if not _provides_loaders(datamodule):
        rule = f"an object with at least one of {', '.join(_LOADER_HOOKS)}"
        action = "Pass a data module, or loaders by their own arguments."
        raise TypeError(must_be("datamodule", rule, datamodule, f"Trainer.{verb}", action))
    return loaders, datamodule


def _provides_loaders(data: Any) -> bool:
    return not isinstance(data, type) and any(is_overridden(data, hook) for hook in _LOADER_HOOKS)
