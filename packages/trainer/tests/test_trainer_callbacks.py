"""Callbacks, strategies and hooks of other people's making, and what callbacks can make a trainer do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from trainer_parts import NO_VALIDATION, ListLogger, Regression, files_below, loader, quiet_trainer

from camshaft.callbacks import Checkpoint, EarlyStopping, ModelCheckpoint
from camshaft.hooks_core import Callback, HookFaultError, HookFaultWarning, StrategyDefaults, not_a_hook
from camshaft.strategies import SingleDeviceStrategy

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


class Scripted(Regression):
    """Logs as `val_loss` what a test says for each epoch; the last value stays."""

    def __init__(self, *losses: float) -> None:
        super().__init__()
        self.losses = losses

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.losses[min(self.current_epoch, len(self.losses) - 1)])


def test_a_callback_of_ones_own_that_saves_takes_the_place_of_the_stock_one(tmp_path: Path) -> None:
    class Newest(Checkpoint):
        def on_train_end(self, trainer: Any, module: Any) -> None:
            self.best_model_path = str(tmp_path / "newest.ckpt")
            trainer.save_checkpoint(self.best_model_path)

    callback = Newest()
    trainer = quiet_trainer(tmp_path, max_epochs=1, callbacks=callback, enable_checkpointing=True)
    assert trainer.checkpoint_callback is callback and trainer.checkpoint_callbacks == [callback]
    trainer.fit(Regression(), loader())
    assert files_below(tmp_path) == ["newest.ckpt"]
    trainer.validate(Scripted(1.0), loader(), ckpt_path="best")
    with pytest.raises(
        ValueError, match="`enable_checkpointing=False` cannot be combined with the Newest in `callbacks`"
    ):
        quiet_trainer(tmp_path, callbacks=callback)


class TestStopping:
    def test_early_stopping_stops(self, tmp_path: Path) -> None:
        stopping = EarlyStopping("val_loss", patience=2)
        trainer = quiet_trainer(tmp_path, max_epochs=50, callbacks=stopping)
        trainer.fit(Scripted(3.0, 2.0, 2.5), loader(), loader())
        assert (trainer.current_epoch, stopping.stopped_epoch) == (4, 3)
        assert trainer.should_stop
        assert stopping.best_score == 2.0

    def test_min_epochs_come_first(self, tmp_path: Path) -> None:
        stopping = EarlyStopping("val_loss", patience=1)
        trainer = quiet_trainer(tmp_path, max_epochs=50, min_epochs=6, callbacks=stopping)
        trainer.fit(Scripted(1.0), loader(), loader())
        assert (trainer.min_epochs, trainer.current_epoch) == (6, 6)

    def test_min_steps_come_first(self, tmp_path: Path) -> None:
        stopping = EarlyStopping("val_loss", patience=1)
        trainer = quiet_trainer(tmp_path, max_epochs=50, min_steps=14, callbacks=stopping)
        trainer.fit(Scripted(1.0), loader(), loader())
        assert (trainer.min_steps, trainer.global_step) == (14, 14)

    def test_should_stop_ends_the_epoch_after_the_batch(self, tmp_path: Path) -> None:
        class Enough(Regression):
            def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
                if batch_idx == 1:
                    self.trainer.should_stop = True

        trainer = quiet_trainer(tmp_path, max_epochs=3)
        trainer.fit(Enough(), loader())
        assert (trainer.current_epoch, trainer.global_step) == (0, 2)

    def test_max_steps_ends_in_the_middle_of_an_epoch(self, tmp_path: Path) -> None:
        trainer = quiet_trainer(tmp_path, max_epochs=None, max_steps=6)
        trainer.fit(Regression(), loader())
        assert (trainer.max_epochs, trainer.max_steps, trainer.global_step) == (-1, 6, 6)

    def test_stopping_watches_what_the_module_logs_at_the_epochs_end(self, tmp_path: Path) -> None:
        class AtEnd(Regression):
            def on_train_epoch_end(self) -> None:
                self.log("score", 1.0 if self.current_epoch < 2 else float("nan"))

        stopping = EarlyStopping("score", mode="max", patience=10)
        trainer = quiet_trainer(tmp_path, max_epochs=9, callbacks=stopping)
        trainer.fit(AtEnd(), loader())
        assert trainer.current_epoch == 3
        assert stopping.stopping_reason_message is not None and "not finite" in stopping.stopping_reason_message


class TestCallbacksOfTheModule:
    def test_they_are_added_and_take_the_place_of_their_kind(self, tmp_path: Path) -> None:
        mine, other = EarlyStopping("train_loss"), ModelCheckpoint(tmp_path, "other")

        class WithCallbacks(Regression):
            def configure_callbacks(self) -> Any:
                return [mine]

        trainer = quiet_trainer(
            tmp_path, callbacks=[EarlyStopping("val_loss"), other], enable_checkpointing=None, max_epochs=2
        )
        for _ in range(2):
            trainer.fit(WithCallbacks(), loader())
            assert trainer.callbacks == [other, mine]
            trainer.fit_loop.progress.epochs.reset()
        assert trainer.early_stopping_callback is mine

    def test_one_alone_needs_no_list(self, tmp_path: Path) -> None:
        class WithCallback(Scripted):
            def configure_callbacks(self) -> Any:
                return EarlyStopping("val_loss", patience=1)

        trainer = quiet_trainer(tmp_path, max_epochs=9)
        trainer.fit(WithCallback(1.0), loader(), loader())
        assert trainer.current_epoch == 2


class TestMisspeltHooks:
    class Module(Regression):
        def on_train_epoch_begin(self) -> None:
            raise AssertionError("no hook")

    class Callback_:
        def on_train_end(self, trainer: Any, module: Any, outputs: Any) -> None:
            raise AssertionError("wrong arity")

    def test_they_are_an_error_that_tells_all_faults_at_once(self, tmp_path: Path) -> None:
        trainer = quiet_trainer(tmp_path, callbacks=self.Callback_())
        with pytest.raises(HookFaultError) as caught:
            trainer.fit(self.Module(), loader())
        message = str(caught.value)
        assert "on_train_epoch_begin: no hook has this name. Rename it to `on_train_epoch_start`" in message
        assert "on_train_end: its signature (trainer, module, outputs) requires `outputs`" in message
        assert files_below(tmp_path) == []

    def test_they_are_warnings_and_left_out_if_hooks_are_not_strict(self, tmp_path: Path) -> None:
        trainer = quiet_trainer(tmp_path, callbacks=self.Callback_(), strict_hooks=False)
        with pytest.warns(HookFaultWarning) as caught:
            trainer.fit(self.Module(), loader())
        faults = [str(warning.message) for warning in caught if warning.category is HookFaultWarning]
        assert len(faults) == 2
        assert trainer.global_step == 4

    def test_a_method_that_is_marked_is_no_fault(self, tmp_path: Path) -> None:
        class Marked(Regression):
            @not_a_hook
            def on_my_own_account(self) -> None:
                raise AssertionError("not called")

        quiet_trainer(tmp_path).fit(Marked(), loader())


class TestOtherPeoplesParts:
    def test_a_plain_class_is_a_callback(self, tmp_path: Path) -> None:
        class Plain:
            def __init__(self) -> None:
                self.seen: list[Any] = []

            def on_train_start(self, trainer: Any, pl_module: Any) -> None:
                self.seen.append((trainer.max_epochs, pl_module.current_epoch))

            def on_train_batch_end(
                self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
            ) -> None:
                self.seen.append((batch_idx, trainer.is_last_batch, float(outputs["loss"]) > 0))

            def on_validation_batch_end(
                self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
            ) -> None:
                if not trainer.sanity_checking:
                    self.seen.append((batch_idx, dataloader_idx))

        plain = Plain()
        quiet_trainer(tmp_path, callbacks=[plain]).fit(Regression(), loader(2), [loader(1), loader(1)])
        assert plain.seen == [(1, 0), (0, False, True), (1, True, True), (0, 0), (0, 1)]

    def test_a_callback_may_read_and_steer_the_optimizers(self, tmp_path: Path) -> None:
        class WarmUp(Callback):
            def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
                for group in trainer.optimizers[0].param_groups:
                    group["lr"] = 0.0

        module = Regression()
        before = module.layer.weight.detach().clone()
        quiet_trainer(tmp_path, callbacks=WarmUp()).fit(module, loader())
        assert torch.equal(module.layer.weight, before)

    def test_a_strategy_object_computes_and_receives_hooks(self, tmp_path: Path) -> None:
        calls = []

        class Halving(SingleDeviceStrategy):
            def backward(self, loss: Tensor) -> None:
                calls.append("backward")
                super().backward(loss / 2)

            def on_train_start(self) -> None:
                calls.append("on_train_start")

            def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
                calls.append(f"on_train_batch_start {batch_idx}")

            def teardown(self) -> None:
                calls.append("teardown")

        torch.manual_seed(0)
        module, reference = Regression(), Regression(learning_rate=0.05)
        reference.load_state_dict(module.state_dict())
        strategy = Halving("cpu")
        trainer = quiet_trainer(tmp_path, strategy=strategy, accelerator="cpu", devices=1)
        trainer.fit(module, loader(2))
        quiet_trainer(tmp_path).fit(reference, loader(2))

        assert trainer.strategy is strategy
        assert calls == [
            "on_train_start",
            "on_train_batch_start 0",
            "backward",
            "on_train_batch_start 1",
            "backward",
            "teardown",
        ]
        torch.testing.assert_close(module.layer.weight, reference.layer.weight)

    def test_a_strategy_of_ones_own_needs_the_defaults_and_a_handful_of_methods(self, tmp_path: Path) -> None:
        class Own(StrategyDefaults):
            """What has no default, by hand."""

            device = torch.device("cpu")
            global_rank = local_rank = 0
            world_size = 1
            saved: dict[str, Any]

            def setup_module(self, module: Any) -> Any:
                return module

            def setup_optimizers(self, optimizers: Any) -> Any:
                return list(optimizers)

            def batch_to_device(self, batch: Any) -> Any:
                return batch

            def wrap_step(self, step: Any) -> Any:
                return step

            def backward(self, loss: Tensor) -> None:
                loss.backward()

            def optimizer_step(self, optimizer: Any, closure: Any = None) -> Any:
                return optimizer.step() if closure is None else optimizer.step(closure)

            def clip_gradients(self, optimizer: Any, clip_val: float, algorithm: str) -> None:
                raise AssertionError("not asked for")

            def save_checkpoint(self, checkpoint: Any, path: str) -> None:
                self.saved = {path: checkpoint}

            def load_checkpoint(self, path: str) -> Any:
                return self.saved[path]

            def teardown(self) -> None: ...

        strategy, module = Own(), Regression()
        trainer = quiet_trainer(tmp_path, strategy=strategy)
        trainer.fit(module, loader())
        trainer.save_checkpoint("memory")
        assert list(strategy.saved) == ["memory"]
        trainer.validate(Regression(), loader(), ckpt_path="memory")
        assert (trainer.world_size, trainer.global_rank, trainer.local_rank, trainer.is_global_zero) == (1, 0, 0, True)

    def test_a_logger_of_another_class_gets_everything(self, tmp_path: Path) -> None:
        logger = ListLogger()
        trainer = quiet_trainer(tmp_path, logger=logger, log_every_n_steps=2)
        module = Regression()
        trainer.fit(module, loader(), loader())
        assert module.logger is logger and module.loggers == [logger]
        assert [(step, sorted(row)) for step, row in logger.rows] == [
            (1, ["epoch", "train_loss"]),
            (3, ["epoch", "train_loss"]),
            (3, ["epoch", "val_loss"]),
        ]
        assert logger.hparams == [dict(module.hparams)]
        assert (logger.num_saves, logger.statuses) == (1, ["success"])
