"""A training process that is killed at any moment resumes from "last" and ends with the same weights."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from killed_training import main
from trainer_parts import assert_same

from camshaft.strategies import read_checkpoint

NUM_EPOCHS = 30
MOST_SECONDS_TO_KILL = 0.5

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL"),
]


def start(folder: Path) -> tuple[subprocess.Popen[str], int]:
    """Start training. Returns the process and the epoch from which it trains, once it does or has nothing to do."""
    here = Path(__file__).parent
    process = subprocess.Popen(
        [sys.executable, str(here / "killed_training.py"), str(folder), str(NUM_EPOCHS)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("training from epoch"):
            return process, int(line.split()[-1])
    assert process.wait() == 0
    return process, NUM_EPOCHS


@pytest.mark.filterwarnings("ignore:There is no checkpoint to go on from yet")
def test_a_killed_training_ends_with_the_weights_of_an_undisturbed_one(tmp_path: Path) -> None:
    main(tmp_path / "undisturbed", NUM_EPOCHS)
    seed = random.SystemRandom().randrange(2**32)
    moments = random.Random(seed)
    first_epochs = []
    for num_kills in range(4):
        process, epoch = start(tmp_path / "killed")
        first_epochs.append(epoch)
        if num_kills < 3:
            time.sleep(moments.uniform(0.0, MOST_SECONDS_TO_KILL))
            process.kill()
        process.communicate()
        if (tmp_path / "killed/final.ckpt").exists():
            break

    told = f"seed {seed}, training from the epochs {first_epochs}"
    expected, actual = (read_checkpoint(tmp_path / run / "final.ckpt") for run in ("undisturbed", "killed"))
    for key in ("state_dict", "optimizer_states", "lr_schedulers", "global_step", "epoch"):
        assert_same(actual[key], expected[key], f"{key} with {told}")
    assert len(first_epochs) > 1 and first_epochs == sorted(first_epochs), told
    leftovers = [path.name for path in (tmp_path / "killed/checkpoints").iterdir() if path.suffix == ".ckpt"]
    assert "last.ckpt" in leftovers, told
