from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from camshaft.callbacks.checkpoints.files import point_last_at
from camshaft.callbacks.checkpoints.state import PendingSave, PendingSaves


def pending_saves(folder: Path, state: dict[str, Any] | None = None) -> PendingSaves:
    return PendingSaves(
        folder,
        state or {},
        point_last=lambda path, last: point_last_at(Path(path), Path(last)),
        remove_checkpoint=lambda path: Path(path).unlink(missing_ok=True),
    )


def request(pending: PendingSaves, name: str, displaced: tuple[str, ...] = (), last: str | None = None) -> PendingSave:
    path = str(pending.folder / name)
    Path(path).write_text(name)
    paths = tuple(str(pending.folder / one) for one in displaced)
    return pending.add(path, {"newest": name}, paths, last and str(pending.folder / last))


def test_nothing_happens_to_files_before_the_save_is_durable(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    pending = pending_saves(tmp_path)
    save = request(pending, "b", displaced=("a",), last="last")
    assert (tmp_path / "a").exists() and not (tmp_path / "last").exists()
    pending.finish(save)
    assert not (tmp_path / "a").exists() and (tmp_path / "last").read_text() == "b"
    assert not pending


def test_a_save_that_is_displaced_on_its_way_goes_as_soon_as_it_comes(tmp_path: Path) -> None:
    pending = pending_saves(tmp_path)
    first, second = request(pending, "a"), request(pending, "b", displaced=("a",))
    pending.finish(second)
    assert (tmp_path / "a").exists()  # its writer may still hold it
    pending.finish(first)
    assert not (tmp_path / "a").exists()


def test_last_never_moves_back(tmp_path: Path) -> None:
    pending = pending_saves(tmp_path)
    first, second = request(pending, "a", last="last"), request(pending, "b", last="last")
    pending.finish(second)
    pending.finish(first)
    assert (tmp_path / "last").read_text() == "b"
    assert pending.durable_state == {"newest": "b"}


def test_files_elsewhere_are_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "other" / "a"
    elsewhere.parent.mkdir()
    elsewhere.write_text("a")
    (tmp_path / "here").mkdir()
    pending = pending_saves(tmp_path / "here")
    pending.finish(request(pending, "b", displaced=("../other/a", str(elsewhere))))
    assert elsewhere.exists()


def test_dropping_all_returns_the_state_of_the_newest_durable_save(tmp_path: Path) -> None:
    pending = pending_saves(tmp_path, {"newest": ""})
    pending.finish(request(pending, "a"))
    late = request(pending, "b", displaced=("a",))
    assert pending.drop_all() == {"newest": "a"}
    pending.finish(late)
    assert (tmp_path / "a").exists()


def test_saves_on_their_way_can_be_told_until_they_are_durable(tmp_path: Path) -> None:
    pending = pending_saves(tmp_path)
    first, second = request(pending, "a", last="last"), request(pending, "b", displaced=("a",))
    a, b, last = (str(tmp_path / name) for name in ("a", "b", "last"))
    assert pending.state_dict() == [
        {"path": a, "displaced": [], "last_path": last},
        {"path": b, "displaced": [a], "last_path": None},
    ]
    pending.finish(second)
    assert pending.state_dict() == []  # nobody needs the first one any more
    pending.finish(first)
    assert pending.state_dict() == []


def test_a_save_whose_last_cannot_be_moved_is_not_remembered_as_durable(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    pending = pending_saves(tmp_path, {"newest": "a"})

    def fail(path: str, last: str) -> None:
        raise OSError(28, "No space left on device", last)

    pending.point_last = fail
    with pytest.raises(OSError, match="No space left"):
        pending.finish(request(pending, "b", displaced=("a",), last="last"))
    assert pending and pending.drop_all() == {"newest": "a"} and (tmp_path / "a").exists()
