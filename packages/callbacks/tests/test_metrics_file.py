from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.callbacks.loggers import csv_logger
from camshaft.callbacks.loggers.csv_logger import MetricsFile

NAMES = st.sampled_from(["loss", "val/loss", "a,b", 'quo"te', " space", "ä", ""])
VALUES = st.one_of(st.floats(allow_nan=False), st.integers())
ROWS = st.lists(st.dictionaries(NAMES, VALUES, min_size=1), min_size=1, max_size=5)


def read(path: Path) -> list[dict[str, str]]:
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
        assert read(path) == as_read([row for rows in groups for row in rows])
        assert os.listdir(folder) == ["metrics.csv"]


def test_numbers_are_written_to_the_last_bit(tmp_path: Path) -> None:
    MetricsFile(tmp_path / "m.csv").append([{"a": 0.1 + 0.2, "b": 1e-300, "c": float("nan")}])
    (row,) = read(tmp_path / "m.csv")
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
    assert [one["loss"] for one in read(tmp_path / "m.csv")] == ["1.0", "2.0"]
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
