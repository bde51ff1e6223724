"""Classes under earlier names whose instances are also those of the classes that they stand for."""

from __future__ import annotations

import re
from abc import ABCMeta
from functools import cache, wraps
from inspect import signature, unwrap
from operator import attrgetter
from types import FunctionType
from typing import Any, NoReturn

from camshaft.compat.names.table import members, uncalled
from camshaft.hooks_core.dispatch.implementation import mentions_method
from camshaft.hooks_core.support.messages import must_be, warn_user

_ERRORS = re.compile(r".*(Exception|Error|Warning)")


class StandIn(ABCMeta):
    """The class of a class that takes an earlier constructor's arguments and stands for one of ours.

    Earlier code asks `isinstance(callback, ModelCheckpoint)` of callbacks that the trainer made as well, which are of
    our class. So that class's instances count as its own, but not as those of its subclasses. The class stands for its
    bases of the same name, or has `__stands_for__`, a class or a tuple of them.
    """

    __stands_for__: Any

    def __init__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any], **_: Any) -> None:
        super().__init__(name, bases, space)
        if cls.__module__.startswith("camshaft."):
            if "__stands_for__" not in space:
                cls.__stands_for__ = tuple(base for base in cls.__mro__[1:] if base.__name__ == name)
            add_fields(cls)

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
                names, cells = _renamed(code.co_varnames), _renamed(code.co_cellvars)
                function.__code__ = code.replace(co_varnames=names, co_cellvars=cells)


def has_arguments_of(today: type) -> Any:
    """Return a decorator of a class that takes others too: editors and command lines see today's arguments."""

    def decorate(cls: Any) -> Any:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            own(self, *args, **kwargs)

        own = cls.__init__
        if "__init__" not in vars(cls):
            cls.__init__ = wraps(own)(init)
        cls.__init__.__signature__ = signature(today.__init__, eval_str=True)  # type: ignore[misc]
        return cls

    return decorate


def same_as(name: str) -> Any:
    """Return a property for a field of Lightning's class that has another name here."""
    doc = f"`{name}`, under its name in Lightning's class."
    return property(attrgetter(name), lambda self, value: setattr(self, name, value), doc=doc)


def settable(function: Any) -> Any:
    """Decorate a method as a property that can be set; it reads what was set as the attribute `_name`."""
    name = f"_{function.__name__}"
    return property(function, lambda self, value: setattr(self, name, value), doc=function.__doc__)


def add_fields(cls: type) -> None:
    """Give a callback's class, and its bases, what Lightning's class has: fields, and methods that are never called."""
    for klass in cls.__mro__:
        package = klass.__module__.removeprefix("camshaft.").partition(".")[0]
        methods = uncalled().get(f"{package}.{klass.__name__}")
        if methods and "_uncalled_methods" not in vars(klass):
            klass._uncalled_methods = methods  # type: ignore[attr-defined]
        if package != "callbacks":
            continue
        for name, ours in members().get(klass.__name__, {}).items():
            if name not in vars(klass):
                setattr(klass, name, same_as(ours))
        if klass.__name__ == "BaseFinetuning":  # its state, which is restored by itself
            state = property(vars(klass)["state_dict"], lambda self, state: None)
            klass._internal_optimizer_metadata = state  # type: ignore[attr-defined]


def _renamed(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple("pl_module" if name == "module" else name for name in names)


@cache
def warn_of_overrides(cls: type, names: tuple[str, ...], action: str) -> None:
    """Warn, once for each class, of overrides of methods that are never called.

    Args:
        cls: A subclass that is used.
        names: What is not called.
        action: What to do instead.
    """
    for name in names:
        own = [klass for klass in cls.__mro__ if not klass.__module__.startswith("camshaft.")]
        if any(name in vars(klass) for klass in own) and not mentions_method(own, name):
            warn_user(f"{cls.__qualname__}.{name}: this method is not called, so an override does nothing. {action}")


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
    """The class of stand-ins, which are classes: they can be subclassed, annotate and be made.

    An attribute that a class or an object has not itself is another stand-in. A call of an object, or of a stand-in
    with the name of a function, raises `MissingNameError`, and so does the use of one in a trainer.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not cls.__is_class__:
            raise MissingNameError(*cls.__missing__)
        return super().__call__(*args, **kwargs)

    def __getattr__(cls, name: str) -> MissingName:
        return _attribute(cls, name)

    def __iter__(cls) -> NoReturn:
        raise MissingNameError(*cls.__missing__)

    def __repr__(cls) -> str:
        missing = cls.__dict__.get("__missing__")
        return f"<{missing[0]}, which camshaft has not>" if missing else super().__repr__()


def _attribute(cls: Any, name: str) -> MissingName:
    if name.startswith("_"):
        raise AttributeError(f"{cls.__name__!r} has no attribute {name!r}")
    return stand_in(cls.__missing__[0], name, cls.__missing__[1])


def _refuse_use(one: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise MissingNameError(*type(one).__missing__)


def check_not_missing(*values: Any) -> None:
    """Raise `MissingNameError` if a value is an object of a name without counterpart, or such a name."""
    for value in values:
        cls = value if isinstance(value, MissingName) else type(value)
        if isinstance(cls, MissingName):
            raise MissingNameError(*cls.__missing__)


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
        "__is_class__": name.lstrip("_")[:1].isupper(),
        "__init__": lambda self, *args, **kwargs: None,
        "__getattr__": lambda self, attribute: _attribute(type(self), attribute),
        **dict.fromkeys(("__call__", "__iter__", "__enter__"), _refuse_use),
        "__module__": module,
        "__doc__": f"Raise on use: nothing stands for it. {advice}",
        "__class_getitem__": classmethod(lambda cls, _: cls),
        "__init_subclass__": classmethod(lambda cls, **_: None),
    }
    return MissingName(name, bases, space)
