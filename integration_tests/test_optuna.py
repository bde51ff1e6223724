"""Trials of Optuna end early: by our callback, on one process and on two, and by Optuna's own for Lightning."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_trainer import OneProcess, RecordingTrainer
from torch.utils.data import DataLoader, TensorDataset

from camshaft.callbacks import OptunaPruning
from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.compat import install_aliases, remove_aliases
from camshaft.trainer import Trainer, TrainingModule

optuna = pytest.importorskip("optuna", reason="studies are Optuna's")

QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "accelerator": "cpu",
    "max_epochs": 4,
}


def descent(base: Any, rate: float) -> Any:
    """Return a module whose value comes nearer to 1 by a known factor in each epoch."""

    class Descent(base):
        def __init__(self) -> None:
            super().__init__()
            self.value = torch.nn.Parameter(torch.zeros(()))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return (self.value - 1).square() / 2

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            # that of rank 0 alone decides
            self.log("distance", (self.value - 1).abs() + 10 * self.global_rank, sync_dist=False)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=rate)

    return Descent()


def study_of(
    storage: str | None, callback: Any, kinds: tuple[Any, Any] = (Trainer, TrainingModule), **options: Any
) -> Any:
    """Return a study of three trials, of which the second is behind the first."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    loader = DataLoader(TensorDataset(torch.zeros(2)), batch_size=1)

    def objective(trial: Any) -> float:
        pruning = callback(trial, "distance")
        trainer = kinds[0](**QUIET, **options, callbacks=[pruning])
        trainer.fit(descent(kinds[1], trial.suggest_float("rate", 0.0, 1.0)), loader, loader)
        getattr(pruning, "check_pruned", bool)()  # Optuna's, after several processes
        return float(trainer.callback_metrics["distance"])

    study = optuna.create_study(storage=storage, pruner=optuna.pruners.MedianPruner(n_startup_trials=1))
    for rate in (0.5, 0.1, 0.9):
        study.enqueue_trial({"rate": rate})
    study.optimize(objective, n_trials=3)
    return study


def check(study: Any) -> None:
    states = [trial.state.name for trial in study.trials]
    assert states == ["COMPLETE", "PRUNED", "COMPLETE"]
    counts = [len(trial.intermediate_values) for trial in study.trials]
    assert counts == [4, 1, 4] and list(study.trials[0].intermediate_values) == [0, 1, 2, 3]
    assert study.best_params == {"rate": 0.9}


def test_a_trial_behind_the_others_is_pruned() -> None:
    check(study_of(None, OptunaPruning))


def test_a_study_in_place_of_its_trial_is_refused_before_training() -> None:
    study = optuna.create_study()
    with pytest.raises(InvalidArgumentError, match="`trial` must be a trial of Optuna on rank 0, but got <optuna"):
        study_of(None, lambda trial, name: OptunaPruning(study, name))


def test_trials_with_other_hyperparameters_on_other_ranks_are_refused() -> None:
    class TwoRanks(OneProcess):
        def all_gather(self, value: Any) -> list[Any]:
            return [value, {"rate": 0.1}]

    trial = optuna.trial.FixedTrial({"rate": 0.5})
    trial.suggest_float("rate", 0.0, 1.0)
    with pytest.raises(InvalidArgumentError, match=r"must be that of rank 0, {'rate': 0\.5}, .* got {'rate': 0\.1}"):
        OptunaPruning(trial, "distance").setup(RecordingTrainer(".", strategy=TwoRanks()), None, "fit")


@pytest.mark.processes
def test_two_ranks_end_a_trial_together(tmp_path: Path) -> None:
    check(study_of(f"sqlite:///{tmp_path}/study.db", OptunaPruning, devices=2, strategy="ddp_fork"))
    with pytest.raises(InvalidArgumentError, match="`trial` must be of a study whose storage processes share"):
        study_of(None, OptunaPruning, devices=2, strategy="ddp_fork")


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore")
def test_optunas_own_callback_prunes_in_our_trainer(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="the callback is Lightning's")
    own = pytest.importorskip("optuna_integration.pytorch_lightning").PyTorchLightningPruningCallback
    check(study_of(None, own, devices=1))
    check(study_of(f"sqlite:///{tmp_path}/study.db", own, devices=2, strategy="ddp_fork"))


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore")
def test_optunas_own_callback_prunes_under_the_import_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna_integration", reason="the callback is there")
    for name in list(sys.modules):  # other tests may have imported them
        if name.partition(".")[0] in ("lightning", "pytorch_lightning", "lightning_fabric", "optuna_integration"):
            monkeypatch.delitem(sys.modules, name)
    install_aliases()
    try:
        lightning = import_module("lightning.pytorch")
        own = import_module("optuna_integration.pytorch_lightning").PyTorchLightningPruningCallback
        kinds = (lightning.Trainer, lightning.LightningModule)
        check(study_of(None, own, kinds, devices=1))
        check(study_of(f"sqlite:///{tmp_path}/study.db", own, kinds, devices=2, strategy="ddp_fork"))
    finally:
        remove_aliases()
