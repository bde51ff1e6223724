"""Arguments of running constructors, and attributes that lie in a module, its hyperparameters or its data module."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from types import FrameType
from typing import Any

from camshaft.hooks_core.support.messages import must_be


def get_init_args(frame: FrameType) -> dict[str, Any]:
    """Return the arguments of a running `__init__`, without `*args`; empty for the frame of another function."""
    info = inspect.getargvalues(frame)
    if frame.f_code.co_name != "__init__" or "__class__" not in info.locals:
        return {}
    own = {name: info.locals[name] for name in info.args[1:]}
    return own | (info.locals[info.keywords] if info.keywords else {})


def save_hyperparameters(
    obj: Any,
    *args: Any,
    ignore: Sequence[str] | str | None = None,
    frame: FrameType | None = None,
    given_hparams: dict[str, Any] | None = None,
) -> None:
    """Save the arguments of an object's constructor; see `TrainingModule.save_hyperparameters`.

    Args:
        obj: A module, a data module or another object with `HyperparametersMixin`.
        args: Names of arguments; all without any.
        ignore: Names to leave out.
        frame: Where to look for the arguments; None looks at the caller.
        given_hparams: The arguments, where they need not be looked for; for a dataclass its fields are.
    """
    if len(args) == 1 and not isinstance(args[0], str) and not args[0]:
        return
    if given_hparams is None and is_dataclass(obj):
        given_hparams = {field.name: getattr(obj, field.name) for field in fields(obj) if field.init}
    if given_hparams is not None and all(isinstance(name, str) for name in args):
        args = ({name: given_hparams[name] for name in args or given_hparams},)
    current = inspect.currentframe()
    caller = None if current is None else current.f_back
    obj.save_hyperparameters(*args, ignore=ignore, frame=frame or caller)


def lightning_hasattr(model: Any, attribute: str) -> bool:
    """Return whether a module, its hyperparameters or its data module have an attribute."""
    return bool(_holders(model, attribute))


def lightning_getattr(model: Any, attribute: str) -> Any:
    """Return an attribute of a module's data module, its hyperparameters or itself, the first of these that has it.

    Raises:
        AttributeError: If none has it.
    """
    holder = _known_holders(model, attribute)[-1]
    return holder[attribute] if isinstance(holder, dict) else getattr(holder, attribute)


def lightning_setattr(model: Any, attribute: str, value: Any) -> None:
    """Set an attribute of all that have it: a module, its hyperparameters, its data module.

    Raises:
        AttributeError: If none has it.
    """
    for holder in _known_holders(model, attribute):
        if isinstance(holder, dict):
            holder[attribute] = value
        else:
            setattr(holder, attribute, value)


def _known_holders(model: Any, attribute: str) -> list[Any]:
    holders = _holders(model, attribute)
    if not holders:
        rule = "an attribute of the module, its hyperparameters or its data module"
        action = "Check its spelling."
        raise AttributeError(must_be("attribute", rule, attribute, type(model).__qualname__, action))
    return holders


def _holders(model: Any, attribute: str) -> list[Any]:
    data: Any = getattr(getattr(model, "_trainer", None), "datamodule", None)
    found = []
    for owner in (model, data):
        if owner is not None and hasattr(owner, attribute):
            found.append(owner)
        if attribute in getattr(owner, "hparams", ()):
            found.append(owner.hparams)
    return found
