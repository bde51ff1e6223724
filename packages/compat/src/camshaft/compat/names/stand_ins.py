"""Classes under earlier names whose instances are also those of the classes that they stand for."""

from __future__ import annotations

import re
from abc import ABCMeta
from collections.abc import Iterable
from functools import cache
from inspect import unwrap
from types import FunctionType
from typing import Any, NoReturn

from camshaft.hooks_core.messages import must_be, warn_user

_ERRORS = re.compile(r".*(Exception|Error|Warning)")


class StandIn(ABCMeta):
    """The class of a class that takes an earlier constructor's arguments and stands for one of ours.

    Earlier code asks `isinstance(callback, ModelCheckpoint)` of callbacks that the trainer made as well, which are of
    our class. So that class's instances count as its own, but not as those of its subclasses. The class has
    `__stands_for__`, a class or a tuple of them.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__dict__.get("__stands_for__", ())) or super().__instancecheck__(instance)


def accept_pl_module(cls: type) -> None:
    """Let the methods of a callback's class, and of its bases, take the module as `pl_module`, as Lightning names it.

    Code for Lightning passes it by name: `super().setup(trainer=trainer, pl_module=pl_module, stage=stage)`. The
    parameter itself is renamed, in place: a function around each method would cost every call.
    """
    for klass in cls.__mro__:
        if klass.__module__.partition(".")[0] != "camshaft":
            continue
        for function in map(unwrap, filter(callable, vars(klass).values())):
            if isinstance(function, FunctionType) and function.__code__.co_varnames[1:3] == ("trainer", "module"):
                code = function.__code__
                # variables are found by their index; those that an inner function reads are listed twice
                function.__code__ = code.replace(
                    co_varnames=_renamed(code.co_varnames), co_cellvars=_renamed(code.co_cellvars)
                )


def _renamed(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple("pl_module" if name == "module" else name for name in names)


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
    warn_user(f"{where}: {earlier} is taken as {today}. Change the code to say so.")


class MissingNameError(NotImplementedError):
    """The error of using a name of Lightning's that has no counterpart.

    Attributes:
        name: The name, with its module.
        advice: What to use.
    """

    def __init__(self, name: str, advice: str) -> None:
        super().__init__(name, advice)
        self.name = name
        self.advice = advice

    def __str__(self) -> str:
        return f"camshaft has no `{self.name}`. {self.advice}"


class MissingName(StandIn):
    """The class of stand-ins, which are classes: nothing is an instance of one, and it can be subclassed and annotate.

    A call raises, of the stand-in as of its subclasses, and so does its use as a decorator. An attribute raises as
    well, as an `AttributeError`, so that `hasattr` is False.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise MissingNameError(*cls.__missing__)

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(f"{cls.__name__!r} has no attribute {name!r}")
        error = MissingNameError(*cls.__missing__)
        raise AttributeError(f"{name!r} is asked of `{error.name}`, a name without counterpart. {error.advice}")

    def __iter__(cls) -> NoReturn:
        raise MissingNameError(*cls.__missing__)

    def __repr__(cls) -> str:
        missing = cls.__dict__.get("__missing__")
        return f"<{missing[0]}, which camshaft has not>" if missing else super().__repr__()


@cache
def stand_in(module: str, name: str, advice: str) -> MissingName:
    """Return the stand-in for a name, the same one at each call; an exception where the name is one's.

    Args:
        module: The module of Lightning's that has it.
        name: The name.
        advice: What to use, in sentences.
    """
    bases = (Exception,) if _ERRORS.fullmatch(name) else ()
    space = {
        "__missing__": (f"{module}.{name}", advice),
        "__module__": module,
        "__doc__": f"Raise on use: nothing stands for it. {advice}",
        "__class_getitem__": classmethod(lambda cls, _: cls),
        "__init_subclass__": classmethod(lambda cls, **_: None),
    }
    return MissingName(name, bases, space)
