"""Streams with a state of their own: what it restores, found by trials of copies, and iterations without it."""

from __future__ import annotations

import copy
import ctypes
import inspect
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import ModuleType
from typing import Any, Protocol

import attrs
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from camshaft.loops.data.combined_loader import end_workers
from camshaft.loops.state.random_state import are_same, isolated_randomness, random_state, restore_random_state


class ShareableStream(Protocol):
    """A stream that other processes can go on with inside an epoch, in place of those that began it.

    A dataset, a loader or the last of torchdata's nodes with these two methods is one. So are the datasets of
    MosaicML's Streaming, by their own `state_dict(num_samples, from_beginning)`, if its `StreamingDataLoader` reads
    them.
    """

    def shared_state(self, num_items: int) -> Any:
        """Return the state of all processes together, as tensors and plain values; the same in each of them.

        Args:
            num_items: What all of them have taken together since the iteration began or, if that came later, since
                `load_shared_state`: samples of a dataset, of anything else batches. What was read ahead is not counted.
        """

    def load_shared_state(self, state: Any) -> None:
        """Let the next iteration give this process its share of what is left, whatever the number of processes is.

        A state that stays is taken out again: for later iterations the one from before the first load is loaded.
        """


@attrs.frozen
class _OfStreaming:
    """A dataset of MosaicML's Streaming as a `ShareableStream`."""

    dataset: Any

    def shared_state(self, num_items: int) -> Any:
        return self.dataset.state_dict(num_items, False)

    def load_shared_state(self, state: Any) -> None:
        self.dataset.load_state_dict(state)


@attrs.frozen
class Shareable:
    """A stream that other processes can go on with, behind a loader.

    Attributes:
        stream: The stream.
        gives_samples: Whether its items are samples, not batches.
        is_own_state: Whether the shared state is the loader's own one, too.
    """

    stream: ShareableStream
    gives_samples: bool
    is_own_state: bool = False


def shareable_of(loader: Any) -> Shareable | None:
    """Return the shareable stream that a loader reads; None if there is none."""
    dataset = getattr(loader, "dataset", None)
    parts: tuple[tuple[Any, bool], ...] = ((loader, False), (getattr(loader, "root", None), False), (dataset, True))
    for part, gives_samples in parts:
        if all(callable(getattr(part, name, None)) for name in ("shared_state", "load_shared_state")):
            return Shareable(part, gives_samples)
    method = getattr(dataset, "state_dict", None)
    names = set() if not callable(method) else inspect.signature(method).parameters.keys()
    if (
        {"num_samples", "from_beginning"} <= names
        and callable(getattr(loader, "state_dict", None))
        and callable(getattr(dataset, "load_state_dict", None))
    ):
        return Shareable(_OfStreaming(dataset), gives_samples=True, is_own_state=True)
    return None


_END = object()
_MAX_PARTS = 1000  # of a stream that are looked at


def resumes_exactly(source: Any, num_items: int, dataset: Any = None) -> bool:
    """Return whether an iterable goes on with the items that it would have given, once its state was loaded.

    It tells by an attribute `resumes_exactly`. Without one, copies of it are tried: the state of one is loaded into
    another, and what both give then is compared. That is done after the first item and, where a stream has a shuffle
    buffer, after half of it and after all of it. What cannot be copied is believed.

    Args:
        source: A stream or a sampler with a state. It is not iterated over; what its copies read, it reads again.
        num_items: Number of items to compare. The caller puts random numbers back.
        dataset: What a sampler's indices are of, which is not copied. Its state must be known before it is read, too.
    """
    declared = getattr(source, "resumes_exactly", None)
    if declared is not None:
        return bool(declared)
    whole = copied(source, dataset)
    if whole is None:
        return True
    if dataset is not None:
        whole.state_dict()
    items, num_read, buffer_size = iter(whole), 0, _buffer_size(source)
    for place in sorted({1, buffer_size // 2 + 1, buffer_size + 1}):
        num_read += sum(1 for _ in islice(items, max(0, place - num_read)))
        state, numbers = copy.deepcopy(whole.state_dict()), random_state()
        expected = [checksum(item) for item in islice(items, num_items)]
        num_read, later_numbers = num_read + len(expected), random_state()
        resumed = copied(source, dataset)
        resumed.load_state_dict(state)
        rest = iter(resumed)
        restore_random_state(numbers)
        if [checksum(item) for item in islice(rest, len(expected))] != expected:
            return False
        restore_random_state(later_numbers)
    return True


def continues_from_end(stream: Any, state: Any, *, is_exhausted: bool, dataset: Any = None) -> bool:
    """Return whether a stream, in its next iteration, goes on from its state at the end of the last one.

    Copies are tried. A stream that was read to its end, and gives nothing after its state was loaded, begins anew by
    itself. One whose iteration was cut short does if two iterations over it begin alike. What cannot be copied goes on.
    `dataset` is what a sampler's indices are of, as for `resumes_exactly`.
    """
    trial = copied(stream, dataset)
    if trial is None:
        return True
    if is_exhausted:
        trial.load_state_dict(copy.deepcopy(state))
        return next(iter(trial), _END) is not _END
    begun = []
    for _ in range(2):
        next(iter(trial), None)
        begun.append(copy.deepcopy(trial.state_dict()))
    return not are_same(*begun)


def _buffer_size(stream: Any) -> int:
    """Return the largest number that a stream, or what it is made of, has under the name of a buffer; 0 without one."""
    largest, seen, parts = 0, set[int](), [stream]
    while parts and len(seen) < _MAX_PARTS:
        part = parts.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        named = part if isinstance(part, dict) else getattr(part, "__dict__", {})
        sizes = (value for name, value in named.items() if "buf" in str(name) and isinstance(value, int))
        largest = max(largest, *sizes, 0)
        values = islice(part if isinstance(part, (list, tuple)) else named.values(), _MAX_PARTS)
        objects = [value for value in values if not isinstance(value, (type, ModuleType, Tensor))]
        parts += [value for value in objects if isinstance(value, (dict, list, tuple)) or hasattr(value, "__dict__")]
    return largest


def copied(source: Any, shared: Any = None) -> Any:
    """Return a deep copy that has the same `shared` object; None if there can be none, as of an open file."""
    try:
        return copy.deepcopy(source, {id(shared): shared})
    except Exception:  # whatever methods of the user raise
        return None


def checksum(sample: Any) -> int:
    """Return a checksum of the tensors, arrays, texts and numbers in a sample or batch; else the classes count."""
    value = 0
    for leaf in tree_leaves(sample):
        value = zlib.crc32(_content(leaf), value)
    return value


def _content(leaf: Any) -> bytes:
    if isinstance(leaf, Tensor):
        try:
            tensor = leaf.detach().cpu().contiguous()
            return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)
        except (RuntimeError, NotImplementedError):  # one without memory of its own, such as a sparse one
            return repr(leaf.shape).encode()
    if callable(getattr(leaf, "tobytes", None)):  # NumPy's arrays, pictures
        return bytes(leaf.tobytes())
    is_plain = isinstance(leaf, (str, bytes, int, float, complex, type(None)))
    return repr(leaf).encode() if is_plain else type(leaf).__qualname__.encode()


Places = Sequence[tuple[Any, str]]
"""Owners and names of attributes that hold streams."""


def streams_at(places: Places) -> list[Any]:
    """Return the streams that attributes hold."""
    return [getattr(owner, name) for owner, name in places]


def stream_states(places: Places) -> list[Any]:
    """Return copies of the states of the streams that attributes hold."""
    return [copy.deepcopy(stream.state_dict()) for stream in streams_at(places)]


class FreshStart:
    """Lets the iteration after a resumed one begin as if no state had been loaded.

    The state of a stream may stay once it was loaded: each iteration begins where the resumed one began. That is seen
    at the first batch of the next iteration, after which the stream tells the same state as after the resumed one's
    first. A copy from before the state was loaded takes its place then.

    Args:
        places: Owners and names of the attributes that hold the streams.
        generators: Generators that the loader owns.

    Attributes:
        epoch: The epoch that copies are told of, which were made before it began; None tells nothing.
    """

    def __init__(self, places: Places, generators: Sequence[torch.Generator]) -> None:
        self._places = places
        self._generators = generators
        self._copies = [copied(stream) for stream in streams_at(places)]
        self.epoch: int | None = None
        self._position: Any = _END  # until the resumed iteration is read; None is its end

    def note(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Iterate over the rest of the resumed iteration, and note the state after its first batch."""
        first = next(iterator, _END)
        self._position = self._position_after(first)
        yield from _with_first(first, iterator)

    def begin(self, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Begin the next iteration now, and see at its first batch where it begins.

        Args:
            begin: Begins an iteration over the streams that the places hold.
        """
        if any(one is None for one in self._copies):
            return begin()
        if self._position is _END:  # nothing was left to read, up to the limit
            with isolated_randomness(self._generators):
                going_on = [continues_from_end(one, None, is_exhausted=False) for one in self._copies]
            if not any(going_on):
                self._replace()
            return begin()
        before = random_state(self._generators)
        return self._checked(begin(), begin, before)

    def _checked(self, iterator: Iterator[Any], begin: Callable[[], Iterator[Any]], before: Any) -> Iterator[Any]:
        numbers = random_state(self._generators)
        first = next(iterator, _END)
        if not are_same(self._position_after(first), self._position):
            yield from _with_first(first, iterator)
            return
        self._replace()
        restore_random_state(before, self._generators)
        iterator = begin()
        restore_random_state(numbers, self._generators)
        yield from _with_first(next(iterator, _END), iterator)

    def _replace(self) -> None:
        """Let the copies from before take the places of the streams."""
        for (owner, name), stream in zip(self._places, self._copies, strict=True):
            if self.epoch is not None and callable(getattr(stream, "set_epoch", None)):
                stream.set_epoch(self.epoch)
            owner.__dict__[name] = stream  # a data loader lets nobody set its dataset

    def _position_after(self, first: Any) -> list[Any] | None:
        return None if first is _END else stream_states(self._places)


class FreshShare(FreshStart):
    """The same for a shareable stream, which is put back to its beginning by its own methods.

    In worker processes a state always stays: they iterate over copies of a dataset that it was loaded into.

    Args:
        stream: The stream, before a state is loaded.
        loader: The loader that reads it.
        generators: Generators that the loader owns.
    """

    def __init__(self, stream: ShareableStream, loader: object, generators: Sequence[torch.Generator]) -> None:
        super().__init__((), generators)
        self._stream: Any = stream
        self._loader = loader
        self._beginning = self._state()

    def _state(self) -> Any:
        return copy.deepcopy(self._stream.shared_state(0))

    def _position_after(self, first: Any) -> list[Any] | None:
        return None if first is _END else [self._state()]

    def _replace(self) -> None:
        """Put the stream back to its beginning."""
        end_workers([self._loader])
        self._stream.load_shared_state(copy.deepcopy(self._beginning))
        if self.epoch is not None and callable(getattr(self._stream, "set_epoch", None)):
            self._stream.set_epoch(self.epoch)


def _with_first(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    while first is not _END:  # no `for`, which would ask a loader that is its own iterator to begin anew
        yield first
        first = next(rest, _END)
