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
    kind, attributes = type(owner), vars(owner)
    known = name in attributes or "_is_sealed" not in attributes or hasattr(kind, name)
    if known or not kind.__module__.startswith("camshaft."):
        return
    if any(name in vars(klass).get("__annotations__", ()) for klass in kind.__mro__):
        return
    from difflib import get_close_matches  # only for names that are not known

    members = {own: member for klass in kind.__mro__ for own, member in vars(klass).items()}
    settable = {own for own, member in members.items() if isinstance(member, property) and member.fset is not None}
    public = sorted(one for one in settable | attributes.keys() if not one.startswith("_"))
    closest = get_close_matches(name, public, n=1, cutoff=_MISSPELT if takes_own else _SIMILAR)
    if takes_own and (name.startswith("_") or not closest):
        return
    action = "Keep attributes of your own in the module, in a callback or in a subclass."
    if closest:
        action = f"Did you mean `{closest[0]}`?"
    where = kind.__qualname__
    message = f"`{name}` must be an attribute of {where} to be set, but there is none in {where}. {action}"
    raise AttributeError(message, name=name, obj=owner)
