"""Errors for attributes that an object does not have, so that a misspelt setting is not lost."""

from __future__ import annotations

_PACKAGE = "camshaft"
_SIMILAR, _MISSPELT = 0.6, 0.8  # how much of two names is the same, as difflib tells it


def check_known(owner: object, name: str, *, takes_own: bool = False) -> None:
    """Raise an error for a new attribute that no class of the owner declares.

    Call it from `__setattr__`; it holds once the constructor has set `_is_sealed`. A subclass that is defined outside
    of this project may have attributes of its own.

    Args:
        owner: The object.
        name: The attribute's name.
        takes_own: Whether only a name that resembles a known one is refused, as a misspelt setting.

    Raises:
        AttributeError: If it is not known; the message names the closest attribute that may be set.
    """
    kind = type(owner)
    attributes = vars(owner)
    if name in attributes or "_is_sealed" not in attributes or hasattr(kind, name) or _is_declared(kind, name):
        return
    if not kind.__module__.startswith(f"{_PACKAGE}."):
        return
    if takes_own and (name.startswith("_") or _closest(owner, name, _MISSPELT) is None):
        return
    raise unknown_attribute(owner, name)


def unknown_attribute(owner: object, name: str) -> AttributeError:
    """Return the error for an attribute that an object does not have, with the closest one that may be set."""
    where = type(owner).__qualname__
    closest = _closest(owner, name, _SIMILAR)
    action = "Keep attributes of your own in the module, in a callback or in a subclass."
    if closest is not None:
        action = f"Did you mean `{closest}`?"
    message = f"`{name}` must be an attribute of {where} to be set, but there is none in {where}. {action}"
    return AttributeError(message, name=name, obj=owner)


def _closest(owner: object, name: str, cutoff: float) -> str | None:
    from difflib import get_close_matches  # only for names that are not known

    return next(iter(get_close_matches(name, settable_attributes(owner), n=1, cutoff=cutoff)), None)


def settable_attributes(owner: object) -> list[str]:
    """Return the public attributes of an object that may be set: those it has, and properties with a setter."""
    kind = type(owner)
    names = {name for name in vars(owner) if not name.startswith("_")}
    for klass in kind.__mro__:
        for name, value in vars(klass).items():
            if isinstance(value, property) and value.fset is not None and not name.startswith("_"):
                names.add(name)
    return sorted(names)


def _is_declared(kind: type, name: str) -> bool:
    return any(name in vars(klass).get("__annotations__", ()) for klass in kind.__mro__)
