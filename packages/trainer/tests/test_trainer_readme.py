"""The README's program does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch


def test_the_program_runs_and_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert programs
    for program in programs:
        torch.manual_seed(0)
        exec(program, {"__name__": "readme"})
    losses = [float(loss) for loss in re.findall(r"train_loss ([\d.e-]+)", capsys.readouterr().out)]
    assert len(losses) == 5 and losses[-1] < losses[0] / 3
    assert (tmp_path / "camshaft_logs/version_0/checkpoints").is_dir()
