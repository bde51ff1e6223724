"""Private parts of Lightning's trainer that public code uses; see also the comparison with Lightning in
`integration_tests`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from compat_parts import Regression, quiet_trainer
from trainer_parts import NO_VALIDATION, RegressionData, assert_same, loader, weights

from camshaft.callbacks import LambdaCallback, ModelCheckpoint, Timer
from camshaft.compat import Trainer
from camshaft.compat.names.stand_ins import MissingNameError
from camshaft.compat.private_loops import EvaluationLoop, FitLoop, ValidationLoop
from camshaft.compat.private_parts import CheckpointConnector

pytestmark = [
    pytest.mark.filterwarnings(NO_VALIDATION),
]


def test_a_checkpoint_of_now_is_made_and_restored_between_epochs(tmp_path: Path) -> None:
    path = tmp_path / "first.ckpt"

    class Restoring(Regression):
        def on_train_epoch_start(self) -> None:
            connector = self.trainer._checkpoint_connector
            if self.current_epoch == 0:
                first.update(weights(self))
                self.trainer.strategy.save_checkpoint(connector.dump_checkpoint(), path)
                assert "optimizer_states" not in connector.dump_checkpoint(weights_only=True)
            elif self.current_epoch == 2:
                connector.restore(path)
                assert_same(weights(self), first)
                seen.append((self.trainer.global_step, self.trainer.current_epoch))

    first: dict[str, Any] = {}
    seen: list[Any] = []
    trainer = quiet_trainer(tmp_path, max_epochs=3)
    with pytest.raises(RuntimeError, match="`restore` must be called between epochs"):
        trainer.fit(Inside(path), loader(2))
    trainer = quiet_trainer(tmp_path, max_epochs=3, callbacks=[LambdaCallback(on_train_epoch_end=stop_after(4))])
    trainer.fit(Restoring(), loader(2))
    assert seen == [(0, 0)]


def stop_after(num_epochs: int) -> Any:
    count: list[int] = []

    def stop(trainer: Any, _: Any) -> None:
        count.append(1)
        trainer.should_stop = len(count) == num_epochs

    return stop


class Inside(Regression):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 1:
            connector = self.trainer._checkpoint_connector
            self.trainer.strategy.save_checkpoint(connector.dump_checkpoint(), self.path)
            connector.restore(self.path)
        return super().training_step(batch, batch_idx)


def test_a_connector_says_what_the_next_fit_resumes_from(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, max_epochs=1)
    trainer.fit(Regression(), loader(2))
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    for make in (
        lambda one: setattr(one._checkpoint_connector, "resume_from_checkpoint_fit_path", tmp_path / "one.ckpt"),
        lambda one: setattr(one._checkpoint_connector, "_ckpt_path", tmp_path / "one.ckpt"),
        lambda one: setattr(one, "_checkpoint_connector", CheckpointConnector(one, tmp_path / "one.ckpt")),
    ):
        other = quiet_trainer(tmp_path, max_epochs=2)
        make(other)
        assert other._checkpoint_connector.resume_from_checkpoint_fit_path == tmp_path / "one.ckpt"
        other.fit(Regression(), loader(2))
        assert other.global_step == 4


def test_sources_of_loaders_give_them_and_take_others(tmp_path: Path) -> None:
    class Module(Regression):
        def setup(self, stage: str) -> None:
            source = self.trainer._data_connector._train_dataloader_source
            seen.append((len(source.dataloader()), source.is_module()))
            source.instance = loader(5)

    seen: list[Any] = []
    trainer = quiet_trainer(tmp_path)
    trainer.fit(Module(), datamodule=RegressionData())
    assert seen == [(4, True)]
    assert trainer.num_training_batches == 5


def test_what_runs_only_in_a_verb_says_so(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path)
    with pytest.raises(RuntimeError, match="`_attach_model_callbacks` must be called while a verb runs"):
        trainer._callback_connector._attach_model_callbacks()
    with pytest.raises(AttributeError, match=r"`received_sigterm` must be read only.*trainer.preempt"):
        trainer._signal_connector.received_sigterm = True
    with pytest.raises(RuntimeError, match="`train loader` must be replaced from `on_fit_start` on"):
        trainer.fit_loop.setup_data()
    saver, timer = ModelCheckpoint(), Timer()
    assert trainer._callback_connector._reorder_callbacks([saver, timer]) == [timer, saver]


def test_a_training_loop_of_ones_own_can_be_defined_but_not_made() -> None:
    class Own(FitLoop):
        pass

    with pytest.raises(MissingNameError, match="Training loops are not to be replaced"):
        Own(None)


def test_an_evaluation_loop_warns_once_of_what_is_not_called(tmp_path: Path) -> None:
    class Own(EvaluationLoop):
        def run(self) -> Any:  # type: ignore[override]
            raise AssertionError

        def _on_evaluation_start(self, *args: Any) -> None:
            raise AssertionError

    trainer = quiet_trainer(tmp_path, limit_val_batches=2)
    trainer.fit_loop.epoch_loop.val_loop = Own(trainer, "fit", "validate")
    trainer.validate_loop = Own(trainer, "validate", "validate")
    with pytest.warns(UserWarning, match="Own: _on_evaluation_start, run is not called"):
        trainer.fit(Regression(), loader(1), loader(4))
    assert trainer.num_val_batches == [2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "val_loss" in trainer.validate(Regression(), loader(4))[0]
    assert isinstance(Trainer(logger=False).validate_loop, ValidationLoop)
