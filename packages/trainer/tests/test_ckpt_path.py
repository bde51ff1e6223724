"""`ckpt_path`: a path, "best", "last", and what happens if a file is damaged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_parts import NO_VALIDATION, ListLogger, Regression, assert_same, loader, quiet_trainer, weights

from camshaft.callbacks import CSVLogger, ModelCheckpoint
from camshaft.strategies import CheckpointError, read_checkpoint
from camshaft.trainer import Trainer

pytestmark = [
    pytest.mark.filterwarnings(NO_VALIDATION),
    pytest.mark.filterwarnings("ignore:ModelCheckpoint now saves in"),  # a new run has a folder of its own
]


class Quantised(torch.Tensor):
    """A tensor of a library's own class."""


def saving_trainer(root: Path, max_epochs: int = 3, **arguments: Any) -> Trainer:
    """Keeps every epoch's checkpoint, and "last", in `root`."""
    checkpoint = ModelCheckpoint(root, save_top_k=-1, save_last=True)
    arguments = {"max_epochs": max_epochs, "enable_checkpointing": None, "callbacks": checkpoint, **arguments}
    return quiet_trainer(root, **arguments)


def replace(path: Path, content: bytes) -> None:
    """Give a file other content; other names of the old file keep theirs."""
    path.unlink()
    path.write_bytes(content)


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    replace(path, bytes(content))


def truncate(path: Path) -> None:
    replace(path, path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    replace(path, b"")


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
@pytest.mark.parametrize("ckpt_path", ["path", "best", "last"])
def test_evaluation_takes_the_weights_of_a_checkpoint(verb: str, ckpt_path: str, tmp_path: Path) -> None:
    trainer, module = saving_trainer(tmp_path), Regression()
    trainer.fit(module, loader())
    trained = weights(module)
    path: Any = tmp_path / "epoch=2-step=12.ckpt" if ckpt_path == "path" else ckpt_path
    torch.nn.init.zeros_(module.layer.weight)

    getattr(trainer, verb)(module, loader(), ckpt_path=path)

    assert_same(weights(module), trained)
    if ckpt_path == "last":  # of several names of the newest file
        assert trainer.ckpt_path == str(tmp_path / "last.ckpt")


def test_best_is_the_best_and_not_the_last(tmp_path: Path) -> None:
    class Worsening(Regression):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", float(self.current_epoch))

    checkpoint = ModelCheckpoint(tmp_path, monitor="val_loss", save_top_k=1)
    trainer = quiet_trainer(tmp_path, max_epochs=3, callbacks=checkpoint, enable_checkpointing=True)
    module = Worsening()
    trainer.fit(module, loader(), loader())
    trained = weights(module)

    trainer.validate(module, loader(), verbose=False)
    assert_same(weights(module), trained)

    trainer.validate(module, loader(), verbose=False, ckpt_path="best")
    assert_same(weights(module), read_checkpoint(tmp_path / "epoch=0-step=4.ckpt")["state_dict"])
    assert not torch.equal(module.layer.weight, trained["layer.weight"])


class TestWithoutModuleAndPath:
    def test_the_best_of_the_fit_before_is_taken_as_in_lightning_and_said_so(self, tmp_path: Path) -> None:
        trainer, module = saving_trainer(tmp_path), Regression()
        trainer.fit(module, loader())
        trained = weights(module)
        torch.nn.init.zeros_(module.layer.weight)

        with pytest.warns(UserWarning, match=r"`test` was called without a module, so it takes .*epoch=2") as caught:
            trainer.test(dataloaders=loader())

        assert caught[0].filename == __file__
        assert_same(weights(module), trained)

    def test_the_weights_stay_if_no_checkpoint_was_kept(self, tmp_path: Path) -> None:
        trainer, module = quiet_trainer(tmp_path), Regression()
        trainer.fit(module, loader())
        torch.nn.init.zeros_(module.layer.weight)
        trainer.test(dataloaders=loader())
        assert not module.layer.weight.any()

    def test_the_weights_stay_if_another_module_ran_since(self, tmp_path: Path) -> None:
        trainer, other = saving_trainer(tmp_path), Regression()
        trainer.fit(Regression(), loader())
        trainer.validate(other, loader())
        before = weights(other)
        trainer.test(dataloaders=loader())
        assert_same(weights(other), before)


class TestLast:
    def test_it_is_found_in_the_folders_that_file_names_ask_for(self, tmp_path: Path) -> None:
        checkpoint = ModelCheckpoint(tmp_path, filename="epoch {epoch}/at-{step}", auto_insert_metric_name=False)
        trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=checkpoint, enable_checkpointing=True)
        module = Regression()
        trainer.fit(module, loader())
        trained = weights(module)
        torch.nn.init.zeros_(module.layer.weight)
        trainer.validate(module, loader(), ckpt_path="last", verbose=False)
        assert_same(weights(module), trained)

    def test_fit_begins_with_a_warning_if_there_is_none_yet(self, tmp_path: Path) -> None:
        trainer = saving_trainer(tmp_path, max_epochs=1)
        with pytest.warns(
            UserWarning, match="There is no checkpoint to resume from yet: fit starts from scratch"
        ) as caught:
            trainer.fit(Regression(), loader(), ckpt_path="last")
        assert caught[0].filename == __file__
        assert trainer.current_epoch == 1

    @pytest.mark.parametrize("verb", ["validate", "test", "predict"])
    def test_evaluation_does_not_go_without(self, verb: str, tmp_path: Path) -> None:
        rule = r"`ckpt_path` must be a path, as there is no readable checkpoint yet, but got 'last'"
        with pytest.raises(ValueError, match=rule):
            getattr(saving_trainer(tmp_path), verb)(Regression(), loader(), ckpt_path="last")

    @pytest.mark.parametrize("harm", [flip_a_byte, truncate, empty])
    def test_a_damaged_one_is_passed_over_with_a_warning(self, harm: Any, tmp_path: Path) -> None:
        saving_trainer(tmp_path).fit(Regression(), loader())
        for name, nanoseconds in (("epoch=0-step=4", 1), ("epoch=1-step=8", 2), ("epoch=2-step=12", 3), ("last", 4)):
            os.utime(tmp_path / f"{name}.ckpt", ns=(nanoseconds, nanoseconds))
        for name in ("last", "epoch=2-step=12"):
            harm(tmp_path / f"{name}.ckpt")

        trainer = saving_trainer(tmp_path, max_epochs=2)
        with pytest.warns(UserWarning) as caught:
            trainer.fit(Regression(), loader(), ckpt_path="last")

        told = [str(warning.message) for warning in caught if "Trying the one before" in str(warning.message)]
        assert len(told) == 2 and all("must be a whole checkpoint" in message for message in told)
        assert {warning.filename for warning in caught if "Trying" in str(warning.message)} == {__file__}
        assert (trainer.current_epoch, trainer.global_step) == (2, 8)

    def test_one_of_weights_only_is_passed_over_by_fit(self, tmp_path: Path) -> None:
        callbacks = [ModelCheckpoint(tmp_path, "whole"), ModelCheckpoint(tmp_path, "weights", save_weights_only=True)]
        quiet_trainer(tmp_path, callbacks=callbacks, enable_checkpointing=True).fit(Regression(), loader())
        os.utime(tmp_path / "whole.ckpt", ns=(1, 1))

        callbacks = [ModelCheckpoint(tmp_path, "whole"), ModelCheckpoint(tmp_path, "weights", save_weights_only=True)]
        trainer = quiet_trainer(tmp_path, callbacks=callbacks, enable_checkpointing=True, max_epochs=2)
        trainer.fit(Regression(), loader(), ckpt_path="last")
        assert trainer.global_step == 8

    def test_a_new_run_finds_what_the_run_before_saved_beside_its_logs(self, tmp_path: Path) -> None:
        for max_epochs in (1, 2):
            trainer = Trainer(max_epochs=max_epochs, default_root_dir=tmp_path, enable_progress_bar=False)
            trainer.fit(Regression(), loader(), ckpt_path="last" if max_epochs == 2 else None)
        assert trainer.log_dir == str(tmp_path / "camshaft_logs/version_1")
        assert trainer.global_step == 8

    def test_a_new_run_finds_it_where_a_logger_of_ones_own_writes(self, tmp_path: Path) -> None:
        logs, root = tmp_path / "logs", tmp_path / "root"
        for max_epochs in (1, 2):
            trainer = Trainer(
                max_epochs=max_epochs, default_root_dir=root, enable_progress_bar=False, logger=CSVLogger(logs)
            )
            trainer.fit(Regression(), loader(), ckpt_path="last" if max_epochs == 2 else None)
        assert trainer.global_step == 8

    def test_a_new_run_finds_it_without_a_folder_for_logs(self, tmp_path: Path) -> None:
        for max_epochs in (1, 2):
            logger = ListLogger()
            trainer = quiet_trainer(tmp_path, max_epochs=max_epochs, logger=logger, enable_checkpointing=True)
            trainer.fit(Regression(), loader(), ckpt_path="last" if max_epochs == 2 else None)
        assert trainer.global_step == 8

    def test_a_run_with_a_name_of_its_own_does_not_take_anothers(self, tmp_path: Path) -> None:
        def fold(name: str) -> Trainer:
            logger = CSVLogger(tmp_path, "folds", version=name)
            return Trainer(max_epochs=1, default_root_dir=tmp_path, enable_progress_bar=False, logger=logger)

        fold("a").fit(Regression(), loader())
        with pytest.warns(UserWarning, match="no checkpoint to resume from yet"):
            fold("b").fit(Regression(), loader(), ckpt_path="last")
        with pytest.warns(UserWarning, match=r"fit has nothing to do: the checkpoint has reached max_epochs=1"):
            fold("a").fit(Regression(), loader(), ckpt_path="last")


class TestExplicitPath:
    @pytest.mark.parametrize("harm", [flip_a_byte, truncate, empty])
    @pytest.mark.parametrize("verb", ["fit", "test"])
    def test_a_damaged_one_is_refused_and_one_beside_it_is_named_that_may_be_of_another_run(
        self, harm: Any, verb: str, tmp_path: Path
    ) -> None:
        saving_trainer(tmp_path).fit(Regression(), loader())
        for name, nanoseconds in (("epoch=0-step=4", 3), ("epoch=1-step=8", 1), ("epoch=2-step=12", 4), ("last", 5)):
            os.utime(tmp_path / f"{name}.ckpt", ns=(nanoseconds, nanoseconds))
        for name in ("last", "epoch=2-step=12"):
            harm(tmp_path / f"{name}.ckpt")

        with pytest.raises(CheckpointError, match=r"must be a whole checkpoint .*last\.ckpt'") as caught:
            getattr(saving_trainer(tmp_path), verb)(Regression(), loader(), ckpt_path=str(tmp_path / "last.ckpt"))

        named = str(tmp_path / "epoch=0-step=4.ckpt")
        note = f"{named!r} beside it can be read: epoch 0, 4 updates. Take it only if it is of the same run."
        assert caught.value.__notes__ == [note]

    def test_one_that_is_alone_is_refused_without_a_note(self, tmp_path: Path) -> None:
        (tmp_path / "alone.ckpt").write_bytes(b"nonsense")
        with pytest.raises(CheckpointError) as caught:
            quiet_trainer(tmp_path).validate(Regression(), loader(), ckpt_path=tmp_path / "alone.ckpt")
        assert not hasattr(caught.value, "__notes__")

    def test_a_whole_one_that_needs_a_library_points_to_no_other(self, tmp_path: Path) -> None:
        trainer = saving_trainer(tmp_path, 1)
        trainer.fit(Regression(), loader())
        checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
        state = torch.Tensor._make_subclass(Quantised, torch.ones(3))
        checkpoint["optimizer_states"][0]["state"] = {0: {"exp_avg": state}}
        torch.save(checkpoint, tmp_path / "quantised.ckpt")
        path = tmp_path / "quantised.ckpt"
        with pytest.raises(CheckpointError, match=r"first import the library.*add_safe_globals\(\[.*Quant") as caught:
            saving_trainer(tmp_path).fit(Regression(), loader(), ckpt_path=path)
        assert not hasattr(caught.value, "__notes__")
        assert caught.value.names == (f"{Quantised.__module__}.Quantised",)
        with torch.serialization.safe_globals([Quantised]):  # as a library does when it is imported
            saving_trainer(tmp_path, 2).fit(Regression(), loader(), ckpt_path=path)

    def test_one_of_the_middle_of_an_epoch_goes_on_exactly_there(self, tmp_path: Path) -> None:
        batches: list[int] = []

        class Noting(Regression):
            def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
                batches.append(batch_idx)

        checkpoint = ModelCheckpoint(tmp_path, every_n_train_steps=2, save_top_k=-1)
        trainer = quiet_trainer(tmp_path, callbacks=checkpoint, enable_checkpointing=True, max_epochs=2)
        module = Noting(dropout=0.3)
        trainer.fit(module, loader(shuffle=True))
        path, trained = tmp_path / "epoch=1-step=6.ckpt", weights(module)
        batches.clear()
        torch.manual_seed(99)  # whatever was drawn before must not matter

        resumed_trainer, resumed = quiet_trainer(tmp_path, max_epochs=2), Noting(dropout=0.3)
        resumed_trainer.fit(resumed, loader(shuffle=True), ckpt_path=path)

        assert batches == [2, 3]
        assert (resumed_trainer.current_epoch, resumed_trainer.global_step) == (2, 8)
        assert_same(weights(resumed), trained)

    def test_one_of_the_middle_of_an_epoch_is_refused_for_loaders_without_a_state(self, tmp_path: Path) -> None:
        class Stateless:
            def __iter__(self) -> Any:
                return iter(loader())

            def __len__(self) -> int:
                return 4

        checkpoint = ModelCheckpoint(tmp_path, every_n_train_steps=2, save_top_k=-1)
        trainer = quiet_trainer(tmp_path, callbacks=checkpoint, enable_checkpointing=True)
        rule = "`train loader` must be one with a state to resume inside an epoch"
        with pytest.warns(UserWarning, match=rule):
            trainer.fit(Regression(), Stateless())

        path = tmp_path / "epoch=0-step=2.ckpt"
        with pytest.raises(ValueError, match=rule):
            quiet_trainer(tmp_path).fit(Regression(), Stateless(), ckpt_path=path)
        quiet_trainer(tmp_path).test(Regression(), loader(), ckpt_path=path)

    def test_one_of_another_architecture_is_refused(self, tmp_path: Path) -> None:
        class Wider(Regression):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(3, 2)

        saving_trainer(tmp_path, max_epochs=1).fit(Regression(), loader())
        rule = r"must be a checkpoint whose weights fit .*Wider, but got '.*last.ckpt' \(str\) in validate\. .*size mis"
        with pytest.raises(RuntimeError, match=f"(?s)^`ckpt_path` {rule}"):
            quiet_trainer(tmp_path).validate(Wider(), loader(), ckpt_path=tmp_path / "last.ckpt")
        with pytest.raises(RuntimeError, match=r"(?s)^`path` must be .*last\.ckpt'.*load_from_checkpoint\. .*size m"):
            Wider.load_from_checkpoint(tmp_path / "last.ckpt")

    def test_one_of_another_optimizer_count_is_refused(self, tmp_path: Path) -> None:
        class Scheduled(Regression):
            def configure_optimizers(self) -> Any:
                optimizer = super().configure_optimizers()
                return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

        saving_trainer(tmp_path, max_epochs=1).fit(Regression(), loader())
        rule = r"`number of schedulers` must be that of the checkpoint \(0\), but got 1"
        with pytest.raises(ValueError, match=rule):
            quiet_trainer(tmp_path, max_epochs=2).fit(Scheduled(), loader(), ckpt_path=tmp_path / "last.ckpt")
