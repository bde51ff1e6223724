"""Building a module from a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from camshaft.hooks_core import is_overridden
from camshaft.hooks_core.messages import must_be
from camshaft.strategies import read_checkpoint
from camshaft.trainer.earlier.checkpoints import is_earlier, unwrapped
from camshaft.trainer.earlier.hyperparameters import constructor_arguments, read_hyperparameters, split_file_arguments
from camshaft.trainer.hyperparameters import HYPER_PARAMETERS_KEY, accepted_by

if TYPE_CHECKING:
    from camshaft.trainer.module import TrainingModule

_Module = TypeVar("_Module", bound="TrainingModule")


def rebuild(
    cls: type[_Module],
    path: str | os.PathLike[str],
    map_location: torch.device | str | None,
    strict: bool,
    arguments: Mapping[str, Any],
) -> _Module:
    """See `TrainingModule.load_from_checkpoint`."""
    where = f"{cls.__qualname__}.load_from_checkpoint"
    checkpoint = read_checkpoint(path, map_location="cpu" if map_location is None else map_location)
    if "state_dict" not in checkpoint:
        action = "Pass a checkpoint of a module."
        raise ValueError(must_be("path", "a checkpoint with a 'state_dict'", sorted(checkpoint), where, action))
    arguments, hparams_file = split_file_arguments(cls, arguments)
    if hparams_file is not None:
        checkpoint[HYPER_PARAMETERS_KEY] = read_hyperparameters(hparams_file)
    from_earlier = is_earlier(checkpoint)
    if from_earlier:
        passing = constructor_arguments(cls, checkpoint, arguments)
    else:
        passing = {**accepted_by(cls, checkpoint.get(HYPER_PARAMETERS_KEY, {})), **arguments}
    try:
        module = cls(**passing)
    except TypeError as error:
        passed = ", ".join(sorted(passing)) or "no arguments"
        error.add_note(
            f"Raised in {where}, which passed {passed}. Pass what is missing as keyword "
            "arguments, or call `save_hyperparameters` in `__init__`."
        )
        raise
    for hook in ("configure_sharded_model", "configure_model"):
        if is_overridden(module, hook):
            getattr(module, hook)()  # they may create the layers that the weights belong to
    module.on_load_checkpoint(checkpoint)
    weights: Mapping[str, Any] = checkpoint["state_dict"]
    module.load_state_dict(unwrapped(weights, module) if from_earlier else weights, strict=strict)
    device = next((value.device for value in weights.values() if isinstance(value, Tensor)), None)
    return module if device is None else module.to(device)
