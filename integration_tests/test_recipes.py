"""The recipes of examples/recipes run, and reach the results that they print."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
from launching import run_ranks

RECIPES = Path(__file__).parent.parent / "examples/recipes"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_LINES = 120

# Of each recipe: its runs, one after the other in one folder, and bounds of the numbers that the last one prints.
CHECKS: dict[str, tuple[list[str], dict[str, tuple[float, float]]]] = {
    "gpt": (
        ["--max-steps 20", "--max-steps 40 --compile eager"],
        {r"loss per character after 40 updates: (.+)": (0, 3)},
    ),
    "gan": (["--max-steps 1500"], {r"places found: (\d) of 8": (8, 8), r"points near one: (.+)%": (80, 100)}),
    "diffusion": (["--max-epochs 30"], {r"takes for those asked for: (.+)%": (60, 100)}),
    "segmentation": (["--max-epochs 3"], {r"mean overlap with the truth: (.+)%": (60, 100)}),
    "recommender": (
        ["--max-steps 400"],
        {r"explained by ratings alone: (.+)%": (-100, 60), r"explained by ratings and clicks: (.+)%": (60, 100)},
    ),
    "ppo": (["--max-steps 30"], {r"pole stands: (\d+), then": (0, 60), r"pole stands: \d+, then (\d+)": (150, 500)}),
    "sweep": (
        ["--trials 6 --max-epochs 4"],
        {r"ended early: (\d+)": (1, 5), r"test accuracy of the best: (.+)%": (85, 100)},
    ),
    "hydra_jobs": (
        ["optimizer.name=sgd optimizer.learning_rate=0.1 trainer.max_epochs=4 hydra/job_logging=none"],
        {r"accuracy (.+)%": (80, 100)},
    ),
    "streaming": (["--max-epochs 1"], {r"lines told right: (.+)%": (90, 100)}),
    "lora": (
        ["--max-epochs 8"],
        {
            r"accuracy, base, turned: (.+)%": (0, 50),
            r"accuracy, adapted, turned: (.+)%": (80, 100),
            r"accuracy, merged, turned: (.+)%": (80, 100),
            r"file has (\d+)% of the bytes": (0, 20),
        },
    ),
}


@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("*.py")))
@pytest.mark.filterwarnings("ignore:There is no checkpoint to resume from yet")
def test_a_recipe_reaches_what_it_prints(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = RECIPES / f"{name}.py"
    assert len(path.read_text().splitlines()) <= MAX_LINES
    monkeypatch.chdir(tmp_path)
    runs, bounds = CHECKS[name]
    for arguments in runs:
        monkeypatch.setattr(sys, "argv", [str(path), *arguments.split()])
        capsys.readouterr()
        runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    for pattern, (low, high) in bounds.items():
        found = re.search(pattern, printed)
        assert found is not None, printed
        assert low <= float(found[1]) <= high, f"{pattern}: {found[1]}"
    for picture in re.findall(r"^picture: (.+)$", printed, re.MULTILINE):
        assert Path(picture).read_bytes().startswith(PNG_SIGNATURE)


@pytest.mark.processes
def test_two_ranks_train_one_gpt(tmp_path: Path) -> None:
    arguments = ["--devices", "2", "--max-steps", "40", "--output", tmp_path]
    printed = run_ranks(RECIPES / "gpt.py", 2, args=arguments).succeeded().output
    losses = re.findall(r"loss per character after 40 updates: (.+)", printed)
    assert len(losses) == 2 and losses[0] == losses[1] and float(losses[0]) < 3
