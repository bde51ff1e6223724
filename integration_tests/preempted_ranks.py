"""A training that may be told by SIGTERM to leave, on any one of its ranks.

preempted_ranks.py train|resume FOLDER
preempted_ranks.py leave FOLDER RANK SECONDS
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from typing import Any

import torch
from launching import report
from restarted_ranks import Net, make_loader

from camshaft.hooks_core import Callback
from camshaft.strategies import DDPStrategy
from camshaft.trainer import Trainer


class LeaveOnSignal(Callback):
    """Saves and stops when the scheduler asks for the machine; here a timer plays the scheduler."""

    def __init__(self, path: str, rank: int, seconds: float) -> None:
        self.path, self.rank, self.seconds = path, rank, seconds

    def on_train_start(self, trainer: Any, module: Any) -> None:
        signal.signal(signal.SIGTERM, lambda *_: trainer.preempt(self.path))
        if trainer.strategy.global_rank == self.rank:
            threading.Timer(self.seconds, os.kill, (os.getpid(), signal.SIGTERM)).start()


def main(verb: str, folder: str, *when: str) -> None:
    warnings.simplefilter("ignore")
    path = os.path.join(folder, "left.ckpt")
    loader = make_loader()
    trainer = Trainer(
        strategy=DDPStrategy(accelerator="cpu", devices=2, timeout=60),
        max_epochs=100,
        min_epochs=100,
        callbacks=[LeaveOnSignal(path, int(when[0]), float(when[1]))] if when else None,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=folder,
    )
    module = Net()
    trainer.fit(module, loader, ckpt_path=path if verb == "resume" else None)
    report((trainer.global_step, torch.cat([parameter.detach().flatten() for parameter in module.parameters()])))


if __name__ == "__main__":
    main(*sys.argv[1:])
