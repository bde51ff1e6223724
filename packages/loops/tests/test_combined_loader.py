"""What a combined loader gives equals a plain model of its mode, and going on equals not stopping."""

from __future__ import annotations

import io
import math
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from bare_parts import Unsized
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler

from camshaft.loops.data.combined_loader import CombinedLoader

AT_ONCE = ("min_size", "max_size", "max_size_cycle")
MODES = (*AT_ONCE, "sequential")


class Pair(NamedTuple):
    one: Any
    other: Any


class Shuffled:
    """A loader of numbers in a new order each time, drawn from a generator of its own, that keeps its place."""

    def __init__(self, length: int, seed: int = 0) -> None:
        self.length = length
        self.random = random.Random(seed)
        self.order: list[int] = []
        self.position = 0
        self.is_reading = False
        self.resumes = False
        self.num_begun = 0
        self.num_read = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        if not self.resumes:
            self.num_begun += 1
            self.order, self.position = self.random.sample(range(self.length), self.length), 0
        self.resumes, self.is_reading = False, True
        return self._read()

    def _read(self) -> Iterator[int]:
        while self.position < self.length:
            self.position += 1
            self.num_read += 1
            yield self.order[self.position - 1]
        self.is_reading = False

    def state_dict(self) -> dict[str, Any]:
        version, numbers, rest = self.random.getstate()
        place = {"order": list(self.order), "position": self.position, "is_reading": self.is_reading}
        return {**place, "version": version, "numbers": list(numbers), "rest": rest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order, self.position = list(state["order"]), state["position"]
        self.is_reading = self.resumes = state["is_reading"]
        self.random.setstate((state["version"], tuple(state["numbers"]), state["rest"]))


class Recorder:
    """A loader whose batches say how often it was begun before and how many it gave then."""

    def __init__(self, length: int, is_sized: bool = True) -> None:
        self.length = length
        self.num_begun = 0
        if is_sized:
            self.__class__ = type("SizedRecorder", (Recorder,), {"__len__": lambda self: self.length})

    def __iter__(self) -> Iterator[str]:
        self.num_begun += 1
        return iter([f"pass {self.num_begun - 1}, {number}" for number in range(self.length)])


def replaced(structure: Any, function: Callable[[Any], Any]) -> Any:
    """The structure with `function` of each leaf, first to last, in its place."""
    if isinstance(structure, dict):
        return {key: replaced(value, function) for key, value in structure.items()}
    if isinstance(structure, Pair):
        return Pair(*[replaced(value, function) for value in structure])
    if isinstance(structure, (list, tuple)):
        return type(structure)([replaced(value, function) for value in structure])
    return function(structure)


def leaves_of(structure: Any) -> list[Any]:
    found: list[Any] = []
    replaced(structure, found.append)
    return found


def nested(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """One to a few leaves in dictionaries, lists, tuples and named tuples."""
    return st.recursive(
        leaf,
        lambda inner: (
            st.lists(inner, min_size=1, max_size=3)
            | st.lists(inner, min_size=1, max_size=3).map(tuple)
            | st.builds(Pair, inner, inner)
            | st.dictionaries(st.sampled_from(["a", "b", 0, 1]), inner, min_size=1, max_size=3)
        ),
        max_leaves=5,
    )


def model(mode: str, lengths: list[int]) -> list[list[Any]]:
    """What each recorder gives in each batch of the first iteration; one value a batch if they come in sequence."""
    if mode == "sequential":
        return [[f"pass 0, {k}"] for length in lengths for k in range(length)]
    num_batches = min(lengths) if mode == "min_size" else max(lengths)
    if mode == "max_size_cycle":
        return [[f"pass {k // length}, {k % length}" for length in lengths] for k in range(num_batches)]
    return [[f"pass 0, {k}" if k < length else None for length in lengths] for k in range(num_batches)]


@settings(deadline=None)
@given(structure=nested(st.integers(1, 7)), mode=st.sampled_from(MODES), is_sized=st.booleans())
def test_the_batches_are_those_of_the_model(structure: Any, mode: Any, is_sized: bool) -> None:
    combined = CombinedLoader(replaced(structure, lambda length: Recorder(length, is_sized)), mode)
    expected = model(mode, leaves_of(structure))
    given_batches = list(combined)
    assert [leaves_of(batch) for batch in given_batches] == expected
    for batch, row in zip(given_batches, expected if mode in AT_ONCE else [], strict=mode in AT_ONCE):
        values = iter(row)
        assert repr(batch) == repr(replaced(structure, lambda _, values=values: next(values)))  # with its types
    if is_sized:
        assert len(combined) == len(expected)


@given(structure=nested(st.integers(0, 4)), mode=st.sampled_from(["min_size", "max_size", "sequential"]))
def test_loaders_may_be_empty_where_none_begins_anew(structure: Any, mode: Any) -> None:
    combined = CombinedLoader(replaced(structure, Recorder), mode)
    assert [leaves_of(batch) for batch in combined] == model(mode, leaves_of(structure))
    assert len(combined) == len(model(mode, leaves_of(structure)))


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), num_epochs=st.integers(1, 3))
def test_a_cycle_begins_and_reads_nothing_in_vain(lengths: list[int], num_epochs: int) -> None:
    loaders = [Shuffled(length) for length in lengths]
    combined = CombinedLoader(loaders)
    for _ in range(num_epochs):
        assert len(list(combined)) == max(lengths)
    assert [loader.num_begun for loader in loaders] == [num_epochs * math.ceil(max(lengths) / n) for n in lengths]
    assert [loader.num_read for loader in loaders] == [num_epochs * max(lengths)] * len(lengths)


@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=4), data=st.data())
def test_a_sequence_begins_each_loader_in_its_turn(lengths: list[int], data: Any) -> None:
    loaders = [Shuffled(length) for length in lengths]
    batches = iter(CombinedLoader(loaders, "sequential"))
    num_read = data.draw(st.integers(0, sum(lengths)))
    for _ in range(num_read):
        next(batches)
    read = [loader.num_read for loader in loaders]
    assert sum(read) == num_read
    last = max((idx for idx, number in enumerate(read) if number), default=-1)
    assert read[: max(last, 0)] == lengths[: max(last, 0)], "the earlier ones were read to their end"
    assert [loader.num_begun for loader in loaders] == [int(idx <= last) for idx in range(len(lengths))]


@given(structure=nested(st.integers(1, 4)), mode=st.sampled_from(MODES))
def test_each_iteration_begins_every_reload_for_trial(structure: Any, mode: Any) -> None:
    loaders = replaced(structure, lambda length: Unsized(range(length)))
    combined = CombinedLoader(loaders, mode)
    first = list(combined)
    for _ in combined:
        break  # what was left does not matter to the next
    assert list(combined) == first


def test_a_single_loader_gives_its_own_batches() -> None:
    for mode in MODES:
        assert list(CombinedLoader(range(3), mode)) == [0, 1, 2]


def test_a_mapping_gives_a_dictionary() -> None:
    (batch,) = CombinedLoader(OrderedDict(a=range(1), b=range(1)))
    assert type(batch) is dict and batch == {"a": 0, "b": 0}


def test_two_iterations_at_once_do_not_disturb_each_other() -> None:
    for mode in MODES:
        combined = CombinedLoader([range(2), range(3)], mode)
        expected = list(combined)
        assert list(zip(combined, combined, strict=True)) == list(zip(expected, expected, strict=True))


@given(structure=nested(st.integers(1, 4)), mode=st.sampled_from(MODES))
def test_with_loaders_replaces_every_loader_and_keeps_the_rest(structure: Any, mode: Any) -> None:
    class Special(CombinedLoader):
        pass

    loaders = replaced(structure, lambda length: range(length))
    combined = Special(loaders, mode)
    mapped = combined.with_loaders(Unsized)
    assert type(mapped) is Special and mapped.mode == combined.mode == mode
    assert combined.loaders is loaders and combined.flattened == leaves_of(loaders)
    assert [leaf.batches for leaf in mapped.flattened] == [list(leaf) for leaf in combined.flattened]
    assert list(mapped) == list(combined)


def test_the_length_is_unknown_if_that_of_a_loader_is() -> None:
    for mode in MODES:
        combined = CombinedLoader({"a": range(3), "b": [range(4), Unsized([1])]}, mode)
        with pytest.raises(TypeError, match=r"object of type 'Unsized' has no len\(\)"):
            len(combined)


def test_the_length_follows_loaders_that_change_theirs() -> None:
    batches = Recorder(2)
    combined = CombinedLoader([batches, range(3)])
    batches.length = 5
    assert len(combined) == len(list(combined)) == 5


def test_an_unknown_mode_is_refused() -> None:
    message = "`mode` must be one of 'min_size', 'max_size', .*'sequential', 'weighted', but got 'longest' "
    with pytest.raises(ValueError, match=message):
        CombinedLoader([range(3)], "longest")  # type: ignore[arg-type]


@pytest.mark.parametrize("nothing", [[], {}, (), {"a": [], "b": {}}])
def test_no_loader_is_refused(nothing: Any) -> None:
    with pytest.raises(ValueError, match="`loaders` must be at least one loader, but got"):
        CombinedLoader(nothing)


@pytest.mark.parametrize("leaf", [None, 3, "text", b"bytes"])
def test_what_is_no_loader_is_refused_with_its_place(leaf: Any) -> None:
    message = r"`loaders\['a'\]\[1\]` must be a loader \(an iterable of batches\), but got .* in CombinedLoader"
    with pytest.raises(TypeError, match=message):
        CombinedLoader({"a": [range(3), leaf]})


def test_a_list_of_batches_is_no_loader() -> None:
    message = (
        r"`loaders\[0\]\[0\]` must be a loader .*, and no tensor, but got .* dictionary is a collection of loaders"
    )
    with pytest.raises(TypeError, match=message):
        CombinedLoader([[torch.zeros(3), torch.zeros(3)]])


def test_a_loader_that_gives_nothing_when_it_begins_anew_is_an_error() -> None:
    message = r"`loaders\[0\]` must be a loader that gives at least one batch .* in CombinedLoader"
    with pytest.raises(RuntimeError, match=message):
        list(CombinedLoader([Unsized([]), range(2)]))
    once = iter([1, 2])  # can be iterated over once only
    batches = iter(CombinedLoader([once, range(4)]))
    assert [next(batches), next(batches)] == [[1, 0], [2, 1]]
    with pytest.raises(RuntimeError, match=message):
        next(batches)


def test_only_empty_loaders_make_no_batch() -> None:
    for mode in MODES:
        assert list(CombinedLoader([Unsized([]), Unsized([])], mode)) == []


# State


def shuffled_loaders(structure: Any, seed: int) -> Any:
    seeds = iter(range(seed, seed + 100))
    return replaced(structure, lambda length: Shuffled(length, next(seeds)))


def saved(state: dict[str, Any]) -> Any:
    """The state as it comes back from a checkpoint, which holds tensors and plain values only."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def read(combined: CombinedLoader, num_epochs: int) -> list[list[Any]]:
    return [list(combined) for _ in range(num_epochs)]


@given(
    structure=nested(st.integers(1, 4)),
    mode=st.sampled_from(MODES),
    num_epochs=st.integers(0, 2),
    data=st.data(),
)
def test_going_on_at_any_batch_equals_not_stopping(structure: Any, mode: Any, num_epochs: int, data: Any) -> None:
    expected = read(CombinedLoader(shuffled_loaders(structure, 0), mode), num_epochs + 3)
    stopped = CombinedLoader(shuffled_loaders(structure, 0), mode)
    read(stopped, num_epochs)
    batches = iter(stopped)
    num_batches = data.draw(st.integers(0, len(expected[num_epochs])), "batches before the stop")
    assert [next(batches) for _ in range(num_batches)] == expected[num_epochs][:num_batches]
    state = saved(stopped.state_dict())
    resumed = CombinedLoader(shuffled_loaders(structure, 50), mode)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert list(resumed) == expected[num_epochs][num_batches:]
    assert read(resumed, 2) == expected[num_epochs + 1 :]
    assert list(batches) == expected[num_epochs][num_batches:]  # that a state was taken changes nothing


@given(structure=nested(st.integers(1, 4)), mode=st.sampled_from(MODES), num_epochs=st.integers(0, 3))
def test_going_on_between_iterations_equals_not_stopping(structure: Any, mode: Any, num_epochs: int) -> None:
    expected = read(CombinedLoader(shuffled_loaders(structure, 0), mode), num_epochs + 2)
    stopped = CombinedLoader(shuffled_loaders(structure, 0), mode)
    read(stopped, num_epochs)
    state = saved(stopped.state_dict())
    resumed = CombinedLoader(shuffled_loaders(structure, 50), mode)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert read(resumed, 2) == expected[num_epochs:]


@given(structure=nested(st.integers(1, 4)), mode=st.sampled_from(MODES), data=st.data())
def test_going_on_again_and_again_equals_not_stopping(structure: Any, mode: Any, data: Any) -> None:
    expected = [batch for epoch in read(CombinedLoader(shuffled_loaders(structure, 0), mode), 2) for batch in epoch]
    combined = CombinedLoader(shuffled_loaders(structure, 0), mode)
    found: list[Any] = []
    num_ended = 0
    while num_ended < 2:
        batches = iter(combined)
        for _ in range(data.draw(st.integers(1, 3))):
            batch = next(batches, None)
            if batch is None:
                num_ended += 1
                break
            found.append(batch)
        state = saved(combined.state_dict())
        combined = CombinedLoader(shuffled_loaders(structure, 50), mode)
        combined.load_state_dict(state)
    assert found == expected


@given(structure=nested(st.integers(1, 4)), mode=st.sampled_from(MODES), data=st.data())
def test_an_iteration_that_was_left_has_ended(structure: Any, mode: Any, data: Any) -> None:
    stopped = CombinedLoader(shuffled_loaders(structure, 0), mode)
    num_batches = data.draw(st.integers(1, len(stopped)))
    for batch_idx, _ in enumerate(stopped):
        if batch_idx + 1 == num_batches:
            break
    state = saved(stopped.state_dict())
    resumed = CombinedLoader(shuffled_loaders(structure, 50), mode)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert read(resumed, 2) == read(stopped, 2)


@pytest.mark.parametrize("mode", MODES)
def test_only_one_iteration_goes_on_from_a_state(mode: Any) -> None:
    stopped = CombinedLoader(shuffled_loaders([2, 3], 0), mode)
    batches = iter(stopped)
    next(batches)
    resumed = CombinedLoader(shuffled_loaders([2, 3], 50), mode)
    resumed.load_state_dict(stopped.state_dict())
    first, second = iter(resumed), iter(resumed)
    assert len(list(second)) == len(list(first)) == len(resumed)


@pytest.mark.parametrize("mode", MODES)
def test_an_iteration_that_is_ended_is_over_though_its_iterator_lives(mode: Any) -> None:
    def nested_in_another(seed: int) -> CombinedLoader:
        inner = CombinedLoader(shuffled_loaders([2, 4], seed), mode)
        return CombinedLoader([Shuffled(3, seed + 10), inner], mode)

    stopped = nested_in_another(0)
    batches = iter(stopped)
    next(batches)
    stopped.end_iteration()
    resumed = nested_in_another(50)
    resumed.load_state_dict(saved(stopped.state_dict()))
    assert read(resumed, 2) == read(stopped, 2)
    batches.close()  # it lived until here


@given(data=st.data(), modes=st.tuples(st.sampled_from(MODES), st.sampled_from(MODES)))
def test_a_combined_loader_is_a_loader_with_a_state(data: Any, modes: Any) -> None:
    def combined(seed: int) -> CombinedLoader:
        inner = CombinedLoader([Shuffled(2, seed), Shuffled(3, seed + 1)], modes[0])
        return CombinedLoader({"inner": inner, "outer": Shuffled(5, seed + 2)}, modes[1])

    expected = read(combined(0), 3)
    num_batches = data.draw(st.integers(0, len(expected[1])))
    stopped = combined(0)
    read(stopped, 1)
    batches = iter(stopped)
    for _ in range(num_batches):
        next(batches)
    resumed = combined(50)
    resumed.load_state_dict(saved(stopped.state_dict()))
    assert [list(resumed), *read(resumed, 1)] == [expected[1][num_batches:], expected[2]]


def stateful(length: int, seed: int, num_workers: int = 0) -> Any:
    dataset = TensorDataset(torch.arange(3 * length))
    # A generator given to the loader would also seed workers, which torchdata does not restore.
    sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(seed))
    return StatefulDataLoader(dataset, batch_size=3, sampler=sampler, num_workers=num_workers)


def numbers(batches: list[Any]) -> list[Any]:
    return [[part if part is None else part[0].tolist() for part in leaves_of(batch)] for batch in batches]


def two_stateful(seed: int, mode: Any, num_workers: int = 0) -> CombinedLoader:
    loaders = {"a": stateful(2, seed, num_workers), "b": stateful(5, seed + 1, num_workers)}
    return CombinedLoader(loaders, mode)


@pytest.mark.parametrize("mode", MODES)
def test_shuffled_stateful_data_loaders_go_on_at_every_batch(mode: Any) -> None:
    expected = [numbers(epoch) for epoch in read_tensors(two_stateful(0, mode), 3)]
    assert expected[0] != expected[1]
    for num_batches in range(len(expected[1]) + 1):
        stopped = two_stateful(0, mode)
        list(stopped)
        batches = iter(stopped)
        for _ in range(num_batches):
            next(batches)
        resumed = two_stateful(50, mode)
        resumed.load_state_dict(saved(stopped.state_dict()))
        assert numbers(list(resumed)) == expected[1][num_batches:]
        assert numbers(list(resumed)) == expected[2]


@pytest.mark.parametrize("mode", MODES)
def test_shuffled_stateful_data_loaders_go_on_between_epochs(mode: Any) -> None:
    stopped = two_stateful(0, mode)
    list(stopped)
    resumed = two_stateful(50, mode)
    resumed.load_state_dict(saved(stopped.state_dict()))
    for _ in range(2):
        assert numbers(list(resumed)) == numbers(list(stopped))


@pytest.mark.parametrize("mode", MODES)
def test_shuffled_stateful_data_loaders_with_workers_go_on(mode: Any) -> None:
    stopped = two_stateful(0, mode, num_workers=1)
    list(stopped)
    batches = iter(stopped)
    next(batches)
    resumed = two_stateful(50, mode, num_workers=1)
    resumed.load_state_dict(saved(stopped.state_dict()))
    assert numbers(list(resumed)) == numbers(list(batches))
    assert numbers(list(resumed)) == numbers(list(stopped))


def read_tensors(combined: CombinedLoader, num_epochs: int) -> list[list[Any]]:
    return [list(combined) for _ in range(num_epochs)]


def test_a_loader_without_a_state_is_named() -> None:
    combined = CombinedLoader({"a": Shuffled(2), "b": DataLoader(TensorDataset(torch.arange(3)))})
    with pytest.raises(AttributeError, match="'DataLoader' object has no attribute 'state_dict'"):
        combined.state_dict()


def test_a_loader_in_two_places_has_no_state() -> None:
    loader = Shuffled(2)
    with pytest.raises(ValueError, match="`loaders` must be different objects in every place"):
        CombinedLoader([loader, loader]).state_dict()


def test_the_state_of_other_loaders_or_of_another_mode_is_refused() -> None:
    state = CombinedLoader({"a": Shuffled(2), "b": Shuffled(2)}).state_dict()
    with pytest.raises(ValueError, match=r"`state` must be one of mode .* and loaders\['a'\], loaders\['c'\], but got"):
        CombinedLoader({"a": Shuffled(2), "c": Shuffled(2)}).load_state_dict(state)
    with pytest.raises(ValueError, match=r"`state` must be one of mode 'min_size' .*, but got \('max_size_cycle'"):
        CombinedLoader({"a": Shuffled(2), "b": Shuffled(2)}, "min_size").load_state_dict(state)


def test_a_state_finds_its_loaders_in_another_order() -> None:
    stopped = CombinedLoader({"a": Shuffled(3, 0), "b": Shuffled(4, 1)})
    batches = iter(stopped)
    next(batches)
    resumed = CombinedLoader({"b": Shuffled(4, 50), "a": Shuffled(3, 51)})
    resumed.load_state_dict(stopped.state_dict())
    assert list(resumed) == list(batches)


class Failing(Shuffled):
    """Raises in the place of its second batch, once."""

    def _read(self) -> Iterator[int]:
        for number in super()._read():
            if self.num_read == 2:
                self.num_read = 10
                raise OSError("unreadable")
            yield number


@pytest.mark.parametrize("mode", MODES)
def test_there_is_no_state_within_a_batch(mode: Any) -> None:
    combined = CombinedLoader([Shuffled(3), Failing(3)], mode)
    with pytest.raises(OSError, match="unreadable"):
        list(combined)
    message = "`iteration` must be between two batches when its state is taken, but got 'interrupted by an error'"
    with pytest.raises(RuntimeError, match=message):
        combined.state_dict()
    assert len(list(combined)) == len(combined)  # the next iteration is another
    assert combined.state_dict()["phase"] == "over"
