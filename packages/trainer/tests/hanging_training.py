"""Trains on two processes, of which one, the victim, no longer takes part: WHERE says in what it hangs.

hanging_training.py FOLDER WHERE VICTIM ddp|sharded
"""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemWriter
from trainer_parts import Regression, loader

from camshaft.strategies import DDPStrategy, ShardedStrategy
from camshaft.trainer import Trainer

FOLDER, WHERE, VICTIM, KIND = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
KINDS: dict[str, Any] = {"ddp": DDPStrategy, "sharded": ShardedStrategy}
RANK = int(os.environ["RANK"])
TIMEOUT_SECONDS = 8.0


def hang(*arguments: Any, **keywords: Any) -> None:
    while RANK == VICTIM:
        time.sleep(0.1)


class Hanging(Regression):
    def hang_if(self, where: str) -> None:
        if where == WHERE and self.trainer.global_step >= 2:
            hang()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.hang_if("training_step")
        if WHERE == "c_code" and batch_idx == 2 and RANK == VICTIM:
            time.sleep(2)  # looked at by then
            re.match("(a+)+$", "a" * 64 + "b")  # holds the interpreter
        if WHERE == "left_out" and not (batch_idx == 2 and RANK == VICTIM):
            torch.distributed.all_reduce(torch.zeros(4))
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.hang_if("validation_step")
        super().validation_step(batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        self.hang_if("on_validation_epoch_end")


def main() -> None:
    if WHERE == "saving" and KIND == "ddp" and RANK == VICTIM:
        os.fsync = hang
    if WHERE == "saving" and KIND == "sharded" and RANK == VICTIM:
        FileSystemWriter.write_data = hang
    trainer = Trainer(
        strategy=KINDS[KIND](accelerator="cpu", devices=2, timeout=TIMEOUT_SECONDS),
        max_epochs=1,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        logger=False,
        default_root_dir=FOLDER,
    )
    trainer.fit(Hanging(), loader(8), loader(4))


if __name__ == "__main__":
    main()
