"""What `ModelCheckpoint` and `EarlyStopping` leave behind, and overrides of their methods, as with Lightning."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import proxy

import pytest
import torch
from comparison.frameworks import CAMSHAFT, LIGHTNING, Framework
from torch.utils.data import DataLoader, TensorDataset

from camshaft.compat.names.trainer.model_checkpoint import ModelCheckpoint as ImportedModelCheckpoint

pytestmark = pytest.mark.filterwarnings("ignore")

NUM_BATCHES = 6
SCORES = (5.0, 4.5, 3.0, 2.5, 6.0, 1.0)  # no two alike: Lightning removes the older one of equals, camshaft the newer


def loader(num_batches: int) -> Any:
    return DataLoader(TensorDataset(torch.ones(2 * num_batches, 1)), batch_size=2)


def make_module(framework: Framework) -> Any:
    class Module(framework.module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1, bias=False)
            torch.nn.init.zeros_(self.layer.weight)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch[0]).sum()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("score", SCORES[(self.trainer.global_step // 3 - 1) % len(SCORES)])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1.0)

    return Module()


def fit(framework: Framework, folder: Path, callbacks: list[Any], **arguments: Any) -> Any:
    loggers = [framework.csv_logger(folder / "logs")] if arguments.pop("logs", False) else False
    val = loader(1) if arguments.pop("validates", True) else None
    arguments = {"max_epochs": 3, "num_sanity_val_steps": 0, "logger": loggers, **framework.quiet, **arguments}
    ckpt_path = arguments.pop("ckpt_path", None)
    trainer = framework.trainer(default_root_dir=folder, callbacks=callbacks, **arguments)
    trainer.fit(make_module(framework), loader(NUM_BATCHES), val, ckpt_path=ckpt_path)
    return trainer


def found_in(folder: Path) -> dict[str, Any]:
    """The steps and weights of the checkpoints, and the texts of what else there is, by path."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")) if folder.exists() else []:
        if path.suffix == ".ckpt" and path.is_file():
            checkpoint = torch.load(path, weights_only=False)
            found[str(path.relative_to(folder))] = (
                checkpoint["global_step"],
                float(checkpoint["state_dict"]["layer.weight"]),
            )
        elif path.is_file():
            found[str(path.relative_to(folder))] = path.read_text()
    return found


def memory_of(checkpoint: Any, folder: Path) -> dict[str, Any]:
    def name(path: str) -> str:
        return os.path.relpath(path, folder) if path else ""

    return {
        "best": name(checkpoint.best_model_path),
        "last": name(checkpoint.last_model_path),
        "kept": {name(path): float(score) for path, score in checkpoint.best_k_models.items()},
        "best score": None if checkpoint.best_model_score is None else float(checkpoint.best_model_score),
    }


def both(tmp_path: Path, run: Callable[[Framework, Path], Any]) -> tuple[Any, Any]:
    outcomes = []
    for framework in (LIGHTNING, CAMSHAFT):
        folder = tmp_path / framework.name
        folder.mkdir()
        outcomes.append(run(framework, folder))
    return outcomes[0], outcomes[1]


RHYTHMS: list[dict[str, Any]] = [
    {},
    {"every_n_epochs": 2},
    {"every_n_epochs": 5},
    {"every_n_epochs": 0},
    {"every_n_train_steps": 4},
    {"every_n_train_steps": 100},
]
RUNS: list[dict[str, Any]] = [
    {"validates": False},
    {"val_check_interval": 3},
    {"check_val_every_n_epoch": 2},
    {"validates": False, "max_epochs": 1},
]


@pytest.mark.parametrize("save_last", [None, True, "link"])
@pytest.mark.parametrize("rhythm", RHYTHMS, ids=str)
def test_the_same_checkpoints_are_there_at_the_end(tmp_path: Path, rhythm: dict[str, Any], save_last: Any) -> None:
    for number, (run, top_k, at) in enumerate(itertools.product(RUNS, (0, 1, -1), (None, True, False))):
        if at and "every_n_train_steps" in rhythm:
            continue  # camshaft refuses it: no epoch is due
        if save_last == "link" and top_k == 0 and "every_n_train_steps" in rhythm:
            continue  # Lightning writes "last" anew at the ends of epochs then
        options = {"save_last": save_last, "save_top_k": top_k, "save_on_train_epoch_end": at, **rhythm}

        def train(framework: Framework, folder: Path, options: dict[str, Any] = options, run: Any = run) -> Any:
            checkpoint = framework.model_checkpoint(folder / "kept", **options)
            fit(framework, folder, [checkpoint], **run)
            return found_in(folder / "kept"), memory_of(checkpoint, folder / "kept")

        (tmp_path / str(number)).mkdir()
        theirs, ours = both(tmp_path / str(number), train)
        assert ours == theirs, (options, run)


@pytest.mark.parametrize("top_k", [{}, {"monitor": "score"}, {"monitor": "score", "save_top_k": 2}, {"save_top_k": 0}])
@pytest.mark.parametrize("save_last", [True, "link"])
def test_a_fit_that_goes_on_from_last_leaves_the_same_behind(
    tmp_path: Path, save_last: Any, top_k: dict[str, Any]
) -> None:
    def train(framework: Framework, folder: Path) -> Any:
        for max_epochs, ckpt_path in ((2, None), (3, "last")):
            saving = framework.model_checkpoint(folder / "kept", filename="{step}", save_last=save_last, **top_k)
            fit(framework, folder, [saving], max_epochs=max_epochs, ckpt_path=ckpt_path)
        return found_in(folder / "kept"), memory_of(saving, folder / "kept")

    theirs, ours = both(tmp_path, train)
    assert ours == theirs


def test_last_is_the_newest_also_where_nothing_was_good_enough_to_be_kept(tmp_path: Path) -> None:
    def train(framework: Framework, folder: Path) -> Any:
        saving = framework.model_checkpoint(folder / "kept", filename="{step}", save_last=True, monitor="score")
        fit(framework, folder, [saving], max_epochs=4)
        return {name: step for name, (step, _) in found_in(folder / "kept").items()}

    theirs, ours = both(tmp_path, train)
    assert ours == {"last.ckpt": 24, "step=18.ckpt": 18}
    assert theirs == {"last.ckpt": 18, "step=18.ckpt": 18}


def after_ranking(base: Any) -> Any:
    class LinksTheBest(base):  # type: ignore[misc]
        """Uses the file of the best checkpoint as soon as it is ranked."""

        def _update_best_and_save(self, current: Any, trainer: Any, monitor_candidates: Any) -> None:
            super()._update_best_and_save(current, trainer, monitor_candidates)
            shutil.copy(self.best_model_path, os.path.join(self.dirpath, f"best-of-{trainer.current_epoch}.ckpt"))
            self._link_checkpoint(trainer, self.best_model_path, os.path.join(self.dirpath, "best.ckpt"))

    return LinksTheBest


def own_ranking(base: Any) -> Any:
    class RanksByItself(base):  # type: ignore[misc]
        """Takes the whole ranking over, with what the class keeps."""

        def _update_best_and_save(self, current: Any, trainer: Any, monitor_candidates: Any) -> None:
            gone = self.kth_best_model_path if len(self.best_k_models) == self.save_top_k else None
            if gone is not None:
                del self.best_k_models[gone]
            path = self._get_metric_interpolated_filepath_name(monitor_candidates, trainer, gone)
            self.current_score = current
            self.best_k_models[path] = current
            ranked = sorted(self.best_k_models, key=lambda one: float(self.best_k_models[one]))
            self.best_model_path, self.kth_best_model_path = ranked[0], ranked[-1]
            self.best_model_score = self.best_k_models[ranked[0]]
            self.kth_value = self.best_k_models[ranked[-1]]
            self._save_checkpoint(trainer, path)
            if gone is not None and self._should_remove_checkpoint(trainer, gone, path):
                self._remove_checkpoint(trainer, gone)

    return RanksByItself


def swapped_weights(base: Any) -> Any:
    class SavesOtherWeightsToo(base):  # type: ignore[misc]
        """Writes a second checkpoint with weights that are there for that moment alone."""

        def _save_checkpoint(self, trainer: Any, filepath: str) -> None:
            super()._save_checkpoint(trainer, filepath)
            weight = trainer.model.layer.weight
            before = weight.detach().clone()
            with torch.no_grad():
                weight.fill_(100.0 + trainer.current_epoch)
            super()._save_checkpoint(trainer, filepath.replace(".ckpt", "-EMA.ckpt"))
            with torch.no_grad():
                weight.copy_(before)

        def _remove_checkpoint(self, trainer: Any, filepath: str) -> None:
            super()._remove_checkpoint(trainer, filepath)
            super()._remove_checkpoint(trainer, filepath.replace(".ckpt", "-EMA.ckpt"))

    return SavesOtherWeightsToo


def export(base: Any) -> Any:
    class Exports(base):  # type: ignore[misc]
        """Writes something of its own in place of the checkpoint, and tells the loggers by itself."""

        def _save_checkpoint(self, trainer: Any, filepath: str) -> None:
            Path(filepath).mkdir(parents=True, exist_ok=True)
            Path(filepath, "weights.txt").write_text(str(float(trainer.model.layer.weight)))
            self._last_global_step_saved = trainer.global_step
            self._last_checkpoint_saved = filepath
            for logger in trainer.loggers:
                logger.after_save_checkpoint(proxy(self))

        def _remove_checkpoint(self, trainer: Any, filepath: str) -> None:
            shutil.rmtree(filepath)

    return Exports


def other_names(base: Any) -> Any:
    class Names(base):  # type: ignore[misc]
        def format_checkpoint_name(self, metrics: Any, filename: Any = None, ver: Any = None) -> str:
            path = super().format_checkpoint_name({**metrics, "epoch": metrics["epoch"] + 1}, filename, ver)
            return str(path).replace("=", "~").replace(self.FILE_EXTENSION, f"/model{self.FILE_EXTENSION}")

    return Names


def other_candidates(base: Any) -> Any:
    class Candidates(base):  # type: ignore[misc]
        def _monitor_candidates(self, trainer: Any) -> Any:
            candidates = super()._monitor_candidates(trainer)
            return {**candidates, "negative": -candidates["score"]} if "score" in candidates else candidates

    return Candidates


def own_choice(base: Any) -> Any:
    class OnlyOdd(base):  # type: ignore[misc]
        def check_monitor_top_k(self, trainer: Any, current: Any = None) -> bool:
            return trainer.current_epoch % 2 == 1 and super().check_monitor_top_k(trainer, current)

    return OnlyOdd


def keeps_all_files(base: Any) -> Any:
    class Keeps(base):  # type: ignore[misc]
        def _should_remove_checkpoint(self, trainer: Any, previous: str, current: str) -> bool:
            return False

    return Keeps


def steps_of_saving(base: Any) -> Any:
    class Steps(base):  # type: ignore[misc]
        """Notes what is asked for, and when."""

        def _note(self, trainer: Any, text: str) -> None:
            self.__dict__.setdefault("calls", []).append((text, trainer.current_epoch, trainer.global_step))

        def _save_topk_checkpoint(self, trainer: Any, monitor_candidates: Any) -> None:
            self._note(trainer, f"top k of {sorted(monitor_candidates)}")
            super()._save_topk_checkpoint(trainer, monitor_candidates)

        def _save_last_checkpoint(self, trainer: Any, monitor_candidates: Any) -> None:
            self._note(trainer, "last")
            super()._save_last_checkpoint(trainer, monitor_candidates)

        def _save_monitor_checkpoint(self, trainer: Any, monitor_candidates: Any) -> None:
            self._note(trainer, "monitor")
            super()._save_monitor_checkpoint(trainer, monitor_candidates)

        def _save_none_monitor_checkpoint(self, trainer: Any, monitor_candidates: Any) -> None:
            self._note(trainer, "no monitor")
            super()._save_none_monitor_checkpoint(trainer, monitor_candidates)

        def _save_checkpoint(self, trainer: Any, filepath: str) -> None:
            self._note(trainer, f"save {os.path.basename(filepath)}")
            super()._save_checkpoint(trainer, filepath)

        def _should_save_on_train_epoch_end(self, trainer: Any) -> bool:
            return super()._should_save_on_train_epoch_end(trainer)  # type: ignore[no-any-return]

    return Steps


OVERRIDES = {
    one.__name__: one
    for one in (
        *(after_ranking, own_ranking, swapped_weights, export, other_names, other_candidates, own_choice),
        *(keeps_all_files, steps_of_saving),
    )
}


@pytest.mark.parametrize("save_last", [None, True])
@pytest.mark.parametrize(
    "options",
    [
        {"monitor": "score", "save_top_k": 2},
        {"monitor": "score", "save_top_k": 2, "every_n_train_steps": 4, "save_on_train_epoch_end": False},
        {"save_top_k": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("override", OVERRIDES)
def test_overrides_of_model_checkpoint_leave_the_same_behind(
    tmp_path: Path, override: str, options: dict[str, Any], save_last: Any
) -> None:
    if override == "other_candidates" and "monitor" in options:
        options = {**options, "monitor": "negative"}
    is_by_step = "every_n_train_steps" in options  # where no validation is due, but at an epoch's end

    def train(framework: Framework, folder: Path) -> Any:
        base = framework.model_checkpoint if framework is LIGHTNING else ImportedModelCheckpoint
        checkpoint = OVERRIDES[override](base)(folder / "kept", save_last=save_last, **options)
        # every epoch is among the best, since Lightning leaves "last" behind where one is not
        arguments = {"val_check_interval": 3} if is_by_step else {}
        fit(framework, folder, [checkpoint], logs=True, max_epochs=2, **arguments)
        return found_in(folder / "kept"), memory_of(checkpoint, folder / "kept"), getattr(checkpoint, "calls", None)

    theirs, ours = both(tmp_path, train)
    assert theirs[0] or override == "own_choice"
    assert ours == theirs


def test_methods_that_are_called_from_outside_give_the_same(tmp_path: Path) -> None:
    def ask(framework: Framework, folder: Path) -> Any:
        checkpoint = framework.model_checkpoint(folder / "kept", "{epoch:02d}-{score:.1f}", "score", save_top_k=2)
        trainer = fit(framework, folder, [checkpoint])
        checkpoint.to_yaml()
        text = (folder / "kept/best_k_models.yaml").read_text().replace(str(folder), "").replace('"', "")
        metrics = {"epoch": torch.tensor(3), "score": torch.tensor(0.5), "step": torch.tensor(7)}
        names = [
            checkpoint.format_checkpoint_name(metrics),
            checkpoint.format_checkpoint_name(metrics, ver=2),
            checkpoint.format_checkpoint_name(metrics, "{step}", 1, prefix="a"),
        ]
        takes = [checkpoint.check_monitor_top_k(trainer, torch.tensor(value)) for value in (1.0, 9.0)]
        kth = os.path.basename(checkpoint.kth_best_model_path), float(checkpoint.kth_value)
        return sorted(text.splitlines()), [name.replace(str(folder), "") for name in names], takes, kth

    theirs, ours = both(tmp_path, ask)
    assert ours == theirs


def ignoring_the_first_epochs(base: Any) -> Any:
    class Later(base):  # type: ignore[misc]
        def _run_early_stopping_check(self, trainer: Any) -> None:
            if trainer.current_epoch >= 3:
                super()._run_early_stopping_check(trainer)

    return Later


def own_criteria(base: Any) -> Any:
    class Criteria(base):  # type: ignore[misc]
        def _evaluate_stopping_criteria(self, current: Any) -> Any:
            self.seen = [*getattr(self, "seen", []), float(current)]
            if self.monitor_op(current - self.min_delta, self.best_score.to(current.device)):
                self.best_score, self.wait_count = current, 0
                return False, None
            return len(self.seen) > 4, "enough seen"

    return Criteria


def without_a_reason(base: Any) -> Any:
    class Stops(base):  # type: ignore[misc]
        def _evaluate_stopping_criteria(self, current: Any) -> Any:
            return super()._evaluate_stopping_criteria(current)[0] or float(current) < 3.0, None

    return Stops


def skipping(base: Any) -> Any:
    class Skips(base):  # type: ignore[misc]
        def _should_skip_check(self, trainer: Any) -> bool:
            return trainer.current_epoch % 2 == 0 or super()._should_skip_check(trainer)

    return Skips


@pytest.mark.parametrize("interval", [1.0, 3])
@pytest.mark.parametrize("override", [ignoring_the_first_epochs, own_criteria, without_a_reason, skipping])
def test_overrides_of_early_stopping_stop_at_the_same_step(tmp_path: Path, override: Any, interval: Any) -> None:
    def train(framework: Framework, folder: Path) -> Any:
        stopping = override(framework.early_stopping)("score", min_delta=0.6, patience=2)
        trainer = fit(framework, folder, [stopping], max_epochs=12, val_check_interval=interval)
        seen = getattr(stopping, "seen", None)
        return trainer.global_step, stopping.stopped_epoch, stopping.wait_count, float(stopping.best_score), seen

    theirs, ours = both(tmp_path, train)
    assert ours == theirs


@pytest.mark.parametrize("filename", ["{epoch}_{val/score:.1f}", "of/{val/score}-{step}", None])
@pytest.mark.parametrize("is_named", [True, False])
def test_a_name_with_slashes_makes_folders_under_the_import_names_alone(filename: str | None, is_named: bool) -> None:
    def name(cls: Any) -> str:
        checkpoint = cls(dirpath="folder", filename=filename, auto_insert_metric_name=is_named)
        path = checkpoint.format_checkpoint_name({"epoch": 3, "step": 7, "val/score": 0.5})
        return os.path.relpath(path, "folder")

    theirs = name(LIGHTNING.model_checkpoint)
    assert name(ImportedModelCheckpoint) == theirs
    assert name(CAMSHAFT.model_checkpoint) == theirs.replace("val/score=", "val_score=")


def test_the_key_of_a_callbacks_state_is_made_of_the_same_arguments() -> None:
    def key(framework: Framework) -> str:
        class Counting(framework.callback):  # type: ignore[misc, name-defined]
            @property
            def state_key(self) -> str:
                return self._generate_state_key(what="batches", every=2)

        return str(Counting().state_key)

    assert key(CAMSHAFT) == key(LIGHTNING)
