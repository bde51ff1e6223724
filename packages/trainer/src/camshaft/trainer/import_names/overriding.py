"""Asking what is overridden, as earlier code asks."""

from __future__ import annotations

from camshaft.hooks_core import is_overridden as _is_overridden


def is_overridden(method_name: str, instance: object = None, parent: type | None = None, model: object = None) -> bool:
    """Whether an object's class overrides a method of the base classes, or of `parent`.

    Args:
        method_name: The method.
        instance: The module, data module or callback.
        parent: The class whose method counts as not overridden; None means the base classes.
        model: The module, under the name that it had up to 1.3.
    """
    owner = model if instance is None else instance
    if owner is None:
        return False
    if parent is None:
        return _is_overridden(owner, method_name)
    return getattr(type(owner), method_name, None) is not getattr(parent, method_name, None)
