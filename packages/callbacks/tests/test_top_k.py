from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from camshaft.callbacks.checkpoints.state import TopK
from camshaft.callbacks.monitoring import Mode

SCORES = st.lists(st.sampled_from([0.0, 1.0, 2.0, -1.5, math.nan, math.inf, -math.inf]), max_size=12)


def expected_survivors(scores: list[float], k: int, mode: Mode) -> set[str]:
    """The definition, spelled out: sort everything there ever was, NaN last, earlier before later."""
    sign = 1 if mode == "min" else -1
    cost = [math.inf if math.isnan(score) else sign * score for score in scores]
    ranking = sorted(range(len(scores)), key=lambda idx: (cost[idx], idx))
    return {str(idx) for idx in (ranking if k == -1 else ranking[:k])}


@given(scores=SCORES, k=st.integers(-1, 4), mode=st.sampled_from(["min", "max"]))
def test_keeps_the_k_best_of_everything_it_has_seen(scores: list[float], k: int, mode: Mode) -> None:
    top_k = TopK(k, mode)
    for idx, score in enumerate(map(torch.tensor, scores)):
        displaced = top_k.displaced() if top_k.takes(score) else None
        if displaced is not None:
            for path in displaced:
                top_k.discard(path)
            top_k.add(str(idx), score)
    assert set(top_k.scores) == expected_survivors(scores, k, mode)


def test_no_kept_score_is_nan() -> None:
    top_k = TopK(2, "max")
    top_k.add("a", torch.tensor(math.nan))
    assert float(top_k.scores["a"]) == -math.inf


def test_names_best_and_worst() -> None:
    top_k = TopK(3, "max", {"a": torch.tensor(1.0), "b": torch.tensor(3.0), "c": torch.tensor(2.0)})
    assert (top_k.best_path, top_k.worst_path) == ("b", "a")
    assert (TopK(3, "max").best_path, TopK(3, "max").worst_path) == ("", "")


def test_more_than_k_that_were_restored_go_at_once() -> None:
    top_k = TopK(1, "min", {"a": torch.tensor(1.0), "b": torch.tensor(3.0), "c": torch.tensor(2.0)})
    assert top_k.takes(torch.tensor(0.5)) and top_k.displaced() == ("a", "c", "b")
    assert not top_k.takes(torch.tensor(1.0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_keeps_the_dtype_of_a_score(dtype: torch.dtype) -> None:
    top_k = TopK(1, "min")
    top_k.add("a", torch.tensor(2, dtype=dtype))
    assert top_k.scores["a"].dtype == dtype
