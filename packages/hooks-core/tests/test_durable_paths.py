from __future__ import annotations

import os
from pathlib import Path

import pytest

from camshaft.hooks_core.durable_files import previous_of, put_in_place, remove, written_whole


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
    put_in_place(partial, target)
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
        put_in_place(partial, target)
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
        put_in_place(partial, target)
    monkeypatch.undo()
    assert content_of(previous_of(target)) == "old"
    put_in_place(partial, target)  # the next one heals what is left
    assert content_of(target) == "new"
    assert os.listdir(tmp_path) == ["x.ckpt"]


def test_removing_takes_files_links_directories_and_nothing(tmp_path: Path) -> None:
    kept = directory(tmp_path / "kept", "kept")
    (tmp_path / "link").symlink_to(kept)
    for path in (tmp_path / "link", directory(tmp_path / "directory", ""), tmp_path / "absent"):
        remove(path)
    assert os.listdir(tmp_path) == ["kept"]
    assert content_of(kept) == "kept"


def test_a_file_is_replaced_as_a_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "x.json"
    with written_whole(target) as fresh:
        fresh.write_text("first")
        assert not target.exists()
    with pytest.raises(ValueError, match="mine"), written_whole(target) as fresh:
        fresh.write_text("half of the sec")
        raise ValueError("mine")
    assert target.read_text() == "first"
    assert os.listdir(tmp_path) == ["x.json"]
