"""What an exception interrupted is saved, and goes on."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from trainer_parts import NO_VALIDATION, Regression, files_below, loader, quiet_trainer

from camshaft.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.hooks_core.support import durable_files
from camshaft.strategies import SingleDeviceStrategy, read_checkpoint

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


class Broken(Regression):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.global_step == 6:
            raise KeyboardInterrupt


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_it_is_saved_and_goes_on(tmp_path: Path, is_asynchronous: bool) -> None:
    rescue = OnExceptionCheckpoint(tmp_path)
    kept = ModelCheckpoint(tmp_path / "kept", save_on_exception=True, save_last="link")
    strategy = SingleDeviceStrategy("cpu", save_asynchronously=is_asynchronous)
    trainer = quiet_trainer(
        tmp_path, callbacks=[rescue, kept], enable_checkpointing=True, max_epochs=2, strategy=strategy
    )
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(Broken(), loader())
    rescued = tmp_path / "kept/epoch=1-step=6.ckpt"
    for path in (rescue.ckpt_path, str(rescued)):
        assert strategy.load_checkpoint(path)["global_step"] == 6  # which waits for what is being written
    if not is_asynchronous:  # else nobody is told any more when it is durable, so that "last" stays
        assert os.readlink(tmp_path / "kept/last.ckpt") == rescued.name
    resumed = quiet_trainer(tmp_path, max_epochs=2)
    with pytest.warns(UserWarning):
        resumed.fit(Regression(), loader(), ckpt_path=rescue.ckpt_path)
    assert resumed.global_step >= 7


@pytest.mark.parametrize("verb", ["fit", "validate"])
def test_nothing_is_saved_where_nothing_was_trained(tmp_path: Path, verb: str) -> None:
    class Unready(Regression):
        def setup(self, stage: str) -> None:
            raise ValueError("no data")

    rescue = OnExceptionCheckpoint(tmp_path)
    with pytest.raises(ValueError, match="no data"):
        getattr(quiet_trainer(tmp_path, callbacks=rescue), verb)(Unready(), loader())
    assert files_below(tmp_path) == []


def test_several_processes_wait_for_nobody_and_say_that_nothing_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")

    class SecondOfTwo:
        world_size, global_rank = 2, 1

    class Trainer:
        strategy, fast_dev_run, global_step = SecondOfTwo(), False, 3

    rescue = OnExceptionCheckpoint(tmp_path)
    rescue.on_train_start(Trainer(), None)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="^Rank 1: .* saved nothing after the ValueError: the 2 processes can only"):
        rescue.on_exception(Trainer(), None, ValueError("x"))  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [{"filename": ""}, {"filename": "../x"}, {"dirpath": "https://b"}])
def test_where_it_could_not_save_is_an_error_at_once(arguments: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="in OnExceptionCheckpoint"):
        OnExceptionCheckpoint(**({"dirpath": tmp_path} | arguments))


@pytest.mark.parametrize("is_asynchronous", [False, True])
@pytest.mark.parametrize("save_last", [True, "link"])
def test_checkpoints_while_training_goes_on(tmp_path: Path, is_asynchronous: bool, save_last: Any) -> None:
    strategy = SingleDeviceStrategy("cpu", save_asynchronously=is_asynchronous)
    best = ModelCheckpoint(tmp_path, "{step}", "train_loss", save_top_k=2, every_n_train_steps=1, save_last=save_last)
    timed = ModelCheckpoint(tmp_path, "{step}", train_time_interval=timedelta(0), save_top_k=-1)
    trainer = quiet_trainer(tmp_path, callbacks=[best, timed], enable_checkpointing=True, strategy=strategy)
    trainer.fit(Regression(), loader(6))
    assert len(best.best_k_models) == 2 and all(os.path.isfile(path) for path in best.best_k_models)
    assert read_checkpoint(best.last_model_path)["global_step"] == 6
    assert len(list(tmp_path.glob("step=*.ckpt"))) == 2 + 6
    assert not list(tmp_path.glob(".*"))


def test_what_a_killed_save_left_is_gone_after_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_files, "_SECONDS_TO_LOCK", 0.0)
    killed = durable_files.new_partial_name(tmp_path / "kept" / "epoch=0.ckpt")
    written = durable_files.new_partial_name(tmp_path / "kept" / "epoch=1.ckpt")
    killed.parent.mkdir()
    killed.touch()
    written.touch()
    with durable_files.lock(written):
        trainer = quiet_trainer(tmp_path, callbacks=ModelCheckpoint(tmp_path / "kept"), enable_checkpointing=True)
        trainer.fit(Regression(), loader())
        assert written.exists() and not killed.exists()
