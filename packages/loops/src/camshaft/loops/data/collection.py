"""Collections: dictionaries, lists and (named) tuples of any nesting, with a value in each place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from camshaft.hooks_core import no_op

Assemble = Callable[[list[Any]], Any]
"""Makes a collection of a list with a value for each place, with its dictionaries, lists and (named) tuples."""


def read_tree(tree: Any, name: str, check: Callable[[Any, str], object] = no_op) -> tuple[dict[str, Any], Assemble]:
    """Return the values of a collection by their places, and a function that makes the same collection of others.

    Args:
        tree: A value, or a collection.
        name: The name with which places begin.
        check: Called with each value and its place.
    """
    by_path: dict[str, Any] = {}

    def compile_node(node: Any, path: str) -> Assemble:
        if isinstance(node, Mapping):
            items = [(key, compile_node(child, f"{path}[{key!r}]")) for key, child in node.items()]
            return lambda values: {key: part(values) for key, part in items}
        if isinstance(node, (list, tuple)):
            parts = [compile_node(child, f"{path}[{idx}]") for idx, child in enumerate(node)]
            if isinstance(node, list):
                return lambda values: [part(values) for part in parts]
            kind = type(node)
            if hasattr(kind, "_fields"):
                return lambda values: kind(*[part(values) for part in parts])
            return lambda values: tuple([part(values) for part in parts])
        check(node, path)
        by_path[path] = node
        return itemgetter(len(by_path) - 1)

    assemble = compile_node(tree, name)
    return by_path, assemble
