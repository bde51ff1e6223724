"""Trainings that real signals reach at moments of their choice, alone or on two ranks; the last one ends the process.

preempted_training.py FOLDER SCENE...

A scene is PLACE:RANK, where RANK gets the signals, or PLACE:RANK:async.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from typing import Any

import torch
from launching import report
from trainer_parts import Regression, loader, quiet_trainer

from camshaft.callbacks import ModelCheckpoint, PreemptionCheckpoint
from camshaft.hooks_core import Callback
from camshaft.strategies import DDPStrategy, SingleDeviceStrategy
from camshaft.trainer import seed_everything

IS_ALONE = "WORLD_SIZE" not in os.environ
former: list[str] = []


class Signalling(Callback):
    """Sends real signals to its own process, once."""

    def __init__(self, place: str) -> None:
        self.place = place

    def act(self, place: str, *names: str) -> None:
        if place == self.place:
            self.place = ""
            for name in names or ("SIGTERM",):
                os.kill(os.getpid(), signal.Signals[name])

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        self.act("setup")

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.act("start")

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 5:
            self.act("training", "SIGUSR1", "SIGTERM", "SIGUSR1")

    def on_validation_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 6:
            self.act("validation", "SIGUSR1")

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self.act("end")

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        self.act("too late")


def signalled(kind: type[SingleDeviceStrategy] | type[DDPStrategy]) -> Any:
    """A strategy that gets its signals when a checkpoint is written, or has just begun to be."""

    class Signalled(kind):  # type: ignore[valid-type, misc]
        signalling: Signalling

        def save_checkpoint(self, checkpoint: Any, path: str) -> Any:
            pending = super().save_checkpoint(checkpoint, path)
            if checkpoint["global_step"] == 4:
                self.signalling.act("saving", "SIGTERM", "SIGTERM")
            return pending

    return Signalled


def train(folder: str, place: str = "", is_asynchronous: bool = False, ckpt_path: str | None = None) -> dict[str, Any]:
    """Train until the end or a signal. Returns what became of it."""
    strategy: Any
    if IS_ALONE:
        strategy = signalled(SingleDeviceStrategy)("cpu", save_asynchronously=is_asynchronous)
    else:
        strategy = signalled(DDPStrategy)(accelerator="cpu", devices=2, timeout=60, save_asynchronously=is_asynchronous)
    strategy.signalling = signalling = Signalling(place)
    leave = PreemptionCheckpoint(requeue=True, exit_code=7)
    checkpoint = ModelCheckpoint(f"{folder}/kept", "{step}", "val_loss", every_n_train_steps=2, save_last=True)
    trainer = quiet_trainer(
        folder,
        strategy=strategy,
        max_epochs=3,
        min_epochs=3,
        val_check_interval=2,
        callbacks=[leave, signalling, checkpoint],
        enable_checkpointing=True,
    )
    seed_everything(0)
    module = Regression(dropout=0.3)
    exit_code: Any = None
    before = signal.getsignal(signal.SIGTERM)
    try:
        trainer.fit(module, loader(8 if IS_ALONE else 16, shuffle=True), loader(4), ckpt_path=ckpt_path)
    except SystemExit as ending:
        exit_code = ending.code
    return {
        "end": {
            "step": trainer.global_step,
            "weights": torch.cat([parameter.detach().flatten() for parameter in module.parameters()]),
            "metric": float(trainer.callback_metrics.get("val_loss", 0.0)),
            "best": float(checkpoint.best_model_score or 0.0),
            "random": torch.get_rng_state(),
        },
        "exit_code": exit_code,
        "preempted": leave.preempted,
        "is_restored": signal.getsignal(signal.SIGTERM) is before,
        "path": leave.ckpt_path,
    }


def main(folder: str, *scenes: str) -> None:
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGTERM, lambda *_: former.append("SIGTERM"))
    report("straight", train(f"{folder}/straight"))
    exit_code = None
    for scene in scenes:
        place, rank, *kind = scene.split(":")
        os.environ["REQUEUED"] = f"{folder}/{scene}.requeued"
        is_hit = os.environ.get("RANK", "0") == rank
        left = train(f"{folder}/{scene}", place if is_hit else "", bool(kind))
        report(scene, left | {"former": list(former)})
        former.clear()
        if left["preempted"]:
            report(f"{scene} resumed", train(f"{folder}/{scene}", ckpt_path=left["path"]))
        exit_code = left["exit_code"]
    raise SystemExit(exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])
