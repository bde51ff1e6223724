"""Two processes started by `torchrun` share the data as `gloo_processes.py` checks it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from gloo_processes import CHECKS

pytestmark = pytest.mark.processes


def test_two_processes_share_the_data_and_stay_in_step() -> None:
    script = Path(__file__).with_name("gloo_processes.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("checked:")] == [
        f"checked: {check.__name__}" for check in CHECKS
    ]
