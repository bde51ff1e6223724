from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from recording_trainer import RecordingTrainer, load_callback_state

from camshaft.callbacks import ModelCheckpoint


def checkpoint_in(folder: Path, save_top_k: int = 2) -> ModelCheckpoint:
    return ModelCheckpoint(folder, "{step}", "loss", save_top_k=save_top_k, save_last=True)


def run(folder: Path, checkpoint: ModelCheckpoint, losses: list[float]) -> RecordingTrainer:
    trainer = RecordingTrainer(str(folder), callbacks=[checkpoint])
    trainer.begin()
    for loss in losses:
        trainer.train_batch()
        trainer.end_epoch(loss=loss)
    return trainer


def test_a_checkpoint_knows_of_itself(tmp_path: Path) -> None:
    checkpoint = checkpoint_in(tmp_path)
    run(tmp_path, checkpoint, [3.0, 2.0, 1.0])
    state = load_callback_state(tmp_path / "step=3.ckpt", checkpoint)
    assert state["best_model_path"] == str(tmp_path / "step=3.ckpt")
    assert state["best_model_score"] == 1.0
    assert set(state["best_k_models"]) == {str(tmp_path / "step=2.ckpt"), str(tmp_path / "step=3.ckpt")}
    assert state["last_model_path"] == str(tmp_path / "last.ckpt")


def test_a_resumed_run_goes_on_as_one_that_did_not_stop(tmp_path: Path) -> None:
    whole, losses = checkpoint_in(tmp_path / "whole"), [3.0, 2.0, 2.5, 1.0, 4.0]
    run(tmp_path, whole, losses)
    run(tmp_path, checkpoint_in(tmp_path / "parts"), losses[:3])
    resumed = checkpoint_in(tmp_path / "parts")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed.load_state_dict(load_callback_state(tmp_path / "parts" / "last.ckpt", resumed))
        trainer = RecordingTrainer(str(tmp_path), callbacks=[resumed], global_step=3, current_epoch=3)
        trainer.begin()
    for loss in losses[3:]:
        trainer.train_batch()
        trainer.end_epoch(loss=loss)
    names = [sorted(path.name for path in (tmp_path / part).iterdir()) for part in ("whole", "parts")]
    assert names[0] == names[1] == ["last.ckpt", "step=2.ckpt", "step=4.ckpt"]
    assert whole.best_model_score == resumed.best_model_score
    assert Path(whole.kth_best_model_path).name == Path(resumed.kth_best_model_path).name == "step=2.ckpt"


def test_does_not_save_the_step_again_that_it_resumed_from(tmp_path: Path) -> None:
    first = ModelCheckpoint(tmp_path, every_n_train_steps=2)
    trainer = RecordingTrainer(str(tmp_path), callbacks=[first], global_step=1)
    trainer.begin()
    trainer.train_batch()
    resumed = ModelCheckpoint(tmp_path, every_n_train_steps=2)
    resumed.load_state_dict(first.state_dict() | {"best_model_path": ""})
    trainer = RecordingTrainer(str(tmp_path), callbacks=[resumed], global_step=2)
    trainer.begin()
    trainer.train_batch(is_update=False)
    assert not trainer.requested


def test_forgets_with_a_warning_what_no_longer_exists(tmp_path: Path) -> None:
    first = checkpoint_in(tmp_path)
    run(tmp_path, first, [1.0, 2.0])
    for name in ("step=1.ckpt", "last.ckpt"):
        (tmp_path / name).unlink()
    resumed = checkpoint_in(tmp_path)
    with pytest.warns(UserWarning, match=r"no longer exist: .*step=1\.ckpt.*last\.ckpt"):
        resumed.load_state_dict(first.state_dict())
    assert resumed.best_model_path == str(tmp_path / "step=2.ckpt")
    assert list(resumed.best_k_models) == [str(tmp_path / "step=2.ckpt")]
    assert resumed.last_model_path == ""


@pytest.mark.parametrize("is_set_up_first", [True, False])
def test_files_of_a_former_folder_count_and_are_never_removed(tmp_path: Path, is_set_up_first: bool) -> None:
    first = ModelCheckpoint(None, "{step}", "loss")
    trainer = RecordingTrainer(str(tmp_path), callbacks=[first], log_dir=str(tmp_path / "v0"))
    trainer.begin()
    trainer.train_batch()
    trainer.end_epoch(loss=2.0)
    resumed = ModelCheckpoint(None, "{step}", "loss")
    trainer = RecordingTrainer(str(tmp_path), callbacks=[resumed], log_dir=str(tmp_path / "v1"), global_step=1)
    if is_set_up_first:
        trainer.begin()
    with pytest.warns(UserWarning, match=r"now saves in '.*v1.*'; .*resumed run in '.*v0"):
        resumed.load_state_dict(first.state_dict())
        if not is_set_up_first:
            trainer.begin()
    for loss, best in ((3.0, "v0/checkpoints/step=1.ckpt"), (1.0, "v1/checkpoints/step=3.ckpt")):
        trainer.train_batch()
        trainer.end_epoch(loss=loss)
        assert resumed.best_model_path == str(tmp_path / best)
    assert (tmp_path / "v0/checkpoints/step=1.ckpt").exists()
    assert [path.name for path in (tmp_path / "v1/checkpoints").iterdir()] == ["step=3.ckpt"]


def test_keeps_fewer_when_resumed_with_fewer(tmp_path: Path) -> None:
    first = checkpoint_in(tmp_path, save_top_k=3)
    run(tmp_path, first, [3.0, 2.0, 1.0])
    resumed = checkpoint_in(tmp_path, save_top_k=1)
    resumed.load_state_dict(first.state_dict())
    trainer = RecordingTrainer(str(tmp_path), callbacks=[resumed], global_step=3)
    trainer.begin()
    trainer.train_batch()
    trainer.end_epoch(loss=0.5)
    assert {path.name for path in tmp_path.iterdir()} == {"step=4.ckpt", "last.ckpt"}


def test_a_save_that_never_came_is_forgotten_at_the_end(tmp_path: Path) -> None:
    checkpoint = checkpoint_in(tmp_path, save_top_k=1)
    trainer = run(tmp_path, checkpoint, [2.0])
    trainer.train_batch()
    trainer.log(loss=1.0)
    checkpoint.on_train_epoch_end(trainer, None)
    assert checkpoint.best_model_path == str(tmp_path / "step=2.ckpt")
    trainer.end()
    assert checkpoint.best_model_path == str(tmp_path / "step=1.ckpt")
    assert checkpoint.best_model_score == 2.0
    assert (tmp_path / "step=1.ckpt").exists()


def test_what_was_resumed_is_not_forgotten_with_it(tmp_path: Path) -> None:
    first, resumed = checkpoint_in(tmp_path), checkpoint_in(tmp_path)
    run(tmp_path, first, [2.0])
    trainer = run(tmp_path, resumed, [])
    resumed.load_state_dict(first.state_dict())
    trainer.global_step = 2
    trainer.log(loss=1.0)
    resumed.on_train_epoch_end(trainer, None)
    trainer.end()
    assert resumed.state_dict() == first.state_dict()


def test_two_saves_at_one_save_point_leave_the_better(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(tmp_path, "{step}", "loss", save_on_train_epoch_end=False)
    trainer = RecordingTrainer(str(tmp_path), callbacks=[checkpoint])
    trainer.begin()
    for loss in (2.0, 1.0):
        trainer.train_batch()
        trainer.validate(loss=loss)
    trainer.save_point(order=[1, 0])
    assert [path.name for path in tmp_path.iterdir()] == ["step=2.ckpt"]


def test_scores_are_plain_cpu_scalars(tmp_path: Path) -> None:
    checkpoint = checkpoint_in(tmp_path)
    trainer = run(tmp_path, checkpoint, [])
    trainer.callback_metrics["loss"] = value = torch.tensor([1.0], requires_grad=True)
    trainer.train_batch()
    trainer.end_epoch()
    with torch.no_grad():
        value.fill_(7.0)
    score = checkpoint.best_model_score
    assert score is not None and score == 1.0 and score.shape == () and not score.requires_grad
