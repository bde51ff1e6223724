"""Several loaders as one, whose batches are made of theirs."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Literal, Self, TypeVar, get_args

import attrs
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from camshaft.hooks_core.support.messages import must_be
from camshaft.loops.data.collection import Assemble, read_tree
from camshaft.loops.data.weighted_draws import StopCriteria, WeightedDraws, WeightSchedule

CombinationMode = Literal["min_size", "max_size", "max_size_cycle", "sequential", "weighted"]
"""How several loaders are read together; see `CombinedLoader`."""

_WHERE = "CombinedLoader"
_END = object()


@attrs.define(eq=False, repr=False)
class _Progress:
    """Position of one iteration over the leaves, and the context in which it runs.

    Attributes:
        phase: "new" before the first iteration; "under_way"; "over" once it has run to its end or was left; "broken" if
            an error ended it, so that some leaves may be a batch ahead of others.
        ended: Leaves whose iterators have run to their end and were not begun anew; in mode "weighted" also those that
            were never drawn.
        exhausted: Leaves that have run to their end at least once; kept by `max_size_cycle` and `weighted`.
        begun: Leaves that the iteration has begun; in mode "weighted" others may have been left inside an earlier one.
        epoch: The epoch from which draws follow.
        num_draws: Draws of the iteration.
        num_given: Batches that were given, by draws of all iterations.
    """

    phase: str
    ended: list[bool]
    exhausted: list[bool]
    begun: list[bool]
    epoch: int = 0
    num_draws: int = 0
    num_given: int = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self.phase = "over" if kind in (None, GeneratorExit) else "broken"  # the latter where it is left


class CombinedLoader:
    """Iterates over a collection of loaders at once: each batch is that collection with a batch in each loader's place.

    In mode "sequential" it iterates over one loader after the other instead, and in mode "weighted" each batch is that
    of one loader, drawn by weights.

    As in Lightning 2.x, except that it gives the batch alone, without indices, and that `max_size_cycle` first reads
    the loaders that it still waits for: when they end, nothing of the others was begun or read in vain. A shorter
    loader that begins anew is iterated over again, so it shuffles again if it shuffles.

    Validation, test and prediction run the loaders of a sequential one like those of a list, with their indices; any
    other one is a single loader to them.

    Its state holds the states of its loaders, whose `load_state_dict` must make the next `iter()` go on where the state
    was taken, without drawing random numbers, or begin anew if the last iteration had ended. It keeps that contract
    itself, so one `CombinedLoader` can be part of another. An iteration that was left, because nothing holds its
    iterator any more (as after `break`), has ended: take the state before.

    Args:
        loaders: A loader, or dictionaries, lists and tuples of loaders, nested at will. Batches have dictionaries,
            lists and (named) tuples in the same places. A list of batches is therefore no loader here.
        mode: "min_size" ends with the shortest loader. "max_size" ends with the longest; those that have ended give
            None. "max_size_cycle" ends once every loader has ended; those that end sooner begin anew. "sequential"
            gives the loaders' own batches, one loader after the other. "weighted" gives the own batches of a loader
            that is drawn anew for each.
        weights: For mode "weighted", a collection like that of the loaders with a number in each place, whose sum does
            not matter. Or a schedule: a function that is given the number of batches before, over all epochs, and the
            epoch, once for each batch, and returns such a collection.
        stop_criteria: For mode "weighted", when an iteration ends. "cycle_until_all_exhausted": once every loader has
            ended; those that end sooner begin anew. "first_exhausted": with the first loader that ends.
            "all_exhausted_without_replacement": once every loader has ended; those that end sooner are not drawn any
            more. "cycle_forever": never. That a loader has ended is seen where it is drawn and gives nothing; one
            whose weight is 0 is not waited for.
        seed: For mode "weighted", the seed from which draws follow, with the epoch; see `set_epoch`. It must be the
            same in all processes, which so draw the same loader for each batch.

    Raises:
        ValueError: If there is no such mode, no loader in the collection, or the weights are none.
        TypeError: If something in the collection is no iterable of batches.

    Attributes:
        draws: What draws loaders in mode "weighted"; None in others.

    Example:
        >>> combined = CombinedLoader({"labelled": range(2), "unlabelled": range(10, 13)})
        >>> list(combined)
        [{'labelled': 0, 'unlabelled': 10}, {'labelled': 1, 'unlabelled': 11}, {'labelled': 0, 'unlabelled': 12}]
    """

    ends_as_promised = True  # reading it beyond its end reads no data

    def __init__(
        self,
        loaders: Any,
        mode: CombinationMode = "max_size_cycle",
        *,
        weights: Any | WeightSchedule = None,
        stop_criteria: StopCriteria = "cycle_until_all_exhausted",
        seed: int = 0,
    ) -> None:
        if mode not in get_args(CombinationMode):
            rule = f"one of {', '.join(map(repr, get_args(CombinationMode)))}"
            raise ValueError(must_be("mode", rule, mode, _WHERE, "Pass one of these."))
        self._loaders = loaders
        by_path, self._assemble = read_collection(loaders, _WHERE)
        self._paths, self._flattened = list(by_path), list(by_path.values())
        self._mode: CombinationMode = mode
        self._epoch = 0
        self.draws: WeightedDraws | None = None
        if mode == "weighted":
            self.draws = WeightedDraws(self._paths, weights, stop_criteria, seed)
        elif (weights, stop_criteria, seed) != (None, "cycle_until_all_exhausted", 0):
            rule, got = 'left out unless the mode is "weighted"', (weights, stop_criteria, seed)
            action = 'Pass mode="weighted" to draw loaders by weights.'
            raise ValueError(must_be("weights, stop_criteria and seed", rule, got, _WHERE, action))
        self._progress = self._new_progress("new")
        self._is_loaded = False  # whether the leaves have states that no iteration took up yet
        self._is_resumed = False  # whether the next iteration is to go on with a loaded one

    @property
    def loaders(self) -> Any:
        """The collection of loaders, as it was passed."""
        return self._loaders

    @property
    def mode(self) -> CombinationMode:
        """The mode, which says when an iteration ends and what shorter loaders give until then."""
        return self._mode

    @property
    def flattened(self) -> list[Any]:
        """The loaders of the collection, in its order."""
        return list(self._flattened)

    def with_loaders(self, function: Callable[[Any], Any]) -> Self:
        """Return a combined loader of the same structure, mode and class, not iterated over yet.

        Args:
            function: Given a loader, returns the one to take its place; called once per place.
        """
        loaders, draws = self._assemble([function(leaf) for leaf in self._flattened]), self.draws
        if draws is None:
            return type(self)(loaders, self._mode)
        by = {"weights": draws.weights, "stop_criteria": draws.stop_criteria, "seed": draws.seed}
        combined = type(self)(loaders, self._mode, **by)
        combined.set_epoch(self._epoch)
        return combined

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration draw loaders as it does in an epoch; without it each draws as in epoch 0.

        A fit calls it. In other modes it changes nothing.
        """
        self._epoch = epoch

    def count_on(self, before: CombinedLoader) -> None:
        """Count batches for a schedule of weights on from those of another loader, whose place this one takes.

        A fit calls it where it asks for its loader again.
        """
        self._progress.num_given = before._progress.num_given

    def __len__(self) -> int:
        """Return the number of batches.

        Raises:
            TypeError: If a loader does not tell its own, or draws decide it: in mode "weighted" it is known for
                constant weights with "all_exhausted_without_replacement".
        """
        lengths = [len(leaf) for leaf in self._flattened]
        if self.draws is not None:
            length = self.draws.length(lengths)
            if length is None:
                action = "Count the batches while iterating; limit a fit by `limit_train_batches` or `max_steps`."
                raise TypeError(f"The number of batches of a {_WHERE} that draws loaders is not known. {action}")
            return int(length)
        if self._mode == "sequential":
            return sum(lengths)
        return min(lengths) if self._mode == "min_size" else max(lengths)

    def __iter__(self) -> Iterator[Any]:
        """Begin an iteration, or go on with the one whose state was loaded, when the first batch is asked for.

        Raises:
            RuntimeError: While iterating, if a loader that is to begin anew gives nothing.
        """
        is_resumed, self._is_resumed = self._is_resumed, False
        if self.draws is not None:
            return self._drawn(self.draws, is_resumed)
        return self._one_after_the_other(is_resumed) if self._mode == "sequential" else self._all_at_once(is_resumed)

    def end_iteration(self) -> None:
        """End an iteration that was left, here and in the loaders that support it."""
        if self._progress.phase == "under_way":
            self._progress.phase = "over"
        self._is_resumed = False
        for leaf in self._flattened:
            _end_iteration(leaf)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the iteration, and every loader's state.

        Raises:
            AttributeError: If a loader has no `state_dict` and `load_state_dict`.
            ValueError: If a loader is in the collection twice, so that its state is no single one.
            RuntimeError: If an error interrupted the iteration between two loaders of a batch.
        """
        self._check_distinct("state_dict")
        progress = self._progress
        if progress.phase == "broken":
            rule, action = "between two batches when its state is taken", "Use a state that was taken before."
            raise RuntimeError(must_be("iteration", rule, "interrupted by an error", f"{_WHERE}.state_dict", action))
        places = zip(self._paths, self._flattened, progress.ended, progress.exhausted, strict=True)
        loaders = {
            path: {"ended": ended, "exhausted": exhausted, "state": leaf.state_dict()}
            for path, leaf, ended, exhausted in places
        }
        state = {"mode": self._mode, "phase": progress.phase, "loaders": loaders}
        if self.draws is not None:
            names = ("epoch", "num_draws", "num_given")
            state["draws"] = {"begun": [*progress.begun], **{name: getattr(progress, name) for name in names}}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where the state was taken; begin anew if that was after the last had ended.

        Raises:
            AttributeError: If a loader has no `state_dict` and `load_state_dict`.
            ValueError: If the state is of another mode or other places of loaders, or a loader is there twice.
        """
        self._check_distinct("load_state_dict")
        if state["mode"] != self._mode or set(state["loaders"]) != set(self._paths):
            rule, got = f"one of mode {self._mode!r} and {', '.join(self._paths)}", (state["mode"], [*state["loaders"]])
            action = "Combine the loaders as they were when the state was taken."
            raise ValueError(must_be("state", rule, got, f"{_WHERE}.load_state_dict", action))
        places = [state["loaders"][path] for path in self._paths]
        for leaf, place in zip(self._flattened, places, strict=True):
            leaf.load_state_dict(place["state"])
        ended, exhausted = ([bool(place[name]) for place in places] for name in ("ended", "exhausted"))
        draws = state.get("draws", {})
        begun = [*draws.get("begun", [True] * len(ended))]
        self._progress = _Progress(state["phase"], ended, exhausted, **{**draws, "begun": begun})
        self._is_loaded, self._is_resumed = True, state["phase"] == "under_way"

    @property
    def num_left(self) -> int | float:
        """Number of batches that are left of the iteration whose state was loaded, or of the next one."""
        if not self._is_resumed:
            return length_of(self)
        progress, mode = self._progress, self._mode
        over = progress.exhausted if mode in ("max_size_cycle", "weighted") else progress.ended
        pairs = zip(self._flattened, over, strict=True)
        left = [0 if is_over else getattr(leaf, "num_left", length_of(leaf)) for leaf, is_over in pairs]
        if self.draws is not None:
            num_left = self.draws.length(left)
            return UNKNOWN if num_left is None else num_left
        return sum(left) if mode == "sequential" else min(left) if mode == "min_size" else max(left)

    @property
    def tells_end(self) -> bool:
        """True if `is_at_end` is known, as where loaders drawn by weights all know how many batches are left."""
        knowing = (not isinstance(leaf, CombinedLoader) and hasattr(leaf, "num_left") for leaf in self._flattened)
        return self.draws is not None and all(knowing) and all(length_of(leaf) < UNKNOWN for leaf in self._flattened)

    @property
    def is_at_end(self) -> bool:
        """True if no batch follows in the iteration that runs, by the draws that are left; nothing is read for that."""
        draws, progress = self.draws, self._progress
        assert draws is not None
        weights, epoch, num_draws = draws.at(progress.num_given, progress.epoch), progress.epoch, progress.num_draws
        exhausted = list(progress.exhausted)
        while not draws.is_over(weights, exhausted):
            leaf_idx = draws.draw(weights, exhausted, epoch, num_draws)
            num_draws += 1
            if self._flattened[leaf_idx].num_left > 0:
                return False
            exhausted[leaf_idx] = True
            if draws.cycles and not draws.is_over(weights, exhausted):
                return False  # it begins anew
        return True

    def _check_distinct(self, method: str) -> None:
        """Raise `ValueError` if a loader is there twice, so that it has no single state."""
        if len({id(leaf) for leaf in self._flattened}) < len(self._flattened):
            rule, action = "different objects in every place, to have a state each", "Make a loader for each place."
            raise ValueError(must_be("loaders", rule, self._loaders, f"{_WHERE}.{method}", action))

    def _new_progress(self, phase: str) -> _Progress:
        no, is_weighted = [False] * len(self._flattened), self._mode == "weighted"
        return _Progress(phase, [is_weighted for _ in no], no, [not is_weighted for _ in no], self._epoch)

    def _begin(self, is_resumed: bool) -> _Progress:
        """Begin an iteration, or go on with a loaded one. Returns where it is."""
        progress, is_loaded, self._is_loaded = self._progress, self._is_loaded, False
        goes_on, is_sequential = is_loaded and is_resumed, self._mode == "sequential"
        if is_loaded and progress.phase != "new":
            # A leaf that was left inside goes on there with its next iteration: that one is left again.
            places = zip(self._flattened, progress.ended, progress.begun, strict=True)
            left = [leaf for leaf, ended, begun in places if not ended and not (goes_on and begun)]
            for leaf in left[:1] if is_sequential else left:
                if not _end_iteration(leaf):
                    iter(leaf)
        if not goes_on:
            before = progress
            self._progress = progress = self._new_progress("under_way")
            if self.draws is not None:
                progress.ended, progress.num_given = [*before.ended], before.num_given
        return progress

    def _all_at_once(self, is_resumed: bool) -> Iterator[Any]:
        progress, assemble, cycles = self._begin(is_resumed), self._assemble, self._mode == "max_size_cycle"
        ended, exhausted = progress.ended, progress.exhausted
        leaves = zip(self._flattened, ended, strict=True)
        iterators = [iter(()) if has_ended else _batches_of(leaf, is_resumed) for leaf, has_ended in leaves]
        over = exhausted if cycles else ended  # leaves that the iteration does not wait for
        with progress:
            while True:
                values: list[Any] = [None] * len(iterators)
                cycling = [leaf_idx for leaf_idx, is_over in enumerate(over) if is_over] if cycles else []
                for leaf_idx, is_over in enumerate(over):
                    if is_over:
                        continue
                    value = next(iterators[leaf_idx], _END)
                    if value is not _END:
                        values[leaf_idx] = value
                        continue
                    ended[leaf_idx] = over[leaf_idx] = True
                    if self._mode == "min_size":
                        return
                    if cycles:
                        cycling.append(leaf_idx)
                if all(over):
                    return
                for leaf_idx in sorted(cycling):
                    value = _END if ended[leaf_idx] else next(iterators[leaf_idx], _END)
                    values[leaf_idx] = self._anew(leaf_idx, iterators) if value is _END else value
                    ended[leaf_idx] = False
                yield assemble(values)

    def _one_after_the_other(self, is_resumed: bool) -> Iterator[Any]:
        progress = self._begin(is_resumed)
        with progress:
            for leaf_idx, leaf in enumerate(self._flattened):
                if not progress.ended[leaf_idx]:
                    yield from _batches_of(leaf, is_resumed)
                    is_resumed = False
                    progress.ended[leaf_idx] = True

    def _drawn(self, draws: WeightedDraws, is_resumed: bool) -> Iterator[Any]:
        progress = self._begin(is_resumed)
        ended, exhausted, begun, epoch = progress.ended, progress.exhausted, progress.begun, progress.epoch
        iterators: dict[int, Iterator[Any]] = {}
        with progress:
            while not draws.is_over(weights := draws.at(progress.num_given, epoch), exhausted):
                leaf_idx = draws.draw(weights, exhausted, epoch, progress.num_draws)
                progress.num_draws += 1
                if leaf_idx not in iterators:  # begun only now: its state tells nothing before it was read
                    goes_on, begun[leaf_idx] = begun[leaf_idx] and not ended[leaf_idx], True
                    iterators[leaf_idx] = _batches_of(self._flattened[leaf_idx], is_resumed=goes_on)
                value = next(iterators[leaf_idx], _END)
                ended[leaf_idx] = value is _END
                if value is _END:
                    exhausted[leaf_idx] = True
                    if not draws.cycles or draws.is_over(weights, exhausted):
                        continue  # another one is drawn, or the iteration ends
                    value, ended[leaf_idx] = self._anew(leaf_idx, iterators), False
                progress.num_given += 1
                yield value

    def _anew(self, leaf_idx: int, iterators: list[Iterator[Any]] | dict[int, Iterator[Any]]) -> Any:
        """Begin a loader anew. Returns its first batch."""
        leaf = self._flattened[leaf_idx]
        iterators[leaf_idx] = _batches_of(leaf)
        value = next(iterators[leaf_idx], _END)
        if value is _END:
            rule = "a loader that gives at least one batch each time it is begun anew"
            action = "Pass a loader that is not empty and can be iterated over again, or another mode."
            raise RuntimeError(must_be(self._paths[leaf_idx], rule, leaf, _WHERE, action))
        return value


def combinations_of(loader: Any) -> list[CombinedLoader]:
    """Return a loader that combines others, and those within it; none of any other loader."""
    if not isinstance(loader, CombinedLoader):
        return []
    return [loader, *(one for leaf in loader.flattened for one in combinations_of(leaf))]


def draws_of(loader: Any) -> list[WeightedDraws]:
    """Return what draws loaders by weights in a loader; nothing where no combination does."""
    return [one.draws for one in combinations_of(loader) if one.draws is not None]


def _end_iteration(leaf: Any) -> bool:
    """Let an iteration of a loader that was left count as over. Returns whether the loader supports that."""
    end = getattr(leaf, "end_iteration", None)
    if callable(end):
        end()
    return callable(end)


def _batches_of(leaf: Any, is_resumed: bool = False) -> Iterator[Any]:
    """Begin a loader. Returns its iterator, which gives no more than the loader promises, or all that is left of it."""
    return read_promised(leaf, UNKNOWN if is_resumed else length_of(leaf), iterator=iter(leaf))


def read_collection(loaders: Any, where: str) -> tuple[dict[str, Any], Assemble]:
    """Return the loaders of a collection by their places, and a function that makes the same collection of others.

    Args:
        loaders: A loader, or dictionaries, lists and tuples of loaders.
        where: Owner of the loaders, for errors.

    Raises:
        ValueError: If there is no loader in the collection.
        TypeError: If something in it is no iterable of batches.
    """
    by_path, assemble = read_tree(loaders, "loaders", lambda leaf, path: check_loader(leaf, path, where))
    if not by_path:
        raise ValueError(must_be("loaders", "at least one loader", loaders, where, "Pass a loader."))
    return by_path, assemble


UNKNOWN = float("inf")
"""The number of batches of a loader that does not tell."""


def length_of(loader: Iterable[Any]) -> int | float:
    """Return the number of batches that a loader promises; infinite if it has no length."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return UNKNOWN


def read_promised(
    loader: Iterable[Any],
    num_batches: int | float,
    first: int = 0,
    iterator: Iterator[Any] | None = None,
    *,
    ends_samplers: bool = True,
) -> Iterator[Any]:
    """Iterate over a loader, up to a number of batches that it promises; nothing is read beyond them.

    The sampler of a data loader that is taken whole comes to its end nevertheless, as in a plain `for`: what it does
    there (drawing from a generator of its own, say) matters to the next epoch, and no data is read for that. Another
    loader that gives nothing, though it promises something, is begun once more: it may have waited at its end for being
    asked beyond it.

    Args:
        num_batches: Number of batches to take in all; infinity takes all there are.
        first: Number of batches that were taken before.
        iterator: The loader's iterator; None begins one with the first batch.
        ends_samplers: Whether samplers come to their end with the last batch.

    Returns:
        An iterator over the batches.
    """
    iterator = iter(loader) if iterator is None else iterator
    num_given, may_begin_again = first, first == 0 and num_batches != UNKNOWN
    while num_given < num_batches:
        batch = next(iterator, _END)  # no `for`, which would ask a loader that is its own iterator to begin anew
        if batch is not _END:
            num_given += 1
            yield batch
        elif may_begin_again and num_given == 0:
            may_begin_again = False
            iterator = iterator if iterator is loader else iter(loader)
        else:
            return
    if ends_samplers and num_batches == length_of(loader):
        indices = None if is_stream(loader) else getattr(iterator, "_sampler_iter", None)
        is_read = indices is not None and next(indices, _END) is _END
        if is_read or getattr(loader, "ends_as_promised", False):
            next(iterator, None)


_Loader = TypeVar("_Loader", bound="DataLoader[Any]")

# What a loader is made of beside its dataset and the order in which it reads it.
_SETTINGS = ["num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context"]
_SETTINGS += ["generator", "persistent_workers", "in_order"]


def check_loader(thing: object, path: str, where: str) -> None:
    """Raise `TypeError` unless an object can be a loader: an iterable of batches, neither a text nor a tensor.

    Args:
        thing: The object.
        path: Its name in the error, such as that of an argument.
        where: The caller, for the error.
    """
    if not isinstance(thing, Iterable) or isinstance(thing, (str, bytes, Tensor)):
        rule = "a loader (an iterable of batches)" + (", and no tensor" if isinstance(thing, Tensor) else "")
        action = "Pass a DataLoader, say; a list, tuple or dictionary is a collection of loaders, not of batches."
        raise TypeError(must_be(path, rule, thing.shape if isinstance(thing, Tensor) else thing, where, action))


def is_plain(loader: object) -> bool:
    """Return whether a loader iterates as torch's `DataLoader` does, so that a copy can replace it."""
    return isinstance(loader, DataLoader) and all(
        getattr(type(loader), name) is getattr(DataLoader, name) for name in ("__iter__", "_get_iterator")
    )


def kind_to_copy(loader: Any) -> type[Any] | None:
    """Return `DataLoader` or torchdata's stateful one, whichever can copy a loader; None if it iterates otherwise."""
    if is_plain(loader):
        return DataLoader
    torchdata = sys.modules.get("torchdata.stateful_dataloader")
    if torchdata is not None and isinstance(loader, torchdata.StatefulDataLoader):
        kind: type[Any] = torchdata.StatefulDataLoader
        names = ("__iter__", "_get_iterator", "state_dict", "load_state_dict")
        if all(getattr(type(loader), name) is getattr(kind, name) for name in names):
            return kind
    return None


def is_stream(loader: object) -> bool:
    """Return whether a loader reads an `IterableDataset`, whose length is an estimate at best."""
    return isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)


def end_workers(loaders: Iterable[object]) -> None:
    """End the persistent workers of data loaders; the next iteration begins others."""
    for loader in loaders:
        if isinstance(loader, DataLoader):
            loader._iterator = None


def samplers_of(loader: object) -> list[Any]:
    """Return the samplers of a loader, each once: its sampler, its batch sampler, and the samplers in these."""
    found: list[Any] = []
    for owner in chain([loader], found):  # which grows
        for sampler in (getattr(owner, "sampler", None), getattr(owner, "batch_sampler", None)):
            if sampler is not None and not any(sampler is other for other in found):
                found.append(sampler)
    return found


def nodes_of(loader: object) -> list[Any]:
    """Return the nodes of a loader of torchdata's nodes, each once; none of any other loader."""
    nodes = sys.modules.get("torchdata.nodes")
    if nodes is None or not isinstance(loader, (nodes.Loader, nodes.BaseNode)):
        return []
    found: dict[int, Any] = {}

    def follow(part: object) -> None:
        if isinstance(part, (Mapping, list, tuple)):
            for item in part.values() if isinstance(part, Mapping) else part:
                follow(item)
        elif isinstance(part, nodes.BaseNode) and id(part) not in found:
            found[id(part)] = part
            follow(vars(part))

    follow(loader.root if isinstance(loader, nodes.Loader) else loader)
    return list(found.values())


def order_of(loader: DataLoader[Any]) -> dict[str, Any] | None:
    """Return the sampler of a loader and the settings of its batches; None if a batch sampler decides both."""
    batches = loader.batch_sampler
    if batches is None or loader.batch_size is not None:
        return {"sampler": loader.sampler, "batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if type(batches) is BatchSampler:
        return {"sampler": batches.sampler, "batch_size": batches.batch_size, "drop_last": batches.drop_last}
    return None


def has_state(thing: object) -> bool:
    """Return whether an object has `state_dict()` and `load_state_dict(state)`.

    Methods of these names with other arguments are no state, such as those of MosaicML's `StreamingDataset`.
    """
    for name, args in (("state_dict", ()), ("load_state_dict", ({},))):
        method: Any = getattr(thing, name, None)
        try:
            inspect.signature(method).bind(*args)
        except TypeError:  # also of what is not callable
            return False
        except ValueError:  # of one that is not written in Python
            pass
    return True


def copy_loader(loader: DataLoader[Any], kind: type[_Loader], **changes: Any) -> _Loader:
    """Return a data loader of the given class with the settings of another one.

    Args:
        loader: The loader to copy.
        kind: `DataLoader` or a class that takes the same arguments.
        changes: Arguments of the new one; they say in which order it reads its dataset, which is not copied.
    """
    settings = {name: getattr(loader, name) for name in _SETTINGS if hasattr(loader, name)}
    if loader.num_workers > 0:
        settings["prefetch_factor"] = loader.prefetch_factor
    if loader.pin_memory_device:
        settings["pin_memory_device"] = loader.pin_memory_device
    with warnings.catch_warnings():
        # what a user can do nothing about: the number of workers was theirs, the deprecated call is the library's
        warnings.simplefilter("ignore")
        return kind(**{"dataset": loader.dataset, **settings, **changes})
