"""Stand-ins for names that have no counterpart: they can be imported, and raise once they are used."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NoReturn

from camshaft.compat.names.stand_ins import StandIn

_ERRORS = re.compile(r".*(Exception|Error|Warning)")


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
        raise AttributeError(f"{name!r} is asked of a name without counterpart: {MissingNameError(*cls.__missing__)}")

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
