from __future__ import annotations

import copy
import math
import os
import pickle
import shutil
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_trainer import RecordingTrainer, load_callback_state

from camshaft.callbacks import ModelCheckpoint
from camshaft.callbacks.arguments import InvalidArgumentError, MissingMetricError


def start(folder: Path, *callbacks: ModelCheckpoint, **state: Any) -> RecordingTrainer:
    trainer = RecordingTrainer(str(folder), callbacks=list(callbacks), **state)
    trainer.begin()
    return trainer


def run_epochs(trainer: RecordingTrainer, losses: list[float]) -> None:
    for loss in losses:
        trainer.train_batch()
        trainer.end_epoch(loss=loss)


def files(folder: str | Path) -> set[str]:
    return {path.name for path in Path(folder).iterdir()} if Path(folder).exists() else set()


class ShardedTrainer(RecordingTrainer):
    """Its checkpoints are folders, as those of a sharded state."""

    def write(self, path: str) -> None:
        shutil.rmtree(path, ignore_errors=True)
        (Path(path) / "shards").mkdir(parents=True)
        super().write(f"{path}/plain.ckpt")
        (Path(path) / "shards/0.distcp").write_text(str(self.global_step))


class TestWhichFilesAreThere:
    def test_checkpoints_that_are_folders_are_kept_and_removed_as_files_are(self, tmp_path: Path) -> None:
        def checkpoint() -> ModelCheckpoint:
            return ModelCheckpoint(tmp_path, "{step}", "loss", save_top_k=2, save_last=True)

        first = checkpoint()
        trainer = ShardedTrainer(str(tmp_path), callbacks=[first])
        trainer.begin()
        run_epochs(trainer, [3.0, 1.0, 2.0, 4.0])
        trainer.end()
        assert files(tmp_path) == {"step=2.ckpt", "step=3.ckpt", "last.ckpt"}
        assert (tmp_path / "last.ckpt/shards/0.distcp").read_text() == "4"
        assert (tmp_path / "step=2.ckpt/shards/0.distcp").read_text() == "2"
        assert first.best_model_path == str(tmp_path / "step=2.ckpt")

        resumed = checkpoint()
        again = ShardedTrainer(str(tmp_path), callbacks=[resumed], global_step=4)
        again.begin()
        resumed.load_state_dict(first.state_dict())
        assert resumed.best_k_models.keys() == {str(tmp_path / "step=2.ckpt"), str(tmp_path / "step=3.ckpt")}
        run_epochs(again, [0.5])
        assert files(tmp_path) == {"step=2.ckpt", "step=5.ckpt", "last.ckpt"}
        names = [path.stat().st_ino for path in tmp_path.glob("*/shards/0.distcp") if path.read_text() == "5"]
        assert len(names) == 2 and names[0] == names[1]  # "last" takes no room

    @settings(max_examples=60, deadline=None)
    @given(
        losses=st.lists(st.sampled_from([0.0, 1.0, 2.0, -1.5, math.nan, math.inf]), min_size=1, max_size=8),
        k=st.integers(-1, 3),
        mode=st.sampled_from(["min", "max"]),
        save_last=st.booleans(),
    )
    def test_the_k_best_of_all_epochs_and_last(self, losses: list[float], k: int, mode: str, save_last: bool) -> None:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = ModelCheckpoint(
                folder, "{step}", "loss", save_top_k=k, mode=mode, save_last=save_last, auto_insert_metric_name=False
            )
            run_epochs(start(Path(folder), checkpoint), losses)
            sign = 1 if mode == "min" else -1
            cost = [math.inf if math.isnan(loss) else sign * loss for loss in losses]
            ranking = sorted(range(len(losses)), key=lambda idx: (cost[idx], idx))
            kept = ranking if k == -1 else ranking[:k]
            assert files(folder) == {f"{idx + 1}.ckpt" for idx in kept} | ({"last.ckpt"} if save_last else set())
            if kept:
                assert Path(checkpoint.best_model_path).name == f"{kept[0] + 1}.ckpt"
                assert checkpoint.best_model_score == torch.tensor(sign * cost[kept[0]])
            if save_last:
                assert torch.load(f"{folder}/last.ckpt", weights_only=True)["global_step"] == len(losses)

    def test_the_newest_without_a_monitor(self, tmp_path: Path) -> None:
        checkpoint = ModelCheckpoint(tmp_path)
        run_epochs(start(tmp_path, checkpoint), [1.0, 2.0, 3.0])
        assert files(tmp_path) == {"epoch=2-step=3.ckpt"}
        assert checkpoint.best_model_path == str(tmp_path / "epoch=2-step=3.ckpt")
        assert checkpoint.best_model_score is None

    @settings(max_examples=25, deadline=None)
    @given(k=st.integers(1, 4), stops=st.lists(st.integers(1, 3), min_size=1, max_size=4), is_fixed=st.booleans())
    def test_the_newest_k_without_a_monitor_across_resumes(self, k: int, stops: list[int], is_fixed: bool) -> None:
        with tempfile.TemporaryDirectory() as folder:
            step, state = 0, None
            for num_epochs in stops:
                checkpoint = ModelCheckpoint(folder, "kept" if is_fixed else "{step}", save_top_k=k)
                if state is not None:
                    checkpoint.load_state_dict(state)
                trainer = start(Path(folder), checkpoint, global_step=step, current_epoch=step)
                run_epochs(trainer, [1.0] * num_epochs)
                step, state = step + num_epochs, load_callback_state(checkpoint.best_model_path, checkpoint)
            kept = [torch.load(path, weights_only=True)["global_step"] for path in checkpoint.kept_paths]
            assert kept == list(range(max(step - k, 0) + 1, step + 1))
            assert files(folder) == {Path(path).name for path in checkpoint.kept_paths}
            assert checkpoint.best_model_path == checkpoint.kept_paths[-1]
            assert checkpoint.best_model_score is None and not checkpoint.kth_best_model_path

    def test_a_fixed_name_is_used_again_for_a_better_one(self, tmp_path: Path) -> None:
        checkpoint = ModelCheckpoint(tmp_path, "best", "loss")
        run_epochs(start(tmp_path, checkpoint), [3.0, 1.0, 2.0])
        assert files(tmp_path) == {"best.ckpt"}
        assert torch.load(tmp_path / "best.ckpt", weights_only=True)["global_step"] == 2

    def test_a_fixed_name_for_two_keeps_two_versions(self, tmp_path: Path) -> None:
        checkpoint = ModelCheckpoint(tmp_path, "best", "loss", save_top_k=2)
        run_epochs(start(tmp_path, checkpoint), [3.0, 1.0, 2.0, 0.0])
        assert files(tmp_path) == {"best.ckpt", "best-v1.ckpt"}
        steps = [torch.load(tmp_path / name, weights_only=True)["global_step"] for name in files(tmp_path)]
        assert sorted(steps) == [2, 4]

    def test_a_fixed_name_for_all_keeps_a_version_of_each(self, tmp_path: Path) -> None:
        run_epochs(start(tmp_path, ModelCheckpoint(tmp_path, "all", save_top_k=-1)), [1.0, 2.0, 3.0])
        assert files(tmp_path) == {"all.ckpt", "all-v1.ckpt", "all-v2.ckpt"}

    def test_a_file_of_someone_else_is_never_overwritten(self, tmp_path: Path) -> None:
        for name in ("best.ckpt", "last.ckpt"):
            (tmp_path / name).write_text("mine")
        checkpoint = ModelCheckpoint(tmp_path, "best", save_last=True)
        run_epochs(start(tmp_path, checkpoint), [1.0, 2.0])
        assert files(tmp_path) == {"best.ckpt", "last.ckpt", "best-v1.ckpt", "last-v1.ckpt"}
        assert (tmp_path / "best.ckpt").read_text() == (tmp_path / "last.ckpt").read_text() == "mine"

    def test_without_the_version_counter_it_is(self, tmp_path: Path) -> None:
        (tmp_path / "best.ckpt").write_text("mine")
        checkpoint = ModelCheckpoint(tmp_path, "best", enable_version_counter=False)
        run_epochs(start(tmp_path, checkpoint), [1.0, 2.0])
        assert files(tmp_path) == {"best.ckpt"}
        assert torch.load(tmp_path / "best.ckpt", weights_only=True)["global_step"] == 2

    def test_without_it_a_name_that_comes_again_replaces_its_own_file_alone(self, tmp_path: Path) -> None:
        checkpoint = ModelCheckpoint(
            tmp_path, "{fold:.0f}", "loss", save_top_k=2, enable_version_counter=False, auto_insert_metric_name=False
        )
        trainer = start(tmp_path, checkpoint)
        for fold, loss in ((0.0, 2.0), (1.0, 3.0), (0.0, 1.0)):
            trainer.log(fold=fold)
            run_epochs(trainer, [loss])
        assert files(tmp_path) == {"0.ckpt", "1.ckpt"}
        scores = {Path(path).stem: float(score) for path, score in checkpoint.best_k_models.items()}
        assert scores == {"0": 1.0, "1": 3.0}

    def test_two_with_one_name_keep_their_files_apart(self, tmp_path: Path) -> None:
        low = ModelCheckpoint(tmp_path, "best", "loss", save_last=True)
        high = ModelCheckpoint(tmp_path, "best", "loss", mode="max", save_last=True)
        run_epochs(start(tmp_path, low, high), [2.0, 1.0, 3.0])
        steps = {
            Path(path).name: torch.load(path, weights_only=True)["global_step"]
            for path in (low.best_model_path, high.best_model_path, low.last_model_path, high.last_model_path)
        }
        assert steps == {"best.ckpt": 2, "best-v1.ckpt": 3, "last.ckpt": 3, "last-v1.ckpt": 3}

    def test_last_may_have_a_name_with_places(self, tmp_path: Path) -> None:
        class Named(ModelCheckpoint):
            CHECKPOINT_NAME_LAST = "{epoch}-last"

        run_epochs(start(tmp_path, Named(tmp_path, save_top_k=0, save_last=True)), [1.0, 2.0])
        assert files(tmp_path) == {"epoch=1-last.ckpt"}

    def test_last_is_a_second_name_of_a_kept_checkpoint(self, tmp_path: Path) -> None:
        checkpoint = ModelCheckpoint(tmp_path, monitor="loss", save_last=True)
        trainer = start(tmp_path, checkpoint)
        run_epochs(trainer, [1.0])
        assert Path(checkpoint.last_model_path).samefile(checkpoint.best_model_path)
        run_epochs(trainer, [2.0])  # not kept: a save of its own
        assert [Path(path).name for path, _ in trainer.saved] == ["epoch=0-step=1.ckpt", "last.ckpt"]
        assert not Path(checkpoint.last_model_path).samefile(checkpoint.best_model_path)

    def test_last_may_be_a_symbolic_link_that_never_leads_nowhere(self, tmp_path: Path) -> None:
        checkpoint = ModelCheckpoint(tmp_path, "{step}", "loss", save_last="link")
        trainer = start(tmp_path, checkpoint)
        for loss, leads_to in ((2.0, "step=1.ckpt"), (1.0, "step=2.ckpt"), (3.0, None), (0.5, "step=4.ckpt")):
            run_epochs(trainer, [loss])
            last = tmp_path / "last.ckpt"
            assert last.exists() and (os.readlink(last) if last.is_symlink() else None) == leads_to
        assert files(tmp_path) == {"step=4.ckpt", "last.ckpt"}

    def test_names_may_lead_to_folders_and_be_joined_by_other_characters(self, tmp_path: Path) -> None:
        checkpoint = ModelCheckpoint(tmp_path, "runs/{epoch:02d}_{val/loss:.1f}", "val/loss", save_last=True)
        checkpoint.CHECKPOINT_EQUALS_CHAR, checkpoint.CHECKPOINT_NAME_LAST = "_", "newest"  # type: ignore[misc]
        trainer = start(tmp_path, checkpoint)
        trainer.log(**{"val/loss": 0.25})
        run_epochs(trainer, [1.0])
        assert files(tmp_path) == {"runs", "newest.ckpt"}
        assert files(tmp_path / "runs") == {"epoch_00_val_loss_0.2.ckpt"}
        trainer.log(**{"val/loss": 0.125})
        run_epochs(trainer, [1.0])
        assert files(tmp_path / "runs") == {"epoch_01_val_loss_0.1.ckpt"}

    def test_weights_only_is_passed_on(self, tmp_path: Path) -> None:
        trainer = start(tmp_path, ModelCheckpoint(tmp_path, save_weights_only=True))
        run_epochs(trainer, [1.0])
        assert [weights_only for _, weights_only in trainer.saved] == [True]


class TestWhere:
    def test_in_the_given_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        checkpoint = ModelCheckpoint("here")
        start(tmp_path, checkpoint, log_dir="elsewhere")
        assert checkpoint.dirpath == str(tmp_path / "here")

    def test_in_the_log_folder_else_in_the_root(self, tmp_path: Path) -> None:
        with_log, without_log = ModelCheckpoint(), ModelCheckpoint()
        start(tmp_path, with_log, log_dir=str(tmp_path / "v0"))
        start(tmp_path, without_log)
        assert with_log.dirpath == str(tmp_path / "v0" / "checkpoints")
        assert without_log.dirpath == str(tmp_path / "checkpoints")
        assert files(tmp_path) == set()  # nothing is made before there is something to save

    def test_paths_are_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        checkpoint = ModelCheckpoint(save_last=True)
        run_epochs(start(tmp_path, checkpoint, log_dir="logs"), [1.0])
        folder = tmp_path / "logs" / "checkpoints"
        assert [Path(path).parent for path in (checkpoint.best_model_path, checkpoint.last_model_path)] == [folder] * 2


class TestWhen:
    def test_after_the_one_validation_of_an_epoch_at_the_training_epoch_end(self, tmp_path: Path) -> None:
        trainer = start(tmp_path, ModelCheckpoint(tmp_path, monitor="loss"))
        trainer.train_batch()
        trainer.validate(loss=1.0)
        assert not trainer.requested
        trainer.end_epoch()
        assert len(trainer.saved) == 1

    @pytest.mark.parametrize(
        "state",
        [
            {"val_check_interval": 0.5},
            {"val_check_interval": 1},
            {"check_val_every_n_epoch": 2},
            {"check_val_every_n_epoch": None},
        ],
    )
    def test_after_each_validation_otherwise(self, tmp_path: Path, state: dict[str, Any]) -> None:
        trainer = start(tmp_path, ModelCheckpoint(tmp_path, monitor="loss", save_top_k=-1), **state)
        for loss in (1.0, 2.0):
            trainer.train_batch()
            trainer.validate(loss=loss)
            trainer.save_point()
        trainer.end_epoch()
        assert len(trainer.saved) == 2

    def test_at_the_training_epoch_end_without_validation(self, tmp_path: Path) -> None:
        state: dict[str, Any] = {"num_val_batches": [], "check_val_every_n_epoch": 5}
        trainer = start(tmp_path, ModelCheckpoint(tmp_path), **state)
        run_epochs(trainer, [1.0])
        assert len(trainer.saved) == 1

    @pytest.mark.parametrize("at_train_epoch_end", [True, False])
    def test_where_the_argument_says(self, tmp_path: Path, at_train_epoch_end: bool) -> None:
        trainer = start(tmp_path, ModelCheckpoint(tmp_path, save_on_train_epoch_end=at_train_epoch_end))
        trainer.train_batch()
        trainer.validate()
        assert bool(trainer.requested) is not at_train_epoch_end
        trainer.end_epoch()
        assert len(trainer.saved) == 1

    def test_every_n_epochs(self, tmp_path: Path) -> None:
        run_epochs(start(tmp_path, ModelCheckpoint(tmp_path, "{epoch}", every_n_epochs=2, save_top_k=-1)), [1.0] * 5)
        assert files(tmp_path) == {"epoch=1.ckpt", "epoch=3.ckpt"}

    def test_every_n_updates_and_once_per_update(self, tmp_path: Path) -> None:
        trainer = start(tmp_path, ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=2, save_top_k=-1))
        for batch_idx in range(10):
            trainer.train_batch(batch_idx, is_update=batch_idx % 2 == 1)
            trainer.save_point()
        trainer.end_epoch()
        assert [Path(path).stem for path, _ in trainer.saved] == ["step=2", "step=4"]

    @pytest.mark.parametrize("state", [{"sanity_checking": True}, {"fast_dev_run": True}])
    def test_never_in_a_rehearsal(self, tmp_path: Path, state: dict[str, Any]) -> None:
        trainer = start(tmp_path, ModelCheckpoint(tmp_path, save_on_train_epoch_end=False), global_step=5, **state)
        trainer.validate()
        trainer.end_epoch()
        assert not trainer.saved

    def test_never_outside_of_fit(self, tmp_path: Path) -> None:
        trainer = RecordingTrainer(str(tmp_path), callbacks=[ModelCheckpoint(save_on_train_epoch_end=False)])
        trainer.global_step = 5
        trainer.begin("validate")
        trainer.validate()
        assert not trainer.requested

    def test_a_step_waits_for_the_first_validation_to_bring_its_metric(self, tmp_path: Path) -> None:
        trainer = start(tmp_path, ModelCheckpoint(tmp_path, monitor="val", every_n_train_steps=1))
        trainer.train_batch()
        assert not trainer.requested
        trainer.validate(val=1.0)
        assert len(trainer.requested) == 1

    def test_it_waits_for_one_validation_only(self, tmp_path: Path) -> None:
        trainer = start(tmp_path, ModelCheckpoint(tmp_path, monitor="val", every_n_train_steps=3), global_step=2)
        trainer.train_batch()
        for val in (1.0, 0.5):
            trainer.validate(val=val)
            trainer.global_step += 1
        assert len(trainer.requested) == 1

    def test_the_last_step_of_an_epoch_waits_for_a_fresh_value(self, tmp_path: Path) -> None:
        checkpoint = ModelCheckpoint(tmp_path, monitor="val", every_n_train_steps=1)
        trainer = start(tmp_path, checkpoint, is_last_batch=True)
        trainer.log(val=1.0)
        trainer.train_batch()
        trainer.validate(val=0.5)
        assert checkpoint.best_model_score == 0.5

    def test_a_step_that_waited_in_vain_is_saved_at_the_epoch_end(self, tmp_path: Path) -> None:
        trainer = start(tmp_path, ModelCheckpoint(tmp_path, monitor="x", every_n_train_steps=1), is_last_batch=True)
        trainer.log(x=1.0)
        trainer.train_batch()
        assert not trainer.requested
        trainer.end_epoch()
        assert len(trainer.saved) == 1


class TestErrors:
    def test_a_metric_that_nobody_logged_at_the_first_due_time(self, tmp_path: Path) -> None:
        trainer = start(tmp_path, ModelCheckpoint(tmp_path, monitor="val_los"))
        trainer.train_batch()
        with pytest.raises(MissingMetricError, match=r"'val_los' .*logged so far: 'acc', 'val_loss'") as caught:
            trainer.end_epoch(val_loss=1.0, acc=0.5)
        assert (caught.value.metric, caught.value.available) == ("val_los", ("acc", "val_loss"))

    def test_at_the_first_due_step_without_a_validation_that_could_bring_it(self, tmp_path: Path) -> None:
        checkpoint = ModelCheckpoint(tmp_path, monitor="loss", every_n_train_steps=1)
        with pytest.raises(MissingMetricError, match="metrics logged so far: none"):
            trainer = start(tmp_path, checkpoint, num_val_batches=[0])
            trainer.train_batch()
            trainer.save_point()

    def test_at_the_end_of_the_first_validation_that_did_not_bring_it(self, tmp_path: Path) -> None:
        trainer = start(tmp_path, ModelCheckpoint(tmp_path, monitor="loss", every_n_train_steps=1))
        trainer.train_batch()
        with pytest.raises(MissingMetricError, match="'loss'"):
            trainer.validate()

    def test_at_the_first_due_step_after_a_validation_that_did_not_bring_it(self, tmp_path: Path) -> None:
        trainer = start(tmp_path, ModelCheckpoint(tmp_path, monitor="loss", every_n_train_steps=1))
        trainer.validate()
        trainer.train_batch()
        with pytest.raises(MissingMetricError, match="'loss'"):
            trainer.save_point()

    def test_at_the_end_of_an_epoch_without_validation_it_is_a_warning_while_one_is_to_come(
        self, tmp_path: Path
    ) -> None:
        checkpoint = ModelCheckpoint(tmp_path, "{epoch}", "val", save_on_train_epoch_end=True, save_last=True)
        trainer = start(tmp_path, checkpoint, check_val_every_n_epoch=2)
        trainer.train_batch()
        with pytest.warns(UserWarning, match="keeps nothing before the first validation has logged 'val'"):
            trainer.end_epoch()
        assert files(tmp_path) == {"last.ckpt"}
        trainer.train_batch()
        trainer.validate(val=1.0)
        trainer.end_epoch()
        assert files(tmp_path) == {"epoch=1.ckpt", "last.ckpt"}

    def test_a_metric_with_many_values(self, tmp_path: Path) -> None:
        trainer = start(tmp_path, ModelCheckpoint(tmp_path, monitor="loss"))
        trainer.callback_metrics["loss"] = torch.zeros(3)
        trainer.train_batch()
        with pytest.raises(InvalidArgumentError, match=r"scalar metric.* It has 3 values"):
            trainer.end_epoch()

    @pytest.mark.parametrize(
        ("arguments", "field"),
        [
            ({"save_top_k": -2}, "save_top_k"),
            ({"mode": "lowest"}, "mode"),
            ({"every_n_epochs": -1}, "every_n_epochs"),
            ({"every_n_train_steps": -1}, "every_n_train_steps"),
            ({"every_n_train_steps": 2, "every_n_epochs": 1}, "every_n_train_steps"),
            ({"save_last": "copy"}, "save_last"),
            ({"filename": "{epoch"}, "filename"),
            ({"filename": "../{epoch}"}, "filename"),
            ({"filename": "/tmp/{epoch}"}, "filename"),
            ({"dirpath": "https://bucket/run"}, "dirpath"),
            ({"monitor": 3}, "monitor"),
            ({"save_top_k": True}, "save_top_k"),
            ({"every_n_train_steps": 2.5}, "every_n_train_steps"),
            ({"train_time_interval": 60}, "train_time_interval"),
            ({"train_time_interval": timedelta(seconds=-1)}, "train_time_interval"),
            ({"train_time_interval": timedelta(seconds=1), "every_n_epochs": 1}, "every_n_epochs"),
            ({"every_n_train_steps": 2, "save_on_train_epoch_end": True}, "save_on_train_epoch_end"),
        ],
    )
    def test_arguments_that_cannot_be_followed(self, arguments: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidArgumentError, match=rf"`{field}` must be .* in ModelCheckpoint\.") as caught:
            ModelCheckpoint(**arguments)
        assert caught.value.field == field

    def test_two_that_would_replace_each_others_files(self, tmp_path: Path) -> None:
        low = ModelCheckpoint(tmp_path, "best", "loss")
        high = ModelCheckpoint(tmp_path, "best", "loss", mode="max", enable_version_counter=False)
        with pytest.warns(UserWarning, match="enable_version_counter=False, which replaces files of the other"):
            start(tmp_path, low, high)
        start(tmp_path, low, ModelCheckpoint(tmp_path / "high", "best", mode="max", enable_version_counter=False))

    def test_two_that_cannot_be_told_apart(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgumentError, match="`state_key` must be different"):
            start(tmp_path, ModelCheckpoint(tmp_path / "a"), ModelCheckpoint(tmp_path / "b"))


def test_state_keys_tell_apart_what_differs() -> None:
    arguments: list[dict[str, Any]] = [
        {},
        {"monitor": "a"},
        {"monitor": "a", "mode": "max"},
        {"every_n_epochs": 2},
        {"every_n_train_steps": 2},
        {"filename": "x"},
        {"save_weights_only": True},
    ]
    keys = [ModelCheckpoint(**one).state_key for one in arguments]
    assert len(set(keys)) == len(keys)
    assert ModelCheckpoint("a").state_key == ModelCheckpoint("b").state_key  # a run may move
    assert keys[1] == (  # as in Lightning
        "ModelCheckpoint{'monitor': 'a', 'mode': 'min', 'every_n_train_steps': 0, 'every_n_epochs': 1, "
        "'train_time_interval': None}"
    )


def test_the_checkpoint_that_a_run_was_resumed_from_stays(tmp_path: Path) -> None:
    trainer = start(tmp_path, ModelCheckpoint(tmp_path, "{step}", "loss"))
    run_epochs(trainer, [3.0])
    trainer.ckpt_path = str(tmp_path / "step=1.ckpt")
    run_epochs(trainer, [2.0, 1.0])
    assert files(tmp_path) == {"step=1.ckpt", "step=3.ckpt"}


def test_a_score_that_is_nan_counts_as_the_worst(tmp_path: Path) -> None:
    low, high = (ModelCheckpoint(tmp_path / mode, monitor="loss", mode=mode) for mode in ("min", "max"))
    trainer = start(tmp_path, low, high)
    run_epochs(trainer, [math.nan])
    assert low.current_score == low.best_model_score == math.inf
    assert high.current_score == high.best_model_score == -math.inf
    run_epochs(trainer, [2.0, 3.0])
    assert low.current_score == low.best_model_score == 2.0 and high.best_model_score == 3.0


def test_a_copy_of_one_in_a_run_takes_no_part_in_it(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(tmp_path, monitor="loss")
    trainer = start(tmp_path, checkpoint)
    run_epochs(trainer, [1.0])
    for copied in (copy.deepcopy(checkpoint), pickle.loads(pickle.dumps(checkpoint))):
        assert copied.best_model_path == checkpoint.best_model_path and copied.best_model_score == 1.0
        assert copied.file_exists(copied.best_model_path, trainer) and not copied.file_exists("other", trainer)
        copied.teardown(trainer, None, "fit")


def test_says_what_it_decided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_epochs(start(tmp_path, ModelCheckpoint(tmp_path, "{step}", "loss", verbose=True)), [1.0, 2.0])
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"ModelCheckpoint, epoch 0, step 1: loss is 1, saving {tmp_path}/step=1.ckpt"
    assert second == "ModelCheckpoint, epoch 1, step 2: loss is 2, not among the best 1"


class TestOverrides:
    """What subclasses override and set."""

    def test_a_name_that_is_the_same_for_every_version_is_refused_where_it_is_taken(self, tmp_path: Path) -> None:
        class Named(ModelCheckpoint):
            def format_checkpoint_name(self, metrics: Any, filename: Any = None, ver: Any = None, **_: Any) -> str:
                return str(tmp_path / "model.ckpt")

        trainer = start(tmp_path, Named(tmp_path, save_top_k=-1))
        trainer.train_batch()
        trainer.end_epoch()
        trainer.train_batch()
        with pytest.raises(RuntimeError, match="must give each version a distinct path"):
            trainer.end_epoch()

    def test_what_the_class_keeps_can_be_set(self, tmp_path: Path) -> None:
        checkpoint = ModelCheckpoint(tmp_path, monitor="loss", save_top_k=2)
        assert float(checkpoint.kth_value) == math.inf
        checkpoint.best_k_models = {"a": torch.tensor(1.0)}
        checkpoint.best_k_models["b"] = torch.tensor(0.5)
        checkpoint.best_model_path, checkpoint.last_model_path = "b", "c"
        checkpoint.current_score = torch.tensor(0.5)
        state = checkpoint.state_dict()
        assert (state["best_model_path"], state["last_model_path"], float(state["current_score"])) == ("b", "c", 0.5)
        assert list(state["best_k_models"]) == ["a", "b"]


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


def test_the_newest_of_an_earlier_release_is_displaced(tmp_path: Path) -> None:
    first = ModelCheckpoint(tmp_path)
    run(tmp_path, first, [1.0])
    state = first.state_dict()
    del state["newest_paths"]
    resumed = ModelCheckpoint(tmp_path, save_top_k=2)
    resumed.load_state_dict(state)
    trainer = RecordingTrainer(str(tmp_path), callbacks=[resumed], global_step=1, current_epoch=1)
    trainer.begin()
    for _ in range(2):
        trainer.train_batch()
        trainer.end_epoch()
    assert {path.name for path in tmp_path.iterdir()} == {"epoch=1-step=2.ckpt", "epoch=2-step=3.ckpt"}


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
