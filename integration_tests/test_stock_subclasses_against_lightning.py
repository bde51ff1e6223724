"""Subclasses of stock callbacks that read, set and call what Lightning's classes keep to themselves, on both sides."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lightning.pytorch.callbacks as lightning_callbacks
import pytest
import torch
from comparison.frameworks import IMPORT_NAMES, LIGHTNING, Framework
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from test_model_checkpoint_against_lightning import fit, found_in, loader, memory_of

from camshaft.compat.names.finder import load
from camshaft.compat.names.table import counterparts
from camshaft.compat.names.trainer import model_summary
from camshaft.compat.names.trainer.callbacks import LearningRateMonitor

pytestmark = pytest.mark.filterwarnings("ignore")


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
        def _ModelCheckpoint__resolve_ckpt_dir(self, trainer: Any) -> str:
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


def checked_in_hooks(base: Any) -> Any:
    class Checked(base):  # type: ignore[misc]
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if self._check_on_train_epoch_end and not self._should_skip_check(trainer):
                self._run_early_stopping_check(trainer)

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            if not self._check_on_train_epoch_end and not self._should_skip_check(trainer):
                self._run_early_stopping_check(trainer)

    return Checked


def checked_at_the_end(base: Any) -> Any:
    class AtTheEnd(base):  # type: ignore[misc]
        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            self._check_on_train_epoch_end = True
            super().setup(trainer, pl_module, stage)

        def _validate_condition_metric(self, logs: Any) -> bool:
            return super()._validate_condition_metric(logs) and float(logs[self.monitor]) < 6

    return AtTheEnd


def checked_in_batches(base: Any) -> Any:
    class InBatches(base):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if self.monitor in trainer.callback_metrics and trainer.global_step % 4 == 0:
                self._run_early_stopping_check(trainer)

    return InBatches


@pytest.mark.parametrize("check", [None, True, False])
@pytest.mark.parametrize("arguments", [{}, {"val_check_interval": 3}, {"check_val_every_n_epoch": 2}], ids=str)
@pytest.mark.parametrize("subclass", [checked_in_hooks, checked_at_the_end, checked_in_batches])
def test_subclasses_of_early_stopping_stop_at_the_same_step(
    subclass: Any, arguments: Any, check: Any, tmp_path: Path
) -> None:
    def train(framework: Framework, folder: Path) -> Any:
        stopping = subclass(framework.early_stopping)("score", 0.6, 2, strict=False, check_on_train_epoch_end=check)
        trainer = fit(framework, folder, [stopping], max_epochs=12, **arguments)
        return trainer.global_step, stopping.stopped_epoch, stopping.wait_count, float(stopping.best_score)

    theirs, ours = both(tmp_path, train)
    assert ours == theirs


def with_a_prefix(base: Any) -> Any:
    class Prefixed(base):  # type: ignore[misc]
        def _find_names_from_schedulers(self, lr_scheduler_configs: Any) -> Any:
            names, *rest = super()._find_names_from_schedulers(lr_scheduler_configs)
            return [[f"rates/{name}" for name in of_one] for of_one in names], *rest

        def _add_suffix(self, name: str, param_groups: Any, param_group_index: int, use_names: bool = True) -> str:
            return str(super()._add_suffix(name, param_groups, param_group_index, use_names)).replace("-SGD", "")

    return Prefixed


def read_from_outside(base: Any) -> Any:
    class Read(base):  # type: ignore[misc]
        def on_train_epoch_start(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            super().on_train_epoch_start(trainer, *args, **kwargs)
            self.__dict__.setdefault("seen", []).append(self._extract_stats(trainer, "any"))

        def _extract_momentum(self, param_group: Any, name: str, use_betas: bool) -> Any:
            return {name: 0.25}

    return Read


def scaled(base: Any) -> Any:
    class Scaled(base):  # type: ignore[misc]
        """Finds names by itself, and logs other rates."""

        def _extract_stats(self, trainer: Any, interval: str) -> Any:
            names, optimizers, types = self._find_names_from_schedulers(trainer.lr_scheduler_configs)
            more, others = self._find_names_from_optimizers(trainer.optimizers, optimizers, types)
            self._remap_keys([*names, *more])
            found = {}
            for optimizer, of_one in zip([*optimizers, *others], [*names, *more], strict=False):
                found.update(self._get_optimizer_stats(optimizer, of_one))
            trainer.callback_metrics.update({name: torch.tensor(rate) for name, rate in found.items()})
            return found

        def _extract_lr(self, param_group: Any, name: str) -> Any:
            rate = param_group["lr"] * 10
            self.lrs[name].append(rate)
            return {name: rate}

    return Scaled


@pytest.mark.parametrize("interval", [None, "epoch", "step"])
@pytest.mark.parametrize("schedules", [(), ("epoch",), ("step",)])
@pytest.mark.parametrize("subclass", [with_a_prefix, read_from_outside, scaled])
def test_subclasses_of_learning_rate_monitor_log_the_same(
    subclass: Any, schedules: Any, interval: Any, tmp_path: Path
) -> None:
    def train(framework: Framework, folder: Path) -> Any:
        class Module(framework.module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.layers = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(2))

            def training_step(self, batch: Any, batch_idx: int) -> Any:
                return self.layers[1](self.layers[0](batch[0])).sum()

            def configure_optimizers(self) -> Any:
                groups = [{"params": self.layers[0].parameters(), "name": "first"}]
                groups += [{"params": self.layers[1].parameters(), "lr": 0.2}]
                optimizer = torch.optim.SGD(groups, lr=0.1)
                kinds = torch.optim.lr_scheduler.StepLR
                made = [{"scheduler": kinds(optimizer, 1, 0.5), "interval": one} for one in schedules]
                return [optimizer], made

        monitor = subclass(MONITORS[framework.name])(interval)
        trainer = framework.trainer(
            default_root_dir=folder,
            max_epochs=2,
            callbacks=[monitor],
            logger=framework.csv_logger(folder),
            log_every_n_steps=2,
            **{**framework.quiet, "enable_checkpointing": False},
        )
        trainer.fit(Module(), loader(4))
        values = {name: round(float(value), 6) for name, value in trainer.callback_metrics.items()}
        return {name: [*rates] for name, rates in monitor.lrs.items()}, values, getattr(monitor, "seen", None)

    theirs, ours = both(tmp_path, train)
    assert ours == theirs


MONITORS = {
    LIGHTNING.name: lightning_callbacks.LearningRateMonitor,
    IMPORT_NAMES.name: LearningRateMonitor,
}


def told_by_four(base: Any, told: list[Any]) -> Any:
    class Four(base):  # type: ignore[misc]
        @staticmethod
        def summarize(summary_data: Any, total_parameters: int, trainable_parameters: int, model_size: float) -> None:
            told.append((summary_data, total_parameters, trainable_parameters, model_size))

    return Four


def told_by_all(base: Any, told: list[Any]) -> Any:
    class All(base):  # type: ignore[misc]
        @staticmethod
        def summarize(
            summary_data: Any,
            total_parameters: int,
            trainable_parameters: int,
            model_size: float,
            total_training_modes: Any,
            total_flops: int,
            **summarize_kwargs: Any,
        ) -> None:
            told.append((summary_data, total_parameters, trainable_parameters, model_size))
            told.append((total_training_modes, total_flops, summarize_kwargs))
            columns = [(heading, [f"<{cell}>" for cell in cells]) for heading, cells in summary_data]
            base.summarize(
                columns, total_parameters, trainable_parameters, model_size, total_training_modes, total_flops
            )

    return All


def told_by_any(base: Any, told: list[Any]) -> Any:
    class Any_(base):  # type: ignore[misc]
        def summarize(self, *args: Any, **kwargs: Any) -> None:
            told.append((self._max_depth, args, kwargs))

    return Any_


@pytest.mark.parametrize("kind", ["ModelSummary", "RichModelSummary"])
@pytest.mark.parametrize("subclass", [told_by_four, told_by_all, told_by_any])
def test_subclasses_of_model_summaries_get_the_same(
    kind: str, subclass: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(framework: Framework, folder: Path) -> Any:
        base = getattr(lightning_callbacks if framework is LIGHTNING else model_summary, kind)
        told: list[Any] = []
        if subclass is told_by_four and framework is LIGHTNING:
            return None  # it refuses what was written for 1.5 to 2.1
        callback = subclass(base, told)(2, header_style="blue")
        fit(framework, folder, [callback], max_epochs=1, enable_model_summary=False)
        return told

    theirs, ours = both(tmp_path, train)
    assert len(ours) > 0 and (ours == theirs or subclass is told_by_four)
    if subclass is told_by_all:
        assert "<layer>" in capsys.readouterr().out


FIELDS: list[tuple[str, dict[str, Any], str]] = [
    ("BatchSizeFinder", {"mode": "binsearch"}, "_mode _steps_per_trial _init_val _max_trials _batch_arg_name"),
    ("DeviceStatsMonitor", {"cpu_stats": True}, "_cpu_stats"),
    ("EMAWeightAveraging", {"use_buffers": False}, "_use_buffers _average_model"),
    ("EarlyStopping", {"monitor": "x", "check_on_train_epoch_end": True}, "_check_on_train_epoch_end"),
    ("LearningRateFinder", {"min_lr": 1e-3}, "_min_lr _max_lr _num_training_steps _mode _update_attr _attr_name"),
    (
        "ModelCheckpoint",
        {"every_n_train_steps": 3, "save_on_train_epoch_end": False},
        "_every_n_epochs _every_n_train_steps _train_time_interval _save_on_train_epoch_end _enable_version_counter"
        " _last_global_step_saved _last_checkpoint_saved _last_time_checked _defer_save_until_validation",
    ),
    ("ModelSummary", {"max_depth": 3}, "_max_depth _summarize_kwargs"),
    ("RichProgressBar", {"leave": True}, "_leave _console _metric_component _progress_stopped progress"),
    (
        "StochasticWeightAveraging",
        {"swa_lrs": 0.1, "swa_epoch_start": 0.7},
        "_swa_lrs _swa_epoch_start _annealing_epochs _annealing_strategy _average_model _swa_scheduler",
    ),
    ("TQDMProgressBar", {"leave": True, "process_position": 2}, "_leave _process_position _enabled"),
    ("Timer", {"duration": "00:00:01:00", "interval": "epoch"}, "_interval _verbose"),
]


@pytest.mark.parametrize(("name", "arguments", "fields"), FIELDS)
def test_fields_of_lightnings_classes_have_its_values_and_can_be_set(name: str, arguments: Any, fields: str) -> None:
    theirs = getattr(lightning_callbacks, name)(**arguments)
    ours = load(counterparts()["", name])(**arguments)
    for field in fields.split():
        assert getattr(ours, field) == getattr(theirs, field), field
        setattr(ours, field, getattr(theirs, field))
        assert getattr(ours, field) == getattr(theirs, field), field


def test_a_subclass_of_swa_knows_when_it_averages(tmp_path: Path) -> None:
    def train(framework: Framework, folder: Path) -> Any:
        seen: list[Any] = []

        class Noting(lightning_callbacks.StochasticWeightAveraging if framework is LIGHTNING else ours):  # type: ignore[misc]
            def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
                starts = not self._initialized and self.swa_start <= trainer.current_epoch <= self.swa_end
                seen.append((starts, self._swa_epoch_start, self.swa_end))
                super().on_train_epoch_start(trainer, pl_module)

        fit(framework, folder, [Noting(1e-2, 0.5)], max_epochs=5)
        return seen

    ours = load(counterparts()["", "StochasticWeightAveraging"])
    found = both(tmp_path, train)
    assert found[1] == found[0] and [starts for starts, *_ in found[1]] == [False, True, False, False, False]


def test_a_subclass_of_weight_averaging_swaps_by_itself(tmp_path: Path) -> None:
    def train(framework: Framework, folder: Path) -> Any:
        calls: list[str] = []

        class Swaps(lightning_callbacks.EMAWeightAveraging if framework is LIGHTNING else ours):  # type: ignore[misc]
            def _swap_models(self, pl_module: Any) -> None:
                calls.append("swap")
                averages = dict(self._average_model.module.named_parameters())
                with torch.no_grad():
                    for name, weight in pl_module.named_parameters():
                        kept = weight.clone()
                        weight.copy_(averages[name])
                        averages[name].copy_(kept)

            def _copy_average_to_current(self, pl_module: Any) -> None:
                calls.append("copy")
                super()._copy_average_to_current(pl_module)

        trainer = fit(framework, folder, [Swaps(decay=0.5)], max_epochs=3)
        return calls, float(trainer.model.layer.weight)

    ours = load(counterparts()["", "EMAWeightAveraging"])
    theirs, found = both(tmp_path, train)
    assert found == theirs and found[0] == [*["swap"] * 6, "copy"]


def test_a_subclass_of_base_finetuning_keeps_its_state_in_its_own_way(tmp_path: Path) -> None:
    class Unfreezes(load(counterparts()["", "BaseFinetuning"])):  # type: ignore[misc]
        def freeze_before_training(self, pl_module: Any) -> None:
            self.freeze(pl_module.layers[0])

        def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
            if epoch == 1:
                self.unfreeze_and_add_param_group(pl_module.layers[0], optimizer, lr=0.01)

        def state_dict(self) -> Any:
            return {"internal_optimizer_metadata": self._internal_optimizer_metadata, "mine": 3}

        def load_state_dict(self, state_dict: Any) -> None:
            assert state_dict["mine"] == 3
            super().load_state_dict(state_dict)

    class Module(IMPORT_NAMES.module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(2))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layers[1](self.layers[0](batch[0])).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([one for one in self.parameters() if one.requires_grad], lr=0.1)

    def train(max_epochs: int, ckpt_path: Any = None) -> Any:
        torch.manual_seed(0)
        trainer = IMPORT_NAMES.trainer(
            default_root_dir=tmp_path, max_epochs=max_epochs, callbacks=[Unfreezes()], **IMPORT_NAMES.quiet
        )
        module = Module()
        trainer.fit(module, loader(3), ckpt_path=ckpt_path)
        return [one.detach().clone() for one in module.parameters()], trainer.checkpoint_callback.best_model_path

    whole, _ = train(3)
    _, path = train(2)
    resumed, _ = train(3, path)
    assert all(torch.equal(one, other) for one, other in zip(whole, resumed, strict=True))
