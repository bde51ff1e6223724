"""A training on two machines, which may be killed or told to leave on either.

    machines_ranks.py STRATEGY FOLDER train|kill|leave|resume

It saves in FOLDER/saved, from which it goes on by itself if its agent restarts it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from launching import report
from restarted_ranks import KillItself, Net, make_loader
from torch.distributed.tensor import DTensor

from camshaft.callbacks import ModelCheckpoint
from camshaft.hooks_core import Callback
from camshaft.strategies import DDPStrategy, ShardedStrategy, restart_count
from camshaft.trainer import Trainer


class LeaveOnSignal(Callback):
    """Saves and stops when SLURM asks the second machine for itself."""

    def __init__(self, path: str) -> None:
        self.path = path

    def on_train_start(self, trainer: Any, module: Any) -> None:
        signal.signal(signal.SIGTERM, lambda *_: trainer.preempt(self.path))

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 5 and trainer.strategy.global_rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def main(kind: str, folder: str, verb: str) -> None:
    warnings.filterwarnings("ignore", message="(?!The processes were restarted)")
    left = str(Path(folder, "left.ckpt"))
    callbacks: list[Any] = [ModelCheckpoint(Path(folder, "saved"), every_n_train_steps=3, save_top_k=-1)]
    if verb == "kill":
        callbacks.append(KillItself(1, "8"))
    if verb == "leave":
        callbacks.append(LeaveOnSignal(left))
    strategy = {"ddp": DDPStrategy, "sharded": ShardedStrategy}[kind](accelerator="cpu", timeout=60)
    loader = make_loader()
    trainer = Trainer(
        strategy=strategy,
        max_epochs=2,
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        default_root_dir=folder,
    )
    module = Net()
    trainer.fit(module, loader, ckpt_path=left if verb == "resume" else None)
    whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in module.parameters()]
    weights = torch.cat([one.detach().flatten() for one in whole])
    report((socket.gethostname(), strategy.local_rank, restart_count(), trainer.global_step, weights))


if __name__ == "__main__":
    main(*sys.argv[1:])
