"""The `CombinedLoader` of 2.x, which is iterated over by hand and passed to a trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Self

from torch.utils._pytree import tree_flatten, tree_unflatten  # as Lightning takes collections apart

from camshaft.compat.names.stand_ins import StandIn
from camshaft.hooks_core.support.messages import must_be
from camshaft.loops import CombinedLoader as _CombinedLoader
from camshaft.loops.data.combined_loader import UNKNOWN, CombinationMode, length_of

_WHERE = "CombinedLoader"

_FOLDS: Mapping[str, Any] = {"min_size": min, "max_size_cycle": max, "max_size": max, "sequential": sum}
"""By mode, the length of all from the lengths of each."""


class CombinedLoader(metaclass=StandIn):
    """Several iterables as one, as in 2.x: iterating gives `(batch, batch_idx, dataloader_idx)`.

    A trainer takes it for the `camshaft.loops.CombinedLoader` of the same iterables and mode, whose docstring says what
    the modes do.

    Args:
        iterables: An iterable, or dictionaries, lists and tuples of iterables, nested at will. A list, tuple or
            dictionary of numbers and strings alone is an iterable, not a collection of them.
        mode: "min_size", "max_size_cycle", "max_size" or "sequential".

    Raises:
        ValueError: If there is no such mode.

    Example:
        >>> list(CombinedLoader({"a": [1, 2], "b": [3]}, "sequential"))
        [(1, 0, 0), (2, 1, 0), (3, 0, 1)]
    """

    __stands_for__: ClassVar[type] = _CombinedLoader

    def __init__(self, iterables: Any, mode: CombinationMode = "min_size") -> None:
        if mode not in _FOLDS:
            rule = f"one of {', '.join(map(repr, _FOLDS))}"
            raise ValueError(must_be("mode", rule, mode, _WHERE, "Pass one of these."))
        self._iterables = iterables
        self._flattened, spec = tree_flatten(iterables, is_leaf=_is_iterable)
        self._assemble: Callable[[list[Any]], Any] = partial(tree_unflatten, treespec=spec)
        self._mode = mode
        self._limits: list[int | float] | None = None
        self._iterator: Iterator[tuple[Any, int, int]] | None = None

    @property
    def iterables(self) -> Any:
        """The collection of iterables."""
        return self._iterables

    loaders = iterables

    @property
    def mode(self) -> CombinationMode:
        """The mode."""
        return self._mode

    @property
    def sampler(self) -> Any:
        """The samplers, in a collection like `iterables`; None in the place of an iterable without."""
        return self._assemble([getattr(one, "sampler", None) for one in self._flattened])

    @property
    def batch_sampler(self) -> Any:
        """The batch samplers; see `sampler`."""
        return self._assemble([getattr(one, "batch_sampler", None) for one in self._flattened])

    @property
    def flattened(self) -> list[Any]:
        """The iterables in their order; a list of as many may be assigned, and takes their places in `iterables`."""
        return self._flattened

    @flattened.setter
    def flattened(self, flattened: list[Any]) -> None:
        self._check_number("flattened", flattened)
        self._iterables, self._flattened = self._assemble(flattened), flattened

    @property
    def limits(self) -> list[int | float] | None:
        """Numbers of batches for iterating by hand, of each iterable in mode "sequential"; others only limit `len`.

        A single number stands for all. A trainer has limits of its own, `limit_train_batches` and its like.
        """
        return self._limits

    @limits.setter
    def limits(self, limits: int | float | list[int | float] | None) -> None:
        if isinstance(limits, (int, float)):
            limits = [limits] * len(self._flattened)
        elif limits is not None:
            self._check_number("limits", limits)
        self._limits = limits

    def __iter__(self) -> Self:
        """Begin an iteration, which `next` continues."""
        self._iterator = self._sequential() if self._mode == "sequential" else self._together()
        return self

    def __next__(self) -> tuple[Any, int, int]:
        """Return a batch, its index, and the index of its iterable, which is 0 unless the mode is "sequential"."""
        if self._iterator is None:
            raise RuntimeError(must_be("iteration", "begun", None, _WHERE, "Call `iter(combined_loader)` first."))
        return next(self._iterator)

    def __len__(self) -> int:
        """Return the number of batches.

        Raises:
            TypeError: If it is not known.
        """
        lengths = [length_of(one) for one in self._flattened]
        limits = self._limits or [UNKNOWN] * len(lengths)
        limited = [min(length, limit) for length, limit in zip(lengths, limits, strict=True)]
        fold: Callable[[list[int | float]], int | float] = _FOLDS[self._mode]
        length = fold(limited)
        if length == UNKNOWN:
            action = "Count the batches while iterating."
            raise TypeError(must_be("iterables", "ones that tell their lengths", self._iterables, _WHERE, action))
        return int(length)

    def reset(self) -> None:
        """End the iteration, and the workers of the iterables."""
        self._iterator = None
        for one in self._flattened:
            iterator = getattr(one, "_iterator", None)
            if iterator is not None:
                end_workers = getattr(iterator, "_shutdown_workers", None)
                if end_workers is not None:
                    end_workers()
                one._iterator = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without an iteration under way, for copies and pickles."""
        return {**vars(self), "_iterator": None}

    def as_combined_loader(self) -> _CombinedLoader:
        """Return the loader of the loops, which reads the same."""
        loaders = [_Batches(one) if isinstance(one, (list, tuple, Mapping)) else one for one in self._flattened]
        return _CombinedLoader(self._assemble(loaders), self._mode)

    def _together(self) -> Iterator[tuple[Any, int, int]]:
        for batch_idx, batch in enumerate(self.as_combined_loader()):
            yield batch, batch_idx, 0

    def _sequential(self) -> Iterator[tuple[Any, int, int]]:
        limits = self._limits or [UNKNOWN] * len(self._flattened)
        for dataloader_idx, (one, limit) in enumerate(zip(self._flattened, limits, strict=True)):
            batches = one if limit == UNKNOWN else islice(one, int(limit)) if limit else ()
            for batch_idx, batch in enumerate(batches):
                yield batch, batch_idx, dataloader_idx

    def _check_number(self, field: str, given: list[Any]) -> None:
        if len(given) != len(self._flattened):
            rule = f"a list with an item for each of the {len(self._flattened)} iterables"
            raise ValueError(must_be(field, rule, given, _WHERE, "Pass one of that length."))


class _Batches:
    """A list, tuple or dictionary as an iterable of batches, which the loops would take for a collection of loaders."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]


def _is_iterable(node: Any) -> bool:
    """Return whether a list, tuple or dictionary holds numbers and strings alone, so that it is no collection."""
    children = node.values() if isinstance(node, Mapping) else node if isinstance(node, (list, tuple)) else (None,)
    return all(isinstance(child, (int, float, str)) for child in children)
