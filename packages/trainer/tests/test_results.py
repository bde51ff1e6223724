"""The table that validate and test print."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainer_parts import Regression, loader, quiet_trainer

from camshaft.trainer.results import print_results


def test_one_loader_has_a_column_of_values(capsys: pytest.CaptureFixture[str]) -> None:
    print_results([{"val_loss": 0.123456789, "accuracy": 1.0, "steps": 123456789.0}], "validate")
    assert capsys.readouterr().out.splitlines() == [
        "validate        value",
        "--------  -----------",
        "val_loss     0.123457",
        "accuracy            1",
        "steps     1.23457e+08",
    ]


def test_several_loaders_have_a_column_each_and_names_without_the_loader(capsys: pytest.CaptureFixture[str]) -> None:
    results = [
        {"loss/dataloader_idx_0": 0.5, "shared": 2.0},
        {"loss/dataloader_idx_1": 0.25, "shared": 2.0, "only/dataloader_idx_1": float("nan")},
    ]
    print_results(results, "test")
    assert capsys.readouterr().out.splitlines() == [
        "test    loader 0  loader 1",
        "------  --------  --------",
        "loss         0.5      0.25",
        "shared         2         2",
        "only                   nan",
    ]


def test_a_name_that_would_be_there_twice_stays_long(capsys: pytest.CaptureFixture[str]) -> None:
    print_results([{"loss": 1.0, "loss/dataloader_idx_0": 2.0}, {"loss": 1.0}], "test")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["loss", "loss/dataloader_idx_0"]


@pytest.mark.parametrize("results", [[], [{}], [{}, {}]])
def test_nothing_is_printed_if_nothing_was_logged(
    results: list[dict[str, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    print_results(results, "test")
    assert capsys.readouterr().out == ""


def test_the_trainer_prints_it_unless_it_is_not_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer, module = quiet_trainer(tmp_path), Regression()
    trainer.validate(module, loader())
    assert capsys.readouterr().out.startswith("validate  ")
    trainer.test(module, [loader(), loader()])
    assert capsys.readouterr().out.startswith("test       loader 0  loader 1\n")
    trainer.test(module, loader(), verbose=False)
    assert capsys.readouterr().out == ""
