"""Logs in stores: the rows that a disk gets, versions of their own, and nothing lost by an upload that fails."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from camshaft.callbacks import (
    CSVLogger,
    CurveReport,
    ModelCheckpoint,
    ParquetPredictionWriter,
    SimpleProfiler,
    TensorBoardLogger,
    WandbLogger,
)
from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.hooks_core.support.remote_files import files_below, join, local_copy

ROWS = st.lists(st.dictionaries(st.sampled_from("abc"), st.floats(-9, 9), min_size=1), max_size=5)


@pytest.fixture(autouse=True)
def empty_store() -> Iterator[None]:
    yield
    empty()


def empty() -> None:
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def read(path: str) -> str:
    with local_copy(path) as file:
        return file.read_text()


@given(st.lists(ROWS, min_size=1, max_size=3))
def test_the_rows_are_those_on_a_disk(tmp_path_factory: pytest.TempPathFactory, groups: list[Any]) -> None:
    empty()
    texts = []
    for root in (str(tmp_path_factory.mktemp("run")), "memory://run"):
        for rows in groups:  # each group by a logger of its own, which continues the file
            logger = CSVLogger(root, version=0)
            for step, row in enumerate(rows):
                logger.log_metrics(row, step)
                logger.save()
            logger.log_hyperparams({"rows": len(rows)})
            logger.finalize("success")
        path = join(logger.log_dir, "metrics.csv")
        texts.append((read(path) if any(groups) else "", read(join(logger.log_dir, "hparams.json"))))
    assert texts[0] == texts[1]


def test_each_logger_has_a_version_of_its_own_and_an_unused_one_is_released() -> None:
    first, second = CSVLogger("memory://run"), CSVLogger("memory://run")
    assert (first.version, second.version) == (0, 1)
    second.log_metrics({"a": 1.0}, 0)
    for logger in (first, second):
        logger.finalize("success")
    assert files_below("memory://run") == ["memory://run/camshaft_logs/version_1/metrics.csv"]
    third = CSVLogger("memory://run")
    assert third.version == 2
    del third
    gc.collect()
    assert files_below("memory://run") == ["memory://run/camshaft_logs/version_1/metrics.csv"]


def test_rows_that_could_not_be_uploaded_are_kept_for_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise ConnectionError("the line is dead")

    logger = CSVLogger("memory://run", version=0)
    logger.log_metrics({"a": 1.0}, 0)
    logger.save()
    logger.log_metrics({"a": 2.0, "b": 3.0}, 1)
    with monkeypatch.context() as patch, pytest.raises(ConnectionError):
        patch.setattr(MemoryFileSystem, "put_file", fail)
        logger.save()
    assert read(join(logger.log_dir, "metrics.csv")) == "step,a\n0,1.0\n"
    logger.finalize("success")
    assert read(join(logger.log_dir, "metrics.csv")) == "step,a,b\n0,1.0,\n1,2.0,3.0\n"
    assert logger.experiment.metrics_file_path == "memory://run/camshaft_logs/version_0/metrics.csv"


def test_curves_and_reports_are_written_there() -> None:
    report = CurveReport("memory://report")
    report.log_metrics({"a": 1.0}, 0)
    report.finalize("success")
    profiler = SimpleProfiler("memory://report", "times")
    for _ in range(2):  # the second report is appended
        with profiler.profile("work"):
            pass
        profiler.describe()
    names = [url.removeprefix("memory://report/") for url in files_below("memory://report")]
    assert names == ["a.png", "curves.png", "metrics.csv", "times.txt"]
    assert read("memory://report/times.txt").count("work") == 2


def test_what_writes_with_a_library_of_its_own_takes_no_url(tmp_path: Path) -> None:
    for make in (
        lambda: TensorBoardLogger("memory://run"),
        lambda: WandbLogger(save_dir="memory://run", offline=True),
        lambda: ParquetPredictionWriter("memory://run"),
    ):
        with pytest.raises(InvalidArgumentError, match=r"a local folder.*memory://run"):
            make()
    saving = ModelCheckpoint("memory://run")
    saving.saved_path = "memory://run/x.ckpt"
    with pytest.raises(InvalidArgumentError, match=r"`dirpath` must be a local folder.*memory://run/x\.ckpt"):
        WandbLogger(save_dir=tmp_path, offline=True, log_model=True).after_save_checkpoint(saving)
