"""Two processes started by `torchrun` share the data as `gloo_processes.py` checks it."""

from __future__ import annotations

from pathlib import Path

import pytest
from gloo_processes import CHECKS
from launching import run_ranks

pytestmark = pytest.mark.processes


def test_two_processes_share_the_data_and_stay_in_step() -> None:
    script = Path(__file__).with_name("gloo_processes.py")
    outcome = run_ranks(script, 2, timeout=600).succeeded()
    assert [line for line in outcome.output.splitlines() if line.startswith("checked:")] == [
        f"checked: {check.__name__}" for check in CHECKS
    ]
