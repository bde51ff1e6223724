"""Checkpoints at the edges of a fit: while it is set up, while it ends, between two saves, with nothing left to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from asked_saves import (
    Calling,
    assert_resumes_exactly,
    end_of,
    fit,
    new_trainer,
    saving_at_line,
)
from trainer_parts import Regression, assert_same, loader, quiet_trainer

from camshaft.callbacks import ModelCheckpoint
from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer, seed_everything


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    trainer = new_trainer(tmp_path_factory.mktemp("undisturbed"))
    return end_of(fit(trainer), trainer)


@pytest.fixture(scope="module")
def after_one_epoch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("one_epoch") / "one.ckpt"
    trainer = new_trainer(path.parent, max_epochs=1)
    fit(trainer)
    trainer.save_checkpoint(path)
    return path


@pytest.mark.parametrize("resumes", [False, True], ids=["from the start", "resumed"])
@pytest.mark.parametrize(
    "hook", ["configure_callbacks", "prepare_data", "setup", "configure_model", "on_load_checkpoint", "on_fit_start"]
)
def test_a_checkpoint_asked_for_while_fit_is_set_up_resumes_exactly(
    hook: str, resumes: bool, undisturbed: dict[str, Any], after_one_epoch: Path, tmp_path: Path
) -> None:
    def ask() -> None:
        trainer.save_checkpoint(tmp_path / "asked.ckpt")

    is_modules = hook in ("configure_callbacks", "prepare_data", "configure_model")
    trainer = new_trainer(tmp_path, *([] if is_modules else [Calling(hook, ask)]))
    module = fit(trainer, {hook: ask} if is_modules else None, after_one_epoch if resumes else None)
    assert_same(end_of(module, trainer), undisturbed, "while it was saved")
    if resumes or hook != "on_load_checkpoint":
        assert_resumes_exactly(tmp_path / "asked.ckpt", undisturbed)


@pytest.mark.parametrize("part", range(8))
def test_a_checkpoint_asked_for_between_any_two_lines_of_the_end_of_fit_is_written(
    part: int, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    with saving_at_line(tmp_path, "on_train_end", None, None) as (trainer, at_line):
        fit(trainer)
        at_line.stop()
    line = int(at_line.num_lines * (part + 0.5) / 8)
    with saving_at_line(tmp_path, "on_train_end", None, line) as (trainer, at_line):
        module = fit(trainer)
        at_line.stop()
    assert_same(end_of(module, trainer), undisturbed, f"while it was saved, at {at_line.where}")
    assert (tmp_path / "asked.ckpt").exists(), at_line.where
    assert_resumes_exactly(tmp_path / "asked.ckpt", undisturbed, at_line.where)


@pytest.mark.filterwarnings("ignore:fit has nothing to do")
def test_a_fit_with_nothing_left_to_do_knows_what_its_checkpoint_knows(
    undisturbed: dict[str, Any], after_one_epoch: Path, tmp_path: Path
) -> None:
    """As when a process is killed after its last checkpoint and before its end, and started again."""
    before = new_trainer(tmp_path, max_epochs=1)
    fit(before)
    trainer = new_trainer(tmp_path, max_epochs=1)
    fit(trainer, ckpt_path=after_one_epoch, seed=99)
    assert_same(dict(trainer.callback_metrics), dict(before.callback_metrics))
    trainer.save_checkpoint(tmp_path / "again.ckpt")
    assert_resumes_exactly(tmp_path / "again.ckpt", undisturbed)


class BeforeValidation(Callback):
    """Asks for a checkpoint of its own in each batch, before the validation that the batch triggers."""

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        trainer.save_checkpoint(Path(trainer.default_root_dir) / "own.ckpt")


class PowerCut(BaseException):
    """Ends a run at once."""


def test_a_run_cut_off_between_two_checkpoints_of_a_batch_remembers_the_best_that_is_there(tmp_path: Path) -> None:
    def trainer_and_callback(max_epochs: int) -> tuple[Trainer, ModelCheckpoint]:
        best = ModelCheckpoint(tmp_path, monitor="val_loss", save_top_k=1)
        callbacks = [best, BeforeValidation()]
        return quiet_trainer(tmp_path, callbacks=callbacks, max_epochs=max_epochs, enable_checkpointing=True), best

    trainer, _ = trainer_and_callback(3)
    save = trainer.strategy.save_checkpoint

    def cut_off(checkpoint: dict[str, Any], path: str) -> None:
        if "epoch=2" in path:
            raise PowerCut
        save(checkpoint, path)

    trainer.strategy.save_checkpoint = cut_off
    seed_everything(0)
    with pytest.raises(PowerCut):
        trainer.fit(Regression(), loader(), loader(1))
    assert [path.name for path in tmp_path.glob("epoch=*.ckpt")] == ["epoch=1-step=8.ckpt"]

    trainer, best = trainer_and_callback(4)
    trainer.fit(Regression(), loader(), loader(1), ckpt_path=tmp_path / "own.ckpt")
    there = {str(path) for path in tmp_path.glob("epoch=*.ckpt")}
    assert set(best.best_k_models) == there and best.best_model_path in there
