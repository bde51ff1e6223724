"""The `CombinedLoader` of 2.x."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader
from trainer_parts import Regression, quiet_trainer

from camshaft.compat.names.utilities.combined_loader import CombinedLoader
from camshaft.loops import CombinedLoader as OurCombinedLoader


class Pair(NamedTuple):
    a: Any
    b: Any


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("min_size", [([0, 10], 0, 0)]),
        ("max_size", [([0, 10], 0, 0), ([None, 11], 1, 0)]),
        ("max_size_cycle", [([0, 10], 0, 0), ([0, 11], 1, 0)]),
        ("sequential", [(0, 0, 0), (10, 0, 1), (11, 1, 1)]),
    ],
)
def test_iterating_gives_batches_with_their_indices(mode: Any, expected: list[Any]) -> None:
    combined = CombinedLoader([range(1), range(10, 12)], mode)
    assert list(combined) == expected == list(combined)
    assert len(combined) == len(expected)


def test_collections_keep_their_structure() -> None:
    combined = CombinedLoader(Pair([[0], [1]], {"c": ["x"]}))
    assert list(combined) == [(Pair([0, 1], {"c": "x"}), 0, 0)]
    assert combined.flattened == [[0], [1], ["x"]]
    combined.flattened = [[5], [6], [7]]
    assert combined.iterables == Pair([[5], [6]], {"c": [7]})
    with pytest.raises(ValueError, match="`flattened` must be a list with an item for each of the 3 iterables"):
        combined.flattened = [[1]]


def test_nothing_to_combine_is_an_empty_iterable() -> None:
    assert list(CombinedLoader([])) == []
    assert list(CombinedLoader([1, 2])) == [(1, 0, 0), (2, 1, 0)]


def test_limits_hold_for_each_iterable_in_turn() -> None:
    combined = CombinedLoader([["a", "b", "c"], ["d", "e"]], "sequential")
    for limits, expected in (([1, 0], ["a"]), ([0, float("inf")], ["d", "e"]), (1, ["a", "d"]), (None, list("abcde"))):
        combined.limits = limits
        assert [batch for batch, _, _ in combined] == expected
        assert len(combined) == len(expected)


def test_samplers_and_resets() -> None:
    first, second = DataLoader(range(4), num_workers=1, persistent_workers=True), range(3)
    combined = CombinedLoader({"a": first, "b": second})
    assert combined.sampler == {"a": first.sampler, "b": None}
    assert combined.batch_sampler == {"a": first.batch_sampler, "b": None}
    assert next(iter(combined)) == ({"a": torch.tensor([0]), "b": 0}, 0, 0)
    combined.reset()
    assert first._iterator is None
    with pytest.raises(RuntimeError, match=r"Call `iter\(combined_loader\)` first"):
        next(combined)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_begin_anew(copied: Any) -> None:
    combined = CombinedLoader([range(2), [3, 4]], "max_size")
    next(iter(combined))
    assert list(copied(combined)) == list(combined)


def test_it_stands_for_ours_and_refuses_unknown_modes() -> None:
    assert isinstance(OurCombinedLoader([range(1)]), CombinedLoader)
    with pytest.raises(ValueError, match="`mode` must be one of 'min_size'"):
        CombinedLoader([range(1)], "other")  # type: ignore[arg-type]


class Both(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append({name: float(value.sum()) for name, value in batch.items()})
        return self.layer(torch.ones(1, 3)).sum()

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.seen.append((float(batch.sum()), batch_idx, dataloader_idx))


def test_a_trainer_takes_it_as_a_training_loader_and_for_evaluation(tmp_path: Path) -> None:
    module = Both()
    loaders = {"a": DataLoader(torch.arange(2.0)), "b": [5.0, 6.0, 7.0]}
    quiet_trainer(tmp_path, max_epochs=1, limit_val_batches=0).fit(
        module, CombinedLoader({"a": loaders["a"], "b": DataLoader(torch.arange(5.0, 8.0))}, "max_size_cycle")
    )
    assert module.seen == [{"a": 0, "b": 5}, {"a": 1, "b": 6}, {"a": 0, "b": 7}]
    module.seen.clear()
    quiet_trainer(tmp_path).validate(module, [CombinedLoader(loaders["a"], "sequential"), DataLoader(torch.ones(1))])
    assert module.seen == [(0.0, 0, 0), (1.0, 1, 0), (1.0, 0, 1)]
