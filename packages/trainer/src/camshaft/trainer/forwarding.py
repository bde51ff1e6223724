"""Attributes that are kept in a part of their owner, methods of classes alone, and documentation that is shared."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from camshaft.hooks_core.support.messages import must_be
from camshaft.loops import FitLimits

_ABSENT: Any = object()
_Class = TypeVar("_Class", bound=type)


def with_arguments_of(*kinds: type) -> Callable[[_Class], _Class]:
    """Return a decorator that adds the "Args" of other classes to those in the docstring of a class."""

    def sections(kind: type) -> tuple[str, str, str]:
        before, title, rest = inspect.cleandoc(kind.__doc__ or "").partition("Args:\n")
        arguments, _, after = rest.partition("\n\n")
        return before + title, arguments, after

    def decorate(cls: _Class) -> _Class:
        before, own, after = sections(cls)
        arguments = "\n".join([own, *(sections(kind)[1] for kind in kinds)])
        cls.__doc__ = f"{before}{arguments}\n\n{after}"
        return cls

    return decorate


def forwarded(path: str, doc: str, *, settable: bool = False, default: Any = _ABSENT) -> Any:
    """Return a property for an attribute that is kept in a part.

    Annotate it with the attribute's type: `max_epochs: int = forwarded("fit_loop.max_epochs", "Maximum number.")`.

    Args:
        path: Attribute of the owner, with dots. Properties and checks of the part apply.
        doc: Documentation of the property.
        settable: If true, assignment sets the attribute of the part; `FitLimits` are replaced by a changed copy.
        default: Value where the first attribute of the path is None; without it, reading raises `AttributeError` then.
    """
    first, _, rest = path.partition(".")
    part_path, _, name = path.rpartition(".")
    first_of, rest_of, last_part_of = attrgetter(first), attrgetter(rest), attrgetter(part_path)

    def get(owner: Any) -> Any:
        part = first_of(owner)
        return default if part is None else rest_of(part)

    def set_(owner: Any, value: Any) -> None:
        part = last_part_of(owner)
        if isinstance(part, FitLimits):
            owner.fit_loop.limits = part.with_number(name, value)
        else:
            setattr(part, name, value)

    return property(attrgetter(path) if default is _ABSENT else get, set_ if settable else None, doc=doc)


if TYPE_CHECKING:
    class_only = classmethod
else:

    class class_only(classmethod):
        """A class method whose call on an instance, which stays as it is, raises `TypeError`."""

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            """Return the method of the class; of an instance, a function that raises."""
            if instance is None:
                return super().__get__(instance, owner)
            name, kind = self.__func__.__name__, type(instance).__qualname__

            def refuse(*args: Any, **kwargs: Any) -> NoReturn:
                action = f"Write `module = {kind}.{name}(...)`: it returns a new object."
                raise TypeError(must_be(name, "called on the class", kind, f"{kind}.{name}", action))

            return refuse
