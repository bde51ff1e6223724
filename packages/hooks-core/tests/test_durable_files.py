from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from camshaft.hooks_core.support import durable_files
from camshaft.hooks_core.support.durable_files import (
    abandoned_files,
    found_at,
    interrupted_targets,
    lock,
    make_folder,
    new_file,
    new_partial_name,
    previous_of,
    remove,
    rename_durably,
    replace_file,
)
from camshaft.hooks_core.support.remote_files import written_at


def directory(path: Path, content: str) -> Path:
    path.mkdir(parents=True)
    (path / "plain.ckpt").write_text(content)
    return path


def content_of(path: Path) -> str:
    return (path / "plain.ckpt").read_text() if path.is_dir() else path.read_text()


@pytest.mark.parametrize("old", ["nothing", "file", "directory", "link"])
@pytest.mark.parametrize("new", ["file", "directory"])
def test_a_file_or_directory_takes_the_place_of_either(tmp_path: Path, old: str, new: str) -> None:
    target, partial = tmp_path / "x.ckpt", tmp_path / "partial"
    if old == "file":
        target.write_text("old")
    elif old == "directory":
        directory(target, "old")
    elif old == "link":
        directory(tmp_path / "elsewhere", "kept")
        target.symlink_to(tmp_path / "elsewhere")
    directory(partial, "new") if new == "directory" else partial.write_text("new")
    rename_durably(partial, target)
    assert content_of(target) == "new"
    assert not target.is_symlink()
    assert sorted(os.listdir(tmp_path)) == (["elsewhere", "x.ckpt"] if old == "link" else ["x.ckpt"])
    assert old != "link" or content_of(tmp_path / "elsewhere") == "kept"


def test_a_directory_comes_back_when_nothing_can_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, partial = directory(tmp_path / "x.ckpt", "old"), directory(tmp_path / "partial", "new")
    rename = os.rename

    def fail(source: Path, name: Path) -> None:
        if source == partial:
            raise OSError("disk gone")
        rename(source, name)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="disk gone"):
        rename_durably(partial, target)
    assert content_of(target) == "old"
    assert sorted(os.listdir(tmp_path)) == ["partial", "x.ckpt"]


def test_a_crash_between_two_renames_leaves_the_old_one_under_a_name_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, partial = directory(tmp_path / "x.ckpt", "old"), directory(tmp_path / "partial", "new")
    rename, renamed = os.rename, []

    def crash(*paths: Path) -> None:
        if renamed:
            raise KeyboardInterrupt  # and nothing that it would clean up is done either
        renamed.append(paths)
        rename(*paths)

    monkeypatch.setattr(os, "rename", crash)
    with pytest.raises(KeyboardInterrupt):
        rename_durably(partial, target)
    monkeypatch.undo()
    assert content_of(previous_of(target)) == "old"
    assert found_at(target) == previous_of(target)
    assert interrupted_targets(tmp_path, ".ckpt") == [target]
    rename_durably(partial, target)  # the next one heals what is left
    assert content_of(target) == "new"
    assert os.listdir(tmp_path) == ["x.ckpt"]
    assert found_at(target) == target and found_at(tmp_path / "y.ckpt") is None
    assert interrupted_targets(tmp_path, ".ckpt") == []


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_the_new_name_is_on_the_disk_before_the_old_contents_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    target, partial = tmp_path / "x.ckpt", tmp_path / "partial"
    for path, content in ((target, "old"), (partial, "new")):
        directory(path, content) if kind == "directory" else path.write_text(content)
    synced = []

    def record(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, content_of(target), previous_of(target).exists()))

    monkeypatch.setattr(os, "fsync", record)
    rename_durably(partial, target)
    assert synced == [(tmp_path.stat().st_ino, "new", kind == "directory")]


def test_removing_takes_files_links_directories_and_nothing(tmp_path: Path) -> None:
    kept = directory(tmp_path / "kept", "kept")
    (tmp_path / "link").symlink_to(kept)
    for path in (tmp_path / "link", directory(tmp_path / "directory", ""), tmp_path / "absent"):
        remove(path)
    assert os.listdir(tmp_path) == ["kept"]
    assert content_of(kept) == "kept"


def test_a_directory_has_lost_its_name_durably_when_its_files_begin_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, synced = directory(tmp_path / "x.ckpt", "old"), []

    def crash(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", crash)
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append((os.fstat(descriptor).st_ino, target.exists())))
    with pytest.raises(KeyboardInterrupt):
        remove(target)
    assert synced == [(tmp_path.stat().st_ino, False)]
    [left] = tmp_path.iterdir()
    assert content_of(left) == "old" and left.name.startswith(".x.ckpt.") and left.name.endswith(".partial")


def test_each_name_that_leads_to_a_new_folder_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", record)
    (tmp_path / "run").mkdir()  # by somebody else, who flushed nothing
    make_folder(tmp_path / "run" / "version_0" / "checkpoints")
    known = [one.stat().st_ino for one in (tmp_path / "run" / "version_0", tmp_path / "run", tmp_path)]
    assert synced[:3] == known
    synced.clear()
    make_folder(tmp_path / "run" / "version_0" / "checkpoints")
    assert synced == []
    make_folder(tmp_path / "run" / "version_1")
    assert synced == [(tmp_path / "run").stat().st_ino]


def test_a_folder_with_an_index_is_as_old_as_that(tmp_path: Path) -> None:
    folder = directory(tmp_path / "x.ckpt", "old")
    os.utime(folder / "plain.ckpt", (7, 7))
    (folder / ".metadata").touch()  # changes the folder, as removing a file does
    assert written_at(str(folder)) == 7 * 10**9
    os.rename(folder, previous_of(folder))
    assert written_at(str(folder)) == 7 * 10**9


def test_a_file_is_replaced_as_a_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "x.json"
    with replace_file(target) as fresh:
        fresh.write_text("first")
        assert not target.exists()
    with pytest.raises(ValueError, match="mine"), replace_file(target) as fresh:
        fresh.write_text("half of the sec")
        raise ValueError("mine")
    assert target.read_text() == "first"
    assert os.listdir(tmp_path) == ["x.json"]


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="this system has no such locks")

WRITER = """
import sys, time
from pathlib import Path
from camshaft.hooks_core.support.durable_files import lock, new_partial_name
path = new_partial_name(Path(sys.argv[1], "a.ckpt"))
path.mkdir() if sys.argv[2] == "directory" else path.touch()
with lock(path):
    print(path.name, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_files, "_SECONDS_TO_LOCK", 0.0)


def found(folder: Path) -> list[str]:
    return [path.name for path in abandoned_files(folder, ".*.ckpt*.partial")]


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
    with lock(path):
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
    with lock(tmp_path / name):
        assert found(tmp_path) == []


@pytest.mark.usefixtures("_no_grace")
def test_where_there_are_no_locks_only_time_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_partial_name(tmp_path / "a.ckpt").touch()
    monkeypatch.setattr(durable_files, "fcntl", None)
    with lock(tmp_path / "nowhere"):
        assert found(tmp_path) == []
    monkeypatch.setattr(durable_files, "QUIET_SECONDS", 0.0)
    assert len(found(tmp_path)) == 1


@pytest.mark.usefixtures("_no_grace")
def test_other_files_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_files, "QUIET_SECONDS", 0.0)
    for name in ("a.ckpt", "a.ckpt.partial", ".a.ckpt.previous", ".download.partial"):
        (tmp_path / name).touch()
    assert found(tmp_path) == []
    assert abandoned_files(tmp_path / "nowhere", "*") == []


def test_a_mount_that_refuses_to_set_modes_takes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", refuse)
    with new_file(tmp_path / "x.ckpt") as partial:
        partial.write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["x.ckpt"] and (tmp_path / "x.ckpt").read_text() == "new"
