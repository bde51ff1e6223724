"""A trainer that is told to leave saves and stops, at whatever moment it is told."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trainer_parts import NO_VALIDATION, Regression, assert_same, loader, quiet_trainer, weights

from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer, seed_everything

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


class Signalled(Callback):
    """Gets SIGTERM in one of its hooks, which a handler hands on to the trainer."""

    def __init__(self, hook: str, path: Path) -> None:
        setattr(self, hook, lambda trainer, *_: self.signal(trainer))
        self.path = path

    def signal(self, trainer: Any) -> None:
        signal.signal(signal.SIGTERM, lambda *_: trainer.preempt(self.path))
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(autouse=True)
def _keeps_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def fit(folder: Path, *callbacks: Any, ckpt_path: Path | None = None) -> tuple[Regression, Trainer]:
    seed_everything(0)
    module, trainer = Regression(), quiet_trainer(folder, max_epochs=3, min_epochs=3, callbacks=list(callbacks))
    trainer.fit(module, loader(), ckpt_path=ckpt_path)
    return module, trainer


@pytest.mark.parametrize(
    ("hook", "num_updates"), [("setup", 0), ("on_train_start", 0), ("on_train_batch_end", 1), ("on_train_epoch_end", 4)]
)
def test_a_signal_makes_it_save_and_stop_and_the_next_run_goes_on(hook: str, num_updates: int, tmp_path: Path) -> None:
    straight, _ = fit(tmp_path)
    path = tmp_path / "left.ckpt"
    _, stopped = fit(tmp_path, Signalled(hook, path))
    assert stopped.global_step == num_updates
    resumed, _ = fit(tmp_path, ckpt_path=path)
    assert_same(weights(resumed), weights(straight))


def test_where_nothing_is_trained_it_says_so(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"`preempt` has no effect, as no fit runs: 'x\.ckpt' is not saved"):
        quiet_trainer(tmp_path).preempt("x.ckpt")
