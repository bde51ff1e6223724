"""Callbacks that could get in each other's way: two checkpoints, averages with resume, a stop of several processes."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from conflicting_callbacks import NUM_EPOCHS, Net, averaging, facts, fit, loader, weights
from launching import run_ranks
from mlflow import MlflowClient

from camshaft.callbacks import EarlyStopping, ModelCheckpoint, StochasticWeightAveraging, WeightAveraging
from camshaft.trainer import Trainer

pytestmark = pytest.mark.filterwarnings("ignore:ModelCheckpoint now saves in")
SCRIPT = Path(__file__).parent / "conflicting_callbacks.py"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.ckpt")}


def assert_same(found: Any, expected: Any) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def saved_scores(callback: ModelCheckpoint) -> list[float]:
    """What the kept checkpoints are worth: validated anew, from the worst to the best."""
    assert callback.monitor is not None
    trainer = Trainer(logger=False, enable_progress_bar=False, accelerator="cpu", enable_checkpointing=False)
    scores = {}
    for path, score in callback.best_k_models.items():
        [found] = trainer.validate(Net(), loader(1), ckpt_path=path, verbose=False)
        assert found[callback.monitor] == pytest.approx(float(score), rel=1e-6)
        scores[path] = found[callback.monitor]
    best = min if callback.mode == "min" else max
    assert scores[callback.best_model_path] == best(scores.values())
    return sorted(scores.values())


def two_checkpoints(first: Path, second: Path) -> list[Any]:
    return [
        ModelCheckpoint(first, "{epoch}", "val_loss", save_top_k=2, save_last=True),
        ModelCheckpoint(second, "{epoch}", "largest", mode="max", save_top_k=1),
    ]


@pytest.mark.parametrize("folders", [("a", "b"), ("same", "same")], ids=["two folders", "one folder"])
def test_two_checkpoints_keep_what_each_ranks_best_and_go_on_doing_so(tmp_path: Path, folders: tuple[str, str]) -> None:
    def callbacks(run: str) -> list[Any]:
        return two_checkpoints(*(tmp_path / run / folder for folder in folders))

    trainer, module = fit(tmp_path, whole := callbacks("whole"))
    kept = [{Path(path).name for path in callback.best_k_models} for callback in whole]
    assert [len(each) for each in kept] == [2, 1]
    for callback in whole:
        saved_scores(callback)
    of_both = [names(tmp_path / "whole" / folder) for folder in folders]
    assert of_both[0] | of_both[1] == kept[0] | kept[1] | {"last.ckpt"}
    if folders[0] != folders[1]:
        assert of_both == [kept[0] | {"last.ckpt"}, kept[1]]
    else:
        assert not kept[0] & kept[1]
    # stopped after two epochs and continued, in the same folders
    fit(tmp_path, first := callbacks("parts"), max_epochs=2)
    again, resumed = fit(tmp_path, second := callbacks("parts"), first[0].last_model_path)
    assert again.global_step == trainer.global_step
    assert_same(weights(resumed), weights(module))
    for one, other in zip(second, whole, strict=True):
        assert sorted(map(float, one.best_k_models.values())) == sorted(map(float, other.best_k_models.values()))
        saved_scores(one)
    assert {len(names(tmp_path / "parts" / folder)) for folder in folders} == set(map(len, of_both))


def test_two_checkpoints_of_one_folder_and_rhythm_never_remove_each_others(tmp_path: Path) -> None:
    callbacks = [
        ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=2),
        ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=3),
    ]
    fit(tmp_path, callbacks)  # 30 updates, of which every sixth is due for both
    first, second = (Path(callback.best_model_path) for callback in callbacks)
    assert names(tmp_path) == {first.name, second.name} and first != second
    assert {torch.load(path, weights_only=True)["global_step"] for path in (first, second)} == {30}


def test_two_checkpoints_of_one_key_are_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`state_key` must be different"):
        fit(tmp_path, [ModelCheckpoint(tmp_path, monitor="val_loss"), ModelCheckpoint(tmp_path, monitor="val_loss")])
    assert not names(tmp_path)


@pytest.mark.filterwarnings("ignore:Two ModelCheckpoints in Trainer")
def test_two_checkpoints_without_a_version_counter_share_one_last(tmp_path: Path) -> None:
    callbacks = [
        ModelCheckpoint(tmp_path, name, save_last=True, enable_version_counter=False, **due)
        for name, due in (("{step}", {"every_n_train_steps": 4}), ("{epoch}", {"every_n_epochs": 1}))
    ]
    fit(tmp_path, callbacks)  # 30 updates
    assert names(tmp_path) == {"step=28.ckpt", Path(callbacks[1].best_model_path).name, "last.ckpt"}
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 30


def test_the_best_checkpoint_of_an_average_holds_the_average_that_was_ranked(tmp_path: Path) -> None:
    trainer, _ = fit(tmp_path, callbacks := averaging(tmp_path))
    saved_scores(callbacks[2])
    best = torch.load(callbacks[2].best_model_path, weights_only=True)
    assert not torch.equal(best["state_dict"]["layers.0.weight"], best["current_model_state"]["layers.0.weight"])
    [found] = trainer.validate(dataloaders=loader(1), ckpt_path="best", verbose=False)
    assert found["val_loss"] == pytest.approx(float(callbacks[2].best_model_score), rel=1e-6)


@pytest.mark.filterwarnings("ignore:ModelCheckpoint forgets checkpoints")
def test_an_average_a_stop_and_a_best_checkpoint_go_on_from_any_step_to_the_same_bits(tmp_path: Path) -> None:
    expected = facts(*fit(tmp_path, averaging(tmp_path / "whole")))
    assert 0 < expected["stopped_epoch"] < NUM_EPOCHS - 1, "the stop is part of what is to be the same"
    saved = set((tmp_path / "whole" / "all").iterdir())
    assert len(saved) == expected["step"] / 2
    for path in sorted(saved):
        is_stop = path.stem == f"step={expected['step']}"
        with pytest.warns(UserWarning, match="has stopped the run that is resumed") if is_stop else nullcontext():
            found = facts(*fit(tmp_path, averaging(tmp_path / path.stem), path))
        assert_same(found.pop("weights"), expected["weights"])
        assert found == {name: value for name, value in expected.items() if name != "weights"}, path.name


def test_two_averages_are_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`callbacks` must be without a second callback that averages weights"):
        fit(tmp_path, [WeightAveraging(), StochasticWeightAveraging(0.01)])


def test_the_stricter_of_two_stops_ends_training_and_both_remember(tmp_path: Path) -> None:
    loose, strict = EarlyStopping("val_loss", patience=50), EarlyStopping("largest", patience=1, min_delta=10.0)
    trainer, _ = fit(tmp_path, [loose, strict, ModelCheckpoint(tmp_path, save_last=True)])
    assert (strict.stopped_epoch, loose.stopped_epoch, trainer.current_epoch) == (1, 0, 2)
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"]
    assert {saved[one.state_key]["stopped_epoch"] for one in (loose, strict)} == {0, 1}


@pytest.fixture(scope="module")
def ranks_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def of_ranks(ranks_folder: Path) -> list[list[Any]]:
    return run_ranks(SCRIPT, 2, args=[str(ranks_folder)]).succeeded().reports


@pytest.mark.processes
def test_processes_whose_metrics_differ_stop_together(of_ranks: list[list[Any]]) -> None:
    (first, *_), (second, *_) = of_ranks
    assert first == second
    # the first process's metric falls from epoch to epoch: it decides alone, and goes on to the end
    assert first[False] == (NUM_EPOCHS, 3 * NUM_EPOCHS, 0)
    # the mean rises: no new best after the first epoch, and two epochs' patience
    assert first[True] == (3, 9, 2)


@pytest.mark.processes
def test_processes_with_an_average_a_stop_and_two_checkpoints_go_on_to_the_same_bits(
    of_ranks: list[list[Any]],
) -> None:
    (_, whole, resumed), (_, other, other_resumed) = of_ranks
    assert_same(resumed.pop("weights"), whole["weights"])
    assert_same(other_resumed.pop("weights"), other["weights"])
    parameters = [name for name in whole["weights"] if "running" not in name and "num_batches" not in name]
    assert all(torch.equal(whole["weights"][name], other["weights"][name]) for name in parameters)
    for each in (whole, other):
        del each["weights"]
    assert whole == other == resumed == other_resumed


@pytest.mark.processes
@pytest.mark.usefixtures("of_ranks")
def test_of_two_processes_the_first_one_logs_the_checkpoints_of_both_callbacks(
    ranks_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow's own reader asks for it
    client = MlflowClient((ranks_folder / "runs").as_uri())
    (experiment,) = (one for one in client.search_experiments() if one.name != "Default")
    (run,) = client.search_runs([experiment.experiment_id])
    logged = {one.path for one in client.list_artifacts(run.info.run_id)}
    kept = {path.stem for path in (ranks_folder / "whole").rglob("*.ckpt")}
    assert kept - logged <= {"last"}, "which is a second name of a kept one unless a later one was not good enough"
    assert run.data.tags["best_checkpoint"].startswith("best-step="), "of the callback that ranks them"
