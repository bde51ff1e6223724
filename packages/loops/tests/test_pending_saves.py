"""Checkpoints that are written while training goes on: one after the other, finished before the verb ends."""

from __future__ import annotations

from typing import Any

import pytest
from bare_parts import BareTrainer, Net, Sized, hooked, make_batches

from camshaft.loops import SaveRequest

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Writing:
    """A save that is under way until somebody waits for it."""

    def __init__(self, log: list[str], name: str, error: Exception | None = None) -> None:
        self.log, self.name, self.error = log, name, error

    def wait(self) -> None:
        if self.error is not None:
            raise self.error
        self.log.append(f"{self.name} is durable")


class WritingTrainer(BareTrainer):
    """Begins to write, and leaves the rest to whoever waits."""

    log: list[str]
    error: Exception | None = None

    def _write(self, request: SaveRequest) -> Any:
        super()._write(request)
        self.log.append(f"{request.path} begins")
        return Writing(self.log, request.path, self.error)


def saving_trainer(*save_at: int, **hooks: Any) -> WritingTrainer:
    log: list[str] = []

    def on_train_batch_end(trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        log.append(f"batch {batch_idx}")
        if batch_idx in save_at:
            trainer.save_checkpoint(f"{batch_idx}", on_saved=lambda: log.append(f"{batch_idx} is told"))

    hooks = {name: lambda *_, _name=name: log.append(_name) for name in ("on_fit_end", "teardown")} | hooks
    trainer = WritingTrainer(Net(), callbacks=[hooked(on_train_batch_end=on_train_batch_end, **hooks)], max_epochs=1)
    trainer.log = log
    return trainer


def test_a_save_is_finished_before_the_next_one_begins_and_before_the_verb_ends() -> None:
    trainer = saving_trainer(0, 1)
    trainer.fit(Sized(make_batches(4)))
    assert trainer.log == [
        *["batch 0", "0 begins"],
        *["batch 1", "0 is durable", "0 is told", "1 begins"],
        *["batch 2", "batch 3", "on_fit_end"],
        *["1 is durable", "1 is told", "teardown"],
    ]


def test_what_the_writing_raised_is_raised_at_the_next_save_point() -> None:
    trainer = saving_trainer(0, 2)
    trainer.error = OSError("the disk is full")
    with pytest.raises(OSError, match="the disk is full"):
        trainer.fit(Sized(make_batches(4)))
    assert trainer.log == ["batch 0", "0 begins", "batch 1", "batch 2", "teardown"]


def test_a_failure_of_the_last_save_is_raised_at_the_end() -> None:
    heard: list[BaseException] = []
    trainer = saving_trainer(3, on_exception=lambda trainer, module, error: heard.append(error))
    trainer.error = OSError("the disk is full")
    with pytest.raises(OSError, match="the disk is full") as caught:
        trainer.fit(Sized(make_batches(4)))
    assert heard == [caught.value]


def test_after_an_error_nobody_waits_for_a_save_that_others_may_not_wait_for() -> None:
    def fail(trainer: Any, module: Any) -> None:
        raise KeyError("the end")

    trainer = saving_trainer(0, on_train_epoch_end=fail)
    with pytest.raises(KeyError, match="the end"):
        trainer.fit(Sized(make_batches(2)))
    assert "0 is durable" not in trainer.log and trainer.log[-1] == "teardown"
