"""The four verbs as a user calls them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from trainer_parts import (
    NO_VALIDATION,
    ListLogger,
    Regression,
    RegressionData,
    assert_same,
    loader,
    quiet_trainer,
    weights,
)

from camshaft.hooks_core.check import check
from camshaft.hooks_core.trace import Trace
from camshaft.trainer import Trainer, TrainingModule

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


def test_fit_trains_as_the_loop_by_hand_does(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, by_hand = Regression(), Regression()
    by_hand.load_state_dict(module.state_dict())
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    for _ in range(2):
        for batch in loader():
            optimizer.zero_grad()
            by_hand.loss(batch).backward()
            optimizer.step()

    trainer = quiet_trainer(tmp_path, max_epochs=2)
    trainer.fit(module, loader())

    assert_same(weights(module), weights(by_hand))
    assert (trainer.current_epoch, trainer.global_step) == (2, 8)


def test_validate_and_test_return_what_was_logged(tmp_path: Path) -> None:
    module, trainer = Regression(), quiet_trainer(tmp_path)
    with torch.no_grad():
        expected = torch.stack([module.loss(batch) for batch in loader()]).mean()

    assert trainer.validate(module, loader()) == [{"val_loss": pytest.approx(float(expected))}]
    assert trainer.test(module, loader()) == [{"test_loss": pytest.approx(float(expected))}]
    assert module.training


def test_several_loaders_give_a_result_each(tmp_path: Path) -> None:
    module = Regression()
    results = quiet_trainer(tmp_path).validate(module, [loader(1), loader(3)])
    assert [list(result) for result in results] == [["val_loss/dataloader_idx_0"], ["val_loss/dataloader_idx_1"]]


def test_predict_returns_the_predictions_of_each_batch(tmp_path: Path) -> None:
    module, trainer = Regression(), quiet_trainer(tmp_path)
    with torch.no_grad():
        expected = [module(inputs) for inputs, _ in loader(3)]
    assert_same(trainer.predict(module, loader(3)), expected)
    assert_same(trainer.predict(module, [loader(3), loader(1)]), [expected, [expected[0][:4]]])
    assert trainer.predict(module, loader(3), return_predictions=False) is None


def test_predict_takes_the_module_itself_without_a_predict_step(tmp_path: Path) -> None:
    class Doubling(TrainingModule):
        def forward(self, inputs: Tensor) -> Tensor:
            return 2 * inputs

    batches = DataLoader(torch.ones(1, 2), batch_size=None)
    assert_same(quiet_trainer(tmp_path).predict(Doubling(), batches), [torch.full((2,), 2.0)])


def test_a_data_module_serves_every_verb(tmp_path: Path) -> None:
    module, data, trainer = Regression(), RegressionData(), quiet_trainer(tmp_path)

    trainer.fit(module, datamodule=data)
    assert (trainer.num_training_batches, trainer.num_val_batches) == (4, [2])
    trainer.validate(module, datamodule=data)
    trainer.test(module, datamodule=data)
    assert len(trainer.predict(module, datamodule=data)) == 1

    assert (trainer.num_test_batches, trainer.num_predict_batches) == ([3], [1])
    assert data.trainer is trainer
    stages = ["fit", "validate", "test", "predict"]
    assert data.calls == [call for stage in stages for call in ("prepare_data", f"setup {stage}", f"teardown {stage}")]


def test_a_data_module_may_stand_in_the_loaders_place(tmp_path: Path) -> None:
    module, data, trainer = Regression(), RegressionData(), quiet_trainer(tmp_path)
    trainer.fit(module, data)
    assert trainer.datamodule is data
    assert len(trainer.predict(module, data)) == 1


def test_a_later_verb_without_arguments_takes_module_and_data_of_the_one_before(tmp_path: Path) -> None:
    module, data, trainer = Regression(), RegressionData(), quiet_trainer(tmp_path)
    trainer.fit(module, datamodule=data)
    trained = weights(module)

    assert list(trainer.test()[0]) == ["test_loss"]

    assert trainer.model is module
    assert_same(weights(module), trained)


def test_the_data_module_of_another_module_is_not_taken_over(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path)
    trainer.fit(Regression(), datamodule=RegressionData())
    with pytest.raises(ValueError, match=r"`test loaders` must be given, or provided by the data module or the module"):
        trainer.test(Regression())


def test_a_data_module_of_any_class_with_the_methods_will_do(tmp_path: Path) -> None:
    class Anything:
        def val_dataloader(self) -> Any:
            return loader(2)

    trainer = quiet_trainer(tmp_path)
    trainer.validate(Regression(), datamodule=Anything())
    assert trainer.num_val_batches == [2]
    trainer.validate(Regression(), Anything())


def test_the_module_may_provide_the_loaders(tmp_path: Path) -> None:
    class WithData(Regression):
        def train_dataloader(self) -> Any:
            return loader(3)

        def val_dataloader(self) -> Any:
            return [loader(1), loader(2)]

    trainer = quiet_trainer(tmp_path)
    trainer.fit(WithData())
    assert (trainer.num_training_batches, trainer.num_val_batches) == (3, [1, 2])
    assert len(trainer.train_dataloader) == 3
    assert [len(each) for each in trainer.val_dataloaders] == [1, 2]


def test_loaders_that_were_passed_come_before_those_of_the_module(tmp_path: Path) -> None:
    class WithData(Regression):
        def train_dataloader(self) -> Any:
            raise AssertionError("not asked for")

    quiet_trainer(tmp_path).fit(WithData(), loader())


def test_a_plain_module_with_the_steps_will_do(tmp_path: Path) -> None:
    class Plain(nn.Linear):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return nn.functional.mse_loss(self(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Plain(3, 1)
    before = weights(module)
    trainer = quiet_trainer(tmp_path)
    trainer.fit(module, loader())
    assert not torch.equal(module.weight, before["weight"])
    trainer.save_checkpoint(tmp_path / "plain.ckpt")
    inputs = torch.ones(2, 3)
    (predicted,) = trainer.predict(module, DataLoader(inputs, batch_size=2), ckpt_path=tmp_path / "plain.ckpt")
    assert_same(predicted, module(inputs).detach())


@pytest.mark.parametrize("verb", ["fit", "validate", "test", "predict"])
def test_every_verb_follows_its_life_cycle_with_everything_attached(verb: str, tmp_path: Path) -> None:
    trainer = Trainer(max_epochs=2, default_root_dir=tmp_path)
    module, data = Regression(), RegressionData()
    trace = Trace()
    for callback in trainer.callbacks:
        trace.record(callback, "callback")
    trace.record(data, "data")
    trace.record(module, "module")

    getattr(trainer, verb)(module, datamodule=data)

    check(trace, verb)


def test_flags_say_what_is_running(tmp_path: Path) -> None:
    seen: dict[str, set[tuple[str, ...]]] = {}

    class Watching(Regression):
        def note(self, step: str) -> None:
            names = ("training", "validating", "testing", "predicting", "sanity_checking")
            running = tuple(name for name in names if getattr(self.trainer, name))
            seen.setdefault(step, set()).add(running)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.note("train")
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.note("validate")

        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.note("test")

        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            self.note("predict")

    trainer, module = quiet_trainer(tmp_path), Watching()
    trainer.fit(module, loader(), loader())
    trainer.test(module, loader())
    trainer.predict(module, loader())

    assert seen == {
        "train": {("training",)},
        "validate": {("sanity_checking",), ("validating",)},
        "test": {("testing",)},
        "predict": {("predicting",)},
    }
    assert not trainer.predicting


def test_metrics_of_a_verb_are_gone_in_the_next(tmp_path: Path) -> None:
    logger = ListLogger()
    module, trainer = Regression(), quiet_trainer(tmp_path, logger=logger, log_every_n_steps=1)
    trainer.fit(module, loader(), loader())
    assert set(trainer.callback_metrics) == set(trainer.logged_metrics) == {"train_loss", "val_loss"}
    assert set(trainer.progress_bar_metrics) == {"train_loss", "val_loss"}

    trainer.test(module, loader())
    assert set(trainer.callback_metrics) == set(trainer.logged_metrics) == {"test_loss"}
    assert trainer.progress_bar_metrics == {}
    assert set(logger.rows[-1][1]) == {"test_loss", "epoch"}

    trainer.predict(module, loader())
    assert trainer.callback_metrics == {}


def test_a_second_fit_that_has_nothing_to_do_says_so(tmp_path: Path) -> None:
    trainer, module = quiet_trainer(tmp_path), Regression()
    trainer.fit(module, loader())
    with pytest.warns(UserWarning, match=r"fit has nothing to do: this trainer has reached max_epochs=1") as caught:
        trainer.fit(module, loader())
    assert caught[0].filename == __file__
    assert trainer.global_step == 4


def test_a_verb_inside_a_hook_of_another_is_refused(tmp_path: Path) -> None:
    class Greedy(Regression):
        def on_train_epoch_end(self) -> None:
            self.trainer.validate(self, loader())

    trainer = quiet_trainer(tmp_path)
    rule = r"`validate` must be called when no verb of the trainer is running, but got 'fit'"
    with pytest.raises(RuntimeError, match=rule):
        trainer.fit(Greedy(), loader())
    trainer.validate(Regression(), loader())
