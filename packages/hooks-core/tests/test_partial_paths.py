from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from camshaft.hooks_core import durable_files
from camshaft.hooks_core.durable_files import abandoned_in, claimed, new_partial_name

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="this system has no such locks")

WRITER = """
import sys, time
from pathlib import Path
from camshaft.hooks_core.durable_files import claimed, new_partial_name
path = new_partial_name(Path(sys.argv[1], "a.ckpt"))
path.mkdir() if sys.argv[2] == "directory" else path.touch()
with claimed(path):
    print(path.name, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_files, "_SECONDS_TO_LOCK", 0.0)


def found(folder: Path) -> list[str]:
    return [path.name for path in abandoned_in(folder, ".*.ckpt*.partial")]


@pytest.mark.processes
@pytest.mark.usefixtures("_no_grace")
@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_a_process_writes_is_abandoned_once_it_is_killed_and_not_before(tmp_path: Path, kind: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WRITER, str(tmp_path), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert (tmp_path / name).exists() and found(tmp_path) == []
        process.send_signal(signal.SIGSTOP)  # a process that stands still is one that may go on
        assert found(tmp_path) == []
        process.send_signal(signal.SIGKILL)
    assert found(tmp_path) == [name]


@pytest.mark.usefixtures("_no_grace")
def test_another_thread_or_job_of_this_process_is_a_writer_too(tmp_path: Path) -> None:
    path = new_partial_name(tmp_path / "a.ckpt")
    path.touch()
    with claimed(path):
        assert found(tmp_path) == []
    assert found(tmp_path) == [path.name]


def test_a_file_that_was_just_made_may_not_be_locked_yet(tmp_path: Path) -> None:
    new_partial_name(tmp_path / "a.ckpt").touch()
    assert found(tmp_path) == []


@pytest.mark.usefixtures("_no_grace")
@pytest.mark.parametrize("name", [".a.ckpt.0123456789ab.01234567.partial", ".a.ckpt.partial", ".a.ckpt.x1.partial"])
def test_one_from_another_machine_is_abandoned_after_an_hour_without_a_change(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "0.distcp").touch()
    os.utime(tmp_path / name, (0, 0))  # what is in it counts, and so does its change of name
    assert found(tmp_path) == []
    monkeypatch.setattr(durable_files, "QUIET_SECONDS", 0.0)
    assert found(tmp_path) == [name]
    with claimed(tmp_path / name):
        assert found(tmp_path) == []


@pytest.mark.usefixtures("_no_grace")
def test_where_there_are_no_locks_only_time_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_partial_name(tmp_path / "a.ckpt").touch()
    monkeypatch.setattr(durable_files, "fcntl", None)
    with claimed(tmp_path / "nowhere"):
        assert found(tmp_path) == []
    monkeypatch.setattr(durable_files, "QUIET_SECONDS", 0.0)
    assert len(found(tmp_path)) == 1


@pytest.mark.usefixtures("_no_grace")
def test_other_files_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_files, "QUIET_SECONDS", 0.0)
    for name in ("a.ckpt", "a.ckpt.partial", ".a.ckpt.previous", ".download.partial"):
        (tmp_path / name).touch()
    assert found(tmp_path) == []
    assert abandoned_in(tmp_path / "nowhere", "*") == []
