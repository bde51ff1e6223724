"""A signal's handler that saves, at a random moment of a real training, writes a checkpoint to go on from exactly."""

from __future__ import annotations

import random
import sys
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

pytest.importorskip("torchmetrics")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="this system has no SIGUSR1 and no fork")

from interrupted_training import (  # noqa: E402
    NUM_EPOCHS,
    Kind,
    Training,
    fit_from,
    fit_saving_at_signals,
    outcome_of,
    rows_of,
)
from trainer_parts import assert_same  # noqa: E402

NUM_SIGNALS = 3
MOST_BATCHES_TO_SIGNAL = 8
MOST_SECONDS_TO_SIGNAL = 0.01  # about the time of a batch with its validation


@pytest.mark.parametrize("kind", get_args(Kind))
def test_what_a_signal_saves_leads_to_the_end_of_a_training_without_signals(kind: Kind, tmp_path: Path) -> None:
    assert Training(fit_saving_at_signals, tmp_path / "undisturbed", kind).end() == 0
    expected, rows = outcome_of(tmp_path / "undisturbed"), rows_of(tmp_path / "undisturbed")

    seed = random.SystemRandom().randrange(2**32)
    moments = random.Random(seed)
    training = Training(fit_saving_at_signals, tmp_path / "signals", kind)
    for _ in range(NUM_SIGNALS):
        batches = training.wait(
            moments.randint(1, MOST_BATCHES_TO_SIGNAL), moments.uniform(0.0, MOST_SECONDS_TO_SIGNAL)
        )
        if batches and batches[-1][0] < NUM_EPOCHS - 1:  # so that rows are left to write
            training.ask_for_checkpoint()
    assert training.end() == 0
    assert_same(outcome_of(tmp_path / "signals"), expected, f"while it was saved, with seed {seed}")
    assert rows_of(tmp_path / "signals") == rows, f"while it was saved, with seed {seed}"

    paths = sorted((tmp_path / "signals").glob("signal-*.ckpt"))
    assert paths
    for path in paths:
        told = f"from {path.name} with seed {seed}"
        folder = tmp_path / path.stem
        assert Training(partial(fit_from, path), folder, kind).end() == 0, told
        assert_same(outcome_of(folder), expected, told)
        rest = rows_of(folder)
        assert rest and rest == rows[-len(rest) :], told
