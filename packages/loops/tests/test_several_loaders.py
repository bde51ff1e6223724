"""Several loaders in a fit: training equals a loop by hand over them, validation runs one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, zip_longest
from typing import Any

import pytest
import torch
from bare_parts import (
    NUM_FEATURES,
    BareTrainer,
    Net,
    Sized,
    Unsized,
    adam,
    hooked,
    make_batches,
    make_loader,
    same_bits,
    seeded,
    weights,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from camshaft.hooks_core.check import check
from camshaft.hooks_core.trace import Trace
from camshaft.loops import CombinedLoader, PredictLoop, TestLoop

pytestmark = pytest.mark.filterwarnings("ignore:There is a `validation_step`")
MODES = ("min_size", "max_size", "max_size_cycle", "sequential")


def shuffled(length: int, seed: int, has_generator: bool = True) -> DataLoader[Any]:
    x = torch.arange(2 * length * NUM_FEATURES).reshape(-1, NUM_FEATURES) / 10 + seed
    generator = torch.Generator().manual_seed(seed) if has_generator else None
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=2, shuffle=True, generator=generator)


def arranged(shape: str, loaders: list[Any]) -> Any:
    """Loaders in a collection of some shape."""
    match shape:
        case "list":
            return loaders
        case "tuple":
            return tuple(loaders)
        case "dictionary":
            return {f"loader {idx}": loader for idx, loader in enumerate(loaders)}
        case _:
            return {"first": loaders[0], "others": [{"nested": loader} for loader in loaders[1:]]}


def parts(batch: Any) -> Iterator[Any]:
    """The loaders' batches in a batch, in order."""
    if isinstance(batch, dict):
        batch = list(batch.values())
    if batch is not None and len(batch) == 2 and isinstance(batch[0], torch.Tensor):
        yield batch
    elif batch is not None:
        for item in batch:
            yield from parts(item)


class Summing(Net):
    """Sums the losses of all loaders' batches."""

    def __init__(self) -> None:
        super().__init__(adam, dropout=0.3)
        self.structures: list[str] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.structures.append(structure(batch))
        return sum(self.loss(part) for part in parts(batch))


def structure(batch: Any) -> str:
    """A batch's dictionaries, lists and tuples, with a letter for each loader's batch."""
    if isinstance(batch, dict):
        return "{" + ", ".join(f"{key}: {structure(value)}" for key, value in batch.items()) + "}"
    if isinstance(batch, (list, tuple)) and not (len(batch) == 2 and isinstance(batch[0], torch.Tensor)):
        return f"{type(batch).__name__}[" + ", ".join(map(structure, batch)) + "]"
    return "-" if batch is None else "B"


def by_hand(mode: str, loaders: list[Any], limit: int | None) -> Iterator[Any]:
    """The batches of an epoch, as one writes it; without a limit, loaders are run to their end as a `for` does."""
    match mode:
        case "min_size":
            batches: Any = zip(*loaders, strict=False)
        case "max_size":
            batches = zip_longest(*loaders)
        case "sequential":
            batches = chain.from_iterable(loaders)
        case _:
            batches = in_cycles(loaders)
    return iter(batches) if limit is None else islice(batches, limit)


def in_cycles(loaders: list[Any]) -> Iterator[Any]:
    iterators = [iter(loader) for loader in loaders]
    longest = max(map(len, loaders))
    for batch_idx in range(longest):
        batches = []
        for idx, loader in enumerate(loaders):
            if batch_idx and batch_idx % len(loader) == 0:
                assert next(iterators[idx], None) is None
                iterators[idx] = iter(loader)
            batches.append(next(iterators[idx]))
        yield batches
    for loader, iterator in zip(loaders, iterators, strict=True):
        assert len(loader) < longest or next(iterator, None) is None


def num_batches_of(mode: str, lengths: list[int], limit: int | float) -> int:
    number = {"min_size": min, "sequential": sum}.get(mode, max)(lengths)
    return min(number, limit) if isinstance(limit, int) else int(number * limit)


@settings(max_examples=60, deadline=None)
@given(
    mode=st.sampled_from(MODES),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    shape=st.sampled_from(["list", "tuple", "dictionary", "nested"]),
    limit=st.just(1.0) | st.integers(0, 9) | st.just(0.5),
    have_generators=st.booleans(),
)
def test_training_equals_a_loop_by_hand(
    mode: Any, lengths: list[int], shape: str, limit: int | float, have_generators: bool
) -> None:
    num_batches, num_all = num_batches_of(mode, lengths, limit), num_batches_of(mode, lengths, 1.0)
    if isinstance(limit, float) and num_batches == 0:
        return  # refused: less than a batch
    module, other = seeded(Summing), seeded(Summing)
    torch.manual_seed(7)
    loaders = arranged(shape, [shuffled(length, seed, have_generators) for seed, length in enumerate(lengths)])
    given_loaders = loaders if mode == "max_size_cycle" else CombinedLoader(loaders, mode)
    trainer = BareTrainer(module, max_epochs=2, limit_train_batches=limit).fit(given_loaders)
    assert trainer.fit_loop.num_batches == num_batches
    assert trainer.global_step == trainer.progress.total_batches == 2 * num_batches
    torch.manual_seed(7)
    own, optimizer = [shuffled(length, seed, have_generators) for seed, length in enumerate(lengths)], adam(other)
    for _ in range(2):
        for batch in by_hand(mode, own, None if num_batches == num_all else num_batches):
            loss = other.training_step(batch, 0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert same_bits(weights(module), weights(other))


@pytest.mark.parametrize(
    ("loaders", "expected"),
    [
        (lambda a, b: [a, b], "list[B, B]"),
        (lambda a, b: (a, b), "tuple[B, B]"),
        (lambda a, b: {"a": a, "b": b}, "{a: B, b: B}"),
        (lambda a, b: {"a": [a, {"b": b}]}, "{a: list[B, {b: B}]}"),
        (lambda a, b: [a], "list[B]"),
        (lambda a, b: {"a": a}, "{a: B}"),
        (lambda a, b: a, "B"),
        (lambda a, b: CombinedLoader([a, b], "sequential"), "B"),
        (lambda a, b: [CombinedLoader({"a": a, "b": b}, "min_size"), b], "list[{a: B, b: B}, B]"),
    ],
)
def test_a_batch_has_the_structure_of_the_loaders(loaders: Any, expected: str) -> None:
    module = seeded(Summing)
    BareTrainer(module, max_epochs=1).fit(loaders(Sized(make_batches(1)), Sized(make_batches(1, seed=2))))
    assert set(module.structures) == {expected}


def test_a_longer_loader_gives_none_for_the_shorter_ones_if_they_do_not_begin_anew() -> None:
    module = seeded(Summing)
    loaders = [Sized(make_batches(1)), Sized(make_batches(3))]
    BareTrainer(module, max_epochs=1).fit(CombinedLoader(loaders, "max_size"))
    assert module.structures == ["list[B, B]", "list[-, B]", "list[-, B]"]


@pytest.mark.parametrize("mode", MODES)
def test_loaders_of_unknown_length_train_to_their_end(mode: Any) -> None:
    module = seeded(Summing)
    combined = CombinedLoader([Unsized(make_batches(2)), Sized(make_batches(3))], mode)
    trainer = BareTrainer(module, max_epochs=2, accumulate_grad_batches=2).fit(combined)
    assert trainer.fit_loop.num_batches == float("inf")
    number = num_batches_of(mode, [2, 3], 1.0)
    assert trainer.progress.total_batches == 2 * number
    assert trainer.global_step == 2 * ((number + 1) // 2), "the last window of an epoch is known to be the last"


def test_a_share_is_one_of_the_combined_epoch() -> None:
    module = seeded(Summing)
    loaders = [Sized(make_batches(2)), Sized(make_batches(6))]
    trainer = BareTrainer(module, max_epochs=1, limit_train_batches=0.5).fit(loaders)
    assert trainer.progress.total_batches == 3
    message = r"`limit_train_batches` must be 1\.0 or an int for a loader of unknown length"
    with pytest.raises(ValueError, match=message):
        BareTrainer(seeded(Summing), max_epochs=1, limit_train_batches=0.5).fit([Sized([1]), Unsized([1])])


def test_an_empty_collection_is_no_loader() -> None:
    for nothing in ([], {}, ()):
        with pytest.raises(ValueError, match="`train loader` must be given"):
            BareTrainer(seeded(Summing), max_epochs=1).fit(nothing)
    with pytest.raises(ValueError, match="`loaders` must be at least one loader"):
        BareTrainer(seeded(Summing), max_epochs=1).fit([[], {}])


@pytest.mark.parametrize("mode", MODES)
def test_the_hooks_come_in_order(mode: Any) -> None:
    module, trace = seeded(Summing), Trace()
    trace.record(module, "module")
    loaders = {"a": Sized(make_batches(2)), "b": [Sized(make_batches(3))]}
    validation = [Sized(make_batches(1)), CombinedLoader([Sized(make_batches(2))] * 2, "sequential")]
    trainer = BareTrainer(module, max_epochs=2, num_sanity_val_steps=1, val_check_interval=1)
    trainer.fit(CombinedLoader(loaders, mode), validation)
    check(trace, "fit")


# Validation


def validated(loaders: Any, **limits: Any) -> list[tuple[int, int]]:
    """The index of loader and batch of each validation step in an epoch."""
    seen: list[tuple[int, int]] = []

    class Validating(Net):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
            seen.append((dataloader_idx, batch_idx))

    BareTrainer(Validating(), max_epochs=1, **limits).fit(Sized(make_batches(1)), loaders)
    return seen


def lists(*lengths: int) -> list[tuple[int, int]]:
    return [(idx, batch_idx) for idx, length in enumerate(lengths) for batch_idx in range(length)]


def sized(*lengths: int) -> list[Any]:
    return [Sized(make_batches(length)) for length in lengths]


@pytest.mark.parametrize(
    ("loaders", "expected"),
    [
        (sized(2), lists(2)),
        (sized(2, 3), lists(2, 3)),
        (sized(2, 0, 1), lists(2, 0, 1)),
        ({"a": sized(2)[0], "b": sized(1, 1)}, lists(2, 1, 1)),
        (CombinedLoader(sized(2, 3), "sequential"), lists(2, 3)),
        ([sized(1)[0], CombinedLoader({"a": sized(2)[0], "b": sized(3)[0]}, "sequential")], lists(1, 2, 3)),
        (CombinedLoader(sized(2, 3), "max_size_cycle"), lists(3)),
        (CombinedLoader(sized(2, 3), "min_size"), lists(2)),
        ([CombinedLoader(sized(2, 3), "max_size"), sized(1)[0]], lists(3, 1)),
    ],
)
def test_validation_loaders_come_one_after_the_other_and_combined_ones_as_one(
    loaders: Any, expected: list[Any]
) -> None:
    assert validated(loaders) == expected


def test_test_and_prediction_take_a_sequence_apart_as_well() -> None:
    def sequence() -> CombinedLoader:
        return CombinedLoader(sized(2, 1), "sequential")

    trainer = BareTrainer(seeded())
    assert len(trainer.verb("test", TestLoop(), sequence())) == 2
    assert [len(predictions) for predictions in trainer.verb("predict", PredictLoop(), sequence())] == [2, 1]


# Limits, for every kind of loader


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["sized", "unsized", "dataloader", "stream", "sized stream"])
@pytest.mark.parametrize(
    ("limit", "expected"), [(0, 0), (0.0, 0), (1, 1), (3, 3), (4, 4), (9, 4), (1.0, 4), (0.5, 2), (0.3, 1), (0.2, None)]
)
def test_what_a_limit_takes(kind: str, limit: int | float, expected: int | None) -> None:
    is_sized = kind not in ("unsized", "stream")
    module = seeded()
    limits = {"limit_train_batches": limit, "limit_val_batches": limit}

    def fit(train: bool, val: bool) -> tuple[int, int]:
        seen: list[Any] = []
        callback = hooked(on_validation_batch_start=lambda *_: seen.append(None))
        given_limits = {name: value for name, value in limits.items() if train or name != "limit_train_batches"}
        given_limits = {name: value for name, value in given_limits.items() if val or name != "limit_val_batches"}
        trainer = BareTrainer(module, callbacks=[callback], max_epochs=1, **given_limits)
        trainer.fit(make_loader(kind, make_batches(4)), make_loader(kind, make_batches(4)))
        return trainer.progress.total_batches, len(seen)

    is_share = isinstance(limit, float) and 0 < limit < 1
    if is_share and (expected is None or not is_sized):
        why = "1.0 or an int for a loader of unknown" if not is_sized else "0 or a share of at least one of the loader"
        with pytest.raises(ValueError, match=f"`limit_train_batches` must be {why}"):
            fit(train=True, val=False)
        with pytest.raises(ValueError, match=f"`limit_val_batches` must be {why}"):
            fit(train=False, val=True)
        return
    assert fit(train=True, val=False) == (expected, 4 if expected else 0)
    assert fit(train=False, val=True) == (4, expected)


def test_without_training_batches_nothing_runs_but_the_hooks_around() -> None:
    seen: list[str] = []
    names = ["on_fit_start", "on_sanity_check_start", "on_train_start", "on_train_end", "on_fit_end", "teardown"]
    callback = hooked(**{name: lambda *_, name=name: seen.append(name) for name in names})
    trainer = BareTrainer(Net(), callbacks=[callback], max_epochs=1, limit_train_batches=0, num_sanity_val_steps=2)
    trainer.fit(Sized(make_batches(2)), Sized(make_batches(2)))
    assert seen == ["on_fit_start", "on_fit_end", "teardown"]


@pytest.mark.parametrize("number", [1, 7, 49, 98, 100, 107])
@pytest.mark.parametrize("part", [1, 2, 29, 49, 99])
def test_a_share_is_the_number_that_it_was_computed_from(number: int, part: int) -> None:
    if part > number:
        return
    trainer = BareTrainer(Net(), max_epochs=0, limit_train_batches=part / number)
    assert trainer.fit(Sized(range(number))).fit_loop.num_batches == part
