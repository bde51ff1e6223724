"""The constructor arguments of a module by the rules of earlier releases."""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Mapping, MutableMapping
from typing import Any

from camshaft.strategies import NamedValues
from camshaft.trainer.hyperparameters import (
    HYPER_PARAMETERS_KEY,
    Hyperparameters,
    accepted_by,
    parameters_of,
    takes_any,
)


def constructor_arguments(cls: type, checkpoint: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a class's constructor arguments from the hyperparameters of a checkpoint of an earlier release.

    Those that were one argument (`hparams`, or whatever name the checkpoint tells) are one again, readable as items and
    as attributes; a namespace before 0.8 is one. Others are keywords, as far as the constructor takes them.

    Args:
        cls: The class.
        checkpoint: The checkpoint.
        given: Arguments that count before those that were saved; those of the constructor, else values in the one.
    """
    saved = {**_dict(checkpoint, "hparams"), **_dict(checkpoint, HYPER_PARAMETERS_KEY)}
    parameters = parameters_of(cls)
    name = _single(cls, checkpoint, saved)
    configuration = checkpoint.get(HYPER_PARAMETERS_KEY)
    if not isinstance(configuration, MutableMapping) or isinstance(configuration, dict):
        configuration = None  # one of OmegaConf is in a file that was trusted, and stays one
    if name is None and configuration is not None:
        return {**accepted_by(cls, configuration), **given}
    if name is None:
        return {**accepted_by(cls, {key: _readable(value) for key, value in saved.items()}), **given}
    inner = {key: value for key, value in given.items() if key not in parameters and not takes_any(cls)}
    outer = {key: value for key, value in given.items() if key not in inner}
    if name in outer:
        return {**outer, **inner}
    if configuration is not None:
        configuration = copy.copy(configuration)
        configuration.update(inner)
        return {name: configuration, **outer}
    values = {key: _readable(value) for key, value in {**saved, **inner}.items()}
    is_namespace = HYPER_PARAMETERS_KEY not in checkpoint and checkpoint.get("hparams_type", "Namespace") == "Namespace"
    return {name: Namespace(**values) if is_namespace else Hyperparameters(values), **outer}


def _single(cls: type, checkpoint: Mapping[str, Any], saved: Mapping[str, Any]) -> str | None:
    """Return the name of the argument that takes all hyperparameters; None if each is an argument of its own."""
    parameters = parameters_of(cls)
    told = checkpoint.get("hparams_name")
    if told in parameters:
        return str(told)
    if not saved or told is not None:
        return None
    if "hparams" in parameters:
        return "hparams"
    if "hparams" not in checkpoint and "pytorch-lightning_version" in checkpoint:
        return None
    first = next(iter(parameters.values()), None)
    is_required = first is not None and first.kind is first.POSITIONAL_OR_KEYWORD and first.default is first.empty
    return first.name if first is not None and is_required and first.name not in saved else None


def _dict(checkpoint: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = checkpoint.get(key)
    if isinstance(value, Namespace):  # of a file that was trusted
        return dict(vars(value))
    return dict(value) if isinstance(value, Mapping) else {}


def _readable(value: Any) -> Any:
    """Return containers in which a namespace can be saved again as hyperparameters."""
    if isinstance(value, NamedValues):
        return Hyperparameters({key: _readable(item) for key, item in value.items()})
    if type(value) is dict:
        return {key: _readable(item) for key, item in value.items()}
    return type(value)(_readable(item) for item in value) if type(value) in (list, tuple) else value
