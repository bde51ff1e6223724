"""Loaders whose position can be saved and taken up again."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator
from functools import cached_property
from inspect import GEN_CLOSED, getgeneratorstate, isgenerator
from itertools import islice
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader

from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.loops.data.combined_loader import (
    UNKNOWN,
    copy_loader,
    has_state,
    is_stream,
    kind_to_copy,
    length_of,
    nodes_of,
    read_promised,
    samplers_of,
)
from camshaft.loops.data.rest_of_order import (
    Resharing,
    RestOfOrder,
    advanced,
    check_sampler,
    position_in,
    rest_of_order,
    whole_order,
)
from camshaft.loops.data.samplers import ReplayedSampler, stateful_samplers
from camshaft.loops.data.stateful_loader import carries_state, is_converted, is_stateless_stream, to_stateful
from camshaft.loops.data.stateful_streams import (
    FreshShare,
    FreshStart,
    Shareable,
    checksum,
    continues_from_end,
    copied,
    resumes_exactly,
    shareable_of,
    stream_states,
    streams_at,
)
from camshaft.loops.state.random_state import (
    are_same,
    generators_of,
    isolated_randomness,
    random_state,
    restore_random_state,
)

StatelessLoaders = Literal["refuse", "fast_forward"]
"""Treatment of a loader without a state by a resume inside an epoch."""

STATELESS_LOADERS: tuple[StatelessLoaders, ...] = ("refuse", "fast_forward")

_OTHERWISE = 'resume from the end of an epoch, or pass stateless_loaders="fast_forward" to read and drop used batches.'
_OTHER_STATE = (
    " Its `state_dict` takes other arguments than torch's protocol has. Use the loader that its library has for it, "
    "such as MosaicML's StreamingDataLoader."
)
_OTHER_WORKERS = " Read it by as many workers as before."


class ResumableLoader:
    """A wrapper that gives a loader of any kind a position that can be saved.

    A plain `DataLoader` is read through torchdata's `StatefulDataLoader`; a loader with `state_dict` and
    `load_state_dict` (torchdata's nodes are among them) keeps its own state. Anything else is stateless.

    States of streams are not trusted: one that does not restore its stream exactly (see `resumes_exactly`) counts as
    none, the iteration after a resumed one begins as if nothing had been loaded (see `FreshStart`), and a state from an
    epoch's end is loaded only if the next epoch would go on from it, as that of a stream that counts its own epochs.

    The state of a map-style loader also tells the position in the order of all processes, where that is known. Another
    number of processes goes on there: it shares the rest of the order out anew (see `rest_of_order`), and reads that by
    a loader of its own until the iteration ends.

    Args:
        stateless: Treatment of a stateless loader by a resume inside an epoch: "refuse" raises, "fast_forward" reads
            and drops what was read before, from the same random numbers, and warns; that is exact only if the loader
            draws no random numbers between its batches.

    Attributes:
        data_rank: Rank of this process among those that share the data.
        num_data_ranks: Number of these.
        resharing: What to know of the run whose state is loaded next, if that had another number of processes.
        is_ahead: Whether the batch that was read last is still to be used.
        gives_again: Whether the next iteration gives that batch of the loaded state once more.
    """

    data_rank, num_data_ranks = 0, 1
    ends_as_promised = True  # reading it beyond its end reads no data

    def __init__(self, loader: Iterable[Any], stateless: StatelessLoaders = "refuse") -> None:
        self.loader = loader
        self._stateless = stateless
        nodes = sys.modules.get("torchdata.nodes")
        self._source: Any = nodes.Loader(loader) if nodes is not None and isinstance(loader, nodes.BaseNode) else loader
        self._is_node_loader = nodes is not None and isinstance(self._source, nodes.Loader)
        self._is_converted = is_converted(loader)
        if self._is_converted:
            self._source = to_stateful(loader)  # type: ignore[arg-type]
        self._is_stateless = is_stateless_stream(loader) or not has_state(self._source)
        self._resumed: Iterator[Any] | None = None
        self._unread: dict[str, Any] | None = None  # the loader's state that was loaded, until it is read
        self._fresh_start: FreshStart | None = None  # after a state was loaded, until the next iteration has begun
        self._start: dict[str, Any] | None = None
        self._before_begin: dict[str, Any] | None = None  # random numbers before an iteration that nothing reads yet
        self.resharing: Resharing | None = None
        self.is_ahead = False
        self._rest: RestOfOrder | None = None  # that is read in place of the loader
        self._has_kept_workers = False
        self._follows_samples = False
        self.gives_again = False
        self._num_before_load = 0  # batches of the iteration before the state of its stream was loaded
        self._is_rest_of_stream = False  # whether the iteration is what is left of a stream, which tells no length
        self._num_read = 0
        self._num_of_pass: int | float | None = None
        self._was_begun = False
        self._is_under_way = False
        self._is_exhausted = False
        self._epoch: int | None = None

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        """Begin an iteration, which draws the random numbers that the loader draws for that, or go on with one."""
        iterator, self._resumed = self._resumed, None
        self._before_begin, self._is_under_way = None, False
        fresh_start = self._fresh_start
        if iterator is None:
            self._fresh_start = None
            if fresh_start is None:
                iterator = self._begun()
            else:
                fresh_start.epoch = self._epoch
                iterator = fresh_start.begin(self._begun)
        elif fresh_start is not None:
            iterator = fresh_start.note(iterator)
        return self._iterate(iterator)

    def set_epoch(self, epoch: int) -> None:
        """Tell streams which epoch begins that took, or will take, the place of the loader's own; see `FreshStart`."""
        self._epoch = epoch
        for stream in streams_at(self._streams_here):
            is_own = stream is self.loader or stream is getattr(self.loader, "dataset", None)
            if not is_own and callable(getattr(stream, "set_epoch", None)):
                stream.set_epoch(epoch)

    def begin(self) -> None:
        """Begin the next iteration now, with the random numbers that the loader draws for that."""
        self._before_begin = random_state(generators_of(self.loader))
        self._resumed = self._begun()

    def _begun(self) -> Iterator[Any]:
        if self._is_stateless or self._is_node_loader or is_stream(self.loader):
            self._start = random_state(generators_of(self.loader))
        self._leave_rest()
        self._num_read = self._num_before_load = 0
        self._num_of_pass = self._num_promised  # a sampler that counts its passes promises the next one's from here on
        if not self._has_kept_workers:
            return iter(self._source)
        self._has_kept_workers = False
        own, self._source.generator = self._source.generator, torch.Generator()
        self._source.generator.set_state(torch.get_rng_state())
        try:
            return iter(self._source)
        finally:
            self._source.generator = own

    def _keep_workers(self) -> None:
        """Let the next iteration draw no seed of workers that would persist, without a stop, since they drew theirs."""
        self._has_kept_workers = self._is_map_style and getattr(self._source, "persistent_workers", False)

    @property
    def _reader(self) -> Any:
        """The loader that the iteration which runs reads."""
        return self._source if self._rest is None else self._rest.reader

    @cached_property
    def _samplers(self) -> list[Any]:
        """The samplers whose state outlives an iteration, and is not that of one process's share."""
        found = stateful_samplers(self.loader) if self._is_map_style else []  # type: ignore[arg-type]
        return [sampler for sampler in found if not hasattr(sampler, "num_replicas")]

    @property
    def _is_map_style(self) -> bool:
        return kind_to_copy(self.loader) is not None and not is_stream(self.loader) and not self._has_dataset_state

    @property
    def _has_dataset_state(self) -> bool:
        return has_state(getattr(self.loader, "dataset", None))

    @property
    def _streams(self) -> list[tuple[Any, str]]:
        """The owners and attributes of the streams with a state of their own that are read."""
        places: list[tuple[Any, str]] = [] if self._is_stateless else [(self, "_source")]
        if self._is_node_loader:
            places = [(node, "iterable") for node in nodes_of(self._source) if hasattr(node, "iterable")]
        elif isinstance(self._source, DataLoader):
            places = [(self._source, "dataset")] if is_stream(self._source) else []
        return [(owner, name) for owner, name in places if has_state(getattr(owner, name))]

    @property
    def _streams_here(self) -> list[tuple[Any, str]]:
        """Those that are read in this process. Workers get them anew in each epoch, unless they persist."""
        return [] if getattr(self._source, "num_workers", 0) else self._streams

    @property
    def is_open_ended(self) -> bool:
        """True if the loader may give another number of batches than it promises."""
        return is_stream(self.loader) or self._is_rest_of_stream

    def follow_samples(self) -> bool:
        """Record the samples of each batch from the next iteration on, also of one that goes on from a state.

        Returns:
            Whether they can be known, that is, if the loader reads a dataset by indices, in the order of its sampler,
            and has no state of its own, nor its sampler.
        """
        order, self._follows_samples = self._order, True
        if order is not None and order.recorded is None:
            order.recorded = {}
        return order is not None

    def take_samples(self) -> list[int] | None:
        """Return the dataset indices of the newest batch, once; None if they are unknown or were taken."""
        order = self._order
        return None if order is None or order.recorded is None else order.recorded.pop(self._num_read - 1, None)

    @property
    def _order(self) -> ReplayedSampler | None:
        """The sampler whose items are the batches of this loader, one each; None if there is none."""
        if not self._is_converted or is_stream(self.loader) or not getattr(self.loader, "in_order", True):
            return None
        order = self._reader.sampler if self._reader.batch_sampler is None else self._reader.batch_sampler
        return order if isinstance(order, ReplayedSampler) else None

    def end_iteration(self) -> None:
        """Let an iteration that was left count as over: the next one begins anew."""
        self._resumed = self._before_begin = None
        self._is_under_way = False
        self._leave_rest()

    def stop_workers(self) -> None:
        """End the worker processes of a failed iteration and the threads that feed them; its state stays.

        They would live as long as anything holds the loop or the error, whose traceback holds the iterator. Those of a
        stateful loader of the user's own are left to the user.
        """
        is_own = self._is_converted or self._rest is not None
        iterator: Any = getattr(self._reader, "_iterator", None) if is_own else None
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()
            for thread in [queue._thread for queue in iterator._index_queues if queue._thread is not None]:
                thread.join(timeout=1.0)

    def _iterate(self, iterator: Iterator[Any]) -> Iterator[Any]:
        self._was_begun = self._is_under_way = True
        self._is_exhausted = False
        self._unread = None
        try:
            for batch in read_promised(self._reader, self._num_in_iteration, self._num_read, iterator):
                self._num_read += 1
                yield batch
            # one that gave as many batches as it promises is not read on, and need not have noticed its end
            of_torchdata = getattr(self._reader, "_iterator", None)
            self._is_exhausted = self._num_read < self._num_in_iteration or getattr(of_torchdata, "_finished", False)
            self._leave_rest()
        finally:
            self._is_under_way = False

    @property
    def _num_promised(self) -> int | float:
        """Number of batches of a whole iteration; infinite if unknown."""
        return length_of(self.loader)

    @property
    def _num_in_iteration(self) -> int | float:
        """Number of batches of the iteration that runs: of a whole one, or of the rest of one; infinite if unknown."""
        if self._is_rest_of_stream:
            return UNKNOWN
        if self._rest is not None:
            return self._rest.num_batches
        return self._num_promised if self._num_of_pass is None else self._num_of_pass

    @property
    def num_left(self) -> int | float:
        """Number of batches that are left of the iteration, or of the next one if none runs."""
        return self._num_in_iteration - self._num_read if self._is_under_way else self._num_promised

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loader, as tensors and plain values if its own state is."""
        state: dict[str, Any] = {"is_under_way": self._is_under_way, "is_exhausted": self._is_exhausted}
        if self._before_begin is not None:
            state["before_begin"] = self._before_begin
        if self._is_under_way:
            state |= {"num_read": self._num_read, "is_ahead": self.is_ahead}
            position = self._position()
            if position is not None:
                state["position"] = position
            shareable = self._shareable
            if shareable is not None:
                state["shared"] = self._shared_state(shareable)
                state["num_before_load"], state["is_rest_of_stream"] = self._num_before_load, self._is_rest_of_stream
            if self._start is not None:
                state["start"] = self._start
            if self._is_node_loader:
                state["ended"] = _ended_nodes(self._source)
            if self._is_stateless and self._stateless == "refuse":
                warn_user(_stateless_message(self.loader, "checkpoint"))
        elif self._samplers and self._is_exhausted:
            state["samplers"] = [copy.deepcopy(sampler.state_dict()) for sampler in self._samplers]
        if self._is_stateless or not self._was_begun:
            return state
        if self._is_under_way or not self._is_converted or carries_state(self.loader):  # type: ignore[arg-type]
            if self._unread:  # the source may have begun anew already
                return state | self._unread
            if self._rest is None or self._num_read:
                state["loader"] = self._reader.state_dict()
            if self._streams_here:  # also inside an epoch, which a limit may end there
                state["streams"] = stream_states(self._streams_here)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on from a state; no random numbers are drawn then.

        Raises:
            ValueError: If the state is from inside an epoch, the loader is stateless, and that is to be refused.
        """
        generators = generators_of(self.loader)
        with isolated_randomness(generators):
            self._was_begun = "loader" in state
            self._unread = {key: state[key] for key in ("loader", "streams") if key in state}
            self._is_under_way, self._is_exhausted = state["is_under_way"], state["is_exhausted"]
            if self._is_under_way:
                self._resume(state)
            elif self._load_between(state):
                self._was_begun, self._unread = False, None
            if not self._was_begun and ("loader" in state or self._is_exhausted):
                self._keep_workers()
            if "before_begin" in state:
                restore_random_state(state["before_begin"], generators)
                self.begin()

    def _load_between(self, state: dict[str, Any]) -> bool:
        """Load a state from between two iterations. Returns whether the loader's own state was left out."""
        is_reshared = self.resharing is not None
        if self._samplers and "samplers" in state and (is_reshared or not self._was_begun):
            dataset = self.loader.dataset  # type: ignore[attr-defined]
            for sampler, its_state in zip(self._samplers, state["samplers"], strict=True):
                if continues_from_end(sampler, its_state, is_exhausted=True, dataset=dataset):
                    sampler.load_state_dict(copy.deepcopy(its_state))
            return True
        if is_reshared and self._is_map_style and not self._samplers:
            return True  # nothing outlives an epoch
        has_other_state = _has_other_state(self.loader)
        if has_other_state or (self._has_other_workers and "loader" in state):
            name, why = type(self.loader).__name__, _OTHER_STATE if has_other_state else _OTHER_WORKERS
            warn_user(f"The state of the train loader ({name}) is not restored; epochs may differ.{why}")
            return True
        if "loader" in state:
            ends = zip(streams_at(self._streams_here), state.get("streams", ()), strict=True)
            going_on = [continues_from_end(stream, end, is_exhausted=self._is_exhausted) for stream, end in ends]
            if is_reshared and self._is_node_loader and not any(going_on):
                _begin_nodes_in(self._source, self._epoch or 0)  # their positions are those of another share
                return True
            if any(going_on) or not going_on:
                self._load_end(state)
        return False

    @property
    def _has_other_workers(self) -> bool:
        """True if as many processes read otherwise (see `is_read_otherwise`) what the state to be loaded is of."""
        return self.resharing is not None and self.resharing.num_before == self.num_data_ranks

    @property
    def _shareable(self) -> Shareable | None:
        return shareable_of(self.loader) if not self._is_map_style or self._is_node_loader else None

    def _shared_state(self, shareable: Shareable) -> Any:
        """Return the state of a stream for all processes, after what they have used of it."""
        num_used = (self._num_read - self._num_before_load - self.is_ahead) * self.num_data_ranks
        num_items = num_used * ((self.batch_size or 1) if shareable.gives_samples else 1)
        return copy.deepcopy(shareable.stream.shared_state(num_items))

    @property
    def num_workers(self) -> int:
        """Number of worker processes that read the loader."""
        return getattr(self.loader, "num_workers", 0)

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch; None if the loader does not tell."""
        return getattr(self.loader, "batch_size", None)

    def is_read_otherwise(self, batch_size: int | None, num_workers: int) -> bool:
        """Return whether the loader's own state was taken with other batches, which matter to a sampler, or workers.

        Args:
            batch_size: The `batch_size` of then; None if it does not matter.
            num_workers: The `num_workers` of then.
        """
        has_other_batches = self._is_map_style and None not in (batch_size, self.batch_size)
        return num_workers != self.num_workers or (has_other_batches and batch_size != self.batch_size)

    def _position(self) -> dict[str, Any] | None:
        """Return the position in the order of all processes; None if that is unknown."""
        if self._rest is not None:
            return {**self._rest.position, "num_read": self._num_read}
        whole = None if self._is_node_loader or not self._num_read else whole_order(self.loader, self.num_data_ranks)
        if whole is None:
            return None
        parts = (one for part in (self._source, self.loader) for one in samplers_of(part))
        replayed = next((part for part in parts if isinstance(part, ReplayedSampler)), None)
        if replayed is None and self.num_data_ranks > 1 and whole.replica is None:
            return None
        return position_in(self.loader, whole, replayed, self.data_rank, self.num_data_ranks, self._num_read)

    def _go_on_with_rest(self, state: dict[str, Any]) -> None:
        """Let the next iteration read the rest of an order that was shared out anew, now or before.

        Raises:
            ValueError: If the order of all is not known, or not of this loader.
        """
        whole, position = whole_order(self.loader, self.num_data_ranks), state.get("position")
        if self.resharing is not None and (position is None or whole is None):
            if self._has_other_workers:
                rule = "read by as many workers, in batches of the same size, as in the checkpoint, or tell its order"
                action = "Give the same, or resume from a checkpoint that was saved at an epoch's end."
                raise ValueError(must_be("train loader", rule, self.loader, "fit", action))
            rule = f"that of the checkpoint ({self.resharing.num_before}), which was saved inside an epoch"
            end = "resume from a checkpoint that was saved at an epoch's end"
            action = f"Use as many processes, {end}, or give a stream `shared_state` and `load_shared_state`."
            got = f"{self.num_data_ranks}, among which the order of its samples cannot be shared out anew"
            name = type(self.loader).__name__
            raise ValueError(f"`number of processes` must be {rule}, but got {got} ({name}) in fit. {action}")
        assert position is not None and whole is not None
        own = state.get("loader")
        if self.resharing is not None:
            position, own = advanced(position, self.resharing, whole, self.num_data_ranks, own), None
        self._unread = None if own is None else self._unread
        self._num_read = position["num_read"]
        self._rest = rest_of_order(self.loader, whole, position, self.data_rank, self.num_data_ranks)
        if self._follows_samples and self._order is not None:
            self._order.recorded = {}
        if own is not None:
            self._reader.load_state_dict(own)
        self._resumed = iter(self._reader)

    def _go_on_with_stream(self, shareable: Shareable, state: dict[str, Any]) -> None:
        """Let the next iteration give this process's share of what is left of a stream."""
        if not shareable.is_own_state:
            self._fresh_start = FreshShare(shareable.stream, self._source, generators_of(self.loader))
        shareable.stream.load_shared_state(copy.deepcopy(state["shared"]))
        self._unread, self._was_begun, self.gives_again, self._is_rest_of_stream = None, False, True, True
        self._num_read = self._num_before_load = state["num_read"] - state["is_ahead"]
        self._start = state.get("start")
        self._resumed = iter(self._source)

    def _leave_rest(self) -> None:
        """Read the loader itself from now on."""
        self._is_rest_of_stream = False
        if self._rest is not None:
            if self._num_read == self._rest.num_batches:
                self._rest.finish()
                self._is_exhausted = True
            self._rest, self._was_begun = None, False
            self._keep_workers()

    def _resume(self, state: dict[str, Any]) -> None:
        self._num_of_pass = None
        shareable, is_reshared = self._shareable, self.resharing is not None
        if "shared" in state and shareable and (is_reshared or self._is_stateless or shareable.is_own_state):
            self._go_on_with_stream(shareable, state)
            return
        is_rest = state.get("position", {}).get("stop") is not None
        if self.resharing is not None or is_rest:
            self._go_on_with_rest(state)
            return
        whole = whole_order(self.loader, self.num_data_ranks) if "position" in state else None
        if whole is not None:
            check_sampler(whole, state["position"])
        self._num_read = state["num_read"]
        if self._is_stateless or not self._is_exact():
            self._fast_forward(state)
            return
        self._start = state.get("start")
        self._num_before_load = state.get("num_before_load", 0)
        self._is_rest_of_stream = state.get("is_rest_of_stream", False)
        if self._start is not None:
            restore_random_state(self._start, generators_of(self.loader))
        if self._streams_here:
            self._fresh_start = FreshStart(self._streams_here, generators_of(self.loader))
        self._source.load_state_dict(state["loader"])
        self._resumed = _without_restart(self._source) if self._is_node_loader else iter(self._source)
        all_nodes = nodes_of(self._source)
        for node_idx in state.get("ended", ()):
            all_nodes[node_idx]._it = iter(())

    def _is_exact(self) -> bool:
        """Return whether the state restores the streams exactly. Raises `ValueError` if not, and that is refused."""
        streams, loader = streams_at(self._streams), self.loader
        num_samples = 2 * (getattr(loader, "batch_size", None) or 1)
        inexact = [stream for stream in streams if not resumes_exactly(stream, num_samples)]
        if not inexact and isinstance(loader, DataLoader) and loader.num_workers:
            inexact = [stream for stream in streams if not _resumes_in_workers(stream, loader)]
        if inexact and self._stateless == "refuse":
            rule = "one that goes on with the same samples once its state was loaded, to resume inside an epoch"
            action = f"If its state is exact, give it `resumes_exactly = True`; else {_OTHERWISE}"
            raise ValueError(must_be("train loader", rule, inexact[0], "fit", action))
        return not inexact

    def _fast_forward(self, state: dict[str, Any]) -> None:
        if self._stateless == "refuse":
            raise ValueError(_stateless_message(self.loader, "fit"))
        warn_user(
            f"The train loader ({type(self.loader).__name__}) has no state that restores it: the batches that were "
            "used are read again and dropped, which is not exact if it draws random numbers between batches. Give it "
            "`state_dict` and `load_state_dict`."
        )
        self._start = state["start"]
        restore_random_state(state["start"], generators_of(self.loader))
        self._resumed = iter(self._source)
        for _ in range(self._num_read):
            next(self._resumed, None)

    def _load_end(self, state: dict[str, Any]) -> None:
        """Load the state at an iteration's end, so that the next one begins anew.

        torchdata's loaders restore what outlives an epoch (the state of samplers, datasets or workers) when they make
        an iterator, which asking a `StatefulDataLoader` for its state does.
        """
        own, is_exhausted = state["loader"], state["is_exhausted"]
        replayed = [one for one in samplers_of(self._source) if isinstance(one, ReplayedSampler)]
        for sampler in replayed:
            sampler.is_checked = False  # it may know the next epoch, and no sample is taken of this one
        self._source.load_state_dict(copy.deepcopy(own))
        torchdata = sys.modules.get("torchdata.stateful_dataloader")
        if self._is_node_loader:
            _without_restart(self._source)
        elif torchdata is not None and isinstance(self._source, torchdata.StatefulDataLoader):
            self._source.state_dict()
            if not is_exhausted:
                iter(self._source)
        elif not is_exhausted:
            iter(self._source)  # goes on where it was left, so that the next one begins anew
            if not are_same(self._source.state_dict(), own):
                self._source.load_state_dict(own)  # that one began anew already, but not in its turn
        for sampler in replayed:
            sampler.is_checked = True


def _resumes_in_workers(stream: Any, loader: DataLoader[Any]) -> bool:
    """Return whether workers restore a stream exactly, by a trial: there it may divide itself, and its numbers."""
    if getattr(stream, "resumes_exactly", False):
        return True
    trials = []
    for _ in range(2):
        dataset = copied(stream)
        if dataset is None:
            return True
        dataset.resumes_exactly = True  # no trial within a trial
        sizes = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        trials.append(ResumableLoader(copy_loader(loader, DataLoader, **sizes, dataset=dataset)))
    whole, resumed = trials
    batches, num_batches = iter(whole), 2 * loader.num_workers
    next(batches, None)
    state = whole.state_dict()
    expected = [checksum(batch) for batch in islice(batches, num_batches)]
    resumed.load_state_dict(state)
    actual = [checksum(batch) for batch in islice(resumed, num_batches)]
    for trial in trials:
        trial.stop_workers()
    return actual == expected


def _without_restart(loader: Any) -> Iterator[Any]:
    """Return the iterator of a loader of torchdata's nodes that goes on from a loaded state, also from an epoch's end.

    By itself the loader would read a batch to see whether there is one; if there is none, it would begin the next epoch
    and tell the state of the last one from then on.
    """
    restarts, loader.restart_on_stop_iteration = loader.restart_on_stop_iteration, False
    iterator: Iterator[Any] = iter(loader)
    loader.restart_on_stop_iteration = restarts
    nodes = sys.modules["torchdata.nodes"]
    for node in nodes_of(loader):
        if isinstance(node, (nodes.SamplerWrapper, nodes.MultiNodeWeightedSampler)):
            # they count only epochs that they were read in, and forget that they were when they load a state
            node._started = node._num_yielded > 0
    return iterator


def _begin_nodes_in(loader: Any, epoch: int) -> None:
    """Let those of torchdata's nodes that count epochs begin in a later one."""
    nodes = sys.modules["torchdata.nodes"]
    for node in nodes_of(loader):
        if isinstance(node, nodes.SamplerWrapper):
            for _ in range(epoch):
                node.epoch = node.epoch_updater(node.epoch)
        elif isinstance(node, nodes.MultiNodeWeightedSampler):
            node._epoch = epoch


def _ended_nodes(loader: Any) -> list[int]:
    """Return which of torchdata's nodes have run a generator of the user's to its end, as for a last, smaller batch.

    Their own states do not tell, and what a generator does at its end (drawing numbers, say) is done once. Nodes that
    read ahead in threads are ahead of their states, so of these nothing is known.
    """
    nodes, all_nodes = sys.modules["torchdata.nodes"], nodes_of(loader)
    reading_ahead = (nodes.Prefetcher, nodes.PinMemory)
    if any(isinstance(node, reading_ahead) or getattr(node, "num_workers", 0) for node in all_nodes):
        return []
    iterators = [getattr(node, "_it", None) for node in all_nodes]
    return [idx for idx, one in enumerate(iterators) if isgenerator(one) and getgeneratorstate(one) == GEN_CLOSED]


def _stateless_message(loader: object, where: str) -> str:
    rule, action = "one with a state to resume inside an epoch", "Give it (or its dataset) `state_dict` and "
    action += f"`load_state_dict`, {_OTHERWISE}{_OTHER_STATE * _has_other_state(loader)}"
    return must_be("train loader", rule, loader, where, action)


def _has_other_state(loader: object) -> bool:
    """Return whether a loader, or its dataset, has a `state_dict` with other arguments than torch's protocol has."""
    parts = (loader, getattr(loader, "dataset", None))
    return not has_state(loader) and any(hasattr(part, "state_dict") and not has_state(part) for part in parts)
