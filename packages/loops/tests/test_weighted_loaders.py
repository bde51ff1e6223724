"""Loaders drawn by weights: what they give, when they end, and that going on equals not stopping."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from bare_parts import BareTrainer, Net, Sized, make_batches, seeded
from bare_ranks import on_ranks
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from simulated_worlds import Leg, in_their_order, read_chain
from test_combined_loader import Shuffled, saved
from test_shared_loader import Indices
from torch.utils.data import DataLoader, IterableDataset

from camshaft.loops.data.combined_loader import CombinedLoader
from camshaft.loops.data.training_batches import TrainingBatches
from camshaft.loops.data.weighted_draws import StopCriteria

ENDING = ("cycle_until_all_exhausted", "first_exhausted", "all_exhausted_without_replacement")


class Named:
    """A loader whose batches tell its name, the pass and the place in it."""

    def __init__(self, name: int, length: int) -> None:
        self.name, self.length, self.num_passes = name, length, 0

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        self.num_passes += 1
        return ((self.name, self.num_passes - 1, place) for place in range(self.length))

    def __len__(self) -> int:
        return self.length


def weighted(loaders: Any, weights: Any, stop_criteria: Any = "cycle_until_all_exhausted", seed: int = 0) -> Any:
    return CombinedLoader(loaders, "weighted", weights=weights, stop_criteria=stop_criteria, seed=seed)


def ramp(step: int, epoch: int) -> list[float]:
    """Weights that move from the first loader to the second."""
    return [1.0 + epoch, min(step / 4, 3.0)]


@given(
    sizes=st.lists(st.tuples(st.integers(1, 6), st.sampled_from([0, 0.25, 1, 7])), min_size=1, max_size=4).filter(
        lambda sizes: any(weight for _, weight in sizes)
    ),
    stop_criteria=st.sampled_from(ENDING),
    seed=st.integers(0, 99),
)
def test_every_loader_is_read_in_order_and_the_end_is_that_of_the_criterion(
    sizes: Any, stop_criteria: Any, seed: int
) -> None:
    lengths, weights = zip(*sizes, strict=True)
    combined = weighted([Named(*one) for one in enumerate(lengths)], list(weights), stop_criteria, seed)
    found = list(combined)
    beyond = []
    for name, length in enumerate(lengths):
        of_loader = [batch[1:] for batch in found if batch[0] == name]
        assert of_loader == [divmod(place, length) for place in range(len(of_loader))]
        if weights[name]:
            beyond.append(len(of_loader) - length)
        assert weights[name] or not of_loader, "a loader without weight is never read"
    if stop_criteria == "first_exhausted":
        assert max(beyond) == 0
    elif stop_criteria == "cycle_until_all_exhausted":
        assert min(beyond) == 0
    else:
        assert set(beyond) == {0} and len(combined) == len(found)
    assert [batch[0] for batch in combined] == [batch[0] for batch in found], "an epoch has the same draws"


def test_loaders_come_as_often_as_their_weights_say_and_epochs_and_seeds_differ() -> None:
    def draws(seed: int, epoch: int) -> list[int]:
        combined = weighted({"a": [Named(0, 1)], "b": Named(1, 9)}, {"b": 3, "a": [1]}, "cycle_forever", seed)
        combined.set_epoch(epoch)
        batches = iter(combined.with_loaders(lambda leaf: leaf))
        return [next(batches)[0] for _ in range(4000)]

    runs = [draws(0, 0), draws(0, 1), draws(1, 0)]
    assert [abs(sum(run) / 4000 - 0.75) < 0.02 for run in runs] == [True] * 3
    assert runs[0] != runs[1] != runs[2] != runs[0]


def test_a_schedule_is_given_the_batches_of_all_epochs_and_the_epoch() -> None:
    asked: list[tuple[int, int]] = []

    def schedule(step: int, epoch: int) -> dict[str, float]:
        asked.append((step, epoch))
        return {"easy": 1.0 - epoch, "hard": float(epoch)}

    combined = weighted({"easy": Named(0, 2), "hard": Named(1, 3)}, schedule)
    assert [batch[0] for batch in combined] == [0, 0], "it does not wait for a loader whose weight is 0"
    combined.set_epoch(1)
    assert [batch[0] for batch in combined] == [1, 1, 1]
    assert asked == [(0, 0), (1, 0), (2, 0), (2, 1), (3, 1), (4, 1), (5, 1)]


@pytest.mark.filterwarnings("ignore:There is a `validation_step`")
def test_a_schedule_counts_on_where_the_loader_is_asked_for_again() -> None:
    asked: list[tuple[int, int]] = []

    class Reloaded(Net):
        def train_dataloader(self) -> Any:
            schedule = lambda step, epoch: asked.append((step, epoch)) or [1.0]  # noqa: E731
            return weighted([Sized(make_batches(2))], schedule, "first_exhausted")

    BareTrainer(seeded(Reloaded), max_epochs=3, reload_dataloaders_every_n_epochs=1).fit()
    assert {epoch: step for step, epoch in reversed(asked)} == {0: 0, 1: 2, 2: 4}


@given(
    lengths=st.lists(st.integers(1, 5), min_size=2, max_size=2),
    weights=st.sampled_from([[1, 1], [0.5, 2], ramp]),
    stop_criteria=st.sampled_from(ENDING),
    is_nested=st.booleans(),
    stops=st.lists(st.integers(0, 4), max_size=8),
)
def test_going_on_again_and_again_equals_not_stopping(
    lengths: list[int], weights: Any, stop_criteria: Any, is_nested: bool, stops: list[int]
) -> None:
    def make(seed: int) -> CombinedLoader:
        loaders = [Shuffled(length, seed + idx) for idx, length in enumerate(lengths)]
        combined = weighted(loaders, weights, stop_criteria, 3)
        return CombinedLoader({"mixed": combined, "other": Shuffled(9, seed)}, "min_size") if is_nested else combined

    def begin(combined: CombinedLoader, epoch: int) -> Iterator[Any]:
        for one in (combined, *combined.flattened):
            if isinstance(one, CombinedLoader):
                one.set_epoch(epoch)
        return iter(combined)

    whole = make(0)
    expected = [list(begin(whole, epoch)) for epoch in range(3)]
    combined, found, epoch, legs = make(0), [[], [], []], 0, [*stops, *[10**6] * 3]
    while epoch < 3:
        batches = begin(combined, epoch)
        for _ in range(legs.pop(0)):
            batch = next(batches, None)
            if batch is None:
                epoch += 1
                break
            found[epoch].append(batch)
        state = saved(combined.state_dict())
        combined = make(50)
        combined.load_state_dict(state)
        assert combined.state_dict() == state
    assert found == expected


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lengths=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    batch_size=st.integers(1, 3),
    stop_criteria=st.sampled_from(ENDING),
    weights=st.sampled_from([[1, 1], [1, 4], ramp]),
    chain=st.lists(st.builds(Leg, st.integers(1, 8), st.integers(0, 9), st.integers(0, 2)), min_size=1, max_size=4),
)
@example((5, 7), 2, "all_exhausted_without_replacement", [1, 1], [Leg(1, 3), Leg(2, 1, 1), Leg(3, 9)])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_other_numbers_of_processes_go_on_with_the_draws_and_each_sample_once(
    lengths: Any, batch_size: int, stop_criteria: Any, weights: Any, chain: list[Leg]
) -> None:
    class Shifted(Indices):
        def __getitem__(self, index: Any) -> Any:
            return 1000 + super().__getitem__(index)

    def make_one(strategy: Any) -> Any:
        loaders = [
            DataLoader(kind(length), batch_size) for kind, length in zip((Indices, Shifted), lengths, strict=True)
        ]
        return weighted(loaders, weights, stop_criteria)

    for steps in read_chain(make_one, [*chain, Leg(chain[-1].num_ranks, -1)], 2):
        for step in steps:
            assert len({batch[0] >= 1000 for batch in step}) == 1, "all processes draw the same loader"
        are_complete = []
        for first, length in zip((0, 1000), lengths, strict=True):
            order = in_their_order([step for step in steps if (step[0][0] >= 1000) == (first == 1000)])
            samples = [sample - first for sample in order]
            assert samples[:length] == list(range(min(length, len(samples))))
            are_complete.append(len(samples) >= length)
            assert stop_criteria == "cycle_until_all_exhausted" or len(samples) < length + 8, (
                "padding alone comes twice"
            )
        if weights is not ramp:
            assert any(are_complete) if stop_criteria == "first_exhausted" else all(are_complete)


class Counting(IterableDataset[int]):
    """A stream that can go on where it was."""

    place = 0

    def __iter__(self) -> Iterator[int]:
        while self.place < 6:
            self.place += 1
            yield self.place
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]

    def shared_state(self, num_items: int) -> Any:
        return num_items

    def load_shared_state(self, state: Any) -> None:
        self.place = state


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_streams_go_on_exactly_in_as_many_processes_and_are_refused_in_others() -> None:
    def make_one(strategy: Any, num_workers: int = 0) -> Any:
        return weighted([DataLoader(Counting(), 2), DataLoader(Indices(5), 1, num_workers=num_workers)], [1, 2])

    whole = read_chain(make_one, [Leg(1, -1)], 2)
    chain = [Leg(1, 1), Leg(1, 3, 1), Leg(1, -1)]
    assert read_chain(lambda strategy: make_one(strategy, num_workers=1), chain, 2) == whole
    with pytest.raises(ValueError, match=r"`loaders drawn by weights` must be resumed by as many processes .* in fit"):
        read_chain(make_one, [Leg(1, 2), Leg(2, -1)], 1, in_threads=True)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_shuffled_loaders_with_workers_go_on_exactly_in_several_processes() -> None:
    def make_one(strategy: Any) -> Any:
        loaders = [DataLoader(Indices(17), 2, shuffle=True, num_workers=1), DataLoader(Indices(9), shuffle=True)]
        return weighted({"a": loaders[0], "b": loaders[1]}, {"a": 1, "b": 2})

    assert read_chain(make_one, [Leg(2, 3, 1), Leg(2, -1)], 1) == read_chain(make_one, [Leg(2, -1)], 1)


def test_processes_that_would_draw_differently_are_refused() -> None:
    def count(strategy: Any) -> None:
        loaders = [DataLoader(Indices(5)), DataLoader(Indices(5))]
        TrainingBatches(weighted(loaders, [1, 1], seed=strategy.global_rank), 0, strategy=strategy).count(1.0, "limit")

    with pytest.raises(ValueError, match=r"`weights` must be the same in every process, which draw the same loader"):
        on_ranks(2, count)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (None, r"`weights` must be a collection like that of the loaders, .*\['a'\], .*\['b'\], but got None"),
        ({"a": 1}, r"`weights` must be a collection like that of the loaders"),
        ([1, 1], r"`weights` must be a collection like that of the loaders"),
        ({"a": 0, "b": 0}, r"`weights` must be finite numbers of at least 0, of which one is more"),
        ({"a": 1, "b": -1}, r"`weights` must be finite numbers"),
        ({"a": 1, "b": float("nan")}, r"`weights` must be finite numbers"),
        ({"a": 1, "b": float("inf")}, r"`weights` must be finite numbers"),
        ({"a": 1, "b": "2"}, r"`weights` must be finite numbers"),
    ],
)
def test_weights_that_are_none_are_refused_at_once_and_from_a_schedule_at_its_step(weights: Any, message: str) -> None:
    loaders = {"a": range(3), "b": range(3)}
    if not isinstance(weights, type(None)):
        with pytest.raises(ValueError, match=message + ".* returned for step 0 of epoch 0"):
            next(iter(weighted(loaders, lambda step, epoch: weights)))
    with pytest.raises(ValueError, match=message):
        weighted(loaders, weights)


def test_other_settings_that_are_none_are_refused() -> None:
    loaders = [range(3)]
    message = rf"`stop_criteria` must be one of '{get_args(StopCriteria)[0]}', .* but got 'all_exhausted'"
    with pytest.raises(ValueError, match=message):
        weighted(loaders, [1], "all_exhausted")
    with pytest.raises(ValueError, match="`seed` must be an int, but got None"):
        weighted(loaders, [1], seed=None)  # type: ignore[arg-type]
    message = r"`weights, stop_criteria and seed` must be left out unless the mode is \"weighted\""
    with pytest.raises(ValueError, match=message):
        CombinedLoader(loaders, weights=[1])
    with pytest.raises(TypeError, match="that draws loaders is not known"):
        len(weighted(loaders, [1]))
