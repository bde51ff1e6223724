from __future__ import annotations

import copy
import csv
import json
import os
import pickle
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.callbacks import CSVLogger
from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.loggers import csv_logger
from camshaft.callbacks.loggers.csv_logger import MetricsFile
from camshaft.hooks_core.protocols import Logger


def read(logger: CSVLogger) -> list[dict[str, str]]:
    with open(os.path.join(logger.log_dir, "metrics.csv"), newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_is_a_logger_and_makes_nothing_but_its_folder_before_it_writes(tmp_path: Path) -> None:
    logger: Logger = CSVLogger(tmp_path)
    assert os.listdir(tmp_path) == []
    assert (logger.name, logger.version, logger.save_dir) == ("camshaft_logs", 0, str(tmp_path))
    assert logger.log_dir == str(tmp_path / "camshaft_logs" / "version_0")
    logger.log_metrics({"loss": 1.0}, step=0)
    logger.log_metrics({})
    assert os.listdir(str(logger.log_dir)) == []
    logger.save()
    assert os.listdir(str(logger.log_dir)) == ["metrics.csv"]


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.dictionaries(st.sampled_from(["loss", "acc", "val/loss"]), st.floats(allow_nan=False), min_size=1),
        min_size=1,
        max_size=12,
    ),
    flush_every=st.integers(1, 5),
)
def test_every_row_logged_is_read_back(rows: list[dict[str, float]], flush_every: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        logger = CSVLogger(folder, flush_logs_every_n_steps=flush_every)
        for step, row in enumerate(rows):
            logger.log_metrics(row, step)
        logger.finalize("success")
        found = [{name: float(cell) for name, cell in row.items() if cell} for row in read(logger)]
        assert found == [{"step": step, **row} for step, row in enumerate(rows)]


@pytest.mark.parametrize("stride", [1, 3, 50])
def test_holds_back_no_more_than_it_may(tmp_path: Path, stride: int) -> None:
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=10)
    for step in range(0, 40 * stride, stride):
        logger.log_metrics({"loss": 1.0}, step)
        path = Path(logger.log_dir, "metrics.csv")
        newest_on_disk = int(read(logger)[-1]["step"]) if path.exists() else -1
        assert step - newest_on_disk < 10


def test_counts_rows_where_there_are_no_steps(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=3)
    for value in range(4):
        logger.log_metrics({"loss": value})
    assert [(row["step"], row["loss"]) for row in read(logger)] == [("", "0"), ("", "1"), ("", "2")]


def test_takes_tensors_as_they_are_now(tmp_path: Path) -> None:
    logger, value = CSVLogger(tmp_path), torch.tensor(0.5)
    logger.log_metrics({"loss": value}, step=0)  # type: ignore[dict-item]
    value.fill_(7.0)
    logger.save()
    assert read(logger) == [{"step": "0", "loss": "0.5"}]


def test_a_prefix_is_put_before_names_but_not_before_step(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, prefix="fold1")
    logger.log_metrics({"loss": 1.0}, step=4)
    logger.save()
    assert read(logger) == [{"step": "4", "fold1-loss": "1.0"}]


def test_what_was_saved_survives_a_process_that_dies(tmp_path: Path) -> None:
    program = (
        "import os, sys; from camshaft.callbacks import CSVLogger; logger = CSVLogger(sys.argv[1])\n"
        "for step in range(5): logger.log_metrics({'loss': step / 2}, step)\n"
        "logger.save(); logger.log_metrics({'loss': 9.0}, 5); os._exit(9)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=environment, timeout=120)
    assert done.returncode == 9
    assert [row["step"] for row in read(CSVLogger(tmp_path, version=0))] == ["0", "1", "2", "3", "4"]


def test_rows_stay_held_back_when_they_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "logs"
    blocked.write_text("a file where the folder should be")
    logger = CSVLogger(blocked, version=0)
    logger.log_metrics({"loss": 1.0}, step=0)
    with pytest.raises(OSError, match="logs"):
        logger.save()
    blocked.unlink()
    logger.save()
    assert len(read(logger)) == 1


@settings(deadline=None)
@given(
    values=st.lists(st.floats(allow_nan=False), min_size=1, max_size=8),
    num_before=st.integers(0, 8),
    resumed_at=st.integers(0, 8),
    cut=st.integers(0, 12),
)
def test_a_fit_that_resumes_has_each_row_once(values: list[float], num_before: int, resumed_at: int, cut: int) -> None:
    def rows_of(steps: range, logger: CSVLogger) -> None:
        for step in steps:
            logger.log_metrics({"loss": values[step]}, step)
            logger.log_metrics({"score": values[step], "epoch": 0}, step)  # at the epoch's end, after a checkpoint
            logger.log_metrics({"score": values[step], "epoch": 0}, step)  # twice, as by two validations

    num_before = min(num_before, len(values))
    resumed_at = min(resumed_at, num_before)
    with tempfile.TemporaryDirectory() as folder:
        for name, first in (("whole", 0), ("resumed", max(0, resumed_at - 1))):
            logger = CSVLogger(folder, "", name, flush_logs_every_n_steps=1)
            if name == "resumed":
                rows_of(range(num_before), logger)
                file = Path(folder, name, "metrics.csv")
                if num_before > resumed_at:  # a crash cut the last row short
                    file.write_bytes(file.read_bytes()[: -min(cut, 3) or None])
                logger = CSVLogger(folder, "", name, flush_logs_every_n_steps=1)
                logger.resume_fit(resumed_at)
            rows_of(range(first, len(values)), logger)
            logger.sync()
        whole, resumed = (Path(folder, name, "metrics.csv").read_text() for name in ("whole", "resumed"))
    assert resumed == whole


class TestVersions:
    def test_each_run_gets_the_next_number(self, tmp_path: Path) -> None:
        for name in ("version_1", "version_10", "version_x", "other"):
            (tmp_path / "logs" / name).mkdir(parents=True)
        logger = CSVLogger(tmp_path, "logs")
        assert logger.version == 11
        (tmp_path / "logs" / "version_12").mkdir()
        assert logger.version == 11  # chosen once

    def test_loggers_that_are_made_together_do_not_share_one(self, tmp_path: Path) -> None:
        loggers = [CSVLogger(tmp_path) for _ in range(3)]
        assert [logger.version for logger in reversed(loggers)] == [0, 1, 2]
        for number, logger in enumerate(loggers):
            logger.log_metrics({"loss": float(number)}, 0)
            logger.finalize("success")
        assert [read(logger)[0]["loss"] for logger in loggers] == ["0.0", "1.0", "2.0"]

    def test_threads_that_ask_at_once_get_different_ones(self, tmp_path: Path) -> None:
        loggers = [CSVLogger(tmp_path) for _ in range(16)]
        with ThreadPoolExecutor(len(loggers)) as pool:
            versions = list(pool.map(lambda logger: logger.version, loggers))
        assert sorted(versions, key=int) == list(range(16))

    def test_processes_that_ask_at_once_get_different_ones(self, tmp_path: Path) -> None:
        program = (
            "import os, sys, time; from camshaft.callbacks import CSVLogger\n"
            "open(sys.argv[2], 'x').close()\n"
            "while len(os.listdir(os.path.dirname(sys.argv[2]))) < 2: pass\n"
            "for _ in range(20): CSVLogger(sys.argv[1]).log_hyperparams({'process': os.getpid()})"
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        (tmp_path / "started").mkdir()
        arguments = [
            [sys.executable, "-c", program, str(tmp_path), str(tmp_path / "started" / str(n))] for n in range(2)
        ]
        processes = [subprocess.Popen(argument, env=environment) for argument in arguments]
        assert [process.wait(120) for process in processes] == [0, 0]
        claims = [json.loads(path.read_text())["process"] for path in tmp_path.glob("*/version_*/hparams.json")]
        assert sorted(claims) == sorted([process.pid for process in processes] * 20)

    def test_a_folder_in_which_nothing_was_written_is_removed(self, tmp_path: Path) -> None:
        logger = CSVLogger(tmp_path / "deep")
        assert Path(logger.log_dir).is_dir()
        logger.finalize("success")
        assert os.listdir(tmp_path) == []
        other, path = CSVLogger(tmp_path), CSVLogger(tmp_path / "forgotten").log_dir
        assert other.version == 0 and not os.path.exists(path)
        Path(other.log_dir, "notes.txt").write_text("of the user")
        other.finalize("success")
        assert other.version == 0 and os.listdir(other.log_dir) == ["notes.txt"]

    def test_a_copy_keeps_the_version_and_a_given_one_makes_nothing(self, tmp_path: Path) -> None:
        logger = CSVLogger(tmp_path)
        assert (logger.version, copy.deepcopy(logger).version, pickle.loads(pickle.dumps(logger)).version) == (0, 0, 0)
        assert CSVLogger(tmp_path / "given", version=4).log_dir.endswith("version_4")
        assert os.listdir(tmp_path) == ["camshaft_logs"]

    def test_processes_of_one_run_share_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for rank in ("1", "0", "1", "0"):
            monkeypatch.setenv("RANK", rank)
            first = CSVLogger(tmp_path)
            assert first.version == 0  # until the first process writes
        monkeypatch.setenv("RANK", "1")
        assert CSVLogger(tmp_path).version == 0

    def test_a_given_version_is_continued_with_wider_rows(self, tmp_path: Path) -> None:
        for step, metrics in enumerate([{"loss": 1.0}, {"loss": 0.5, "acc": 0.9}]):
            logger = CSVLogger(tmp_path, version="mine")
            logger.log_metrics(metrics, step)
            logger.finalize("success")
        assert logger.log_dir == str(tmp_path / "camshaft_logs" / "mine")
        assert read(logger) == [
            {"step": "0", "loss": "1.0", "acc": ""},
            {"step": "1", "loss": "0.5", "acc": "0.9"},
        ]

    def test_an_empty_name_uses_the_folder_itself(self, tmp_path: Path) -> None:
        logger = CSVLogger(tmp_path, name="", version=3)
        assert (logger.log_dir, logger.root_dir) == (str(tmp_path / "version_3"), str(tmp_path))


def test_hyperparameters_are_written_at_once_and_added_to(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    logger.log_hyperparams({"lr": 0.1, "sizes": (1, 2), "path": Path("x"), "nested": {1: None}})
    logger.log_hyperparams({"lr": 0.2, "name": "ä"})
    written = json.loads(Path(logger.log_dir, "hparams.json").read_text(encoding="utf-8"))
    assert written == {"lr": 0.2, "sizes": [1, 2], "path": "x", "nested": {"1": None}, "name": "ä"}
    assert os.listdir(logger.log_dir) == ["hparams.json"]


@pytest.mark.parametrize("metrics", [{"loss": "low"}, {"loss": None}, {"a\nb": 1.0}, {"a\rb": 1.0}])
def test_what_does_not_fit_a_row_is_refused(tmp_path: Path, metrics: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"`metrics.* must be (a number|numbers).* in CSVLogger"):
        CSVLogger(tmp_path).log_metrics(metrics)


def test_a_flush_interval_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="`flush_logs_every_n_steps` must be 1 or more, but got 0"):
        CSVLogger(tmp_path, flush_logs_every_n_steps=0)


def test_what_a_csv_file_lacks_says_which_logger_has_it(tmp_path: Path) -> None:
    experiment = CSVLogger(tmp_path).experiment
    with pytest.raises(AttributeError, match=r"has no 'add_histogram'.*logger=TensorBoardLogger"):
        experiment.add_histogram("weights", [1.0])
    assert not hasattr(experiment, "add_scalar") and copy.deepcopy(experiment).path == experiment.path


NAMES = st.sampled_from(["loss", "val/loss", "a,b", 'quo"te', " space", "ä", ""])
VALUES = st.one_of(st.floats(allow_nan=False), st.integers())
ROWS = st.lists(st.dictionaries(NAMES, VALUES, min_size=1), min_size=1, max_size=5)


def read_lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def as_read(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: str(row.get(name, "")) for name in columns} for row in rows]


@settings(max_examples=60, deadline=None)
@given(groups=st.lists(ROWS, min_size=1, max_size=4), reopen=st.booleans())
def test_what_was_appended_is_read_back(groups: list[list[dict[str, Any]]], reopen: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "metrics.csv")
        file = MetricsFile(path)
        for rows in groups:
            file = MetricsFile(path) if reopen else file
            file.append(rows)
        assert read_lines(path) == as_read([row for rows in groups for row in rows])
        assert os.listdir(folder) == ["metrics.csv"]


def test_numbers_are_written_to_the_last_bit(tmp_path: Path) -> None:
    MetricsFile(tmp_path / "m.csv").append([{"a": 0.1 + 0.2, "b": 1e-300, "c": float("nan")}])
    (row,) = read_lines(tmp_path / "m.csv")
    assert float(row["a"]) == 0.1 + 0.2 and float(row["b"]) == 1e-300 and row["c"] == "nan"


def test_nothing_is_made_before_the_first_row(tmp_path: Path) -> None:
    MetricsFile(tmp_path / "deep" / "m.csv").append([])
    assert not (tmp_path / "deep").exists()


def test_a_line_that_a_crash_cut_short_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("step,loss\n1,0.5\n2,0.")
    MetricsFile(path).append([{"step": 2, "loss": 0.25}])
    assert path.read_text() == "step,loss\n1,0.5\n2,0.25\n"


@pytest.mark.parametrize("row", [{"loss": 2.0}, {"loss": 2.0, "new": 1.0}])
def test_a_failed_append_leaves_the_file_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: dict[str, float]
) -> None:
    file = MetricsFile(tmp_path / "m.csv")
    file.append([{"loss": 1.0}])
    before = (tmp_path / "m.csv").read_text()

    def fail(file: TextIO, *_: object) -> None:
        file.write("half a l")
        file.flush()
        raise OSError("disk full")

    write = csv_logger._write
    monkeypatch.setattr(csv_logger, "_write", fail)
    with pytest.raises(OSError, match="disk full"):
        file.append([row])
    assert (tmp_path / "m.csv").read_text() == before
    monkeypatch.setattr(csv_logger, "_write", write)
    file.append([row])
    assert [one["loss"] for one in read_lines(tmp_path / "m.csv")] == ["1.0", "2.0"]
    assert os.listdir(tmp_path) == ["m.csv"]


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from camshaft.callbacks.loggers.csv_logger import MetricsFile

file = MetricsFile(Path(sys.argv[1]))
file.append([{"step": 7, "loss": 0.5}])
before = file.path.read_bytes()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
long, wide = [{"step": 8, "loss": 1 / 3}] * 900, [{"step": 8, "new": 1.0}]
for rows, limit_bytes in ((long, 16), (long, 21), (long, 5000), (wide, 10), (wide, 25)):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        file.append(rows)
    except OSError:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    else:
        sys.exit("it fitted")
    assert file.path.read_bytes() == before, file.path.read_bytes()[:200]
file.append([{"step": 8, "loss": 1.0}])
"""


def test_a_disk_that_is_full_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], env=environment, check=True, timeout=120)
    assert path.read_text() == "step,loss\n7,0.5\n8,1.0\n" and os.listdir(tmp_path) == ["m.csv"]
