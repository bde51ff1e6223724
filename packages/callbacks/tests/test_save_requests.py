from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from camshaft.callbacks.checkpoints.files import point_last_at
from camshaft.callbacks.checkpoints.state import PendingSaves, SaveRequest


def pending_saves(folder: Path, memory: dict[str, Any] | None = None) -> PendingSaves:
    return PendingSaves(
        folder,
        memory or {},
        point_last=lambda path, last: point_last_at(Path(path), Path(last)),
        remove_checkpoint=lambda path: Path(path).unlink(missing_ok=True),
    )


def ask(pending: PendingSaves, name: str, displaced: tuple[str, ...] = (), last: str | None = None) -> SaveRequest:
    path = str(pending.folder / name)
    Path(path).write_text(name)
    paths = tuple(str(pending.folder / one) for one in displaced)
    return pending.add(path, {"newest": name}, paths, last and str(pending.folder / last))


def test_nothing_happens_to_files_before_the_save_is_durable(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    pending = pending_saves(tmp_path)
    request = ask(pending, "b", displaced=("a",), last="last")
    assert (tmp_path / "a").exists() and not (tmp_path / "last").exists()
    pending.settle(request)
    assert not (tmp_path / "a").exists() and (tmp_path / "last").read_text() == "b"
    assert not pending


def test_a_save_that_is_displaced_on_its_way_goes_as_soon_as_it_comes(tmp_path: Path) -> None:
    pending = pending_saves(tmp_path)
    first, second = ask(pending, "a"), ask(pending, "b", displaced=("a",))
    pending.settle(second)
    assert (tmp_path / "a").exists()  # its writer may still hold it
    pending.settle(first)
    assert not (tmp_path / "a").exists()


def test_last_never_moves_back(tmp_path: Path) -> None:
    pending = pending_saves(tmp_path)
    first, second = ask(pending, "a", last="last"), ask(pending, "b", last="last")
    pending.settle(second)
    pending.settle(first)
    assert (tmp_path / "last").read_text() == "b"
    assert pending.durable_memory == {"newest": "b"}


def test_files_elsewhere_are_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "other" / "a"
    elsewhere.parent.mkdir()
    elsewhere.write_text("a")
    (tmp_path / "here").mkdir()
    pending = pending_saves(tmp_path / "here")
    pending.settle(ask(pending, "b", displaced=("../other/a", str(elsewhere))))
    assert elsewhere.exists()


def test_giving_up_returns_the_memory_of_what_is_durable(tmp_path: Path) -> None:
    pending = pending_saves(tmp_path, {"newest": ""})
    pending.settle(ask(pending, "a"))
    late = ask(pending, "b", displaced=("a",))
    assert pending.give_up() == {"newest": "a"}
    pending.settle(late)
    assert (tmp_path / "a").exists()


def test_saves_on_their_way_can_be_told_until_they_are_durable(tmp_path: Path) -> None:
    pending = pending_saves(tmp_path)
    first, second = ask(pending, "a", last="last"), ask(pending, "b", displaced=("a",))
    a, b, last = (str(tmp_path / name) for name in ("a", "b", "last"))
    assert pending.state_dict() == [
        {"path": a, "displaced": [], "last_path": last},
        {"path": b, "displaced": [a], "last_path": None},
    ]
    pending.settle(second)
    assert pending.state_dict() == []  # nobody needs the first one any more
    pending.settle(first)
    assert pending.state_dict() == []


def test_a_save_whose_last_cannot_be_moved_is_not_remembered_as_durable(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    pending = pending_saves(tmp_path, {"newest": "a"})

    def fail(path: str, last: str) -> None:
        raise OSError(28, "No space left on device", last)

    pending.point_last = fail
    with pytest.raises(OSError, match="No space left"):
        pending.settle(ask(pending, "b", displaced=("a",), last="last"))
    assert pending and pending.give_up() == {"newest": "a"} and (tmp_path / "a").exists()
