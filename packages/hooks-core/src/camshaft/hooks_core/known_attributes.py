"""Errors for attributes that an object does not have, so that a misspelt setting is not lost."""

from __future__ import annotations

_SIMILAR, _MISSPELT = 0.6, 0.8  # how much of two names is the same, as difflib tells it


def check_attribute(owner: object, name: str, *, takes_own: bool = False) -> None:
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
    if name in attributes or "_is_sealed" not in attributes or hasattr(kind, name):
        return
    is_declared = any(name in vars(klass).get("__annotations__", ()) for klass in kind.__mro__)
    if is_declared or not kind.__module__.startswith("camshaft."):
        return
    if takes_own and (name.startswith("_") or _closest(owner, name, _MISSPELT) is None):
        return
    where, closest = kind.__qualname__, _closest(owner, name, _SIMILAR)
    action = "Keep attributes of your own in the module, in a callback or in a subclass."
    if closest is not None:
        action = f"Did you mean `{closest}`?"
    message = f"`{name}` must be an attribute of {where} to be set, but there is none in {where}. {action}"
    raise AttributeError(message, name=name, obj=owner)


def _closest(owner: object, name: str, cutoff: float) -> str | None:
    """Return the closest public attribute that may be set: one that the owner has, or a property with a setter."""
    from difflib import get_close_matches  # only for names that are not known

    members = ((own, member) for klass in type(owner).__mro__ for own, member in vars(klass).items())
    names = {own for own, member in members if isinstance(member, property) and member.fset is not None}
    public = sorted(one for one in names | vars(owner).keys() if not one.startswith("_"))
    return next(iter(get_close_matches(name, public, n=1, cutoff=cutoff)), None)
