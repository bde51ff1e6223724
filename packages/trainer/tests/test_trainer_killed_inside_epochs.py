"""A training that is killed again and again inside its epochs ends as one that nobody disturbed, to the bit."""

from __future__ import annotations

import random
import signal
import sys
from pathlib import Path
from typing import get_args

import pytest

pytest.importorskip("torchmetrics")
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform == "win32", reason="this system has no SIGKILL and no fork"),
]

from interrupted_training import (  # noqa: E402
    NUM_EPOCHS,
    Kind,
    Training,
    fit_keeping_checkpoints,
    outcome_of,
    rows_of,
)
from trainer_parts import assert_same  # noqa: E402

NUM_KILLS = 7
NUM_ATTEMPTS = 3
MOST_BATCHES_TO_KILL = 6
MOST_SECONDS_TO_KILL = 0.015  # about the time of a batch with its validation and checkpoints


def train_through_kills(
    folder: Path, kind: Kind, moments: random.Random, num_kills: int, num_epochs: int
) -> list[tuple[int, int]]:
    """Train to the end. Returns the epoch and batch from which each process that was killed trained."""
    places: list[tuple[int, int]] = []
    while True:
        training = Training(fit_keeping_checkpoints, folder, kind)
        batches: list[tuple[int, int]] = []
        if len(places) < num_kills:
            num_batches = moments.randint(1, MOST_BATCHES_TO_KILL)
            batches = training.wait(num_batches, moments.uniform(0.0, MOST_SECONDS_TO_KILL))
            if batches and batches[-1][0] < num_epochs:
                training.kill()
        exit_code = training.end()
        if exit_code != -signal.SIGKILL:
            assert exit_code == 0
            return places
        places.append(batches[0])


@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_training_killed_inside_its_epochs_ends_as_one_that_was_not(kind: Kind, tmp_path: Path) -> None:
    undisturbed = Training(fit_keeping_checkpoints, tmp_path / "undisturbed", kind)
    assert undisturbed.end() == 0
    expected = outcome_of(tmp_path / "undisturbed")

    for attempt in range(NUM_ATTEMPTS):  # on a busy machine a training may be over before it is killed
        seed = random.SystemRandom().randrange(2**32)
        killed = tmp_path / f"killed{attempt}"
        places = train_through_kills(killed, kind, random.Random(seed), NUM_KILLS, NUM_EPOCHS)
        if len(places) > 2 and any(batch_idx for _, batch_idx in places):
            break
    told = f"with seed {seed}, killed after going on from (epoch, batch) {places}"
    assert len(places) > 2 and any(batch_idx for _, batch_idx in places), told
    actual = outcome_of(killed)
    assert_same(actual, expected, told)

    rows = rows_of(tmp_path / "undisturbed")
    assert set(rows_of(killed)) == set(rows), told
    num_rows_of_epochs = sum("accuracy_epoch" in dict(row) for row in rows)
    assert num_rows_of_epochs == NUM_EPOCHS and len(set(rows)) == len(rows)
