from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from camshaft.callbacks.checkpoints.files import point_last_at
from camshaft.callbacks.checkpoints.state import (
    KeptCheckpoints,
    PendingSave,
    PendingSaves,
    unfinished_saves,
    unwritten_saves,
)
from camshaft.callbacks.monitoring import Mode
from camshaft.hooks_core.support.remote_files import new_file

SCORES = st.lists(st.sampled_from([0.0, 1.0, 2.0, -1.5, math.nan, math.inf, -math.inf]), max_size=12)


def expected_survivors(scores: list[float], k: int, mode: Mode) -> set[str]:
    """The definition, spelled out: sort everything there ever was, NaN last, earlier before later."""
    sign = 1 if mode == "min" else -1
    cost = [math.inf if math.isnan(score) else sign * score for score in scores]
    ranking = sorted(range(len(scores)), key=lambda idx: (cost[idx], idx))
    return {str(idx) for idx in (ranking if k == -1 else ranking[:k])}


@given(scores=SCORES, k=st.integers(-1, 4), mode=st.sampled_from(["min", "max"]))
def test_keeps_the_k_best_of_everything_it_has_seen(scores: list[float], k: int, mode: Mode) -> None:
    kept = KeptCheckpoints(k, mode)
    for idx, score in enumerate(map(torch.tensor, scores)):
        if kept.takes(score):
            kept.add(str(idx), score, kept.displaced_by(score))
    assert set(kept.best_k_models) == expected_survivors(scores, k, mode)


def test_no_kept_score_is_nan() -> None:
    kept = KeptCheckpoints(2, "max")
    kept.add("a", torch.tensor(math.nan), ())
    assert float(kept.best_k_models["a"]) == -math.inf


def test_names_best_and_worst() -> None:
    kept = KeptCheckpoints(3, "max", {"a": torch.tensor(1.0), "c": torch.tensor(2.0)})
    kept.add("b", torch.tensor(3.0), ())
    assert (kept.best_model_path, kept.kth_best_model_path) == ("b", "a")
    nothing = KeptCheckpoints(3, "max")
    assert (nothing.best_model_path, nothing.kth_best_model_path) == ("", "")


def test_more_than_k_that_were_restored_go_at_once() -> None:
    kept = KeptCheckpoints(1, "min", {"a": torch.tensor(1.0), "b": torch.tensor(3.0), "c": torch.tensor(2.0)})
    better = torch.tensor(0.5)
    assert kept.takes(better) and kept.displaced_by(better) == ("a", "c", "b")
    assert not kept.takes(torch.tensor(1.0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_keeps_the_dtype_of_a_score(dtype: torch.dtype) -> None:
    kept = KeptCheckpoints(1, "min")
    kept.add("a", torch.tensor(2, dtype=dtype), ())
    assert kept.best_k_models["a"].dtype == dtype


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


def test_a_saved_state_tells_saves_that_were_never_written_from_files_that_are_gone(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("written", "unwritten", "gone")]
    elsewhere = str(tmp_path.parent / "unwritten")
    Path(paths[0]).touch()
    pending = [{"path": path, "displaced": [], "last_path": None} for path in (*paths[:2], elsewhere)]
    assert [save["path"] for save in unwritten_saves(pending, tmp_path)] == [paths[1]]

    kept = KeptCheckpoints(-1, "min")
    for idx, path in enumerate(reversed(paths)):
        kept.add(path, torch.tensor(float(idx)), ())
    with pytest.warns(UserWarning, match="forgets checkpoints that no longer exist.*gone"):
        missing = kept.missing_files([paths[1]])
    assert missing == [paths[2]] and kept.best_model_path == paths[2]
    kept.forget(missing)
    assert list(kept.best_k_models) == [paths[1], paths[0]] and kept.best_model_path == paths[1]
    assert float(kept.best_model_score or 0) == 1.0


@pytest.mark.parametrize(
    ("last", "displaced", "expected"),
    [
        (None, None, ("last.ckpt", [])),  # killed before "last" was there
        (1, 1, ("last.ckpt", ["old.ckpt"])),  # killed before it moved
        (2, 1, (None, ["old.ckpt"])),  # killed before the displaced one was removed
        (2, None, None),  # not killed
        (3, 3, None),  # a later save has moved "last", and used the other name again
    ],
)
def test_what_a_crash_kept_from_following_a_save_is_told_by_age(
    last: int | None, displaced: int | None, expected: Any, tmp_path: Path
) -> None:
    for name, age in {"new.ckpt": 2, "last.ckpt": last, "old.ckpt": displaced}.items():
        if age is not None:
            (tmp_path / name).touch()
            os.utime(tmp_path / name, (age, age))
    new, last_path, old = (str(tmp_path / name) for name in ("new.ckpt", "last.ckpt", "old.ckpt"))
    pending = [{"path": new, "displaced": [old], "last_path": last_path}]
    found = [
        (one["last_path"] and os.path.basename(one["last_path"]), [os.path.basename(path) for path in one["displaced"]])
        for one in unfinished_saves(pending, str(tmp_path))
    ]
    assert found == ([] if expected is None else [expected])
    assert unfinished_saves(pending, "/elsewhere") == []


def test_half_of_a_sharded_checkpoint_in_a_store_is_missing() -> None:
    folder = "memory://test_checkpoint_state"
    new, last, kept = (f"{folder}/{name}.ckpt" for name in ("new", "last", "kept"))
    for path in (f"{new}/__0.distcp", f"{new}/plain.ckpt", f"{last}/__0.distcp", f"{kept}/__0.distcp"):
        with new_file(path) as file:
            file.write_bytes(b"")
    pending = [{"path": new, "displaced": [], "last_path": last}, {"path": kept, "displaced": [], "last_path": None}]
    assert unfinished_saves(pending, folder) == [pending[0]]
    assert unwritten_saves(pending, folder) == [pending[1]]
