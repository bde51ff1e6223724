"""Errors and interrupts: everything is told, torn down once, and the trainer can be used again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_parts import NO_VALIDATION, ListLogger, Regression, files_below, loader, quiet_trainer

from camshaft.callbacks import ModelCheckpoint
from camshaft.hooks_core import Callback, HookFaultError
from camshaft.loops import FitLimits
from camshaft.strategies import read_checkpoint
from camshaft.trainer import Trainer

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)

STEPS = {"fit": "training_step", "validate": "validation_step", "test": "test_step", "predict": "predict_step"}


class Ending(Callback):
    """Notes how runs end."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self.calls.append(f"on_exception {type(exception).__name__}")

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        self.calls.append(f"teardown {stage}")


def failing(step: str, error: BaseException, batch_idx_of_failure: int = 1) -> Regression:
    """A module whose step raises; set `module.fails` to false to repair it."""

    class Failing(Regression):
        fails = True

    def fail(self: Any, batch: Any, batch_idx: int) -> Any:
        if self.fails and batch_idx == batch_idx_of_failure:
            raise error
        return getattr(super(Failing, self), step)(batch, batch_idx)

    setattr(Failing, step, fail)
    return Failing()


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt(), SystemExit(3), StopIteration()], ids=repr)
@pytest.mark.parametrize("verb", STEPS)
def test_an_error_in_a_step_leaves_everything_closed_and_the_trainer_usable(
    verb: str, error: BaseException, tmp_path: Path
) -> None:
    ending, logger = Ending(), ListLogger()
    trainer = quiet_trainer(tmp_path, callbacks=ending, logger=logger)
    module = failing(STEPS[verb], error)
    module.layer.eval()

    with pytest.raises(type(error)) as caught:
        getattr(trainer, verb)(module, loader())

    assert caught.value is error
    stage = "train" if verb == "fit" else verb
    note = (
        f"Raised in hook `{STEPS[verb]}` of failing.<locals>.Failing ({verb}, stage {stage}, epoch 0, batch 1, rank 0)."
    )
    assert error.__notes__ == [note]
    error.__notes__.clear()
    assert ending.calls == [f"on_exception {type(error).__name__}", f"teardown {verb}"]
    assert logger.statuses == ["failed"]
    assert module.training and not module.layer.training
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    assert not (trainer.training or trainer.validating or trainer.testing or trainer.predicting)

    module.fails = False
    getattr(trainer, verb)(module, loader())
    assert logger.statuses == ["failed", "success"]
    assert ending.calls[2:] == [f"teardown {verb}"]


def test_a_fit_that_was_interrupted_can_be_continued_by_the_same_trainer(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, max_epochs=3)
    module = failing("training_step", KeyboardInterrupt(), batch_idx_of_failure=2)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(module, loader())
    assert (trainer.current_epoch, trainer.global_step) == (0, 2)

    module.fails = False
    trainer.fit(module, loader())  # the cut-off epoch begins anew

    assert (trainer.current_epoch, trainer.global_step) == (3, 14)


def test_an_error_in_the_sanity_check_ends_it(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path)
    module = failing("validation_step", ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        trainer.fit(module, loader(), loader())
    assert not trainer.sanity_checking
    module.fails = False
    trainer.fit(module, loader(), loader())
    assert set(trainer.callback_metrics) == {"train_loss", "val_loss"}


def test_the_error_of_a_missing_hook_closes_loggers_and_writes_nothing(tmp_path: Path) -> None:
    class Misspelt(Regression):
        def on_trian_start(self) -> None: ...

    trainer = Trainer(max_epochs=1, default_root_dir=tmp_path, callbacks=(ending := Ending()))
    with pytest.raises(HookFaultError, match=r"on_trian_start: no hook has this name. Rename it to `on_train_start`"):
        trainer.fit(Misspelt(), loader())
    assert ending.calls == []
    assert "camshaft_logs/version_0/metrics.csv" not in files_below(tmp_path)
    trainer.fit(Regression(), loader())
    assert trainer.global_step == 4


def test_rows_logged_before_an_error_are_on_the_disk(tmp_path: Path) -> None:
    trainer = Trainer(max_epochs=1, default_root_dir=tmp_path, log_every_n_steps=1, enable_progress_bar=False)
    with pytest.raises(ValueError, match="broken"):
        trainer.fit(failing("training_step", ValueError("broken"), batch_idx_of_failure=3), loader())
    rows = (tmp_path / "camshaft_logs/version_0/metrics.csv").read_text().splitlines()
    assert len(rows) == 1 + 3


def test_a_logger_that_cannot_be_closed_does_not_hide_the_error_nor_keep_others_open(tmp_path: Path) -> None:
    class Broken(ListLogger):
        def finalize(self, status: str) -> None:
            raise OSError("disk full")

    logger = ListLogger()
    trainer = quiet_trainer(tmp_path, logger=[Broken(), logger])
    with pytest.raises(ValueError, match="broken") as caught:
        trainer.fit(failing("training_step", ValueError("broken")), loader())
    assert "Afterwards, " in caught.value.__notes__[-1] and "OSError: disk full" in caught.value.__notes__[-1]
    assert logger.statuses == ["failed"]

    with pytest.raises(OSError, match="disk full"):
        trainer.validate(Regression(), loader())
    assert logger.statuses == ["failed", "success"]
    trainer_again = quiet_trainer(tmp_path, logger=logger)
    trainer_again.validate(Regression(), loader())


class Cut(Callback):
    """Raises at the end of a batch, when another callback has asked for a checkpoint already."""

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 6:
            raise KeyboardInterrupt


def test_a_save_that_an_error_cut_off_is_not_made_up_for_later(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=3)
    trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=[checkpoint, Cut()], enable_checkpointing=None)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(Regression(), loader())

    trainer.save_checkpoint(tmp_path / "interrupted.ckpt")

    assert files_below(tmp_path) == ["interrupted.ckpt", "kept/epoch=0-step=3.ckpt"]
    assert checkpoint.best_model_path == str(tmp_path / "kept/epoch=0-step=3.ckpt")


@pytest.mark.parametrize("where", ["on_exception", "afterwards"])
@pytest.mark.parametrize("batch_idx", [0, 2])
def test_a_checkpoint_taken_inside_a_batch_goes_on_after_it_with_a_warning(
    batch_idx: int, where: str, tmp_path: Path
) -> None:
    class Rescue(Callback):
        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            trainer.save_checkpoint(tmp_path / "on_exception.ckpt")

    class Second(Regression):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx_: int) -> None:
            if self.current_epoch == 1 and batch_idx_ == batch_idx:
                raise KeyboardInterrupt

    trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=Rescue())
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(Second(), loader())
    trainer.save_checkpoint(tmp_path / "afterwards.ckpt")

    path = tmp_path / f"{where}.ckpt"
    assert read_checkpoint(path)["global_step"] == 4 + batch_idx + 1
    batches: list[tuple[int, int]] = []

    class Noting(Regression):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            batches.append((self.current_epoch, batch_idx))

    resumed = quiet_trainer(tmp_path, max_epochs=2)
    with pytest.warns(UserWarning, match=f"The checkpoint was taken inside of batch {batch_idx} of epoch 1, as after"):
        resumed.fit(Noting(), loader(), ckpt_path=path)
    assert batches == [(1, idx) for idx in range(batch_idx + 1, 4)]
    assert (resumed.current_epoch, resumed.global_step) == (2, 8)
    quiet_trainer(tmp_path).validate(Regression(), loader(), ckpt_path=path)


def test_a_callbacks_save_request_inside_on_exception_leaves_earlier_ones_alone(tmp_path: Path) -> None:
    class Rescue(Callback):
        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            trainer.save_checkpoint(tmp_path / "rescued.ckpt")

    checkpoint = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=3)
    trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=[checkpoint, Cut(), Rescue()], enable_checkpointing=None)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(Regression(), loader())
    assert files_below(tmp_path) == ["kept/epoch=0-step=3.ckpt", "rescued.ckpt"]


def test_gradients_of_a_failed_batch_do_not_reach_the_next_fit(tmp_path: Path) -> None:
    class FailsOnce(Regression):
        fails = True

        def on_after_backward(self) -> None:
            if self.fails:
                raise ValueError("broken")

    torch.manual_seed(0)
    module, fresh = FailsOnce(), Regression()
    fresh.load_state_dict(module.state_dict())
    trainer = quiet_trainer(tmp_path)
    with pytest.raises(ValueError, match="broken"):
        trainer.fit(module, loader())
    module.fails = False
    trainer.fit(module, loader())
    quiet_trainer(tmp_path).fit(fresh, loader())
    assert torch.equal(module.layer.weight, fresh.layer.weight)


def test_limits_can_be_raised_to_go_on(tmp_path: Path) -> None:
    trainer, module = quiet_trainer(tmp_path), Regression()
    trainer.fit(module, loader())
    trainer.fit_loop.limits = FitLimits(max_epochs=3)
    trainer.fit(module, loader())
    assert (trainer.max_epochs, trainer.current_epoch, trainer.global_step) == (3, 3, 12)


def test_an_error_in_teardown_is_told_and_raised(tmp_path: Path) -> None:
    class Torn(Regression):
        def teardown(self, stage: str) -> None:
            raise OSError("cannot let go")

    ending, logger = Ending(), ListLogger()
    trainer = quiet_trainer(tmp_path, callbacks=ending, logger=logger)
    with pytest.raises(OSError, match="cannot let go"):
        trainer.fit(Torn(), loader())
    assert ending.calls == ["teardown fit", "on_exception OSError"]
    assert logger.statuses == ["failed"]
