"""What fit finds and mends in a folder that a crash left in the middle of a change. `nox -s crashes` has all of it."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
from trainer_parts import NO_VALIDATION, Regression, loader, quiet_trainer

from camshaft.callbacks import ModelCheckpoint
from camshaft.hooks_core.support.durable_files import previous_of
from camshaft.strategies import read_checkpoint
from camshaft.trainer import Trainer
from camshaft.trainer.checkpoints import checkpoints_in

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


def trainer_of(folder: Path, max_epochs: int) -> Trainer:
    saving = ModelCheckpoint(folder / "checkpoints", "{epoch}", monitor="epoch", mode="max", save_last=True)
    return quiet_trainer(folder, max_epochs=max_epochs, callbacks=[saving], enable_checkpointing=True)


def fit(folder: Path, max_epochs: int, ckpt_path: str | None = None) -> Trainer:
    trainer = trainer_of(folder, max_epochs)
    trainer.fit(Regression(), loader(), ckpt_path=ckpt_path)
    return trainer


def test_a_link_that_was_about_to_become_last_is_no_checkpoint(tmp_path: Path) -> None:
    fit(tmp_path, 1)
    folder = tmp_path / "checkpoints"
    workplace = folder / ".last.ckpt.0123.4567.partial"
    workplace.mkdir()
    (workplace / "last.ckpt").symlink_to("epoch=0.ckpt")  # which leads nowhere from there
    (folder / "gone.ckpt").symlink_to("nowhere.ckpt")
    assert sorted(map(os.path.basename, checkpoints_in(str(folder)))) == ["epoch=0.ckpt", "last.ckpt"]
    assert fit(tmp_path, 2, "last").ckpt_path == str(folder / "last.ckpt")


def test_a_folder_between_its_two_renames_is_found(tmp_path: Path) -> None:
    fit(tmp_path, 1)
    folder = tmp_path / "checkpoints"
    (folder / "epoch=0.ckpt").unlink()
    directory = folder / "last.ckpt"
    os.rename(directory, previous_of(directory))  # files are replaced in one step, so only folders are found so
    assert fit(tmp_path, 2, "last").ckpt_path == str(directory)
    assert read_checkpoint(directory)["epoch"] == 1


@pytest.mark.parametrize("max_epochs", [2, 3])
def test_a_resumed_run_moves_last_and_removes_what_was_displaced(tmp_path: Path, max_epochs: int) -> None:
    folder = tmp_path / "checkpoints"
    fit(tmp_path, 1)
    kept = {path: (path.read_bytes(), path.stat()) for path in (folder / "last.ckpt", folder / "epoch=0.ckpt")}
    fit(tmp_path, 2, "last")
    for path, (content, status) in kept.items():  # as they were when the second save was durable, and killed then
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="ModelCheckpoint forgets")
        fit(tmp_path, max_epochs, "last")
    names = {"last.ckpt", f"epoch={max_epochs - 1}.ckpt"}
    resumed_from = {"epoch=1.ckpt"}  # is never removed
    assert names <= set(os.listdir(folder)) <= names | resumed_from
    assert read_checkpoint(folder / "last.ckpt")["epoch"] == max_epochs - 1


def test_last_keeps_its_name_where_the_run_was_killed_before_it_was_there(tmp_path: Path) -> None:
    fit(tmp_path, 1)
    folder = tmp_path / "checkpoints"
    (folder / "last.ckpt").unlink()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="ModelCheckpoint forgets")
        fit(tmp_path, 1, "last")
    assert read_checkpoint(folder / "last.ckpt")["epoch"] == 0
