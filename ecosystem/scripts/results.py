"""What a script hands over at its end: named numbers in one file, which `compare.py` reads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import torch

VARIABLE = "ECOSYSTEM_RESULTS"
"""The environment variable with the path of the file."""

RANDOM_STATE = "random state"
"""The name under which the state of torch's random numbers is kept."""


def write(**results: Any) -> None:
    """Write named results, and where torch's random numbers stand after the run.

    Numbers at any depth get a name such as `tft.weights.bias`. Below a key `logged` are means of metrics, which may
    differ by rounding; below `other draws` is what draws other random numbers on purpose. The README has the rules.

    Args:
        results: Numbers, tensors, arrays, data frames, modules (their weights), and mappings and sequences of these.
            Text and other values are left out.
    """
    numbers: dict[str, Any] = {RANDOM_STATE: torch.get_rng_state().numpy()}
    for key, result in results.items():
        numbers.update(_flatten(key, result))
    numpy.savez(os.environ[VARIABLE], **numbers)


def _flatten(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.nn.Module):
        value = value.state_dict()
    if hasattr(value, "select_dtypes"):  # a data frame
        value = {column: value[column].to_numpy() for column in value.select_dtypes("number")}
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flatten(f"{name}.{key}", item)
    elif isinstance(value, list | tuple):
        for idx, item in enumerate(value):
            yield from _flatten(f"{name}.{idx}", item)
    elif isinstance(value, torch.Tensor):
        yield name, value.detach().cpu().numpy()
    elif isinstance(value, numpy.ndarray | numpy.number | float | int):
        yield name, numpy.asarray(value)
