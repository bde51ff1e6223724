from __future__ import annotations

import pytest
import torch
from torch import nn

from camshaft.compat.names.trainer.model_summary import (
    Summary,
    get_human_readable_count,
    summarize,
)


def test_summaries_are_made_by_mode_or_depth() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 3)))
    assert Summary(model, mode="top").layer_names == Summary(model, "top").layer_names == ["0"]
    assert summarize(model, max_depth=-1).layer_names == Summary(model, mode="full").layer_names == ["0", "0.0"]
    assert "Linear" in str(Summary(model, max_depth=-1))
    with pytest.raises(ValueError, match="`max_depth` must be an int, -1 or greater, but got 'all'"):
        Summary(model, mode="all")
    with pytest.raises(ValueError, match="`max_depth` must be an int, -1 or greater, but got -2"):
        Summary(model, max_depth=-2)


def test_the_example_changes_nothing() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
    model.example_input_array = torch.rand(4, 2)  # type: ignore[assignment]
    before = torch.get_rng_state()
    summary = Summary(model)
    assert summary.in_sizes == [[4, 2], [4, 2]]
    assert torch.equal(before, torch.get_rng_state()) and model.training
    assert int(model[0].num_batches_tracked) == 0  # type: ignore[arg-type]
    assert not any(layer._forward_hooks for layer in model)


def test_lazy_models_have_no_sizes() -> None:
    model = nn.Sequential(nn.LazyLinear(2))
    model.example_input_array = torch.rand(4, 2)  # type: ignore[assignment]
    with pytest.warns(UserWarning, match="without sizes and FLOPs, since it would give lazy parameters their shape"):
        summary = Summary(model)
    with pytest.warns(UserWarning, match="may be inaccurate"):
        assert summary.total_parameters == 0
    assert summary.in_sizes == ["?"]


@pytest.mark.parametrize("count, text", [(0, "0  "), (999, "999  "), (1234, "1.2 K"), (5 * 10**15, "5,000 T")])
def test_counts_are_short(count: int, text: str) -> None:
    assert get_human_readable_count(count) == text
