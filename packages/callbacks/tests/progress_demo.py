"""Drives RichProgressBar through a whole run, for tests that look at its output from outside."""

from __future__ import annotations

import sys
import time

from recording_trainer import RecordingTrainer

from camshaft.callbacks import RichProgressBar


def fit(trainer: RecordingTrainer, bar: RichProgressBar, batch_seconds: float, fail_at: int | None) -> None:
    trainer.sanity_checking = True
    evaluate(trainer, bar, batch_seconds, num_batches=1)
    trainer.sanity_checking = False
    bar.on_train_start(trainer, None)
    for epoch in range(trainer.max_epochs or 0):
        trainer.current_epoch = epoch
        bar.on_train_epoch_start(trainer, None)
        for batch_idx in range(int(trainer.num_training_batches)):
            time.sleep(batch_seconds)
            trainer.progress_bar_metrics["loss"] = 1 / (epoch * 10 + batch_idx + 1)
            bar.on_train_batch_end(trainer, None, None, None, batch_idx)
            if fail_at is not None and batch_idx == fail_at:
                raise RuntimeError("a batch failed")
            if batch_idx == 4:
                print("a line printed by the user")
        evaluate(trainer, bar, batch_seconds, num_batches=2)
        bar.on_train_epoch_end(trainer, None)
    bar.on_train_end(trainer, None)


def evaluate(trainer: RecordingTrainer, bar: RichProgressBar, batch_seconds: float, num_batches: int) -> None:
    bar.on_validation_start(trainer, None)
    for batch_idx in range(num_batches):
        time.sleep(batch_seconds)
        bar.on_validation_batch_end(trainer, None, None, None, batch_idx)
    if not trainer.sanity_checking:
        trainer.progress_bar_metrics["val_loss"] = 0.25
    bar.on_validation_end(trainer, None)


def test(trainer: RecordingTrainer, bar: RichProgressBar, batch_seconds: float) -> None:
    bar.on_test_start(trainer, None)
    for batch_idx in range(3):
        time.sleep(batch_seconds)
        bar.on_test_batch_end(trainer, None, None, None, batch_idx)
    trainer.progress_bar_metrics["test_accuracy"] = 0.875
    bar.on_test_end(trainer, None)


def main(verb: str, leave: bool, batch_seconds: float, refresh_rate_seconds: float) -> None:
    bar = RichProgressBar(refresh_rate_seconds, leave=leave)
    trainer = RecordingTrainer(".", callbacks=[bar])
    bar.setup(trainer, None, verb)
    try:
        if verb == "test":
            test(trainer, bar, batch_seconds)
        else:
            fit(trainer, bar, batch_seconds, fail_at=3 if verb == "fail" else None)
    except RuntimeError as error:
        bar.on_exception(trainer, None, error)
        print("handled:", error)
    finally:
        bar.teardown(trainer, None, verb)
    print("after the run")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "leave", float(sys.argv[3]), float(sys.argv[4]))
