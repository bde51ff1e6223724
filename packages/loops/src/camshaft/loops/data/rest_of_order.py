"""The rest of an epoch's order, shared out anew when other processes go on with it than began it."""

from __future__ import annotations

import copy
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import attrs
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset

from camshaft.hooks_core.support.messages import must_be
from camshaft.loops.data.combined_loader import copy_loader, has_state, is_stream, kind_to_copy, order_of
from camshaft.loops.data.samplers import (
    ReplayedSampler,
    SharedSampler,
    Uneven,
    as_integers,
    check_ends,
    has_fixed_order,
    in_batches,
    shared_places,
    shared_random_state,
    stateful_samplers,
)
from camshaft.loops.data.stateful_loader import is_converted, to_stateful
from camshaft.loops.state.random_state import are_same, generators_of, isolated_randomness, restore_random_state

_DO = "Use as many processes as then, or resume from a checkpoint that was saved at an epoch's end."


@attrs.frozen
class Resharing:
    """Facts of a checkpoint from inside an epoch that goes on with another number of processes.

    Args:
        num_before: Number of processes that shared the data then.
        num_left: Batches of each process that a limit had left of the epoch; None without a limit.
    """

    num_before: int
    num_left: int | None


@attrs.frozen
class WholeOrder:
    """The order of all processes behind the loader of one.

    Attributes:
        sampler: Gives the whole order: samples, or a user's batches; it tells its length.
        batch_size: Samples in a batch; None if the items of the order are what is read at a time.
        uneven: Treatment of a remainder that cannot be shared evenly.
        drops_last: Whether a last batch of fewer samples is left out.
        replica: The user's sampler of one process's share that the order was taken from; None if there is none.
    """

    sampler: Any
    batch_size: int | None
    uneven: Uneven
    drops_last: bool
    replica: Any = None

    @property
    def name(self) -> str:
        """The name of the sampler's class."""
        return type(self.sampler).__qualname__


def whole_order(loader: Any, num_ranks: int) -> WholeOrder | None:
    """Return the order of all processes behind the loader of this one; None if it cannot be known.

    It is known of map-style data loaders that were shared out or are read by a single process, and of those whose
    sampler, or batch sampler, has `num_replicas` and `rank` as torch's `DistributedSampler` has them.
    """
    if not isinstance(loader, DataLoader) or is_stream(loader) or kind_to_copy(loader) is None:
        return None
    if not getattr(loader, "in_order", True) or has_state(loader.dataset):
        return None  # a dataset's state is of one process
    order = order_of(loader)
    own: Any = loader.batch_sampler if order is None else order["sampler"]
    own = own.sampler if isinstance(own, ReplayedSampler) else own
    batch_size, drops = (None, False) if order is None else (order["batch_size"], order["drop_last"])
    replica = None
    if isinstance(own, SharedSampler):
        own = own.sampler
    elif getattr(own, "num_replicas", None) == num_ranks and hasattr(own, "rank"):
        try:
            own, replica = _as_replica(own, 0, 1), own
        except (AttributeError, TypeError):  # its attributes cannot be set, or tell no length
            return None
    elif num_ranks > 1:
        return None
    try:
        len(own)
    except (TypeError, NotImplementedError):
        return None
    is_of_items = order is not None and replica is not None  # `drop_last` of a batch sampler is about the last batch
    uneven: Uneven = "cut" if (getattr(replica, "drop_last", False) if is_of_items else drops) else "fill"
    return WholeOrder(own, batch_size, uneven, drops, replica)


def _as_replica(sampler: Any, rank: int, num_replicas: int) -> Any:
    """Return a copy of a distributed sampler that gives the share of another process among others."""
    replica = copy.copy(sampler)
    replica.num_replicas, replica.rank = num_replicas, rank
    if hasattr(sampler, "total_size"):  # as `DistributedSampler` computes it when it is made
        names = ("dataset", "data_source", "lengths")  # the last one of samplers that group by length
        length = len(next((getattr(sampler, name) for name in names if hasattr(sampler, name)), None))  # type: ignore[arg-type]
        num_each = length // num_replicas if getattr(sampler, "drop_last", False) else -(-length // num_replicas)
        replica.num_samples, replica.total_size = num_each, num_each * num_replicas
    return replica


def _check_replicas(order: WholeOrder, worlds: Sequence[int]) -> None:
    """Raise `ValueError` unless a distributed sampler gives every so-many-th of one order, and draws nothing for it."""
    is_one_order, cause = False, None
    with isolated_randomness():
        try:
            is_one_order = _gives_one_order(order, worlds)
        except Exception as error:  # whatever it raises if other attributes were made for its own number of replicas
            cause = error
    if not is_one_order:
        rule = "one that gives rank r of N every N-th of one order, which these two and the epoch decide"
        raise ValueError(must_be("sampler", rule, order.replica, "fit", _DO)) from cause


def _gives_one_order(order: WholeOrder, worlds: Sequence[int]) -> bool:
    sampler, whole = order.replica, list(order.sampler)
    torch.manual_seed(torch.initial_seed() + 1)
    if list(order.sampler) != whole or len(whole) != len(order.sampler):
        return False
    shares = [(rank, size) for size in set(worlds) for rank in {0, size - 1}]
    shares.append((sampler.rank, sampler.num_replicas))
    is_every = all(_is_share(list(_as_replica(sampler, *share)), whole, *share) for share in shares)
    return is_every and list(sampler) == list(_as_replica(sampler, sampler.rank, sampler.num_replicas))


def _is_share(items: list[Any], whole: list[Any], rank: int, num_replicas: int) -> bool:
    expected = whole[rank::num_replicas]
    num_least = len(whole) // num_replicas
    return len(items) >= num_least and items[: len(expected)] == expected[: len(items)]


def position_in(
    loader: Any, order: WholeOrder, replayed: ReplayedSampler | None, data_rank: int, num_ranks: int, num_read: int
) -> dict[str, Any] | None:
    """Return a position in the order of all processes, the same in each; None if it is not known where it began.

    Args:
        loader: The loader of this process.
        order: What is behind it.
        replayed: Knows the random numbers from which the pass began; None if the loader's own state is what counts.
        data_rank: Rank of this process among those that share the data.
        num_ranks: Number of these.
        num_read: Batches that were read of the pass.
    """
    origin: dict[str, Any] | None = None
    if order.replica is not None:
        origin = {"before": 0}
    elif replayed is not None:
        beginning = replayed.beginning
        if beginning is None:
            return None
        size = order.batch_size if isinstance(replayed.sampler, BatchSampler) else None  # of what was given
        share = {"data_rank": data_rank, "num_ranks": num_ranks, "batch_size": size}
        origin = {"before": 0, "is_lazy": num_ranks == 1, **beginning, **replayed.given, "share": share}
    return {
        **{"origin": origin, "num_workers": loader.num_workers},
        **{"sampler": order.name, "length": len(order.sampler)},
        **{"first": 0, "stop": None, "num_read": num_read, "batch_size": order.batch_size},
        "seed": zlib.crc32(torch.get_rng_state().numpy().tobytes()),
        "worlds": [num_ranks],
    }


def advanced(
    position: dict[str, Any], resharing: Resharing, order: WholeOrder, num_ranks: int, loader_state: Any
) -> dict[str, Any]:
    """Return the position from which other processes go on: what was used of the order lies before it.

    Args:
        position: Where the pass of then was.
        resharing: What is known of that run.
        order: The order of now.
        num_ranks: Number of processes that share the data now.
        loader_state: The loader's own state of then, which counts if no order was noted.
    """
    num_places = position["worlds"][-1] * (position["batch_size"] or 1)  # of a batch of each process
    used = position["first"] + position["num_read"] * num_places
    origin, stop = position["origin"], position["stop"]
    stop = position["length"] - (0 if origin is None else origin["before"]) if stop is None else stop
    if resharing.num_left is not None:
        stop = min(stop, used + resharing.num_left * num_places)
    used = min(used, stop)
    if origin is None:
        names = ("batch_size", "num_workers")
        origin = {"before": used, "loader": loader_state, **{name: position[name] for name in names}}
        used, stop = 0, stop - used
    place = {"origin": origin, "first": used, "stop": stop, "num_read": 0, "batch_size": order.batch_size}
    return {**position, **place, "worlds": [*position["worlds"], num_ranks]}


@attrs.frozen
class RestOfOrder:
    """The share that one process reads of the rest of an order.

    Attributes:
        position: Where it begins.
        reader: A stateful loader that gives it.
        num_batches: Number of batches that it gives.
        finish: Leaves the generators as a whole pass does, to be called at the end.
    """

    position: dict[str, Any]
    reader: Any
    num_batches: int
    finish: Callable[[], None]


def rest_of_order(
    loader: Any, whole: WholeOrder, position: dict[str, Any], data_rank: int, num_data_ranks: int
) -> RestOfOrder:
    """Return what a process reads of an order from a position on; random numbers stay as they are.

    Args:
        loader: The loader of the process.
        whole: What is behind it.
        position: The position.
        data_rank: Rank of the process among those that share the data.
        num_data_ranks: Number of these.

    Raises:
        ValueError: As `_draw_order`.
    """
    order, finish = _draw_order(loader, whole, position)
    first, stop = position["first"], position["stop"]
    items = [order[place % stop] for place in shared_places(first, stop, data_rank, num_data_ranks, whole.uneven)]
    items = in_batches(items, whole.batch_size, drops_last=whole.drops_last)
    by = {"batch_size": None, "sampler": items} if loader.batch_sampler is None else {"batch_sampler": items}
    generator = torch.Generator().manual_seed(position["seed"] + first + data_rank)
    reader = to_stateful(copy_loader(loader, DataLoader, **by, generator=generator))
    return RestOfOrder(position, reader, len(items), finish)


def _draw_order(loader: Any, whole: WholeOrder, position: dict[str, Any]) -> tuple[list[Any], Callable[[], None]]:
    """Return the order of a position, drawn again as it was drawn then, and what to call at the end of a pass.


    Raises:
        ValueError: If the sampler is another one, or of another length; or if its order cannot be known, as that of one
            that draws numbers between its items, from generators that others drew from as well.
    """
    if whole.replica is not None:
        _check_replicas(whole, position["worlds"])
    check_sampler(whole, position)
    origin, sampler = position["origin"], whole.sampler
    num_items, draws, is_known = position["length"] - origin["before"], True, True
    generators = generators_of(loader)
    with isolated_randomness(generators):
        if "loader" in origin:
            order = _read_order(loader, whole, origin)
        elif "start" not in origin or has_fixed_order(sampler):
            order, draws, is_known = list(sampler), False, whole.replica is not None or has_fixed_order(sampler)
        else:
            restore_random_state(origin["start"], generators)
            parts = stateful_samplers(loader)
            for part, its_state in zip(parts, origin["parts"], strict=True):
                part.load_state_dict(copy.deepcopy(its_state))
            rest = iter(sampler)
            order = list(islice(rest, 1))
            numbers = shared_random_state(())
            order += rest if parts else islice(rest, num_items - 1)
            is_known = not origin["is_lazy"] or are_same(numbers, shared_random_state(()))
            next(rest, None)  # at its end it may draw once more
        ends = [(one, one.get_state()) for one in generators] if draws else []
    if not is_known or len(order) < num_items:
        rule = f"one that draws an order of {num_items} in one piece when a pass begins"
        raise ValueError(must_be("sampler", rule, sampler, "fit", _DO))
    if origin.get("num_given"):
        check_ends(_ends_of(origin, order[:num_items]), origin["ends"], sampler)

    def finish() -> None:
        for generator, its_state in ends:
            generator.set_state(its_state)

    return order[:num_items], finish


def _ends_of(origin: Mapping[str, Any], order: list[Any]) -> list[list[int] | None]:
    """Return the first item, and the last of those that were given, of the share of the process that saved."""
    share, found = origin["share"], []
    size = share["batch_size"] or 1
    for idx, item in zip((0, origin["num_given"] - 1), origin["ends"], strict=True):
        places = [idx * size * share["num_ranks"] + share["data_rank"] + k * share["num_ranks"] for k in range(size)]
        items = [order[place % len(order)] for place in places]
        integers = as_integers(items if share["batch_size"] else items[0])
        found.append(None if integers is None or item is None else integers[: len(item)])
    return found


def check_sampler(whole: WholeOrder, position: Mapping[str, Any]) -> None:
    """Raise `ValueError` if the sampler is another one than that of a position, or of another length."""
    found = f"{whole.name} of {len(whole.sampler)}"
    if found != (expected := f"{position['sampler']} of {position['length']}"):
        raise ValueError(must_be("sampler", f"that of the checkpoint ({expected})", found, "fit", _DO))


class _Indices(Dataset[Any]):
    """Gives indices in place of samples."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return index


def _read_order(loader: Any, whole: WholeOrder, origin: dict[str, Any]) -> list[Any]:
    """Return what a loader with an own state would have given from that state on, as indices."""
    size, has_batches = origin["batch_size"], loader.batch_sampler is not None
    by_sample = {"sampler": whole.sampler, "batch_size": size, "drop_last": False}
    changes: dict[str, Any] = {"batch_sampler": whole.sampler} if size is None and has_batches else by_sample
    changes |= {"dataset": _Indices(len(loader.dataset)), "collate_fn": list if has_batches else _same}
    if origin["num_workers"] == 0:
        changes |= {"prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None}
    changes["num_workers"] = origin["num_workers"]
    if is_converted(loader):
        reader = to_stateful(copy_loader(loader, DataLoader, **changes))
    else:
        reader = copy_loader(loader, sys.modules["torchdata.stateful_dataloader"].StatefulDataLoader, **changes)
    reader.load_state_dict(copy.deepcopy(origin["loader"]))
    items = list(reader)
    return items if size is None else [item for batch in items for item in batch]


def _same(item: Any) -> Any:
    return item
