"""Classes under earlier names whose instances are also those of the classes that they stand for."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Iterable
from typing import Any

from camshaft.hooks_core.messages import must_be, warn_user


class StandIn(ABCMeta):
    """The class of a class that takes an earlier constructor's arguments and stands for one of ours.

    Earlier code asks `isinstance(callback, ModelCheckpoint)` of callbacks that the trainer made as well, which are of
    our class. So that class's instances count as its own, but not as those of its subclasses. The class has
    `__stands_for__`, a class or a tuple of them.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__dict__.get("__stands_for__", ())) or super().__instancecheck__(instance)


def refuse_overrides(cls: type, names: Iterable[str], action: str) -> None:
    """Refuse a subclass that overrides a method that is never called.

    Args:
        cls: The subclass.
        names: What is not called.
        action: What to do instead.

    Raises:
        TypeError: If it has one of these.
    """
    for name in names:
        if name in vars(cls):
            raise TypeError(
                must_be(name, "left out, since it is not called", vars(cls)[name], cls.__qualname__, action)
            )


def refuse_argument(field: str, value: Any, where: str, why: str, action: str, accepted: tuple[Any, ...] = ()) -> None:
    """Refuse an earlier argument, unless it has a value that asks for nothing.

    Raises:
        ValueError: If it does.
    """
    if value is not None and not any(value is known or value == known for known in accepted):
        raise ValueError(must_be(field, f"left out, since {why}", value, where, action))


def note(where: str, earlier: str, today: str) -> None:
    """Warn of the translation of an argument.

    Args:
        where: The class.
        earlier: The argument as it was given.
        today: What it is taken for.
    """
    warn_user(f"{where}: {earlier} is taken as {today}.")
