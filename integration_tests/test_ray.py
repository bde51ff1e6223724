"""The Ray example searches and trains on a local Ray cluster of two workers, as a newcomer runs it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason='Ray (`pip install "ray[train]"`) is missing'
)


def test_two_workers_train_one_model_with_the_rate_that_trials_found_best(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/ray_train.py"), "--max-epochs", "4", "--output", str(tmp_path)]
    command += ["--learning-rates", "0.00001", "0.003"]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-5000:]
    assert "The best of 2 learning rates is 0.003." in done.stdout
    assert len(list((tmp_path / "search").rglob("model.ckpt"))) == 4  # two trials of two epochs
    # 1257 digits for training, 64 at a time in both workers together
    assert "2 workers made 80 updates." in done.stdout
    in_workers, here = (
        float(share) for share in re.findall(r"accuracy in the workers +([\d.]+)%\n.* ([\d.]+)%", done.stdout)[0]
    )
    assert in_workers == here > 90.0
    assert any((tmp_path / "digits").rglob("model.ckpt"))
