"""What a verb was given to work on: a module, loaders, a data module."""

from __future__ import annotations

from typing import Any

from torch import nn

from camshaft.hooks_core import is_overridden
from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.spec import Verb
from camshaft.trainer.data_module import DataModule

_LOADER_HOOKS = ("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")


def choose_module(verb: Verb, given: Any, previous: Any) -> nn.Module:
    """The module that was given, else the one of the verb before.

    Raises:
        TypeError: If it is no module, or there is none.
    """
    module = previous if given is None else given
    if not isinstance(module, nn.Module):
        rule = "a module (torch.nn.Module), or None after an earlier verb"
        raise TypeError(must_be("model", rule, module, f"Trainer.{verb}", "Pass a module."))
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
    if isinstance(first, DataModule) and datamodule is None:
        loaders, datamodule = {**loaders, stage: None}, first
    has_loaders = any(loader is not None for loader in loaders.values())
    if datamodule is None:
        return loaders, None if has_loaders else previous
    if has_loaders:
        rule = "None if loaders are passed"
        raise ValueError(must_be("datamodule", rule, datamodule, f"Trainer.{verb}", "Pass one of the two."))
    if isinstance(datamodule, type) or not any(is_overridden(datamodule, hook) for hook in _LOADER_HOOKS):
        rule = f"an object with at least one of {', '.join(_LOADER_HOOKS)}"
        action = "Pass a data module, or loaders by their own arguments."
        raise TypeError(must_be("datamodule", rule, datamodule, f"Trainer.{verb}", action))
    return loaders, datamodule
