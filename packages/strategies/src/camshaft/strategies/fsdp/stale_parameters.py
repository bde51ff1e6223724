"""Seeing whether optimizers have the parameters that a sharded module really has."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.hooks_core.messages import must_be
from camshaft.strategies.fsdp.unchanged_model import class_name


def check_parameters(
    optimizers: Iterable[Optimizer], module: nn.Module, replaced: Sequence[tuple[weakref.ref[Tensor], str]]
) -> None:
    """Raise `ValueError` unless all parameters of optimizers are the module's.

    Args:
        optimizers: The optimizers.
        module: The module.
        replaced: Parameters that the module had before it was sharded, as far as they exist, with their names.
    """
    own = {id(parameter) for parameter in module.parameters()}
    earlier = {id(reference()): name for reference, name in replaced if reference() is not None}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in own:
                    continue
                name = earlier.get(id(parameter))
                found = f"{name} as it was before" if name is not None else tuple(parameter.shape)
                rule = f"a parameter that the sharded {class_name(module)} has"
                action = "Build the optimizer in `configure_optimizers`, or after `setup_module`."
                raise ValueError(must_be("parameter", rule, found, type(optimizer).__qualname__, action))
