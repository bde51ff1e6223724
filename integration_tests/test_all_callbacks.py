"""All stock callbacks and loggers in one training: together, resumed, in one process and in two."""

from __future__ import annotations

import csv
import json
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from launching import run_ranks
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from camshaft.callbacks import NPZPredictionWriter, ParquetPredictionWriter
from camshaft.forensics import compare

SCRIPT = Path(__file__).parent / "all_callbacks.py"
NUM_EPOCHS = 4


@pytest.fixture(autouse=True)
def _file_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow's own reader asks for it


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two processes"])
def straight(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path, list[Any]]:
    folder = tmp_path_factory.mktemp("straight")
    reports = run_ranks(SCRIPT, request.param, args=[str(NUM_EPOCHS), folder]).succeeded().reports
    return request.param, folder, [result for (result,) in reports]


def test_all_processes_have_the_same_and_predictions_are_in_order(straight: tuple[int, Path, list[Any]]) -> None:
    num_ranks, folder, results = straight
    assert len(results) == num_ranks
    num_updates, batch_size, weights, predictions = results[0]
    assert (num_updates, batch_size) == ({1: 36, 2: 18}[num_ranks], 8)
    for result in results[1:]:
        assert result[:2] == (num_updates, batch_size)
        assert torch.equal(result[2], weights) and torch.equal(result[3], predictions)
    written = NPZPredictionWriter.read_predictions(folder / "npz")
    assert np.array_equal(written["prediction"], predictions.numpy())
    table = ParquetPredictionWriter.read_predictions(folder / "parquet")
    assert np.array_equal(table["prediction"].to_numpy(), predictions.numpy())


def test_each_left_what_it_writes(straight: tuple[int, Path, list[Any]]) -> None:
    num_ranks, folder, _ = straight
    for rank in range(num_ranks):
        trace = json.loads((folder / "timeline" / f"timeline-rank{rank}.json").read_text())
        assert any(event["name"] == "training_step · Net" for event in trace["traceEvents"])
        assert (folder / "timeline" / f"timeline-rank{rank}.html").exists()
    assert len(list((folder / "profiles").glob("fit-*training_step*.pt.trace.json"))) == num_ranks
    assert {path.name for path in (folder / "report").glob("*.png")} >= {"curves.png", "loss.png"}
    assert (folder / "best" / "last.ckpt").exists()
    assert not (folder / "rescued").exists() and not (folder / "preempted").exists()


def test_loggers_agree_on_names_and_steps(straight: tuple[int, Path, list[Any]]) -> None:
    _, folder, _ = straight
    with (folder / "csv" / "version_0" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for name in ("loss_step", "val_loss", "lr-Adam", "train/samples"):
        expected = [(int(row["step"]), float(row[name])) for row in rows if row.get(name)]
        assert expected
        events = EventAccumulator(str(folder / "tensorboard" / "version_0"), size_guidance={"scalars": 0}).Reload()
        of_tensorboard = [(event.step, event.value) for event in events.Scalars(name)]
        (run,) = _runs(folder / "mlruns")
        client = MlflowClient((folder / "mlruns").as_uri())
        of_mlflow = sorted((one.step, one.value) for one in client.get_metric_history(run, name))
        for found in (of_tensorboard, of_mlflow):
            assert [step for step, _ in found] == [step for step, _ in expected]
            assert [value for _, value in found] == pytest.approx([value for _, value in expected], rel=1e-6)


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not(straight: tuple[int, Path, list[Any]], tmp_path: Path) -> None:
    num_ranks, folder, results = straight
    checkpoints = sorted((folder / "steps").glob("*.ckpt"), key=lambda path: int(path.stem.partition("=")[2]))
    # before the backbone is trained, and in the middle of an epoch after it
    resumed = {tmp_path / name: checkpoints[idx] for name, idx in (("early", 0), ("late", len(checkpoints) // 2))}
    for target in resumed:
        shutil.copytree(folder / "ledger", target / "ledger")
    arguments = [NUM_EPOCHS, *chain.from_iterable(resumed.items())]
    reports = run_ranks(SCRIPT, num_ranks, args=[str(argument) for argument in arguments]).succeeded().reports
    for of_rank, before in zip(reports, results, strict=True):
        for result in of_rank:
            assert result[:2] == before[:2]
            assert torch.equal(result[2], before[2]) and torch.equal(result[3], before[3])
    assert [len(of_rank) for of_rank in reports] == [len(resumed)] * num_ranks
    assert all(compare(folder / "ledger", target / "ledger").is_equal for target in resumed)


def _runs(folder: Path) -> list[str]:
    return [path.parent.name for path in folder.glob("*/*/meta.yaml")]
