from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from recording_trainer import OneProcess

from camshaft.callbacks.checkpoints.files import TimeInterval, point_last_at
from camshaft.hooks_core.support.durable_files import remove


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


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


class Broadcasting(OneProcess):
    """Rank 0 of two."""

    world_size = 2

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def broadcast(self, value: Any, src: int = 0) -> Any:
        self.sent.append(value)
        return value


class Receiving(Broadcasting):
    """Rank 1, which hears what rank 0 sent."""

    global_rank = 1

    def broadcast(self, value: Any, src: int = 0) -> Any:
        return self.sent.pop(0)


def test_one_process_looks_at_the_clock_after_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    interval = TimeInterval(10.0)
    over = []
    for _ in range(30):
        clock.now += 1.0
        over.append(interval.is_over(OneProcess()))  # type: ignore[arg-type]
    assert [idx + 1 for idx, is_over in enumerate(over) if is_over] == [10, 20, 30]


def test_ranks_are_due_at_the_same_batches_and_seldom_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    strategy = Broadcasting()
    first, second = TimeInterval(100.0), TimeInterval(100.0)
    over = []
    for _ in range(4000):
        clock.now += 0.1
        over.append(first.is_over(strategy))  # type: ignore[arg-type]
    due = [idx + 1 for idx, is_over in enumerate(over) if is_over]
    assert len(due) == 3 and all(abs(batch - 1000 * (idx + 1)) <= 3 * (idx + 1) for idx, batch in enumerate(due))
    assert len(strategy.sent) < 100
    receiving = Receiving()
    receiving.sent = strategy.sent
    assert [second.is_over(receiving) for _ in range(4000)] == over  # type: ignore[arg-type]
