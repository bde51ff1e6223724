"""Hooks that a receiver implements, and facts read from the code of methods."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def not_a_hook(function: _Function) -> _Function:
    """Declare that a method whose name begins with `on_` is no hook, so that set-up does not report it.

    Returns:
        The method.
    """
    function.__not_a_hook__ = True  # type: ignore[attr-defined]
    return function


def is_overridden(receiver: object, name: str) -> bool:
    """Return whether a receiver implements a hook.

    The classes that only declare hooks (those with `__hook_base__ = True` of their own) do not count; an attribute of
    the instance does.

    Args:
        receiver: A callback, module, data module or strategy.
        name: The hook's name.
    """
    return implementation(receiver, name) is not None


def implementation(receiver: object, name: str) -> Callable[..., Any] | None:
    """Return the bound method (or instance attribute) with which a receiver implements a hook, or None.

    A class may stand for its instances; its methods are then bound to a stand-in, to be inspected and not called.

    Args:
        receiver: The object.
        name: The hook's name.
    """
    own = None if isinstance(receiver, type) else getattr(receiver, "__dict__", {}).get(name)
    if own is None:
        klass = next((one for one in class_of(receiver).__mro__ if name in vars(one)), object)
        if name not in vars(klass) or vars(klass).get("__hook_base__", False):
            return None
        own = _bound(receiver, name, vars(klass)[name])
    return own if callable(own) and not getattr(own, "__not_a_hook__", False) else None


def method_of(receiver: object, name: str) -> Callable[..., Any]:
    """Return the `implementation` of a hook by a receiver that is known to have one."""
    method = implementation(receiver, name)
    assert method is not None
    return method


def class_of(receiver: object) -> type:
    """Return the class whose methods a receiver has: itself, if it is a class that stands for its instances."""
    return receiver if isinstance(receiver, type) else type(receiver)


def receiver_name(receiver: object) -> str:
    """Return a receiver's name in messages and traces: its class's."""
    return class_of(receiver).__qualname__


class ReceiverNames:
    """Unique names of the receivers of a run: the class's name, numbered from the second on: "Watch", "Watch#2".

    It holds the receivers until it is cleared.
    """

    def __init__(self) -> None:
        self._named: list[tuple[object, str]] = []

    def name(self, receiver: object) -> str:
        """Return the receiver's name; always the same for the same object."""
        for known, name in self._named:
            if known is receiver:
                return name
        base = receiver_name(receiver).rpartition(".")[2]
        number = 1 + sum(name.partition("#")[0] == base for _, name in self._named)
        self._named.append((receiver, base if number == 1 else f"{base}#{number}"))
        return self._named[-1][1]

    def clear(self) -> None:
        """Forget the receivers; names begin anew."""
        self._named.clear()


def _bound(receiver: object, name: str, attribute: Any) -> Any:
    if not isinstance(receiver, type):
        return getattr(receiver, name)
    if isinstance(attribute, property) or not hasattr(attribute, "__get__"):
        return attribute
    return attribute.__get__(object(), receiver)


_MIN_AFFIX_LENGTH = 4


def uses_parameter(method: Callable[..., Any], name: str) -> bool:
    """Return whether a method's code reads one of its parameters; true where its code is not to be had.

    Args:
        method: The method.
        name: The parameter's name.
    """
    code = code_of(method)
    if code is None:
        return True
    return name in code.co_cellvars or any(loads_variable(one, name) for one in dis.get_instructions(code))


def mentions_method(classes: Iterable[type], name: str) -> bool:
    """Return whether the code of classes uses one of their methods, such as `self.name(...)`; that of the method itself
    does not count.

    `getattr` with the name, or with words that it begins or ends with, counts: `getattr(self, f"{stage}_end")`.

    Args:
        classes: The classes.
        name: The method's name.
    """
    members = [member for klass in classes for own, member in vars(klass).items() if own != name]
    return any(_mentions(code, name) for member in members for code in _codes(member))


def returns_anything(method: Callable[..., Any]) -> bool:
    """Return whether a method's code returns anything but None; true where its code is not to be had."""
    code = code_of(method)
    if code is None:
        return True
    before = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RETURN_CONST" and instruction.argval is not None:
            return True
        if instruction.opname == "RETURN_VALUE":
            is_none = before is not None and before.opname == "LOAD_CONST" and before.argval is None
            if not is_none or instruction.is_jump_target:
                return True
        before = instruction
    return False


def code_of(method: Any) -> CodeType | None:
    """Return the code of a method or function, beneath `functools.wraps`; None where there is none."""
    function = inspect.unwrap(method) if callable(method) else method
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def loads_variable(instruction: dis.Instruction, name: str) -> bool:
    """Return whether an instruction loads a local variable; newer ones load two at once.

    Args:
        instruction: The instruction of Python's bytecode.
        name: The variable's name.
    """
    if not instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE", "STORE_FAST_LOAD_FAST")):
        return False
    return instruction.argval == name or (isinstance(instruction.argval, tuple) and name in instruction.argval)


def strings_in(code: CodeType) -> Iterator[str]:
    """Yield the strings among the constants of a code."""
    for constant in code.co_consts:
        items = constant if isinstance(constant, tuple) else (constant,)
        yield from (item for item in items if isinstance(item, str))


def _codes(member: object) -> Iterator[CodeType]:
    """Yield the code of a class's member: a function, a property, or something with a function inside."""
    functions: list[Any] = [getattr(member, "func", member)]  # a partial method, a cached property
    if isinstance(member, property):
        functions = [member.fget, member.fset, member.fdel]
    yield from filter(None, map(code_of, functions))


def _mentions(code: CodeType, name: str) -> bool:
    if name in code.co_names or ("getattr" in code.co_names and any(_is_part(one, name) for one in strings_in(code))):
        return True
    return any(_mentions(inner, name) for inner in code.co_consts if isinstance(inner, CodeType))


def _is_part(part: str, name: str) -> bool:
    begins, ends = part.endswith("_") and name.startswith(part), part.startswith("_") and name.endswith(part)
    return len(part) >= _MIN_AFFIX_LENGTH and (begins or ends or part == name)
