"""Evidence in the code of a method of the release for which it was written. The code is read, never run."""

from __future__ import annotations

import ast
import dis
import inspect
import textwrap
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import CodeType, MethodType
from typing import Any

from camshaft.hooks_core.dispatch.binding import parameter_names
from camshaft.hooks_core.dispatch.implementation import class_of, code_of, implementation, loads_variable, strings_in

RETURNED_LOGS = frozenset({"log", "progress_bar"})
"""Keys of the dictionaries by which steps and epoch-end hooks of 0.x returned what to log."""

_RESULTS = ("TrainResult", "EvalResult")
_LOGGING = frozenset({"log", "log_dict"})
_NO_STATE = frozenset({"trainer", "module", "pl_module", "checkpoint"})
_STATE = frozenset({"callback_state", "checkpointed_state"})
"""Names in 1.x of the parameter of a callback's `on_load_checkpoint` that is its state."""


def returns_logs(receiver_class: type, method: Callable[..., Any]) -> bool:
    """Return whether a method returns a dictionary with `log` or `progress_bar`.

    It may be written out in what it returns, in a variable that it returns, or by another method of the class whose
    result it returns.

    Args:
        receiver_class: The class, for methods that the method calls.
        method: The method.
    """
    return _returns_logs(receiver_class, method, frozenset())


def makes_results(receiver: object) -> bool:
    """Return whether a step of a module makes a `TrainResult` or an `EvalResult`, which were of 0.9 alone."""
    steps = (implementation(receiver, name) for name in ("training_step", "validation_step", "test_step"))
    return any(step is not None and any(calls_method(step, name) for name in _RESULTS) for step in steps)


def logs_by_itself(method: Callable[..., Any]) -> bool:
    """Return whether a method calls `self.log` or `self.log_dict`, as modules do since 1.0."""
    code = code_of(method)
    if code is None or not code.co_argcount:
        return False
    return any(
        loads.opname in ("LOAD_ATTR", "LOAD_METHOD") and loads.argval in _LOGGING
        for before, loads in pairwise(dis.get_instructions(code))
        if loads_variable(before, code.co_varnames[0])
    )


def declared_function(receiver: object, name: str) -> Callable[..., Any] | None:
    """Return the method whose signature says what a receiver's hook takes; None if it does not implement it.

    That is the hook itself, or where it passes its `*args` on to that of a base class, the base class's. Classes that
    only declare hooks have no say.

    Args:
        receiver: A callback, module, data module or strategy, or the class of one.
        name: The hook's name.
    """
    own = implementation(receiver, name)
    if own is None or (not isinstance(receiver, type) and name in getattr(receiver, "__dict__", {})):
        return own
    for klass in class_of(receiver).__mro__:
        method = vars(klass).get(name)
        if vars(klass).get("__hook_base__"):
            break
        if inspect.isfunction(method):
            bound = MethodType(method, object())
            takes_any = any(one.kind is one.VAR_POSITIONAL for one in inspect.signature(bound).parameters.values())
            if not (takes_any and calls_method(bound, name)):
                return bound
    return own


def takes_index(receiver: object) -> bool:
    """Return whether the `training_step` of a module asks for `optimizer_idx`, as all of 1.x had it."""
    step = implementation(receiver, "training_step")
    return step is not None and "optimizer_idx" in parameter_names(step)


def takes_state(callback: object) -> bool:
    """Return whether a callback's `on_load_checkpoint` gets back, as in 1.x, what its `on_save_checkpoint` returned.

    It does if a parameter of it is named so, or if it has a single one that stands for nothing else.
    """
    load = implementation(callback, "on_load_checkpoint")
    if load is None:
        return False
    names = parameter_names(load)
    return bool(names & _STATE) or (len(names) == 1 and not names & _NO_STATE)


def calls_method(method: Callable[..., Any], name: str) -> bool:
    """Return whether a method's code calls something by an attribute of this name, such as `optimizer.zero_grad()`."""
    code = code_of(method)
    return code is not None and name in code.co_names


def _returns_logs(receiver_class: type, method: Callable[..., Any], seen: frozenset[CodeType]) -> bool:
    code = code_of(method)
    if code is None or code in seen:
        return False
    named: dict[str, Any] = {name: getattr(receiver_class, name, None) for name in code.co_names}
    own = {name: one for name, one in named.items() if _mentions_keys(one)}
    if not own and not _mentions_keys(method):
        return False
    tree = _tree(method)
    if tree is None:  # no source: one of the keys beside `loss` has to do
        return _mentions_keys(method) and "loss" in strings_in(code)
    nodes = list(_own_nodes(tree))
    returned = [node.value for node in nodes if isinstance(node, ast.Return) and node.value is not None]
    names = {value.id for value in returned if isinstance(value, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            returned += [node.value for target in targets if isinstance(target, ast.Name) and target.id in names]
            if any(_is_key_of(target, names) for target in targets):
                return True
    called = {_method_called(value) for value in returned}
    return any(map(_has_key, returned)) or any(
        name in called and _returns_logs(receiver_class, one, seen | {code}) for name, one in own.items()
    )


def _mentions_keys(method: object) -> bool:
    code = code_of(method)
    return code is not None and bool(RETURNED_LOGS & set(strings_in(code)))


def _tree(method: Callable[..., Any]) -> ast.AST | None:
    try:
        source = inspect.getsource(inspect.unwrap(method))
        body = ast.parse(textwrap.dedent(source)).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    return body if isinstance(body, ast.FunctionDef | ast.AsyncFunctionDef) else None


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of the functions inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield child
            yield from _own_nodes(child)


def _has_key(value: ast.expr) -> bool:
    """Return whether an expression is a dictionary that is written out with one of the keys."""
    match value:
        case ast.Dict(keys=keys):
            return any(isinstance(key, ast.Constant) and key.value in RETURNED_LOGS for key in keys)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in ("dict", "OrderedDict"):
            return any(keyword.arg in RETURNED_LOGS for keyword in value.keywords) or any(map(_has_key, value.args))
    return False


def _is_key_of(target: ast.expr, names: set[str]) -> bool:
    """Return whether what is assigned to is `name["log"]` for one of the names."""
    match target:
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=key)):
            return name in names and key in RETURNED_LOGS
    return False


def _method_called(value: ast.expr) -> str | None:
    """Return the name of the method, if an expression is a call of one of the receiver's own."""
    match value:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
            return name
    return None
