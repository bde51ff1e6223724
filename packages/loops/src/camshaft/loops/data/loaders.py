"""Loaders of a stage: their order and their batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import is_
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, SequentialSampler, SubsetRandomSampler

from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.loops.data.combined_loader import (
    UNKNOWN,
    CombinedLoader,
    check_loader,
    combinations_of,
    copy_loader,
    draws_of,
    is_plain,
    is_stream,
    length_of,
    nodes_of,
    order_of,
    read_collection,
    read_promised,
    samplers_of,
)
from camshaft.loops.data.resumable_loader import ResumableLoader
from camshaft.loops.state.random_state import seed_workers
from camshaft.loops.state.run import LOADER_HOOKS, Run

_MISSING = object()


def training_loader(run: Run) -> Any:
    """Return the training loader that was passed, else the one that the data module or the module provides.

    Hooks: train_dataloader.

    Returns:
        The loader or the collection of loaders, or None if there is none.

    Raises:
        TypeError: If something else was given.
    """
    given = _given_or_provided(run, "train")
    if isinstance(given, (list, tuple, Mapping)):
        seed_workers(_flat(given), run.strategy.global_rank)
        return given or None
    if given is not None:
        seed_workers(leaves_of(given), run.strategy.global_rank)
        check_loader(given, "train loaders", run.verb)
    return given


def as_one_loader(given: Any) -> Any:
    """Return a loader as it is; a list, tuple or dictionary of loaders, nested at will, combined by "max_size_cycle".

    Raises:
        TypeError, ValueError: As `CombinedLoader`, if something in the collection is no loader, or nothing is in it.
    """
    return CombinedLoader(given) if isinstance(given, (list, tuple, Mapping)) else given


def evaluation_loaders(run: Run, stage: str) -> tuple[Any, list[Iterable[Any]]]:
    """Return the loaders of validation, test or prediction: as they were given, and one by one in order.

    Hooks: val_dataloader, test_dataloader, predict_dataloader.

    Returns:
        A loader or a collection, or None if there is none; and the loaders in it.

    Raises:
        TypeError: If something else than a loader or a collection of loaders was given.
    """
    given = _given_or_provided(run, stage)
    loaders = [] if given is None else list(_flat(given))
    for loader in loaders:
        check_loader(loader, f"{stage} loaders", run.verb)
    seed_workers([leaf for loader in loaders for leaf in leaves_of(loader)], run.strategy.global_rank)
    return given, loaders


def as_given(given: Any, loaders: list[Any]) -> Any:
    """Return loaders in the structure in which they were given, for users to look at.

    Args:
        given: A loader or a collection of loaders, as `evaluation_loaders` returns it.
        loaders: The loaders in it, or what takes their places.
    """
    if isinstance(given, CombinedLoader) and given.mode == "sequential":
        given = given.loaders
    if not isinstance(given, (list, tuple, Mapping)):
        return parts_of(loaders[0]) if loaders else given
    if not loaders:
        return given
    by_path, assemble = read_collection(given, "loaders")
    is_same = len(by_path) != len(loaders) or all(map(is_, by_path.values(), loaders))
    return given if is_same else assemble(loaders)


def parts_of(loader: Any) -> Any:
    """Return the collection of loaders that a `CombinedLoader` combines; any other loader as it is."""
    return loader.loaders if isinstance(loader, CombinedLoader) else loader


def _given_or_provided(run: Run, stage: str) -> Any:
    """Return the loaders that were passed, else those of the hook, or of its attribute of data module or module."""
    name, given = LOADER_HOOKS[stage], run.loaders.get(stage)
    provide = getattr(run.hooks, name)
    if given is None and provide is not None:
        given = provide()
    elif given is None:
        attributes = (getattr(owner, "__dict__", {}).get(name) for owner in (run.data, run.module))
        given = next((one for one in attributes if one is not None), None)
    return _converted(given)


def _converted(given: Any) -> Any:
    """Return loaders in which each with a method `as_combined_loader` is the `CombinedLoader` that this returns."""
    if hasattr(type(given), "as_combined_loader"):
        return given.as_combined_loader()
    if not isinstance(given, (list, tuple, Mapping)):
        return given
    items = list(given.values() if isinstance(given, Mapping) else given)
    converted = [_converted(item) for item in items]
    if all(map(is_, converted, items)):
        return given
    return dict(zip(given, converted, strict=True)) if isinstance(given, Mapping) else converted


def _flat(given: Any) -> Iterator[Any]:
    """Return every loader of nested lists, tuples and dictionaries, and of a `CombinedLoader` that is sequential."""
    if isinstance(given, CombinedLoader) and given.mode == "sequential":
        given = given.flattened
    if isinstance(given, Mapping):
        given = list(given.values())
    if isinstance(given, (list, tuple)):
        for item in given:
            yield from _flat(item)
    else:
        yield given


def count_batches(loader: Iterable[Any], limit: int | float, argument: str) -> int | float:
    """Return the number of batches to take of a loader.

    Args:
        limit: An int is a number of batches, a float a share of them.
        argument: Name of the argument that the limit was given by, for errors.

    Returns:
        The number; infinite if unknown.

    Raises:
        ValueError: If a share is asked of a loader of unknown length, or amounts to less than one batch.
    """
    length = length_of(loader)
    if isinstance(limit, int):
        return min(length, limit)
    if limit in (0.0, 1.0):
        return length if limit else 0
    if length == UNKNOWN:
        rule = "1.0 or an int for a loader of unknown length"
        raise ValueError(must_be(argument, rule, limit, "fit", "Pass an int."))
    num_batches = int(length * limit + 1e-9)  # 0.29 * 100 is a little less than 29
    if num_batches == 0 and length > 0:
        rule = f"0 or a share of at least one of the loader's {length} batches"
        raise ValueError(must_be(argument, rule, limit, "fit", f"Pass at least {1 / length}."))
    return num_batches


class ReadAhead:
    """The batch of a stream that was read before its turn, to know whether the one before it is the last.

    It also knows how many batches the epochs of the stream have had, to find those that a resumed run cut short.
    """

    def __init__(self) -> None:
        self.batch: Any = _MISSING
        self._lengths: list[int] = []  # the different numbers of batches of whole epochs; two are enough to know
        self._expected = 0

    @property
    def is_filled(self) -> bool:
        """True if a batch was read before its turn."""
        return self.batch is not _MISSING

    def clear(self) -> None:
        """Forget the batch."""
        self.batch = _MISSING

    def end_epoch(self, num_batches: int, loader: Iterable[Any]) -> None:
        """Note that the stream of a loader has given an epoch of `num_batches`.

        Raises:
            RuntimeError: If all epochs of the run that was resumed had more batches. Epochs of one with `set_epoch`,
                of torchdata's nodes, and of loaders drawn by weights may differ: of these, if it has none.
        """
        parts = [part for leaf in leaves_of(loader) for part in (leaf, getattr(leaf, "dataset", None))]
        may_differ = any(hasattr(part, "set_epoch") or nodes_of(part) for part in parts)
        may_differ = may_differ or bool(draws_of(loader))
        is_vouched_for = any(getattr(part, "resumes_exactly", False) for part in parts)
        fewest = min(1, self._expected) if may_differ else self._expected
        if num_batches < fewest and not is_vouched_for:
            rule = f"one that gives {self._expected} batches in each epoch, as before the run was resumed"
            action = "Let it begin each epoch at its start, or give it `resumes_exactly = True` if its epochs differ."
            raise RuntimeError(must_be("train loader", rule, num_batches, name_of(loader), action))
        self.note(num_batches)

    def note(self, num_batches: int | float) -> None:
        """Note the number of batches of an epoch that came to its end."""
        if num_batches not in self._lengths:
            self._lengths = [*self._lengths, int(num_batches)][-2:]

    def state_dict(self) -> dict[str, Any]:
        """Return the batch, as it came from the loader (its reading cannot be undone), and the lengths of epochs."""
        batch = {} if self.batch is _MISSING else {"batch": self.batch}
        return {**batch, "lengths": self._lengths}

    def load_state_dict(self, state: dict[str, Any], *, is_same_data: bool) -> None:
        """Take the batch back, and expect as many batches in each epoch as before, if they were always as many.

        Args:
            state: The result of `state_dict`.
            is_same_data: Whether epochs are divided into batches as they were then.
        """
        self.batch = state.get("batch", _MISSING)
        self._lengths = list(state["lengths"]) if is_same_data else []
        self._expected = self._lengths[0] if len(self._lengths) == 1 else 0


def numbered(
    loader: Iterable[Any],
    num_batches: int | float,
    first: int = 0,
    ahead: ReadAhead | None = None,
    *,
    iterator: Iterator[Any] | None = None,
) -> Iterator[tuple[int, Any, bool]]:
    """Iterate over a loader's batches, each with its index and whether it is the last.

    A loader of known length is read one batch at a time, and never beyond its length; see `read_promised`. Of a stream
    (a loader of unknown length, or over an `IterableDataset`, whose length is an estimate) the next batch is read
    ahead, because there is no other way to know the last; one that tells a length is not read beyond it either. Where
    loaders of known length are drawn by weights, the draws tell which is the last.

    Args:
        loader: The loader; one that goes on inside an epoch gives the rest of it.
        num_batches: Number of batches of the whole epoch; infinite takes all there are.
        first: Index of the first batch that is given.
        ahead: Holder of the batch that is read ahead; a batch that it holds comes first.
        iterator: As for `read_promised`.

    Raises:
        RuntimeError: If a loader of known length ends before its time, as it does when the dataset raises
            `StopIteration`.
    """
    ahead = ahead or ReadAhead()
    if ahead.is_filled or is_open_ended(loader):
        yield from read_ahead(loader, iterator, num_batches, first, ahead)
        return
    batch_idx = first - 1
    drawn = loader if isinstance(loader, CombinedLoader) and length_of(loader) == UNKNOWN else None
    for batch_idx, batch in enumerate(read_promised(loader, num_batches, first, iterator), first):
        is_last = batch_idx + 1 == num_batches or (drawn is not None and drawn.is_at_end)
        if is_last:
            ahead.note(batch_idx + 1)
        yield batch_idx, batch, is_last
    if batch_idx + 1 < num_batches and drawn is None:
        raise RuntimeError(
            f"`{name_of(loader)}` must give the {num_batches} batches that it promises, but got {batch_idx + 1} (int) "
            "in this epoch: it ended early, as when its dataset raises StopIteration. Raise another error there."
        )


def read_ahead(
    loader: Iterable[Any], batches: Iterator[Any] | None, num_batches: int | float, batch_idx: int, ahead: ReadAhead
) -> Iterator[tuple[int, Any, bool]]:
    """Iterate over the batches of a stream, one of which is read before its turn; see `numbered`."""
    batches = iter(loader) if batches is None else batches
    if ahead.batch is _MISSING and batch_idx < num_batches:
        ahead.batch = next(batches, _MISSING)
        if ahead.batch is _MISSING:
            ahead.end_epoch(batch_idx, loader)
    while ahead.batch is not _MISSING:
        batch = ahead.batch
        ahead.batch = next(batches, _MISSING) if batch_idx + 1 < num_batches else _MISSING
        is_last = ahead.batch is _MISSING
        if is_last and batch_idx + 1 < num_batches:
            ahead.end_epoch(batch_idx + 1, loader)
        yield batch_idx, batch, is_last
        batch_idx += 1


def leaves_of(loader: Any) -> list[Any]:
    """Return the loaders of a combination, else the loader itself."""
    return [leaf.loader if isinstance(leaf, ResumableLoader) else leaf for leaf in _places_of(loader)]


def _places_of(loader: Any) -> list[Any]:
    if not isinstance(loader, CombinedLoader):
        return [loader]
    return [leaf for part in loader.flattened for leaf in _places_of(part)]


def name_of(loader: Any) -> str:
    """Return the name of a loader's class, for messages."""
    return type(loader.loader if isinstance(loader, ResumableLoader) else loader).__name__


def is_open_ended(loader: Iterable[Any]) -> bool:
    """Return whether the length of a loader is unknown or an estimate, so that only reading it to its end tells."""
    is_unknown = length_of(loader) == UNKNOWN and not (isinstance(loader, CombinedLoader) and loader.tells_end)
    return is_unknown or any(
        leaf.is_open_ended if isinstance(leaf, ResumableLoader) else is_stream(leaf) for leaf in _places_of(loader)
    )


def has_own_sampler(loader: Any) -> bool:
    """Return whether a sampler of the user's decides which batches there are, and how many in an epoch."""
    modules = {type(one).__module__.partition(".")[0] for one in samplers_of(loader)}
    return isinstance(loader, DataLoader) and not modules <= {"torch", "torchdata", "camshaft", "builtins"}


def set_epoch(loader: Any, epoch: int, *, of_datasets: bool = True, of_samplers: bool = True) -> None:
    """Tell what draws by epoch which one begins: combinations, samplers (also within others), datasets and loaders.

    Args:
        loader: A loader, or a combination of several, before it is iterated over.
        of_datasets: Whether datasets and loaders are told.
        of_samplers: Whether samplers are told.
    """
    for combination in combinations_of(loader):
        combination.set_epoch(epoch)
    for leaf in leaves_of(loader):
        parts = samplers_of(leaf) if of_samplers else []
        parts += [getattr(leaf, "dataset", None), leaf] if of_datasets else []
        for part in parts:
            if callable(getattr(part, "set_epoch", None)):
                part.set_epoch(epoch)


def batch_mover(run: Run) -> Callable[[Any, int], Any] | None:
    """Return the function that moves a batch to its device, or None if there is nothing to do.

    Hooks: on_before_batch_transfer, transfer_batch_to_device, on_after_batch_transfer.
    """
    hooks, strategy = run.hooks, run.strategy
    before, after = hooks.on_before_batch_transfer, hooks.on_after_batch_transfer
    transfer = hooks.transfer_batch_to_device
    if before is None and transfer is None and after is None and strategy.device.type == "cpu":
        return None  # loaders give batches on the CPU

    def move(batch: Any, dataloader_idx: int) -> Any:
        if before is not None:
            batch = before(batch, dataloader_idx)
        if transfer is not None:
            batch = transfer(batch, strategy.device, dataloader_idx)
        else:
            batch = strategy.batch_to_device(batch)
        return batch if after is None else after(batch, dataloader_idx)

    return move


def in_order(loader: Any, stage: str) -> Any:
    """Return a loader that reads its dataset in order, in place of one whose sampler does not.

    A `SubsetRandomSampler` gives way to its indices in their order and a `DistributedSampler` to its share in order;
    any other sampler to the whole dataset in order. Everything else that a data loader is made of stays. A loader over
    an `IterableDataset`, or one that is no `DataLoader`, is taken as it is: it has no sampler to tell its order by.

    Args:
        loader: A loader, or a combination of several.
        stage: Stage of the loader, for messages.

    Raises:
        ValueError: If the order is decided by a batch sampler of the user's own, or it is to be changed in a loader
            that does not iterate as a `DataLoader` does.
    """
    if isinstance(loader, CombinedLoader):
        return loader.with_loaders(lambda leaf: in_order(leaf, stage))
    if not isinstance(loader, DataLoader) or is_stream(loader):
        return loader
    order = order_of(loader)
    ordered = None if order is None else _ordered(order["sampler"], loader.dataset)
    if order is not None and ordered is order["sampler"]:
        return loader
    if order is None or not is_plain(loader):
        rule = "one whose batches come in the dataset's order, or whose sampler can be replaced by that"
        action = "Pass a DataLoader with shuffle=False, or limit_train_batches in place of overfit_batches."
        raise ValueError(must_be(f"{stage} loader", rule, loader, "FitLoop(overfit_batches=...)", action))
    name = type(order["sampler"]).__name__
    warn_user(
        f"`overfit_batches` takes the same batches in every epoch: the {stage} loader's {name} is left out. Pass a "
        "loader that does not shuffle."
    )
    # not the loader's own class, whose arguments are unknown
    return copy_loader(loader, DataLoader, **order | {"sampler": ordered})


def _ordered(sampler: Any, dataset: Any) -> Any:
    """Return the sampler itself if its order is always the same, else its replacement."""
    if type(sampler) in (SequentialSampler, list, tuple, range):
        return sampler
    if type(sampler) is SubsetRandomSampler:
        return list(sampler.indices)
    if type(sampler) is not DistributedSampler:
        return SequentialSampler(dataset)
    ordered = copy.copy(sampler) if sampler.shuffle else sampler
    ordered.shuffle = False
    return ordered
