"""The packages' sources as trees: scopes, what names stand for, uses of functions, and which errors are caught."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = tuple[ast.AST, ...]  # from the module to what is innermost

MAX_CALLS = 8
"""How many functions an error is followed through to where it is caught."""


@dataclass(frozen=True)
class Place:
    """A node of a file's tree, with what is around it."""

    file: Path
    node: ast.AST
    scope: Scope


class Sources:
    """Some files' trees.

    Args:
        root: The folder that the files are named below.
        pattern: Tells the files.
        public: Names of functions that users call.
    """

    def __init__(self, root: Path, pattern: str, public: frozenset[str] = frozenset()) -> None:
        self.root = root
        self._pattern = pattern
        self._public = public

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """All nodes, by file and in their order there."""
        return tuple(
            Place(file, node, scope)
            for file in sorted(self.root.glob(self._pattern))
            for node, scope in _walk(ast.parse(file.read_text(encoding="utf-8")), ())
        )

    @cached_property
    def _uses(self) -> dict[str, list[Place]]:
        """Where names are read, by their last part."""
        uses: dict[str, list[Place]] = {}
        for place in self.places:
            if isinstance(place.node, ast.Name | ast.Attribute) and isinstance(place.node.ctx, ast.Load):
                uses.setdefault(last_name(place.node), []).append(place)
        return uses

    @cached_property
    def _defined(self) -> set[tuple[Path, str]]:
        """The functions' names, with their files."""
        return {(place.file, place.node.name) for place in self.places if isinstance(place.node, Function)}

    @cached_property
    def _bases(self) -> dict[str, list[str]]:
        classes = (place.node for place in self.places if isinstance(place.node, ast.ClassDef))
        return {one.name: [last_name(base) for base in one.bases] for one in classes}

    def kinds(self, name: str) -> list[str]:
        """Return the names of a class and of its bases, those of a class that is not known as of an `Exception`."""
        known = getattr(builtins, name, None)
        if isinstance(known, type):
            return [one.__name__ for one in known.__mro__]
        bases = [base for base in self._bases.get(name, ["Exception"]) if base != name]
        return [name, *(kind for base in bases for kind in self.kinds(base))]

    def is_caught(self, place: Place, kind: str, depth: int = MAX_CALLS) -> bool:
        """Return whether what is raised somewhere is caught by the code around, or by that around each of its calls.

        Args:
            place: Where it is raised.
            kind: Its class.
            depth: How many calls to follow.
        """
        inner = place.node
        for number, outer in reversed(list(enumerate(place.scope))):
            if isinstance(outer, ast.Try) and inner in outer.body:
                handlers = (one for one in outer.handlers if self._takes(one, kind, place.scope[: number + 1]))
                handler = next(handlers, None)
                if handler is not None and not _raises_again(handler):
                    return True
            if isinstance(outer, Function):
                return depth > 0 and self._is_caught_by_callers(outer, place.file, kind, depth - 1)
            if isinstance(outer, ast.Lambda):
                return False
            inner = outer
        return False

    def _is_caught_by_callers(self, function: Function, file: Path, kind: str, depth: int) -> bool:
        if function.name in self._public or any(
            isinstance(one, ast.Yield | ast.YieldFrom) for one in ast.walk(function)
        ):
            return False
        is_private = function.name.startswith("_")
        others = set() if is_private else {use.file for use in self._uses.get(function.name, ())}
        files = {file, *(other for other in others if (other, function.name) not in self._defined)}
        uses = [use for use in self._uses.get(function.name, ()) if use.file in files]
        return bool(uses) and all(_is_call(use) and self.is_caught(use, kind, depth) for use in uses)

    def _takes(self, handler: ast.ExceptHandler, kind: str, scope: Scope) -> bool:
        if handler.type is None:
            return True
        named = ast.walk(resolved(handler.type, scope))
        taken = {last_name(one) for one in named if isinstance(one, ast.Name | ast.Attribute)}
        return not taken.isdisjoint(self.kinds(kind))


def _walk(node: ast.AST, scope: Scope) -> Iterator[tuple[ast.AST, Scope]]:
    for child in ast.iter_child_nodes(node):
        yield child, (*scope, node)
        yield from _walk(child, (*scope, node))


def last_name(node: ast.expr) -> str:
    """Return the last part of a dotted name."""
    return ast.unparse(node).rpartition(".")[2]


def _is_call(use: Place) -> bool:
    return isinstance(use.scope[-1], ast.Call) and use.scope[-1].func is use.node


def _raises_again(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler ends by raising what it caught."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and (
        last.exc is None or (isinstance(last.exc, ast.Name) and last.exc.id == handler.name)
    )


def resolved(node: ast.expr, scope: Scope) -> ast.expr:
    """Return what was last assigned to a name above, in the function or the module; the node if nothing was."""
    if not isinstance(node, ast.Name):
        return node
    for outer in reversed(scope):
        if isinstance(outer, Function | ast.Module):
            statements = ast.walk(outer) if isinstance(outer, Function) else iter(outer.body)
            assigns = [one for one in statements if isinstance(one, ast.Assign) and one.lineno <= node.lineno]
            found = [(one.lineno, value) for one in assigns for value in _assigned(node.id, one)]
            if found:
                return max(found, key=lambda pair: pair[0])[1]
    return node


def _assigned(name: str, assign: ast.Assign) -> Iterator[ast.expr]:
    """Yield what an assignment gives to a name, also as one of several."""
    for target in assign.targets:
        pairs = [(target, assign.value)]
        if isinstance(target, ast.Tuple) and isinstance(assign.value, ast.Tuple):
            pairs = list(zip(target.elts, assign.value.elts, strict=False))
        yield from (value for one, value in pairs if isinstance(one, ast.Name) and one.id == name)
