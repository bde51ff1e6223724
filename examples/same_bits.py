"""The same run on 1, 2, 4 and 8 processes, and one that is killed and goes on elsewhere: all have the same bits.

    python same_bits.py                       train on each number of processes, and say what came out
    python same_bits.py --train FOLDER        one of these runs; torchrun starts several processes of it

Training is defined on 8 logical ranks. Whoever plays them, the weights, the logged values and the ledger, which has a
line for each update, are equal to the last bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.callbacks import ModelCheckpoint
from camshaft.forensics import RunLedger
from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer, TrainingModule, seed_everything

NUM_LOGICAL_RANKS = 8


class Transformer(TrainingModule):
    """Finds the largest of some numbers, with dropout on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 16)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 10)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        numbers, largest = batch
        loss = nn.functional.cross_entropy(self.head(self.layer(self.embedding(numbers)).mean(dim=1)), largest)
        self.log("loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


class Kill(Callback):
    """Kills the process, as the kernel or a cluster may, after an update."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(
        self, trainer: Trainer, module: TrainingModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def train(folder: Path, kill_after: int | None) -> None:
    """Train, or go on with the last checkpoint of the folder."""
    torch.set_num_threads(1)  # sums on a CPU depend on it
    seed_everything(0)
    numbers = torch.randint(10, (1000, 6))
    data = TensorDataset(numbers, numbers.max(dim=1).values)
    module = Transformer()
    trainer = Trainer(
        accelerator="cpu",
        logical_ranks=NUM_LOGICAL_RANKS,
        max_epochs=2,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        callbacks=[
            RunLedger(folder),
            ModelCheckpoint(folder, save_top_k=0, save_last=True, every_n_train_steps=1),
            *([] if kill_after is None else [Kill(kill_after)]),
        ],
    )
    last = folder / "last.ckpt"
    trainer.fit(module, DataLoader(data, batch_size=10, shuffle=True), ckpt_path=last if last.exists() else None)
    if trainer.is_global_zero:
        weights = b"".join(parameter.detach().numpy().tobytes() for parameter in module.parameters())
        ledger = (folder / "ledger.jsonl").read_text().splitlines()
        loss = float(trainer.callback_metrics["loss_epoch"])
        chain = json.loads(ledger[-1])["chain"]
        print(f"weights {hashlib.sha256(weights).hexdigest()[:16]}  loss {loss.hex()}  ledger {chain}", flush=True)


def run(num_processes: int, folder: Path, *arguments: str) -> str:
    """Start a run in as many processes, and return what it prints; nothing if it was killed."""
    command = [sys.executable, __file__, "--train", str(folder), *arguments]
    if num_processes > 1:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}"]
        command[1:1] = torchrun
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def main() -> None:
    """Train on each number of processes, and once on several one after the other."""
    with tempfile.TemporaryDirectory() as directory:
        for num_processes in (1, 2, 4, 8):
            processes = "1 process" if num_processes == 1 else f"{num_processes} processes"
            print(f"{processes}: {run(num_processes, Path(directory, str(num_processes)))}", end="")
        moved = Path(directory, "moved")
        run(4, moved, "--kill-after", "5")
        print(f"4, killed, then 2: {run(2, moved)}", end="")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", type=Path)
    parser.add_argument("--kill-after", type=int)
    given = parser.parse_args()
    if given.train is None:
        main()
    else:
        train(given.train, given.kill_after)
