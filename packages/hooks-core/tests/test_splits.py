from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from camshaft.hooks_core import ModelHooks
from camshaft.hooks_core.support.transfer import split_along_time

torch = pytest.importorskip("torch", reason="splits are made of tensors")

Pair = namedtuple("Pair", "x y")


def series(num_steps: int, num_samples: int = 2) -> Any:
    """A tensor of shape (samples, steps) whose values tell them apart."""
    return torch.arange(num_samples * num_steps).view(num_samples, num_steps)


@given(num_steps=st.integers(1, 12), split_size=st.integers(1, 15))
def test_splits_put_together_are_the_batch(num_steps: int, split_size: int) -> None:
    batch = series(num_steps)
    splits = split_along_time(batch, split_size, "a test")
    assert len(splits) == -(-num_steps // split_size)
    assert all(split.shape[1] == split_size for split in splits[:-1])
    assert torch.equal(torch.cat(splits, dim=1), batch)


def test_every_tensor_is_cut_in_any_nesting_and_the_rest_stays() -> None:
    batch = OrderedDict(x=series(5), rest=[Pair(torch.ones(2, 5, 3), "name"), (series(5, 1), None)])
    first, second, third = split_along_time(batch, 2, "a test")
    assert [type(first), type(first["rest"]), type(first["rest"][0])] == [OrderedDict, list, Pair]
    assert [tuple(split["rest"][0].x.shape) for split in (first, second, third)] == [(2, 2, 3), (2, 2, 3), (2, 1, 3)]
    assert first["rest"][0].y == third["rest"][0].y == "name"
    assert torch.equal(second["rest"][1][0], series(5, 1)[:, 2:4])
    assert second["rest"][1][1] is None
    assert tuple(batch["x"].shape) == (2, 5)


def test_the_modules_default_splits_the_same_way() -> None:
    batch = (series(4), series(4))
    splits = ModelHooks().tbptt_split_batch(batch, 3)
    assert [tuple(split[0].shape) for split in splits] == [(2, 3), (2, 1)]


def test_what_has_no_time_stands_whole_in_every_split() -> None:
    labels = torch.ones(2)
    splits = split_along_time((series(4), labels, [], "name"), 2, "a test")
    assert all(split[1] is labels and split[2:] == ([], "name") for split in splits)


@pytest.mark.parametrize(
    ("batch", "splits"),
    [
        ([[1, 2, 3], [4, 5, 6]], [[[1, 2], [4, 5]], [[3], [6]]]),
        (([[[1], [2], [3]]], "name"), [([[[1], [2]]], "name"), ([[[3]]], "name")]),
        ([[[1, 2, 3]], [[4, 5, 6]]], [[[[1, 2]], [[4, 5]]], [[[3]], [[6]]]]),
    ],
)
def test_lists_of_time_steps_are_cut_too(batch: Any, splits: list[Any]) -> None:
    assert split_along_time(batch, 2, "a test") == splits


@pytest.mark.parametrize(
    ("batch", "split_size", "message"),
    [
        (series(3), 0, r"`split_size` must be at least 1, but got 0 \(int\)"),
        (
            [series(3), {"y": series(4)}],
            2,
            r"one and the same length .*, but got {'batch\[0\]': 3, .*\['y'\]\": 4} \(dict\)",
        ),
        (
            torch.ones(2, 0),
            2,
            r"one and the same length in time \(dimension 1\), at least 1, but got {'batch': 0} \(dict\)",
        ),
        (torch.ones(3), 2, r"one and the same length in time \(dimension 1\), at least 1, but got 'Tensor' \(str\)"),
        (
            [torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2)])],
            2,
            r"`batch\[0\]` must be something that can be cut along time, but got 'PackedSequence' \(str\)",
        ),
    ],
)
def test_a_batch_that_cannot_be_split_is_an_error(batch: Any, split_size: int, message: str) -> None:
    class Model(ModelHooks):
        pass

    with pytest.raises(ValueError, match=rf"{message} in Model\.tbptt_split_batch\."):
        Model().tbptt_split_batch(batch, split_size)
