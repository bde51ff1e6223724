"""Replays and bisections in two real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import run_ranks

pytestmark = pytest.mark.processes

SCENES = Path(__file__).with_name("replay_scenes.py")


@pytest.mark.parametrize("strategy", ["ddp", "sharded"])
def test_two_ranks_replay_and_bisect_and_depart_together(strategy: str, tmp_path: Path) -> None:
    output = run_ranks(SCENES, 2, args=[tmp_path, strategy]).succeeded().output
    for rank in range(2):
        assert f"rank {rank}: The run departs from its ledger" in output and "at step 1: samples: " in output, output
