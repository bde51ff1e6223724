"""The examples run as a newcomer runs them, and keep what they print."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from pathlib import Path

import pytest
from launching import Launcher, forking_python, run_ranks

from camshaft.strategies import read_checkpoint

ROOT = Path(__file__).parent.parent
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def run(*arguments: str, cwd: Path, is_forked: bool = True) -> subprocess.CompletedProcess[str]:
    with forking_python() if is_forked else nullcontext():
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
    done = run("-c", without_torch, cwd=tmp_path, is_forked=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed    fit ") == 1


def test_the_loop_of_the_custom_trainer_is_at_most_40_lines() -> None:
    source = (ROOT / "examples/custom_trainer.py").read_text()
    for name in ("fit_torch", "fit_numpy"):
        body = re.search(rf"^def {name}\(.*?(?=^\S)", source, re.MULTILINE | re.DOTALL)
        assert body is not None and len(body[0].rstrip().splitlines()) <= 40


def test_the_spike_is_found_with_its_submodule_and_its_update(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run(str(ROOT / "examples/find_the_spike.py"), "--plot", "spike.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    pattern = r"^2\. The replay of step (\d+) equals the ledger\. The output of rate "
    step = re.search(pattern, done.stdout, re.MULTILINE)
    assert step is not None, done.stdout
    assert f"4. The weights are damaged from step {step[1]} on" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["spike.png"]
    assert (tmp_path / "spike.png").read_bytes().startswith(PNG_SIGNATURE)


@pytest.mark.parametrize("library", ["torch", "accelerate", "fabric"])
def test_a_strategy_of_another_library_trains_with_the_loops_and_the_core_alone(library: str, tmp_path: Path) -> None:
    with_the_loops_alone = textwrap.dedent(
        f"""
        import runpy, sys
        for other in ("strategies", "callbacks", "trainer"):
            sys.modules["camshaft." + other] = None  # importing it fails, as where it is not installed
        sys.path.insert(0, {str(ROOT / "examples")!r})
        runpy.run_path({str(ROOT / f"examples/strategy_{library}.py")!r}, run_name="__main__")
        """
    )
    done = run("-c", with_the_loops_alone, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if library == "torch":  # it logs
        rows = re.findall(
            r"^step (\d+): (loss_step|loss_epoch|accuracy) ([\d.]+), epoch (\d)$", done.stdout, re.MULTILINE
        )
        assert [int(step) for step, name, *_ in rows if name == "loss_step"] == list(range(19, 225, 20))
        for name in ("loss_epoch", "accuracy"):
            assert [(step, epoch) for step, one, _, epoch in rows if one == name] == [
                (str(45 * epoch + 44), str(epoch)) for epoch in range(5)
            ]
        (*_, last_accuracy, last_loss) = [float(value) for _, _, value, _ in rows]
        accuracy = re.search(r"^loss ([\d.]+), accuracy ([\d.]+)%$", done.stdout, re.MULTILINE)
        assert accuracy is not None and float(accuracy[1]) == pytest.approx(last_loss, abs=1e-3)
        assert float(accuracy[2]) == pytest.approx(100 * last_accuracy, abs=0.1) and last_accuracy > 0.9
    else:
        accuracy = re.fullmatch(r"test accuracy after 675 updates: ([\d.]+)%", done.stdout.strip())
        assert accuracy is not None and float(accuracy[1]) > 90
    assert list(tmp_path.iterdir()) == []


def test_the_digits_demo_writes_what_it_says_and_fails_below_its_accuracy(tmp_path: Path) -> None:
    """The session `demo` trains it to the end, where it must succeed."""
    done = run(str(ROOT / "examples/digits.py"), "--max-epochs", "3", "--output", "out", cwd=tmp_path)
    assert done.returncode == 1, done.stderr  # three epochs do not reach 98%, which is the default
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


@pytest.mark.parametrize(
    ("strategy", "num_processes", "precision", "launcher"),
    [
        ("single_device", 1, "bf16-mixed", "bare"),
        ("ddp", 2, "32-true", "torchrun"),
        ("sharded", 2, "32-true", "forked"),
    ],
)
def test_a_hand_written_loop_runs_on_every_strategy(
    strategy: str, num_processes: int, precision: str, launcher: Launcher, tmp_path: Path
) -> None:
    arguments = ["--strategy", strategy, "--precision", precision, "--path", tmp_path / "model.ckpt"]
    script = ROOT / "examples/hand_written_loop.py"
    output = run_ranks(script, num_processes, launcher=launcher, args=arguments).succeeded().output
    said = re.search(rf"^{num_processes} process\(es\): (\d+) of 2048 right", output, re.MULTILINE)
    assert said is not None and int(said[1]) > 1900
    assert read_checkpoint(tmp_path / "model.ckpt")["state_dict"]["0.weight"].shape == (32, 2)
