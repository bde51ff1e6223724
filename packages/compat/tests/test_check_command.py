"""`python -m camshaft.compat check`; what it shares with that of hooks-core is tested there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checked_classes import write_modules

from camshaft.compat.__main__ import main


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_modules(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_check_of_a_class_of_today(examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "some_hooks:Good"]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert (first, last) == ("some_hooks:Good, a module", "No faults: it runs with today's hooks.")


def test_check_of_an_old_class_says_what_becomes_of_it(examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "some_hooks:Old"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "some_hooks:Old, a module of era 0.5, by its hooks; another is declared by `hook_era`",
        "",
        "on_epoch_end()",
        "  era       0.5 (fits 0.7, 0.8, 1.x too)",
        "  when      just after on_train_epoch_end",
        "",
        "training_step(batch, batch_idx, optimizer_idx)",
        "  era       0.5 (fits 0.7, 0.8, 1.x too)",
        "  when      for each optimizer",
        "  returns   the loss, a dictionary with `loss`, or None to skip the update; anything under manual",
        "            optimization",
        "",
        "In era 0.5",
        "  gradients are zeroed after the update",
        "  on_train_start comes before the sanity check",
        "",
        "No faults: it runs as a module of era 0.5.",
    ]


def test_check_of_a_class_that_contradicts_itself_says_so(examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "some_hooks:Mixed"]) == 1
    out = capsys.readouterr().out
    assert "\n1 fault:\n  Mixed.on_epoch_end: `hook_era` says '2.x', but this hook belongs to the eras 0.5, 0.7" in out


def test_check_of_an_era_that_never_was_is_an_error(examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "some_hooks:Impossible"]) == 2
    assert capsys.readouterr().err.startswith("error: `hook_era` must be a release from")


def test_check_of_a_class_of_an_installed_lightning_says_how_to_check_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lightning_lite.py").write_text("class LightningModule:\n    def on_fit_start(self): ...\n")
    (tmp_path / "of_theirs.py").write_text("import lightning_lite\nclass Net(lightning_lite.LightningModule): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["check", "of_theirs:Net", "--as", "module"]) == 0
    assert capsys.readouterr().err.startswith("note: Net is a LightningModule of the installed lightning_lite, whose ")
    del sys.modules["lightning_lite"]


def test_advise_prints_the_edits_after_the_check(examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "some_hooks:Old"])
    checked = capsys.readouterr().out
    assert main(["check", "some_hooks:Old", "--advise"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(checked)
    assert "\nTo make it a class of era 2.x:\n\non_epoch_end\n  Rename it to `on_train_epoch_end`.\n" in out
    assert "          for optimizer_i, optimizer in enumerate(self.optimizers()):\n" in out


def test_advise_of_a_class_of_today_has_nothing_to_edit(examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "some_hooks:Good", "--advise"]) == 0
    assert capsys.readouterr().out.endswith("\nNothing is to be edited: nothing of it belongs to an earlier era.\n")


def test_check_as_json_holds_what_is_printed(examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "some_hooks:Old", "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert set(checked) == {"name", "kind", "era", "declared", "methods", "order", "faults"}
    assert (checked["kind"], checked["era"], checked["declared"], checked["faults"]) == ("module", "0.5", False, [])
    assert checked["methods"][0] == {
        "name": "on_epoch_end",
        "eras": ["0.5", "0.7", "0.8", "1.x"],
        "era": "0.5",
        "call": "on_epoch_end()",
        "when": "just after on_train_epoch_end",
        "returns": "ignored",
    }
    assert main(["check", "some_hooks:Bad", "--json", "--advise"]) == 1
    checked = json.loads(capsys.readouterr().out)
    assert checked["era"] == "2.x"
    assert [fault["method"] for fault in checked["faults"]] == ["on_fit_begin", "on_train_start"]
    assert checked["advice"] == []


def test_check_takes_a_class_for_what_it_is_told(examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "some_hooks:Data", "--as", "module"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "some_hooks:Data, a module"


def test_check_of_what_cannot_be_found_is_an_error(examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "broken_hooks:Good"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: the module 'broken_hooks' cannot be imported (ModuleNotFoundError: ")
    assert captured.out == ""


def test_check_runs_in_a_process_of_its_own_from_the_working_directory(examples: Path) -> None:
    command = [sys.executable, "-m", "camshaft.compat", "check", "some_hooks:Old", "--advise"]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=examples, env=environment, encoding="utf-8"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "To make it a class of era 2.x:" in done.stdout
