from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checked_classes import write_modules

from camshaft.hooks_core.__main__ import main
from camshaft.hooks_core.eras.hooks import ERAS, catalogue_of, hooks_of_eras
from camshaft.hooks_core.eras.orders import life_cycle
from camshaft.hooks_core.grammar import mermaid, tree


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_modules(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def run(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "camshaft.hooks_core", *words]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=environment, encoding="utf-8"
    )


def test_list_prints_every_hook_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(hooks_of_eras()) + 2
    assert lines[0].split() == ["hook", "receivers", "stage", "eras"]
    column = lines[0].index("receivers")
    assert all(line[column - 2 : column] == "  " and line[column] != " " for line in lines)


@pytest.mark.parametrize("era", ERAS)
def test_list_of_an_era_has_its_hooks_parameters_and_receivers(era: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--era", era, "--json"]) == 0
    hooks = json.loads(capsys.readouterr().out)
    assert [hook["name"] for hook in hooks] == [name for name, spec in hooks_of_eras().items() if era in spec.eras]
    for hook in hooks:
        spec = hooks_of_eras()[hook["name"]]
        assert set(hook) == {"name", "parameters", "optional", "receivers", "stage", "eras"}
        assert hook["parameters"] == list(spec.parameters_in(era))
        assert hook["optional"] == list(spec.optional_in(era))
        assert hook["receivers"] == [str(receiver) for receiver in spec.receivers_in(era)]
        assert (hook["stage"], hook["eras"]) == (spec.stage, list(spec.eras))


def test_list_as_json_has_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list", "--json"])
    (hook,) = [hook for hook in json.loads(capsys.readouterr().out) if hook["name"] == "on_train_batch_start"]
    assert hook == {
        "name": "on_train_batch_start",
        "parameters": ["batch", "batch_idx"],
        "optional": [],
        "receivers": ["callback", "module", "strategy"],
        "stage": "train",
        "eras": ["0.8", "1.x", "2.0", "2.x"],
    }


def test_show_prints_the_tree_or_the_diagram(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "fit", "--all"]) == 0
    assert capsys.readouterr().out == tree("fit", life_cycle("fit")) + "\n"
    assert main(["show", "test", "--era", "0.7", "--format", "mermaid", "--all"]) == 0
    assert (
        capsys.readouterr().out
        == mermaid("test in era 0.7", life_cycle("test", "0.7"), catalogue=catalogue_of("0.7")) + "\n"
    )
    assert main(["show", "fit", "--optimization", "manual", "--all"]) == 0
    assert capsys.readouterr().out == tree("fit", life_cycle("fit", optimization="manual")) + "\n"


def test_show_prints_the_usual_run_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "fit"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 45 and "`--all` shows every case" in lines[-1]
    text = "\n".join(lines[:-1])
    assert "optimizer_zero_grad()" in text and "on_train_epoch_end()" in text
    assert not re.search(r"accumulat|one of|each optimizer|split|returned None|on_sanity_check|reloaded", text)


@pytest.mark.parametrize(
    ("variation", "line"),
    [
        ("accumulation", "[where gradients are only accumulated]"),
        ("optimizers", "for each optimizer"),
        ("splits", "tbptt_split_batch()"),
        ("skipped-losses", "[unless `training_step` returned None]"),
        ("sanity-check", "on_sanity_check_start()"),
    ],
)
def test_show_adds_what_is_asked_for(variation: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "fit", "--with", variation]) == 0
    usual, adds, others = capsys.readouterr().out.rpartition("`--with")
    assert line in usual and variation not in others and adds


@pytest.mark.parametrize("era", [None, *ERAS])
def test_no_group_of_a_drawing_is_empty(era: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    for more in (["--all"], []):
        assert main(["show", "fit", *(["--era", era] if era else []), *more]) == 0
        rows = [line.split("── ") for line in capsys.readouterr().out.splitlines() if "── " in line]
        depths = [len(indent) for indent, _ in rows] + [0]
        groups = [index for index, (_, text) in enumerate(rows) if re.fullmatch(r"\[.*\]", text)]
        assert all(depths[index + 1] > depths[index] for index in groups)


def test_list_puts_optional_arguments_in_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list"])
    assert "training_step(batch, batch_idx, [optimizer_idx], [hiddens])" in capsys.readouterr().out
    main(["list", "--era", "2.x"])
    assert "training_step(batch, batch_idx) " in capsys.readouterr().out


def test_show_takes_the_place_of_zeroing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "fit", "--zero-grad", "after_optimizer_step", "--all"]) == 0
    assert capsys.readouterr().out == tree("fit", life_cycle("fit", zero_grad="after_optimizer_step")) + "\n"


@pytest.mark.parametrize("words", [["--era", "2.x"], ["--optimization", "manual"]])
def test_show_of_options_that_do_not_go_together_is_an_error(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "fit", "--zero-grad", "after_optimizer_step", *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: `zero_grad` must be ")
    assert captured.out == ""


def test_show_of_a_verb_that_the_era_lacks_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "predict", "--era", "0.8"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: `verb` must be one of fit, test for era 0.8, but got 'predict'")
    assert captured.out == ""


def test_check_of_a_class_without_faults(examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "some_hooks:Good"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "some_hooks:Good, a module",
        "",
        "training_step(batch, batch_idx)",
        "  era       2.x (fits 0.5, 0.7, 0.8, 1.x, 2.0 too)",
        "  when      for each batch",
        "  returns   the loss, a dictionary with `loss`, or None to skip the update; anything under manual",
        "            optimization",
        "",
        "No faults: it runs with today's hooks.",
    ]


def test_check_of_a_class_with_faults(examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "some_hooks:Bad"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("some_hooks:Bad, a callback\n")
    assert "\non_train_start: not called\n  fits      no era\n" in out
    assert "\n2 faults:\n  Bad.on_fit_begin: no hook has this name. Rename it to `on_fit_start`" in out
    assert "\n  Bad.on_train_start: its signature (trainer, module, batch) requires `batch`" in out


def test_check_of_an_old_class_says_which_era_it_is_of_and_what_runs_it(
    examples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "some_hooks:Old"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("some_hooks:Old, a module\n\non_epoch_end: not called\n  fits      0.5 0.7 0.8 1.x\n")
    assert "\n2 faults:\n  Old.on_epoch_end: this hook belongs to the eras 0.5, 0.7, 0.8, 1.x, which this run" in out
    assert out.splitlines()[-2:] == [
        "    from camshaft.compat import Trainer",
        "    from camshaft.compat import TrainingModule",
    ]


def test_check_of_a_class_as_one_of_an_era_says_what_becomes_of_it(
    examples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "some_hooks:Old", "--era", "0.8"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "some_hooks:Old, as a module of era 0.8",
        "",
        "on_epoch_end()",
        "  era       0.8 (fits 0.5, 0.7, 1.x too)",
        "  when      just after on_train_epoch_end",
        "",
        "training_step(batch, batch_idx, optimizer_idx)",
        "  era       0.8 (fits 0.5, 0.7, 1.x too)",
        "  when      for each optimizer",
        "  returns   the loss, a dictionary with `loss`, or None to skip the update; anything under manual",
        "            optimization",
        "",
        "In era 0.8",
        "  gradients are zeroed after the update",
        "  on_train_start comes before the sanity check",
        "",
        "No faults: these are hooks of era 0.8.",
    ]
    assert main(["check", "some_hooks:Old", "--era", "0.8", "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert (checked["era"], checked["order"][0]) == ("0.8", "gradients are zeroed after the update")


def test_check_of_a_class_as_one_of_an_era_that_lacks_its_hooks_has_faults(
    examples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "some_hooks:Mixed", "--era", "0.7"]) == 1
    out = capsys.readouterr().out
    assert (
        "\n1 fault:\n  Mixed.on_train_epoch_end: this hook belongs to the eras 1.x, 2.0, 2.x, and era 0.7 does" in out
    )
    assert main(["check", "some_hooks:Bad", "--era", "0.7"]) == 2
    assert capsys.readouterr().err.startswith("error: `era` must be an era that describes hooks of a callback")


def test_check_of_an_era_that_never_was_is_an_error(examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "some_hooks:Impossible"]) == 2
    assert capsys.readouterr().err.startswith("error: `hook_era` must be a release from")


def test_check_as_json_holds_what_is_printed(examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "some_hooks:Good", "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert set(checked) == {"name", "kind", "era", "methods", "order", "faults"}
    assert (checked["kind"], checked["era"], checked["order"], checked["faults"]) == ("module", "2.x", [], [])
    assert checked["methods"][0] == {
        "name": "training_step",
        "eras": ["0.5", "0.7", "0.8", "1.x", "2.0", "2.x"],
        "era": "2.x",
        "call": "training_step(batch, batch_idx)",
        "when": "for each batch",
        "returns": "the loss, a dictionary with `loss`, or None to skip the update; anything under manual optimization",
    }
    assert main(["check", "some_hooks:Bad", "--json"]) == 1
    checked = json.loads(capsys.readouterr().out)
    assert [fault["method"] for fault in checked["faults"]] == ["on_fit_begin", "on_train_start"]


@pytest.mark.parametrize(
    ("words", "first_line"),
    [
        (["some_hooks:Data"], "some_hooks:Data, a data module"),
        (["some_hooks:Data", "--as", "module"], "some_hooks:Data, a module"),
        (["some_hooks:Good.Inner"], "some_hooks:Good.Inner, a callback"),
    ],
)
def test_check_takes_a_class_for_what_its_base_is_unless_told(
    examples: Path, capsys: pytest.CaptureFixture[str], words: list[str], first_line: str
) -> None:
    assert main(["check", *words]) == 0
    assert capsys.readouterr().out.splitlines()[0] == first_line


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("some_hooks", "the target must be MODULE:CLASS, but got 'some_hooks'"),
        (":Good", "the target must be MODULE:CLASS, but got ':Good'"),
        (
            "not_there:Good",
            "the module 'not_there' cannot be imported (ModuleNotFoundError: No module named 'not_there')",
        ),
        (
            "broken_hooks:Good",
            "the module 'broken_hooks' cannot be imported (ModuleNotFoundError: No module named 'a_mod",
        ),
        (".relative:Good", "the module '.relative' cannot be imported (TypeError: "),
        ("some_hooks:Nobody", "the module 'some_hooks' has no class 'Nobody'"),
        ("some_hooks:value", "'some_hooks:value' must be a class, but it is of type int. Name the class."),
    ],
)
def test_check_of_what_cannot_be_found_is_an_error(
    examples: Path, capsys: pytest.CaptureFixture[str], target: str, message: str
) -> None:
    assert main(["check", target]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {message}")
    assert captured.out == ""


def test_check_runs_in_a_process_of_its_own_from_the_working_directory(examples: Path) -> None:
    done = run("check", "some_hooks:Bad", cwd=examples)
    assert done.returncode == 1
    assert "2 faults:" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    "words", [[], ["shout"], ["show", "train"], ["show", "fit", "--era", "1.0"], ["check", "not_there:Class"]]
)
def test_errors_on_the_command_line_show_no_traceback(words: list[str]) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_closes_early_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "camshaft.hooks_core", "show", "fit", "--format", "mermaid"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_check_of_a_class_with_a_warning_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "warned_hooks.py").write_text("class Own:\n    def on_epoch_end(self, outputs): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["check", "warned_hooks:Own"]) == 0
    out = capsys.readouterr().out
    assert "\nNo faults: it runs with today's hooks:\n  Own.on_epoch_end: it is taken for a method of your own" in out
