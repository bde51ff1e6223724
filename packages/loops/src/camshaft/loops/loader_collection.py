"""Collections of loaders: dictionaries, lists and tuples of them, nested at will."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from torch import Tensor

from camshaft.hooks_core.messages import must_be
from camshaft.loops.loader_copy import has_state, is_loader


class LoaderCollection:
    """The loaders of a collection in its order, and how to make its like of other things.

    Args:
        loaders: A loader, or dictionaries, lists and tuples of loaders.
        where: Whose loaders they are, for errors.

    Attributes:
        loaders: The collection, as it was passed.
        leaves: The loaders.
        paths: The place of each.
        assemble: Makes a collection of a list with a value for each loader, with dictionaries, lists and (named) tuples
            in the same places.

    Raises:
        ValueError: If there is no loader in the collection.
        TypeError: If something in it is no iterable of batches.
    """

    def __init__(self, loaders: Any, where: str) -> None:
        by_path: dict[str, Any] = {}
        self.loaders = loaders
        self._where = where
        self.assemble = self._compile(loaders, "loaders", by_path)
        if not by_path:
            raise ValueError(must_be("loaders", "at least one loader", loaders, where, "Pass a loader."))
        self.paths, self.leaves = list(by_path), list(by_path.values())

    def lengths(self) -> list[int]:
        """The number of batches of each loader.

        Raises:
            TypeError: If a loader does not tell its own.
        """
        lengths: list[int] = []
        for path, leaf in zip(self.paths, self.leaves, strict=True):
            try:
                lengths.append(len(leaf))
            except (TypeError, NotImplementedError) as error:
                rule, where = "a loader that tells its length", f"len({self._where})"
                raise TypeError(must_be(path, rule, leaf, where, "Count the batches while iterating.")) from error
        return lengths

    def check_stateful(self, method: str) -> None:
        """Raise `TypeError` if a loader has no state, `ValueError` if one is there twice, so that it has no single one.

        Args:
            method: Who wants the states, for errors.
        """
        where = f"{self._where}.{method}"
        for path, leaf in zip(self.paths, self.leaves, strict=True):
            if not has_state(leaf):
                rule = "a loader with `state_dict` and `load_state_dict`"
                action = "Pass one that has a state, such as torchdata's StatefulDataLoader."
                raise TypeError(must_be(path, rule, leaf, where, action))
        if len({id(leaf) for leaf in self.leaves}) < len(self.leaves):
            rule = "different objects in every place, to have a state each"
            raise ValueError(must_be("loaders", rule, self.loaders, where, "Make a loader for each place."))

    def _compile(self, node: Any, path: str, by_path: dict[str, Any]) -> Callable[[list[Any]], Any]:
        """Collect the loaders below a node. Returns what makes its like of a list with a value for each loader."""
        if isinstance(node, Mapping):
            items = [(key, self._compile(child, f"{path}[{key!r}]", by_path)) for key, child in node.items()]
            return lambda values: {key: part(values) for key, part in items}
        if isinstance(node, (list, tuple)):
            parts = [self._compile(child, f"{path}[{idx}]", by_path) for idx, child in enumerate(node)]
            if isinstance(node, list):
                return lambda values: [part(values) for part in parts]
            kind = type(node)
            if hasattr(kind, "_fields"):
                return lambda values: kind(*[part(values) for part in parts])
            return lambda values: tuple([part(values) for part in parts])
        if not is_loader(node):
            rule = "a loader (an iterable of batches)" + (", and no tensor" if isinstance(node, Tensor) else "")
            action = "Pass a DataLoader, say; a list, tuple or dictionary is a collection of loaders, not of batches."
            value = node.shape if isinstance(node, Tensor) else node
            raise TypeError(must_be(path, rule, value, self._where, action))
        by_path[path] = node
        return itemgetter(len(by_path) - 1)
