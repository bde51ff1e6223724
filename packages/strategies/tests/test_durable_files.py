from __future__ import annotations

import os
from pathlib import Path

import pytest

from camshaft.strategies.checkpoints.file import new_file, put_in_place
from camshaft.strategies.checkpoints.reading import locate


def directory(path: Path, content: str) -> Path:
    path.mkdir(parents=True)
    (path / "plain.ckpt").write_text(content)
    return path


def content_of(path: Path) -> str:
    return (path / "plain.ckpt").read_text() if path.is_dir() else path.read_text()


@pytest.mark.parametrize("moment", [1, 2])
def test_a_crash_between_two_renames_leaves_one_of_both_where_it_is_found(
    tmp_path: Path, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, partial = directory(tmp_path / "x.ckpt", "old"), directory(tmp_path / "partial", "new")
    rename, num_renames = os.rename, 0

    def crash(*paths: Path) -> None:
        nonlocal num_renames
        num_renames += 1
        if num_renames >= moment:
            raise KeyboardInterrupt  # and nothing that it would clean up is done either
        rename(*paths)

    monkeypatch.setattr(os, "rename", crash)
    with pytest.raises(KeyboardInterrupt):
        put_in_place(partial, target)
    monkeypatch.undo()
    assert content_of(locate(target)) == "old"
    put_in_place(partial, target)  # the next save heals what is left
    assert content_of(target) == "new"
    assert os.listdir(tmp_path) == ["x.ckpt"]


def test_what_was_put_aside_is_found_only_where_nothing_has_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="must be an existing checkpoint"):
        locate(tmp_path / "x.ckpt")
    directory(tmp_path / ".x.ckpt.previous", "old")
    assert locate(tmp_path / "x.ckpt") == tmp_path / ".x.ckpt.previous"
    directory(tmp_path / "x.ckpt", "new")
    assert locate(tmp_path / "x.ckpt") == tmp_path / "x.ckpt"


def test_a_directory_that_is_no_checkpoint_is_never_replaced(tmp_path: Path) -> None:
    target = tmp_path / "runs"
    target.mkdir()
    (target / "precious").write_text("work")
    partial = tmp_path / "partial"
    partial.write_text("new")
    with pytest.raises(IsADirectoryError, match="a directory that is no checkpoint is not replaced"):
        put_in_place(partial, target)
    with (
        pytest.raises(IsADirectoryError, match="a directory that is no checkpoint is not replaced"),
        new_file(target),
    ):
        pass
    assert (target / "precious").read_text() == "work"
    assert sorted(os.listdir(tmp_path)) == ["partial", "runs"]


def test_an_empty_directory_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "x.ckpt").mkdir()
    with new_file(tmp_path / "x.ckpt") as partial:
        Path(partial).write_text("new")
    assert content_of(tmp_path / "x.ckpt") == "new"


def test_a_new_file_has_the_rights_that_files_get(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    with new_file(tmp_path / "deep" / "x") as partial:
        Path(partial).write_text("new")
    assert (tmp_path / "deep" / "x").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_file_that_was_not_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    with pytest.raises(ValueError, match="mine"), new_file(tmp_path / "x"):
        raise ValueError("mine")
    assert os.listdir(tmp_path) == ["x"]
    assert (tmp_path / "x").read_text() == "old"
