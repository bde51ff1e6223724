"""Drives a progress bar through whole runs, for tests that look at its output from outside.

    progress_demo.py KIND BATCH_SECONDS SCENE...

A scene is `fit`, `test`, `fail`, `interrupt`, `metrics`, `endless` or `leave`. A form feed stands between two outputs.
"""

from __future__ import annotations

import math
import sys
import time

from recording_trainer import RecordingTrainer

from camshaft.callbacks.progress.progress_bar import ProgressBar
from camshaft.callbacks.progress.rich_progress_bar import RichProgressBar
from camshaft.callbacks.progress.tqdm_progress_bar import TQDMProgressBar

_FAILURES = {"fail": RuntimeError("a batch failed"), "interrupt": KeyboardInterrupt("interrupted")}


def fit(trainer: RecordingTrainer, bar: ProgressBar, batch_seconds: float, verb: str) -> None:
    trainer.sanity_checking = True
    evaluate(trainer, bar, batch_seconds, num_batches=1)
    trainer.sanity_checking = False
    bar.on_train_start(trainer, None)
    for epoch in range(trainer.max_epochs or 0):
        trainer.current_epoch = epoch
        bar.on_train_epoch_start(trainer, None)
        for batch_idx in range(10):
            time.sleep(batch_seconds)
            trainer.progress_bar_metrics["loss"] = 1 / (epoch * 10 + batch_idx + 1)
            bar.on_train_batch_end(trainer, None, None, None, batch_idx)
            if verb in _FAILURES and batch_idx == 3:
                raise _FAILURES[verb]
            if batch_idx == 4:
                say_something(bar, epoch)
        evaluate(trainer, bar, batch_seconds, num_batches=2)
        bar.on_train_epoch_end(trainer, None)
    bar.on_train_end(trainer, None)


def say_something(bar: ProgressBar, epoch: int) -> None:
    if epoch == 0:
        print("a line printed by the user")
    elif epoch == 1:
        bar.print("a line printed", "by the bar")
    else:
        print("a line", end=" ")
        print("in two parts")
        print("a line for errors", file=sys.stderr)


def evaluate(trainer: RecordingTrainer, bar: ProgressBar, batch_seconds: float, num_batches: int) -> None:
    bar.on_validation_start(trainer, None)
    for batch_idx in range(num_batches):
        time.sleep(batch_seconds)
        bar.on_validation_batch_end(trainer, None, None, None, batch_idx)
    if not trainer.sanity_checking:
        trainer.progress_bar_metrics["val_loss"] = 0.25
    bar.on_validation_end(trainer, None)


def test(trainer: RecordingTrainer, bar: ProgressBar, batch_seconds: float) -> None:
    bar.on_test_start(trainer, None)
    for batch_idx in range(3):
        time.sleep(batch_seconds)
        bar.on_test_batch_end(trainer, None, None, None, batch_idx)
    trainer.progress_bar_metrics["test_accuracy"] = 0.875
    bar.on_test_end(trainer, None)


def play(kind: str, verb: str, batch_seconds: float) -> None:
    bar_class = {"rich": RichProgressBar, "tqdm": TQDMProgressBar}[kind]
    bar = bar_class(refresh_rate_seconds=0, leave=verb == "leave")
    trainer = RecordingTrainer(".", callbacks=[bar])
    if verb == "endless":
        trainer.num_training_batches = math.inf
        trainer.num_val_batches = [math.inf]
    if verb == "metrics":
        trainer.progress_bar_metrics.update({f"metric_{letter}": 0.5 for letter in "abcdef"})
    bar.setup(trainer, None, verb)
    try:
        if verb == "test":
            test(trainer, bar, batch_seconds)
        else:
            fit(trainer, bar, batch_seconds, verb)
    except BaseException as error:
        bar.on_exception(trainer, None, error)
        print("handled:", error)
    finally:
        bar.teardown(trainer, None, verb)
    print("after the run")


if __name__ == "__main__":
    kind, seconds, *scenes = sys.argv[1:]
    for idx, scene in enumerate(scenes):
        if idx:
            print("\f", end="", flush=True)
        play(kind, scene, float(seconds))
