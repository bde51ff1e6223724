"""The script for machines with GPUs runs on the CPU as well, so that the first such machine finds no typing errors."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.py"
# in a process of its own, as all are on such a machine; without "tests", which collects all tests
STARTED = ("ranks",)
IN_THIS_PROCESS = ("syncs", "contexts", "steps", "memory", "graphs")


def test_the_script_starts_parts_on_the_cpu(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--dry", "--json", tmp_path / "found.json", "--parts", *STARTED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["parts"]
    assert [name for name in STARTED if parts[name]["succeeded"]] == list(STARTED)
    assert parts["ranks"]["result"] == [[], []]  # two ranks, without contexts


def test_each_other_part_runs_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    gpu = importlib.import_module("gpu")
    assert {*STARTED, *IN_THIS_PROCESS, "tests"} == set(gpu.PARTS)
    results: dict[str, Any] = {}
    for name in IN_THIS_PROCESS:
        target = tmp_path / name / "result.json"
        target.parent.mkdir()
        gpu.run_part(name, is_dry=True, target=target)
        results[name] = json.loads(target.read_text(encoding="utf-8"))
    rows = results["steps"]["mlp"]
    assert all(rows[name] > 0 for name in ("by hand, compiled", "camshaft, compiled, copy stream", "lightning"))
    assert {result["largest_difference"] for result in results["graphs"].values()} == {0.0}
