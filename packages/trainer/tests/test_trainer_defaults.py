"""Choosing callbacks, loggers and seeds."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch

from camshaft.callbacks import ModelCheckpoint, ModelSummary, RichProgressBar, TQDMProgressBar
from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer, seed_everything
from camshaft.trainer.configuration import choose_callbacks


def test_a_summary_that_was_passed_stays_whatever_is_enabled() -> None:
    summary = ModelSummary()
    chosen = choose_callbacks(
        [summary], enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False
    )
    assert chosen == [summary]


def test_callbacks_keep_their_order_and_defaults_come_last() -> None:
    first, second = Callback(), ModelCheckpoint()
    chosen = choose_callbacks(
        (first, second), enable_progress_bar=None, enable_model_summary=None, enable_checkpointing=None
    )
    assert chosen[:2] == [first, second]
    assert [type(one) for one in chosen[2:]] == [RichProgressBar, ModelSummary]


@pytest.mark.parametrize(
    ("bar", "summary", "kinds"),
    [
        (None, None, [RichProgressBar, ModelSummary]),
        (True, False, [RichProgressBar]),
        (False, None, []),
        (False, True, [ModelSummary]),
    ],
)
def test_a_quiet_run_has_no_model_summary(bar: bool | None, summary: bool | None, kinds: list[type]) -> None:
    chosen = choose_callbacks(None, enable_progress_bar=bar, enable_model_summary=summary, enable_checkpointing=False)
    assert [type(one) for one in chosen] == kinds


def test_any_progress_bar_takes_the_place_of_the_default() -> None:
    trainer = Trainer(callbacks=TQDMProgressBar(), logger=False, enable_checkpointing=False)
    assert isinstance(trainer.progress_bar_callback, TQDMProgressBar)
    assert [type(one) for one in trainer.callbacks] == [TQDMProgressBar, ModelSummary]


def test_the_list_that_was_passed_stays_as_it_is() -> None:
    callbacks: list[object] = []
    assert len(Trainer(callbacks=callbacks, logger=False).callbacks) == 3
    assert callbacks == []


def test_seeding_reaches_every_generator() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    assert seed_everything(5) == 5
    first = draw()
    assert draw() != first
    seed_everything(5)
    assert draw() == first


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, True, "seven"])
def test_a_seed_that_some_generator_refuses_is_refused(seed: object) -> None:
    with pytest.raises(ValueError, match=r"`seed` must be an int from 0 to 2\*\*32 - 1, but got"):
        seed_everything(seed)  # type: ignore[arg-type]


def test_what_a_seed_was_chosen_from_is_told_to_processes_that_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "3")
    monkeypatch.setenv("PL_SEED_WORKERS", "0")
    assert seed_everything() == 3
    assert seed_everything(7, workers=True, verbose=False) == 7
    assert (os.environ["PL_GLOBAL_SEED"], os.environ["PL_SEED_WORKERS"]) == ("7", "1")
    assert seed_everything("9") == seed_everything(np.int64(9)) == 9  # type: ignore[arg-type]
    assert os.environ["PL_SEED_WORKERS"] == "0"
    monkeypatch.delenv("PL_GLOBAL_SEED")
    with pytest.warns(UserWarning, match="got no seed and uses 0"):
        assert seed_everything() == 0
    monkeypatch.setenv("PL_GLOBAL_SEED", "many")
    with pytest.raises(ValueError, match=r"`seed` must be an int .* but got 'many' .* PL_GLOBAL_SEED"):
        seed_everything()


@pytest.mark.parametrize("verbose", [True, False])
def test_the_seed_is_logged_unless_that_is_unwanted(caplog: pytest.LogCaptureFixture, verbose: bool) -> None:
    with caplog.at_level("INFO", "camshaft.trainer.seeding"):
        seed_everything(7, verbose=verbose)
    assert ("Seed set to 7" in caplog.text) is verbose
