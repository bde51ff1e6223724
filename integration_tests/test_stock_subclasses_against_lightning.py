"""Subclasses of stock callbacks that read, set and call what Lightning's classes keep to themselves, on both sides."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from comparison.frameworks import CAMSHAFT, LIGHTNING, Framework
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from test_model_checkpoint_against_lightning import fit, found_in, memory_of

import camshaft.compat
from camshaft.compat.names.trainer.callbacks import EarlyStopping
from camshaft.compat.names.trainer.model_checkpoint import ModelCheckpoint

pytestmark = pytest.mark.filterwarnings("ignore")

IMPORT_NAMES = attrs.evolve(
    CAMSHAFT,
    name="import names",
    trainer=camshaft.compat.Trainer,
    module=camshaft.compat.TrainingModule,
    callback=camshaft.compat.Callback,
    model_checkpoint=ModelCheckpoint,
    early_stopping=EarlyStopping,
)


def hooks_written_out(base: Any) -> Any:
    class WrittenOut(base):  # type: ignore[misc]
        """Decides by itself, with the fields."""

        def _is_due(self, trainer: Any) -> bool:
            every = self._every_n_epochs
            return every >= 1 and (trainer.current_epoch + 1) % every == 0

        def _save_all(self, trainer: Any) -> None:
            candidates = self._monitor_candidates(trainer)
            if self._is_due(trainer):
                self._save_topk_checkpoint(trainer, candidates)
            if self._last_global_step_saved == trainer.global_step:
                self._save_last_checkpoint(trainer, candidates)

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if not self._should_skip_saving_checkpoint(trainer) and self._should_save_on_train_epoch_end(trainer):
                self._save_all(trainer)

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            if not self._should_skip_saving_checkpoint(trainer) and not self._should_save_on_train_epoch_end(trainer):
                self._save_all(trainer)

    return WrittenOut


def batches_written_out(base: Any) -> Any:
    class OfSteps(base):  # type: ignore[misc]
        """Saves after each so many steps, whatever validation says."""

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            every = self._every_n_train_steps or 2
            assert self._train_time_interval is None and self._last_time_checked is not None
            if trainer.global_step % every or self._should_skip_saving_checkpoint(trainer):
                return
            candidates = self._monitor_candidates(trainer)
            if self.monitor is None or self.monitor in candidates:
                self._save_topk_checkpoint(trainer, candidates)
                self._save_last_checkpoint(trainer, candidates)

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            """Leave it to the batches."""

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            """Leave it to the batches."""

    return OfSteps


def last_written_out(base: Any) -> Any:
    class Last(base):  # type: ignore[misc]
        def _save_last_checkpoint(self, trainer: Any, monitor_candidates: Any) -> None:
            if not self.save_last:
                return
            path = self.format_checkpoint_name(monitor_candidates, self.CHECKPOINT_NAME_LAST)
            version = self.STARTING_VERSION
            while self._enable_version_counter and self.file_exists(path, trainer) and path != self.last_model_path:
                path = self.format_checkpoint_name(monitor_candidates, self.CHECKPOINT_NAME_LAST, ver=version)
                version += 1
            former, self.last_model_path = self.last_model_path, path
            if self.save_last == "link" and self._last_checkpoint_saved and self.save_top_k != 0:
                self._link_checkpoint(trainer, self._last_checkpoint_saved, path)
            else:
                self._save_checkpoint(trainer, path)
            if former and self._should_remove_checkpoint(trainer, former, path):
                self._remove_checkpoint(trainer, former)

    return Last


def other_arguments_in_setup(base: Any) -> Any:
    class SetUp(base):  # type: ignore[misc]
        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            if self._save_on_train_epoch_end is None:
                self._save_on_train_epoch_end = False
            self.dirpath = os.path.join(trainer.default_root_dir, "elsewhere")
            super().setup(trainer, pl_module, stage)

    return SetUp


def other_arguments_in_init(base: Any) -> Any:
    class Init(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._enable_version_counter = False
            self.mode = "max"
            self.save_top_k = 2 if self.monitor else 1
            self.CHECKPOINT_NAME_LAST = "newest-{step}"
            self.FILE_EXTENSION = ".pl.ckpt"
            if self._every_n_epochs:
                self._every_n_epochs = 2

    return Init


def other_intervals_in_training(base: Any) -> Any:
    class Schedule(base):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
            if self._every_n_train_steps and trainer.global_step == 7:
                self._every_n_train_steps = 3

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if self._every_n_epochs and trainer.current_epoch == 1:
                self._every_n_epochs = 2

    return Schedule


def other_key(base: Any) -> Any:
    class Keyed(base):  # type: ignore[misc]
        @property
        def state_key(self) -> str:
            return str(
                self._generate_state_key(
                    monitor=self.monitor,
                    every_n_train_steps=self._every_n_train_steps,
                    every_n_epochs=self._every_n_epochs,
                    train_time_interval=self._train_time_interval,
                    save_top_k=self.save_top_k,
                )
            )

    return Keyed


def other_folder(base: Any) -> Any:
    class Folder(base):  # type: ignore[misc]
        def _ModelCheckpoint__resolve_ckpt_dir(self, trainer: Any) -> str:  # noqa: N802 - so it is called
            return os.path.join(trainer.default_root_dir, "resolved")

    return Folder


def numbered_otherwise(base: Any) -> Any:
    class Numbered(base):  # type: ignore[misc]
        """Takes a name for taken that another file has."""

        def file_exists(self, filepath: str, trainer: Any) -> bool:
            self.__dict__.setdefault("asked", []).append(os.path.basename(filepath))
            taken = {"epoch=0-step=6.ckpt", "step=4.ckpt"}
            return os.path.basename(filepath) in taken or super().file_exists(filepath, trainer)

    return Numbered


def anew(base: Any) -> Any:
    class Anew(base):  # type: ignore[misc]
        """Notes what was saved, and forgets it."""

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            seen = self._last_global_step_saved, os.path.basename(self._last_checkpoint_saved)
            self.__dict__.setdefault("calls", []).append(seen)
            self._last_global_step_saved = -1

    return Anew


SUBCLASSES = {
    one.__name__: one
    for one in (
        *(hooks_written_out, batches_written_out, last_written_out, other_arguments_in_setup, other_arguments_in_init),
        *(other_intervals_in_training, other_key, other_folder, numbered_otherwise, anew),
    )
}
BY_EPOCHS: list[dict[str, Any]] = [{}, {"monitor": "score"}, {"every_n_epochs": 2}]
BY_EPOCHS += [{"monitor": "score", "every_n_epochs": 2, "filename": "of/{epoch}-{score:.1f}"}]
BY_STEPS: list[dict[str, Any]] = [{"every_n_train_steps": every, "filename": "{step}"} for every in (4, 5)]
RUNS = st.sampled_from([{}, {"val_check_interval": 3}, {"check_val_every_n_epoch": 2}])


def both(tmp_path: Path, run: Any) -> tuple[Any, Any]:
    outcomes = []
    for framework in (LIGHTNING, IMPORT_NAMES):
        folder = tmp_path / framework.name
        folder.mkdir()
        outcomes.append(run(framework, folder))
    return outcomes[0], outcomes[1]


@pytest.mark.parametrize("subclass", SUBCLASSES)
@given(
    rhythm=st.sampled_from(BY_EPOCHS + BY_STEPS),  # by steps nothing is ranked: Lightning does it before validation
    arguments=RUNS,
    save_last=st.sampled_from([None, True, "link"]),
    save_top_k=st.sampled_from([1, -1]),
)
@settings(max_examples=15, deadline=None, phases=[Phase.generate])
def test_subclasses_of_model_checkpoint_leave_the_same_behind(
    subclass: str,
    rhythm: Any,
    arguments: Any,
    save_last: Any,
    save_top_k: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if save_last == "link" and subclass != "last_written_out":
        save_last = True  # Lightning links an older checkpoint where none was kept, camshaft writes one
    options = {"save_last": save_last, "save_top_k": save_top_k, **rhythm}

    def train(framework: Framework, folder: Path) -> Any:
        given_folder = None if subclass.startswith("other_folder") else folder / "kept"
        checkpoint = SUBCLASSES[subclass](framework.model_checkpoint)(given_folder, **options)
        fit(framework, folder, [checkpoint], **arguments)
        calls = getattr(checkpoint, "calls", None)
        return found_in(folder), memory_of(checkpoint, folder), calls, checkpoint.state_key.partition("{")[2]

    theirs, ours = both(tmp_path_factory.mktemp("subclass"), train)
    assert ours[:3] == theirs[:3]
    assert subclass != "other_key" or ours[3] == theirs[3]
