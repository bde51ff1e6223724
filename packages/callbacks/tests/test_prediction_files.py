"""Predictions written to files are read back whole and in order, from one process or several."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from predicting import OneOfSeveral, predict
from torch.utils.data import DataLoader, TensorDataset

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.predictions.prediction_files import NPZPredictionWriter, ParquetPredictionWriter

pq = pytest.importorskip("pyarrow.parquet")
WRITERS = [NPZPredictionWriter, ParquetPredictionWriter]
both = pytest.mark.parametrize("kind", WRITERS, ids=["npz", "parquet"])


def read(kind: Any, folder: Path, dataloader_idx: int = 0) -> dict[str, Any]:
    """The columns as nested lists."""
    found = kind.read_predictions(folder, dataloader_idx)
    return {k: v.tolist() for k, v in found.items()} if isinstance(found, dict) else dict(found.to_pydict())


def numbers(num: int, **arguments: Any) -> Any:
    return DataLoader(TensorDataset(torch.arange(num)), **arguments)


def columns(batch: Any) -> Any:
    (x,) = batch
    return {
        "file": x,
        "probabilities": torch.stack([x / 4, 1 - x / 4], dim=1),
        "boxes": torch.stack([x, x + 1, x + 2, x + 3], dim=1).reshape(-1, 2, 2),
        "nested": {"half": (x / 2).bfloat16(), "pair": (x, x > 1)},
        "name": [f"sample {int(item)}" * int(item) for item in x],
    }


@both
@settings(max_examples=15, deadline=None)
@given(
    num_samples=st.integers(0, 13),
    batch_size=st.integers(1, 5),
    num_ranks=st.integers(1, 3),
    rows_per_file=st.integers(1, 6),
)
def test_what_was_predicted_is_read_in_dataset_order_over_all_ranks(
    kind: Any, tmp_path_factory: Any, num_samples: int, batch_size: int, num_ranks: int, rows_per_file: int
) -> None:
    folder = tmp_path_factory.mktemp("predictions")
    batches = [list(range(num_samples))[at : at + batch_size] for at in range(0, num_samples, batch_size)]
    for rank in range(num_ranks):
        writer = kind(folder, rows_per_file=rows_per_file)
        share = numbers(num_samples, batch_sampler=batches[rank::num_ranks])
        predict(writer, [share], columns, folder, OneOfSeveral(rank, num_ranks))
    found = read(kind, folder)
    if num_samples == 0:
        assert found == {}
        return
    samples = range(num_samples)
    assert found == {
        "file": list(samples),
        "probabilities": [[x / 4, 1 - x / 4] for x in samples],
        "boxes": [[[x, x + 1], [x + 2, x + 3]] for x in samples],
        "nested.half": [x / 2 for x in samples],
        "nested.pair.0": list(samples),
        "nested.pair.1": [x > 1 for x in samples],
        "name": [f"sample {x}" * x for x in samples],
    }
    for path in folder.glob(f"*{kind.suffix}"):
        num_rows = len(np.load(path)["file"]) if kind is NPZPredictionWriter else pq.read_table(path).num_rows
        assert 1 <= num_rows <= rows_per_file


@both
def test_a_loader_that_shuffles_is_read_in_the_order_of_its_batches(kind: Any, tmp_path: Path) -> None:
    seen: list[int] = []

    def step(batch: Any) -> Any:
        seen.extend(batch[0].tolist())
        return batch[0]

    predict(kind(tmp_path, rows_per_file=3), [numbers(8, batch_size=3, shuffle=True)], step, tmp_path)
    assert read(kind, tmp_path) == {"prediction": seen}


@both
def test_samples_that_a_sampler_repeats_are_read_once(kind: Any, tmp_path: Path) -> None:
    for rank, samples in enumerate([[[0, 2, 4]], [[1, 3, 0]]]):
        predict(kind(tmp_path), [numbers(5, batch_sampler=samples)], lambda b: b[0], tmp_path, OneOfSeveral(rank, 2))
    assert read(kind, tmp_path) == {"prediction": [0, 1, 2, 3, 4]}


@both
def test_several_loaders_have_rows_of_their_own(kind: Any, tmp_path: Path) -> None:
    def step(batch: Any) -> Any:
        return batch[0] if len(batch[0]) == 2 else {"of the second": batch[0].float()}

    predict(kind(tmp_path), [numbers(4, batch_size=2), numbers(3, batch_size=3)], step, tmp_path)
    assert read(kind, tmp_path) == {"prediction": [0, 1, 2, 3]}
    assert read(kind, tmp_path, 1) == {"of the second": [0.0, 1.0, 2.0]}
    assert read(kind, tmp_path, 2) == {}


@both
def test_an_interrupted_prediction_leaves_whole_files_and_is_not_taken_for_a_complete_one(
    kind: Any, tmp_path: Path
) -> None:
    predict(kind(tmp_path, rows_per_file=2), [numbers(10, batch_size=3)], columns, tmp_path, num_batches=2)
    names = sorted(os.listdir(tmp_path))
    stem = "predictions-rank00000-of-00001"
    assert names == [f"{stem}-part0000{part}{kind.suffix}" for part in range(3)]
    message = rf"`dirpath` must be the folder of a complete prediction.*\['{stem}'\]"
    with pytest.raises(FileNotFoundError, match=message):
        kind.read_predictions(tmp_path)
    with pytest.raises(FileExistsError, match=r"with 3 of their files .* or overwrite=True"):
        predict(kind(tmp_path), [numbers(2)], columns, tmp_path)
    predict(kind(tmp_path, overwrite=True), [numbers(2)], columns, tmp_path)
    assert read(kind, tmp_path)["file"] == [0, 1]
    assert sorted(os.listdir(tmp_path)) == [f"{stem}-part00000{kind.suffix}", f"{stem}.json"]


@both
def test_a_file_that_cannot_be_written_leaves_nothing(kind: Any, tmp_path: Path, monkeypatch: Any) -> None:
    def fail(self: Any, columns: Any, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(kind, "write_file", fail)
    with pytest.raises(OSError, match="disk full"):
        predict(kind(tmp_path), [numbers(2)], columns, tmp_path)
    assert os.listdir(tmp_path) == []


@both
def test_a_folder_that_lacks_files_of_a_rank_is_an_error(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="empty"):
        kind.read_predictions(tmp_path)
    predict(kind(tmp_path), [numbers(2)], columns, tmp_path, OneOfSeveral(0, 2))
    with pytest.raises(FileNotFoundError, match=r"without the end of .*rank00001-of-00002"):
        kind.read_predictions(tmp_path)
    predict(kind(tmp_path), [numbers(2)], columns, tmp_path, OneOfSeveral(1, 2))
    next(tmp_path.glob(f"*rank00001*{kind.suffix}")).unlink()
    with pytest.raises(FileNotFoundError, match="rank00001-of-00002-part00000"):
        kind.read_predictions(tmp_path)


def test_the_end_says_how_much_there_is(tmp_path: Path) -> None:
    predict(NPZPredictionWriter(tmp_path, rows_per_file=2), [numbers(5, batch_size=2)], columns, tmp_path)
    end = json.loads((tmp_path / "predictions-rank00000-of-00001.json").read_text())
    assert end == {"num_ranks": 1, "num_files": 3, "num_rows": 5}


def test_of_ranks_that_share_a_replica_the_first_writes(tmp_path: Path) -> None:
    class Sharing(OneOfSeveral):
        data_rank, num_data_ranks = 0, 1

        def all_gather(self, value: Any) -> list[Any]:
            return [0, 0]

    for rank in (0, 1):
        predict(NPZPredictionWriter(tmp_path), [numbers(3)], columns, tmp_path, Sharing(rank, 2))
    assert read(NPZPredictionWriter, tmp_path)["file"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([{"a": torch.ones(2), "b": torch.ones(3)}], "`prediction` must be columns of equally many rows"),
        ([torch.ones(1, 2), torch.ones(1, 3)], "`prediction` must be of the same columns, shapes and types as before"),
        ([{"a": torch.ones(1)}, {"b": torch.ones(1)}], "must be of the same columns"),
        ([{"_batch_idx": torch.ones(1)}], "must be a unique name other than _dataloader_idx"),
        ([{"a": object()}], "must be tensors, arrays, numbers or strings"),
        ([{"a": np.array([None])}], "`prediction column 'a'` must be of numbers or strings"),
    ],
)
def test_what_is_no_table_is_an_error(tmp_path: Path, steps: list[Any], message: str) -> None:
    left = iter(steps)
    with pytest.raises(InvalidArgumentError, match=message):
        predict(NPZPredictionWriter(tmp_path), [numbers(len(steps))], lambda batch: next(left), tmp_path)


def test_nothing_predicted_is_no_row_and_a_number_is_one(tmp_path: Path) -> None:
    values = iter([None, torch.tensor(0.5), torch.tensor(1.5)])
    predict(NPZPredictionWriter(tmp_path), [numbers(3)], lambda batch: next(values), tmp_path)
    assert read(NPZPredictionWriter, tmp_path) == {"prediction": [0.5, 1.5]}


def test_rows_per_file_below_one_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="`rows_per_file` must be 1 or more, but got 0"):
        NPZPredictionWriter(tmp_path, rows_per_file=0)
