"""What both progress bars leave on the screen of a real pseudo-terminal."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from screen import Screen, run_on_terminal

DEMO = str(Path(__file__).with_name("progress_demo.py"))
SCENES = ["fit", "leave", "fail", "interrupt", "test", "metrics", "endless"]
COLUMNS = {"metrics": 80, "endless": 32}
SAID = ["a line printed by the user", "a line printed by the bar", "a line in two parts", "a line for errors"]
LAST_BAR = {
    "rich": r"Epoch 2/2 ━+ 10/10 0:0\d < 0:00 [\d.]+ batches/s loss 0\.03333  val_loss 0\.2500",
    "tqdm": r"Epoch 2/2: 100%\|█+\| 10/10 \[00:0\d<00:00, +[\d.]+batch/s, loss=0\.03333, val_loss=0\.2500\]",
}
VALIDATION_BAR = {"rich": r"Validate +━+[╸╺]?━* +1/2 .*", "tqdm": r"Validate:  50%\|[^|]*\| 1/2 \[.*\]"}
REDRAWN = {"rich": "\x1b[2K", "tqdm": "\x1b[A"}  # what follows when all rows are drawn
METRIC_SEPARATOR = {"rich": "  ", "tqdm": ", "}

pytestmark = [pytest.mark.processes, pytest.mark.parametrize("kind", ["rich", "tqdm"])]


@functools.cache  # a start takes seconds
def outputs(kind: str, columns: int) -> dict[str, str]:
    """What each scene writes on a terminal of a width."""
    scenes = [scene for scene in SCENES if COLUMNS.get(scene, 110) == columns]
    output = run_on_terminal([DEMO, kind, "0.002", *scenes], columns)
    return dict(zip(scenes, output.split("\f"), strict=True))


def run(kind: str, scene: str) -> str:
    return outputs(kind, COLUMNS.get(scene, 110))[scene]


def last_screen(kind: str, scene: str) -> list[str]:
    return Screen(COLUMNS.get(scene, 110)).feed(run(kind, scene)).lines()


def validating_screen(kind: str, scene: str) -> list[str]:
    """What is on the screen in the middle of the last validation."""
    output = run(kind, scene)
    half = [shown.end() for shown in re.finditer(r"Validate[^\n]* 1/2", re.sub(r"\x1b\[[\d;]*m", "", output))]
    plain = re.sub(r"\x1b\[[\d;]*m", "", output)
    return Screen(COLUMNS.get(scene, 110)).feed(plain[: plain.index(REDRAWN[kind], half[-1])]).lines()


def test_redraws_in_place_below_what_is_printed_and_leaves_the_last_state(kind: str) -> None:
    *printed, bar, end = last_screen(kind, "fit")
    assert printed == SAID
    assert re.fullmatch(LAST_BAR[kind], bar)
    assert end == "after the run"
    assert "Sanity check" in run(kind, "fit")


def test_shows_validation_below_training_while_it_runs(kind: str) -> None:
    *_, train, validate = validating_screen(kind, "fit")
    assert train.startswith("Epoch 2/2") and "10/10" in train
    assert re.fullmatch(VALIDATION_BAR[kind], validate)


def test_leave_keeps_a_bar_per_epoch(kind: str) -> None:
    lines = last_screen(kind, "leave")
    bars = [line for line in lines if line.startswith("Epoch")]
    assert [line[:9] for line in bars] == ["Epoch 0/2", "Epoch 1/2", "Epoch 2/2"]
    assert all("10/10" in line and "val_loss" in line for line in bars)
    assert [line for line in lines if line not in bars] == [*SAID, "after the run"]


@pytest.mark.parametrize(("verb", "error"), [("fail", "a batch failed"), ("interrupt", "interrupted")])
def test_what_raises_leaves_the_bar_where_it_stopped(kind: str, verb: str, error: str) -> None:
    bar, handled, end = last_screen(kind, verb)
    assert "Epoch 0/2" in bar and " 4/10 " in bar
    assert (handled, end) == (f"handled: {error}", "after the run")


def test_an_evaluation_of_its_own_stays(kind: str) -> None:
    bar, end = last_screen(kind, "test")
    assert bar.startswith("Test") and "3/3" in bar and re.search(r"test_accuracy.0\.8750\]?$", bar)
    assert end == "after the run"


def test_many_metrics_go_below_in_lines_that_break_none(kind: str) -> None:
    *_, train, validate, first, second = validating_screen(kind, "metrics")
    assert train.startswith("Epoch 2/2") and validate.startswith("Validate")
    separator = METRIC_SEPARATOR[kind]
    names = [re.split("[ =]", metric)[0] for metric in f"{first}{separator}{second}".split(separator)]
    assert names == [*(f"metric_{letter}" for letter in "abcdef"), "loss", "val_loss"]


def test_a_pass_without_a_known_end_fits_a_narrow_terminal(kind: str) -> None:
    *_, bar, metrics, end = last_screen(kind, "endless")
    assert bar.startswith("Epoch 2/2") and "10" in bar and "%" not in bar
    assert metrics.startswith("loss") and end == "after the run"


@pytest.mark.parametrize("verb", ["fit", "fail", "interrupt", "test"])
def test_gives_the_cursor_back(kind: str, verb: str) -> None:
    output = run(kind, verb)
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    assert output.count(hidden) == output.count(shown) == (1 if kind == "rich" else 0)
    if kind == "rich":
        assert output.index(hidden) < output.index(shown) < output.index("after the run")
