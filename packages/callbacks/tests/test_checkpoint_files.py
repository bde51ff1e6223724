from __future__ import annotations

import os
from pathlib import Path

import pytest

from camshaft.callbacks.checkpoints.files import point_last_at
from camshaft.hooks_core.durable_paths import remove


def listing(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_last_shares_the_data_and_survives_the_removal_of_its_source(tmp_path: Path) -> None:
    source, last = tmp_path / "a.ckpt", tmp_path / "last.ckpt"
    source.write_text("a")
    point_last_at(source, last)
    assert os.path.samefile(source, last)
    remove(source)
    assert last.read_text() == "a"


def test_last_moves_on_without_changing_what_it_named_before(tmp_path: Path) -> None:
    first, second, last = tmp_path / "a.ckpt", tmp_path / "b.ckpt", tmp_path / "last.ckpt"
    first.write_text("a")
    second.write_text("b")
    point_last_at(first, last)
    point_last_at(second, last)
    point_last_at(second, last)  # onto itself: rename() alone would leave the temporary name behind
    assert (first.read_text(), last.read_text()) == ("a", "b")
    assert listing(tmp_path) == ["a.ckpt", "b.ckpt", "last.ckpt"]


def test_copies_where_the_file_system_has_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: object, target: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    source, last = tmp_path / "a.ckpt", tmp_path / "last.ckpt"
    source.write_text("a")
    last.write_text("old")
    point_last_at(source, last)
    assert last.read_text() == "a"
    assert not os.path.samefile(source, last)
    assert listing(tmp_path) == ["a.ckpt", "last.ckpt"]


def test_a_checkpoint_may_be_a_folder(tmp_path: Path) -> None:
    last = tmp_path / "last.ckpt"
    for name in ("a", "b"):
        shard = tmp_path / f"{name}.ckpt" / "shards" / "0.distcp"
        shard.parent.mkdir(parents=True)
        shard.write_text(name)
        point_last_at(tmp_path / f"{name}.ckpt", last)
    assert (last / "shards" / "0.distcp").read_text() == "b"
    remove(tmp_path / "b.ckpt")
    assert (last / "shards" / "0.distcp").read_text() == "b"
    assert listing(tmp_path) == ["a.ckpt", "last.ckpt"]


def test_a_file_replaces_a_folder_and_a_folder_a_file(tmp_path: Path) -> None:
    last = tmp_path / "last.ckpt"
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("f")
    for name in ("file", "folder", "file"):
        point_last_at(tmp_path / name, last)
        assert last.is_dir() == (name == "folder")
    assert listing(tmp_path) == ["file", "folder", "last.ckpt"]


def test_last_stays_when_its_new_source_is_missing(tmp_path: Path) -> None:
    last = tmp_path / "last.ckpt"
    last.write_text("old")
    with pytest.raises(FileNotFoundError):
        point_last_at(tmp_path / "missing.ckpt", last)
    assert last.read_text() == "old"
    assert listing(tmp_path) == ["last.ckpt"]
