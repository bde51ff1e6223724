"""Attachments of another trainer's run, which a verb inside of it gives back when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from camshaft.loops.metric_state import metric_states, restore_metric_states
from camshaft.loops.modes import ModuleModes
from camshaft.trainer.data_module import DataModule, attach_data_module
from camshaft.trainer.module import TrainingModule

if TYPE_CHECKING:
    from camshaft.trainer.trainer import Trainer


class Borrowed:
    """A module, or a data module, of a trainer that runs, while another trainer has it for a verb.

    A hook of a fit may let a second trainer validate the fit's module, for instance. Afterwards the module knows the
    fit's trainer and log again, and its modes, the states of its metrics, and device and number format of its
    parameters and buffers are as before. A module that no running trainer has is left as the verb leaves it.

    Args:
        module: The module, before the second trainer is attached to it.
        trainer: The second trainer.
    """

    def __init__(self, module: nn.Module, trainer: Trainer) -> None:
        self._module = module
        self._trainer = trainer
        self._parts = [
            (part, part._trainer, part._metric_log)
            for part in module.modules()
            if isinstance(part, TrainingModule) and self._is_of_another(part)
        ]
        self._data: tuple[DataModule, Any] | None = None
        if self._parts:
            self._modes = ModuleModes(module)
            self._metrics = metric_states(module)
            self._tensors = [(owner, name, tensor, tensor.data) for owner, name, tensor in _tensors_of(module)]

    def take_data(self, data: object) -> None:
        """Remember whose a data module is; call it before the second trainer is attached to it."""
        if isinstance(data, DataModule) and self._is_of_another(data):
            self._data = data, data._trainer

    def give_back(self, *, was_trained: bool) -> None:
        """Let the trainer that runs have everything again.

        Args:
            was_trained: Whether the verb changed the weights, which then stay changed.
        """
        if self._data is not None:
            attach_data_module(*self._data)
        if not self._parts:
            return
        for part, trainer, metric_log in self._parts:
            part.__dict__["_trainer"], part.__dict__["_metric_log"] = trainer, metric_log
        self._modes.restore()
        for owner, name, tensor, values in self._tensors:
            _put_back(owner, name, tensor, values, was_trained=was_trained)
        restore_metric_states(self._module, self._metrics)

    def _is_of_another(self, part: TrainingModule | DataModule) -> bool:
        trainer = part._trainer
        return trainer is not None and trainer is not self._trainer and trainer._is_running


def _tensors_of(module: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    """Each parameter and buffer, with the submodule that has it and its name there."""
    return [
        (owner, name, tensor)
        for owner in module.modules()
        for name, tensor in (*owner.named_parameters(recurse=False), *owner.named_buffers(recurse=False))
    ]


def _put_back(owner: nn.Module, name: str, tensor: Tensor, values: Tensor, *, was_trained: bool) -> None:
    """Let a parameter or a buffer be where it was, in the number format that it had."""
    now = getattr(owner, name)
    if not isinstance(now, Tensor) or (now.device, now.dtype) == (values.device, values.dtype):
        return
    with torch.no_grad():
        if was_trained:
            values.copy_(now)
        if now is tensor:
            tensor.data = values
        else:
            setattr(owner, name, tensor)
