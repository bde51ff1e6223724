"""`self.log` through a trainer: where it is meant, where it is an error, what it costs and what it leaves."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader
from trainer_parts import NO_VALIDATION, ListLogger, Regression, assert_same, dataset, loader, quiet_trainer

from camshaft.callbacks import ModelCheckpoint
from camshaft.hooks_core import Callback
from camshaft.trainer import seed_everything

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)

FIT_HOOKS = {
    "on_train_start": "epoch",
    "on_train_epoch_start": "epoch",
    "on_train_batch_start": "step",
    "on_before_zero_grad": "step",
    "on_before_backward": "step",
    "on_after_backward": "step",
    "on_before_optimizer_step": "step",
    "on_train_batch_end": "step",
    "on_validation_start": "epoch",
    "on_validation_epoch_start": "epoch",
    "on_validation_batch_start": "epoch",
    "on_validation_batch_end": "epoch",
    "on_validation_epoch_end": "epoch",
    "on_train_epoch_end": "epoch",
}
TEST_HOOKS = ["on_test_start", "on_test_epoch_start", "on_test_batch_start", "on_test_batch_end", "on_test_epoch_end"]
NOT_IN_FIT = [
    "setup",
    "configure_optimizers",
    "on_fit_start",
    "on_validation_end",
    "on_train_end",
    "on_fit_end",
    "teardown",
]


def logging_in(hook: str, **arguments: Any) -> Regression:
    """A module that logs "mine" in a hook."""

    class Logging(Regression):
        pass

    def log(self: Any, *args: Any) -> Any:
        result = getattr(super(Logging, self), hook)(*args[: 2 if hook.endswith("_step") else None])
        self.log("mine", 2.0, **arguments)
        return result

    setattr(Logging, hook, log)
    return Logging()


@pytest.mark.parametrize(("hook", "kind"), FIT_HOOKS.items())
def test_hooks_of_training_and_validation_may_log(hook: str, kind: str, tmp_path: Path) -> None:
    logger = ListLogger()
    trainer = quiet_trainer(tmp_path, logger=logger, log_every_n_steps=1, num_sanity_val_steps=0)
    trainer.fit(logging_in(hook), loader(), loader(2))
    assert trainer.callback_metrics["mine"] == 2.0
    assert len([row for _, row in logger.rows if row.get("mine") == 2.0]) == (4 if kind == "step" else 1)


@pytest.mark.parametrize("hook", TEST_HOOKS)
def test_hooks_of_a_test_may_log(hook: str, tmp_path: Path) -> None:
    assert quiet_trainer(tmp_path).test(logging_in(hook), loader(2))[0]["mine"] == 2.0


@pytest.mark.parametrize("hook", NOT_IN_FIT)
def test_elsewhere_logging_is_an_error(hook: str, tmp_path: Path) -> None:
    if hook in ("setup", "teardown"):
        module: Any = type("InSetup", (Regression,), {hook: lambda self, stage: self.log("mine", 1.0)})()
    else:
        module = logging_in(hook)
    with pytest.raises(RuntimeError, match=r"`log` must be called in a hook or step of .*, but got 'mine'") as caught:
        quiet_trainer(tmp_path, num_sanity_val_steps=0).fit(module, loader(), loader())
    assert caught.value.__notes__[0].startswith(f"Raised in hook `{hook}`")


@pytest.mark.parametrize("hook", ["predict_step", "on_predict_epoch_end"])
def test_logging_in_prediction_is_an_error(hook: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"`log` must be called in a hook or step of training, validation or test"):
        quiet_trainer(tmp_path).predict(logging_in(hook), loader())


def test_a_step_outside_of_batches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`on_step` must be False outside of a batch"):
        quiet_trainer(tmp_path).fit(logging_in("on_train_epoch_end", on_step=True), loader())


def test_values_of_steps_and_epochs_are_what_was_logged(tmp_path: Path) -> None:
    class Both(Regression):
        losses: list[float]

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = self.loss(batch)
            self.losses.append(float(loss.detach()))
            self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
            return loss

    module, logger = Both(), ListLogger()
    module.losses = []
    trainer = quiet_trainer(tmp_path, logger=logger, log_every_n_steps=1, max_epochs=2)
    trainer.fit(module, loader(3))

    steps = [row["loss_step"] for _, row in logger.rows if "loss_step" in row]
    epochs = [row["loss_epoch"] for _, row in logger.rows if "loss_epoch" in row]
    assert steps == module.losses
    assert epochs == pytest.approx([sum(module.losses[:3]) / 3, sum(module.losses[3:]) / 3])
    assert trainer.progress_bar_metrics == {"loss_step": steps[-1], "loss_epoch": epochs[-1]}
    assert trainer.callback_metrics["loss"] == trainer.callback_metrics["loss_epoch"]


def test_epoch_means_count_samples_not_batches(tmp_path: Path) -> None:
    class Sizes(Regression):
        def validation_step(self, batch: Tensor, batch_idx: int) -> None:
            self.log("size", float(len(batch)))

    batches = (torch.zeros(size, 3) for size in (4, 2))
    results = quiet_trainer(tmp_path).validate(Sizes(), batches)
    assert results == [{"size": pytest.approx((4 * 4 + 2 * 2) / 6)}]


class TestSanityCheck:
    def test_its_values_are_shown_within_it_and_then_forgotten(self, tmp_path: Path) -> None:
        within: list[set[str]] = []
        after: list[dict[str, Any]] = []

        class Looking(Regression):
            def validation_step(self, batch: Any, batch_idx: int) -> None:
                super().validation_step(batch, batch_idx)
                self.log("each", float(batch_idx), on_step=True)

            def on_validation_end(self) -> None:
                if self.trainer.sanity_checking:
                    within.append(set(self.trainer.callback_metrics))

            def on_sanity_check_end(self) -> None:
                within.append(set(self.trainer.callback_metrics))

            def on_train_start(self) -> None:
                trainer = self.trainer
                after.extend([dict(trainer.callback_metrics), dict(trainer.logged_metrics)])
                after.append(dict(trainer.progress_bar_metrics))

        logger = ListLogger()
        trainer = quiet_trainer(tmp_path, logger=logger, log_every_n_steps=1, num_sanity_val_steps=-1)
        num_batches = 200  # more rows than are ever held back
        trainer.fit(Looking(), loader(), DataLoader(dataset(), sampler=[0] * num_batches))
        assert within == [{"val_loss", "each", "each_epoch"}] * 2
        assert after == [{}, {}, {}]
        assert len([row for _, row in logger.rows if "each_step" in row]) == num_batches
        assert len([row for _, row in logger.rows if "val_loss" in row]) == 1

    def test_logging_where_it_makes_no_sense_is_found_in_it(self, tmp_path: Path) -> None:
        class Late(Regression):
            def on_validation_end(self) -> None:
                self.log("too late", 1.0)

            def on_train_start(self) -> None:
                raise AssertionError("the sanity check has passed")

        with pytest.raises(RuntimeError, match="`log` must be called"):
            quiet_trainer(tmp_path, num_sanity_val_steps=1).fit(Late(), loader(), loader())

    def test_it_draws_nothing_from_the_generators_of_training(self, tmp_path: Path) -> None:
        class Drawing(Regression):
            def validation_step(self, batch: Any, batch_idx: int) -> None:
                torch.rand(3)

        trained = []
        for num_steps in (0, 2, -1):
            seed_everything(3)
            module = Drawing(dropout=0.3)
            trainer = quiet_trainer(tmp_path, num_sanity_val_steps=num_steps, limit_train_batches=3)
            trainer.fit(module, loader(shuffle=True), loader(shuffle=True))
            trained.append(module.state_dict())
        assert_same(trained[1], trained[0])
        assert_same(trained[2], trained[0])

    def test_it_triggers_no_checkpoint(self, tmp_path: Path) -> None:
        checkpoint = ModelCheckpoint(tmp_path, monitor="val_loss", save_on_train_epoch_end=False)

        class Stopping(Regression):
            def on_train_start(self) -> None:
                assert list(tmp_path.iterdir()) == [] and checkpoint.best_model_path == ""

        quiet_trainer(tmp_path, callbacks=checkpoint, enable_checkpointing=None).fit(Stopping(), loader(), loader())
        assert checkpoint.best_model_path != ""


class Waited(AssertionError):
    """The host asked a device for a value."""


class NoWaiting(TorchDispatchMode):
    """Raises where a tensor's value is asked for."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function._schema.name in ("aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::nonzero"):
            raise Waited(function)
        return function(*args, **(kwargs or {}))


class Forbidding(Callback):
    """Forbids to ask for a value, from the second batch's start to the epoch's end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_active = False
        self.num_batches = 0
        self._mode = NoWaiting()
        to_list = Tensor.tolist

        def checked_to_list(tensor: Tensor) -> Any:  # on the CPU it reads memory, unseen by the mode
            if self.is_active:
                raise Waited("tolist")
            return to_list(tensor)

        monkeypatch.setattr(Tensor, "tolist", checked_to_list)

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            self._mode.__enter__()
            self.is_active = True
        self.num_batches += self.is_active

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self._leave()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self._leave()

    def _leave(self) -> None:
        if self.is_active:
            self.is_active = False
            self._mode.__exit__(None, None, None)


class Busy(Regression):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("both", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log_dict({"max": loss, "min": loss}, on_epoch=True, reduce_fx="max")
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log("mean", outputs["loss"], on_step=False, on_epoch=True)


def test_steps_that_are_logged_but_not_sent_wait_for_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forbidding, logger = Forbidding(monkeypatch), ListLogger()
    trainer = quiet_trainer(tmp_path, callbacks=forbidding, logger=logger, log_every_n_steps=100, gradient_clip_val=1.0)
    trainer.fit(Busy(), loader(6))
    assert forbidding.num_batches == 5
    assert math.isfinite(trainer.progress_bar_metrics["both_epoch"])  # type: ignore[arg-type]


def test_a_step_that_is_sent_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the test above can fail."""
    forbidding = Forbidding(monkeypatch)
    trainer = quiet_trainer(tmp_path, callbacks=forbidding, logger=ListLogger(), log_every_n_steps=3)
    with pytest.raises(Waited, match="tolist"):
        trainer.fit(Busy(), loader(6))
    assert forbidding.num_batches == 2


def test_a_step_that_reads_its_loss_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Reading(Busy):
        def on_before_backward(self, loss: Tensor) -> None:
            self.log("read", loss.item())

    trainer = quiet_trainer(tmp_path, callbacks=Forbidding(monkeypatch))
    with pytest.raises(Waited, match="_local_scalar_dense"):
        trainer.fit(Reading(), loader(6))
