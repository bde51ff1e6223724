from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import pytest
from matplotlib.image import imread

from camshaft.callbacks.loggers.curve_report import CurveReport, read_curves


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.png"))


def test_metrics_that_differ_by_their_stage_share_a_picture(tmp_path: Path) -> None:
    report = CurveReport(tmp_path / "report")
    for step in range(40):
        report.log_metrics({"train_loss_step": 1 / (step + 1), "epoch": step // 10}, step)
    report.log_metrics({"val_loss": 0.5, "val/accuracy": 0.3, "test_accuracy": 0.2, "lr-Adam/pg1": 0.1}, 40)
    assert not (tmp_path / "report").exists()
    report.finalize("success")
    assert names(tmp_path / "report") == ["accuracy.png", "curves.png", "loss.png", "lr-Adam_pg1.png"]
    one, overview = (imread(tmp_path / "report" / name) for name in ("loss.png", "curves.png"))
    assert overview.shape[1] > 2 * one.shape[1]
    drawn = (one[..., :3].min(axis=2) < 0.5).mean()
    assert 0.005 < drawn < 0.5  # neither blank nor full


def test_no_picture_takes_anothers_place(tmp_path: Path) -> None:
    report = CurveReport(tmp_path)
    report.log_metrics({"curves": 1.0, "a/b": 1.0, "a b": 1.0}, 1)
    report.finalize("failed")
    assert names(tmp_path) == ["a_b.png", "a_b_.png", "curves.png", "curves_.png"]


def test_values_that_are_not_finite_are_gaps(tmp_path: Path) -> None:
    report = CurveReport(tmp_path)
    for step, value in enumerate([1.0, math.nan, math.inf, 1e6]):
        report.log_metrics({"loss": value}, step)
    report.finalize("success")
    assert names(tmp_path) == ["curves.png", "loss.png"]


def test_a_verb_that_logs_nothing_draws_nothing(tmp_path: Path) -> None:
    report = CurveReport(tmp_path / "report")
    report.finalize("success")
    assert not (tmp_path / "report").exists()
    for step in range(2):
        report.log_metrics({"loss": 1.0}, step)
        report.finalize("success")
        assert names(tmp_path / "report") == ["curves.png", "loss.png"]
        (tmp_path / "report/loss.png").unlink()
    report.finalize("success")
    assert names(tmp_path / "report") == ["curves.png"]


def test_steps_that_come_again_replace_what_was_there(tmp_path: Path) -> None:
    for steps, value in ((range(1, 6), 1.0), (range(4, 7), 2.0)):
        report = CurveReport(tmp_path)
        for step in steps:
            report.log_metrics({"loss": value, f"only_{value:.0f}": 0.0}, step)
        report.finalize("success")
    curves = read_curves(tmp_path / "metrics.csv")
    assert curves["loss"] == ([1, 2, 3, 4, 5, 6], [1.0, 1.0, 1.0, 2.0, 2.0, 2.0])
    assert curves["only_1"][0] == [1, 2, 3]


def test_without_matplotlib_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install matplotlib.*extra `plot`"):
        CurveReport(tmp_path)


def test_the_log_folder_is_the_one_that_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CurveReport("report").log_dir == os.path.join(tmp_path, "report")
