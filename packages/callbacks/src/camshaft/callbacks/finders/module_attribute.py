"""A setting that a module or a data module keeps as an attribute, as a hyperparameter, or as both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from camshaft.callbacks.errors import InvalidArgumentError


def find_attribute(owners: Sequence[Any], names: Sequence[str], field: str, where: str) -> str:
    """The first of some names under which any owner keeps a value.

    Args:
        owners: The module, and the data module if there is one; None is skipped.
        names: The names, those that are looked for first before others.
        field: The argument by which a user names the attribute, for the error.
        where: Who looks, for the error.

    Raises:
        InvalidArgumentError: If there is none.
    """
    for name in names:
        if any(_keeps(owner, name) for owner in owners):
            return name
    kinds = " or ".join(type(owner).__qualname__ for owner in owners if owner is not None)
    rule = f"the name of an attribute or a hyperparameter of {kinds}"
    asked = names[0] if len(names) == 1 else tuple(names)
    raise InvalidArgumentError(field, rule, asked, where, f"Keep the value there, or name it by `{field}`.")


def get_attribute(owners: Sequence[Any], name: str) -> Any:
    """The value of the first owner that keeps one."""
    for owner in owners:
        if hasattr(owner, name):
            return getattr(owner, name)
        hparams = _hparams(owner)
        if name in hparams:
            return hparams[name]
    raise AttributeError(name)


def set_attribute(owners: Sequence[Any], name: str, value: Any) -> None:
    """Set a value wherever it is kept: attributes and hyperparameters of all owners."""
    for owner in owners:
        if owner is not None and hasattr(owner, name):
            setattr(owner, name, value)
        hparams = _hparams(owner)
        if name in hparams:
            hparams[name] = value


def _keeps(owner: Any, name: str) -> bool:
    return owner is not None and (hasattr(owner, name) or name in _hparams(owner))


def _hparams(owner: Any) -> Any:
    """Hyperparameters by name; a namespace as its dictionary, so that they can be set."""
    hparams = getattr(owner, "hparams", None)
    if hparams is None:
        return {}
    return hparams if isinstance(hparams, Mapping) else vars(hparams)
