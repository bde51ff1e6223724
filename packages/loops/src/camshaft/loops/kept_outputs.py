"""Outputs of steps that are kept until the end of their epoch, and in checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from camshaft.hooks_core.transfer import map_nested, move_to_device
from camshaft.loops.run import Run
from camshaft.loops.step_outputs import detached

_CPU = torch.device("cpu")
_PLAIN = (int, float, bool, str, type(None))


def goes_to_cpu(run: Run) -> bool:
    """Whether the outputs of steps are kept on the CPU: as the run or the module's `outputs_on_cpu` asks for it."""
    return run.outputs_on_cpu or bool(getattr(run.module, "outputs_on_cpu", False))


def kept(outputs: Any, *, on_cpu: bool) -> Any:
    """What is kept of a step's outputs: without their graph, and where that is asked for on the CPU."""
    outputs = detached(outputs)
    return move_to_device(outputs, _CPU) if on_cpu else outputs


def foreign_types(value: Any) -> Iterator[type]:
    """The types of all that a checkpoint cannot hold: only tensors and plain values in plain containers go in."""
    if type(value) is dict:
        yield from (kind for pair in value.items() for item in pair for kind in foreign_types(item))
    elif type(value) in (list, tuple):
        yield from (kind for item in value for kind in foreign_types(item))
    elif type(value) is not Tensor and type(value) not in _PLAIN:
        yield type(value)


def saved(value: Any) -> tuple[Any, list[bool]]:
    """A value with copies of its tensors on the CPU, and whether each of these was elsewhere, in order."""
    were_elsewhere: list[bool] = []

    def copy(tensor: Tensor) -> Tensor:
        were_elsewhere.append(not tensor.is_cpu)
        return tensor.detach().to(_CPU, copy=True)

    return _with_tensors(value, copy), were_elsewhere


def restored(value: Any, were_elsewhere: list[bool], device: torch.device) -> Any:
    """What `saved` was given, its tensors on the CPU or the device as they were."""
    elsewhere = iter(were_elsewhere)
    return _with_tensors(value, lambda tensor: tensor.to(device) if next(elsewhere) else tensor)


def _with_tensors(value: Any, replace: Callable[[Tensor], Tensor]) -> Any:
    return map_nested(value, lambda node: isinstance(node, Tensor), replace)
