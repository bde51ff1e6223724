"""Two real processes train, log, save and resume as one does."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from ddp_scenes import fit, predict
from launching import Outcome, run_ranks
from trainer_parts import assert_same, files_below

pytestmark = pytest.mark.processes

SCENES = Path(__file__).with_name("ddp_scenes.py")
Scenes = tuple[Path, dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    """What both processes found."""
    folder = tmp_path_factory.mktemp("scenes")
    outcome = run_ranks(SCENES, 2, args=[folder, "mismatch"]).succeeded()
    return folder, *outcome.named


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process finds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit(tmp_path_factory.mktemp("alone"), 1)


def test_two_processes_end_with_the_weights_of_one(scenes: Scenes, alone: dict[str, Any]) -> None:
    _, first, second = scenes
    assert_same(first["fit"]["weights"], second["fit"]["weights"])
    for name, value in alone["weights"].items():
        torch.testing.assert_close(first["fit"]["weights"][name], value)
    assert first["fit"]["global_step"] == alone["global_step"]


def test_they_log_the_values_of_one(scenes: Scenes, alone: dict[str, Any]) -> None:
    _, first, second = scenes
    for found in (first["fit"], second["fit"]):
        assert found["metrics"] == pytest.approx(alone["metrics"], rel=1e-5)
        assert found["results"] == [pytest.approx(alone["results"][0], rel=1e-5)]
        assert found["results"][0]["seen"] == 22.0  # every sample once
    assert first["fit"]["metrics"] == second["fit"]["metrics"]  # to the bit


def test_callbacks_that_monitor_an_epoch_of_training_see_the_values_of_all(
    scenes: Scenes, alone: dict[str, Any]
) -> None:
    _, first, second = scenes
    assert first["fit"]["seen"] == second["fit"]["seen"]
    for found, expected in zip(first["fit"]["seen"], alone["seen"], strict=True):
        assert found["train_loss_epoch"] == pytest.approx(expected["train_loss_epoch"], rel=1e-5)
        assert found["largest"] >= expected["largest"] - 1e-6  # of smaller batches
        assert found["late"] == 0.5
    assert first["fit"]["of_training"] == second["fit"]["of_training"] == alone["of_training"]
    assert first["fit"]["best"] == second["fit"]["best"] == alone["best"]


def test_one_process_writes_and_both_know_where(scenes: Scenes) -> None:
    folder, first, second = scenes
    log_dir = first["loggers"]["log_dir"]
    assert log_dir == second["loggers"]["log_dir"] == str(folder / "loggers" / "camshaft_logs" / "version_0")
    assert (first["loggers"]["kind"], second["loggers"]["kind"]) == ("CSVLogger", "SilentLogger")
    assert first["loggers"]["facts"] == second["loggers"]["facts"]
    assert [found["loggers"]["numbers"] for found in (first, second)] == [(2, 2, 1, 0), (2, 2, 1, 1)]
    assert files_below(folder / "loggers") == [
        "camshaft_logs/version_0/checkpoints/epoch=0-step=6.ckpt",
        "camshaft_logs/version_0/hparams.json",
        "camshaft_logs/version_0/metrics.csv",
    ]


def test_the_file_holds_each_row_once_with_steps_that_were_reduced_where_that_was_asked_for(scenes: Scenes) -> None:
    folder, _, _ = scenes
    with (folder / "loggers/camshaft_logs/version_0/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    steps = [row for row in rows if row["synced_loss"]]
    assert [row["step"] for row in steps] == ["1", "3", "5"]
    assert all(row["synced_loss"] != row["train_loss_step"] for row in steps)
    assert len([row for row in rows if row["val_loss"]]) == 1


def test_a_run_that_was_stopped_inside_an_epoch_goes_on_to_the_bit(scenes: Scenes) -> None:
    for found in scenes[1:]:
        assert_same(found["resume"]["resumed"], found["resume"]["whole"])


def test_a_window_that_was_stopped_inside_averages_what_its_last_batch_leaves_out(scenes: Scenes) -> None:
    _, first, second = scenes
    for found in (first["resume_window"], second["resume_window"]):
        assert_same(found["resumed"], found["whole"])
    assert_same(first["resume_window"]["resumed"], second["resume_window"]["resumed"])


def test_names_that_only_one_process_logs_are_known_to_both(scenes: Scenes) -> None:
    _, first, second = scenes
    expected = ["of_0", "of_0_epoch", "of_0_step", "of_1", "of_1_epoch", "of_1_step", "val_of_0", "val_of_1"]
    assert first["names"] == second["names"] == expected


def test_a_module_gathers_tensors_and_numbers_of_all_processes(scenes: Scenes) -> None:
    for found in scenes[1:]:
        expected = {"rank": [0, 1], "pair": [[0.0, 1.0], [1.0, 1.0]], "gradient": 3.0, "detached": True}
        assert found["gather"] == expected


def test_a_dataset_smaller_than_the_number_of_processes_is_trained_and_counted_once(scenes: Scenes) -> None:
    _, first, second = scenes
    assert (first["tiny"].pop("num_val_batches"), second["tiny"].pop("num_val_batches")) == ([1], [0])
    assert first["tiny"] == second["tiny"]
    assert first["tiny"]["validated"][0]["seen"] == 1.0
    assert first["tiny"]["num_predictions"] == [1]
    assert first["tiny"]["best"] == "epoch=0-step=1.ckpt"


def test_predictions_of_both_come_in_the_order_of_the_dataset(scenes: Scenes, tmp_path: Path) -> None:
    _, first, second = scenes
    sizes, _, predictions = predict(tmp_path, 1)
    for found, own in ((first, [4, 4, 4]), (second, [4, 4, 2])):
        assert (found["predict"][0], found["predict"][1]) == (sizes, own)
        assert torch.equal(found["predict"][2], predictions)


def test_a_damaged_checkpoint_is_the_same_error_on_both_and_last_is_the_one_before(scenes: Scenes) -> None:
    folder, first, second = scenes
    assert first["damaged"]["error"] == second["damaged"]["error"]
    [note] = first["damaged"]["notes"]
    assert note.startswith(f"{str(folder / 'damaged' / 'kept' / 'epoch=0.ckpt')!r} beside it can be read: epoch 0, ")
    assert len(first["damaged"]["warnings"]) == 1 and second["damaged"]["warnings"] == []
    assert first["damaged"]["epoch"] == second["damaged"]["epoch"] == 3


def test_processes_that_log_one_name_differently_both_say_so(scenes: Scenes) -> None:
    for found in scenes[1:]:
        assert found["mismatch"] == (
            "`reduce_fx` must be the same on all ranks, but got 'mean' on rank 0, 'max' on rank 1 in log('x'). "
            "Log it with the same arguments everywhere, or under another name."
        )


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """What became of a script that starts its processes itself."""
    return {
        kind: run_ranks(
            SCENES.with_name("restarted_training.py"),
            2,
            launcher="bare",
            args=[tmp_path_factory.mktemp(kind), kind],
        ).succeeded()
        for kind in ("undisturbed", "kill")
    }


def test_the_script_starts_its_processes_and_leaves_the_rest_to_them(outcomes: dict[str, Outcome]) -> None:
    output = outcomes["undisturbed"].output
    assert output.count("the script runs") == 3  # once to start the others
    assert output.count("val_loss") == 1  # the results, by one process
    first, second = outcomes["undisturbed"].named
    assert_same(first["trained"], second["trained"])
    assert first["restarts"] == second["restarts"] == (0, [])


def test_after_a_kill_all_start_again_and_end_with_the_weights_of_an_undisturbed_run(
    outcomes: dict[str, Outcome],
) -> None:
    undisturbed, killed = (outcomes[kind].named for kind in ("undisturbed", "kill"))
    for rank in range(2):
        assert_same(killed[rank]["trained"], undisturbed[rank]["trained"])
    num_restarts, told = killed[0]["restarts"]
    assert num_restarts == 1
    assert len(told) == 2  # in each fit: the first had ended, the second was in the midst of it
    assert all("fit resumes from this job's newest checkpoint" in text for text in told)
    assert killed[1]["restarts"] == (1, [])
