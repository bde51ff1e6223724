"""The examples run as a newcomer runs them, and keep what they print."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=180)


def test_the_quickstart_trains_a_model(tmp_path: Path) -> None:
    done = run(str(ROOT / "examples/quickstart.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"validation accuracy: ([\d.]+)%", done.stdout)
    assert accuracy is not None and float(accuracy[1]) > 90
    assert list(tmp_path.iterdir()) == []  # it asked for no files


def test_the_readme_shows_the_quickstart() -> None:
    snippet = (ROOT / "README.md").read_text().split("```python\n")[1].split("```\n")[0]
    assert snippet == (ROOT / "examples/quickstart.py").read_text()


def test_the_custom_trainer_passes_the_conformance_kit(tmp_path: Path) -> None:
    done = run(str(ROOT / "examples/custom_trainer.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed    fit ") == 2  # the loop in torch, and the one in NumPy
    assert "failed" not in done.stdout


def test_the_custom_trainer_runs_without_torch(tmp_path: Path) -> None:
    without_torch = textwrap.dedent(
        f"""
        import runpy, sys
        sys.modules["torch"] = None  # importing it fails, as where it is not installed
        import importlib.util
        found = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *rest: None if name == "torch" else found(name, *rest)
        runpy.run_path({str(ROOT / "examples/custom_trainer.py")!r}, run_name="__main__")
        """
    )
    done = run("-c", without_torch, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed    fit ") == 1


def test_the_loop_of_the_custom_trainer_is_at_most_40_lines() -> None:
    source = (ROOT / "examples/custom_trainer.py").read_text()
    for name in ("fit_torch", "fit_numpy"):
        body = re.search(rf"^def {name}\(.*?(?=^\S)", source, re.MULTILINE | re.DOTALL)
        assert body is not None and len(body[0].rstrip().splitlines()) <= 40


@pytest.mark.parametrize("exit_code", [0, 1])
def test_the_digits_demo_writes_what_it_says(exit_code: int, tmp_path: Path) -> None:
    arguments = ["--max-epochs", "3", "--output", "out"]
    if exit_code == 0:
        arguments += ["--min-accuracy", "0"]
    done = run(str(ROOT / "examples/digits.py"), *arguments, cwd=tmp_path)
    assert done.returncode == exit_code, done.stderr  # three epochs do not reach 98%, which is the default
    said = dict(re.findall(r"^  (test accuracy|best model|metrics|picture) +(.+)$", done.stdout, re.MULTILINE))
    assert re.match(r"[\d.]+% of 360 digits", said["test accuracy"])
    assert Path(said["best model"]).stat().st_size > 0
    assert Path(said["picture"]).read_bytes().startswith(PNG_SIGNATURE)
    with Path(said["metrics"]).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(bool(row["val_accuracy"]) for row in rows) == 3
    assert "python -m camshaft.hooks_core show fit" in done.stdout


def test_the_command_that_the_demo_ends_with_prints_the_tree(tmp_path: Path) -> None:
    done = run("-m", "camshaft.hooks_core", "show", "fit", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("fit\n├── configure_callbacks()")
