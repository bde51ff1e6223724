"""Decorators of methods that earlier releases had."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from camshaft.hooks_core.transfer import move_to_device
from camshaft.trainer import TrainingModule

_Method = TypeVar("_Method", bound=Callable[..., Any])


def data_loader(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Decorate `train_dataloader` and its like: the loaders are made once for each module and then kept, as up to 0.6.

    They are made anew where the trainer reloads them in the course of a fit.
    """
    attribute = f"_lazy_{function.__name__}"

    @functools.wraps(function)
    def get_loader(self: Any) -> Any:
        if attribute not in self.__dict__ or _reloads(getattr(self, "_trainer", None)):
            self.__dict__[attribute] = function(self)
        return self.__dict__[attribute]

    return get_loader


def auto_move_data(function: _Method) -> _Method:
    """Decorate a module's method, such as `forward`: its arguments are moved to the module's device."""

    @functools.wraps(function)
    def move_and_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, TrainingModule):
            device = next((tensor.device for tensor in self.parameters()), torch.device("cpu"))
            args, kwargs = move_to_device((args, kwargs), device)
        return function(self, *args, **kwargs)

    return move_and_call  # type: ignore[return-value]


def _reloads(trainer: Any) -> bool:
    return trainer is not None and trainer.reload_dataloaders_every_n_epochs > 0
