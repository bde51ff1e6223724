"""Two real processes search, and write predictions, as one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from launching import run_ranks
from trainer_parts import Regression, assert_same, dataset, files_below

from camshaft.callbacks import NPZPredictionWriter

pytestmark = pytest.mark.processes

Scenes = tuple[Path, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    folder = tmp_path_factory.mktemp("finders")
    outcome = run_ranks(Path(__file__).with_name("finder_scenes.py"), 2, args=[folder])
    return folder, outcome.succeeded().named


def test_a_search_for_a_learning_rate_leaves_no_trace_and_finds_the_same_in_both(scenes: Scenes) -> None:
    _, (first, second) = scenes
    for found in (first, second):
        assert_same(found["searched"], found["plain"])
    assert first["curve"] == second["curve"]
    assert len(first["curve"]["results"]["lr"]) > 10
    assert first["curve"]["suggested_lr"] is not None


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_memory_that_runs_out_in_one_process_counts_for_both(scenes: Scenes, where: str) -> None:
    _, (first, second) = scenes
    assert first[where]["size"] == second[where]["size"] == 8
    assert first[where]["trials"] == second[where]["trials"]
    assert (16, False) in first[where]["trials"]
    for found in (first, second):
        assert_same(found[where]["weights"], found["of the size"]["weights"])
        assert found[where]["step"] == found["of the size"]["step"]


def test_predictions_of_both_are_read_in_the_order_of_the_dataset(scenes: Scenes) -> None:
    folder, _ = scenes
    names = files_below(folder / "predictions")
    assert names[0] == "predictions-rank00000-of-00002-part00000.npz"
    assert sum(name.endswith(".json") for name in names) == 2
    torch.manual_seed(1)
    module = Regression(dropout=0.2).eval()
    expected = module(dataset(22).tensors[0]).detach().numpy()
    np.testing.assert_allclose(NPZPredictionWriter.read_predictions(folder / "predictions")["prediction"], expected)
