"""The script for machines with GPUs runs on the CPU as well, so that the first such machine finds no typing errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.py"
PARTS = ("syncs", "contexts", "ranks", "steps", "memory", "graphs")  # without "tests", which collects all tests


def test_each_part_runs_on_the_cpu(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--dry", "--json", tmp_path / "found.json", "--parts", *PARTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["parts"]
    assert [name for name in PARTS if parts[name]["succeeded"]] == list(PARTS)
    assert parts["ranks"]["result"] == [[], []]  # two ranks, without contexts
    rows = parts["steps"]["result"]["mlp"]
    assert all(rows[name] > 0 for name in ("by hand, compiled", "camshaft, compiled, copy stream", "lightning"))
    assert {result["largest_difference"] for result in parts["graphs"]["result"].values()} == {0.0}
