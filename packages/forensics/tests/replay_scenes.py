"""What two processes do that train, replay a step, and search for one.

torchrun --nproc-per-node 2 replay_scenes.py FOLDER STRATEGY
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from ledger_scenes import Layers
from torch.utils.data import DataLoader
from trainer_parts import dataset, quiet_trainer

from camshaft.callbacks import ModelCheckpoint
from camshaft.forensics import DepartureError, RunLedger, bisect, replay
from camshaft.trainer import Trainer, seed_everything

NUM_STEPS, AT = 16, 11


class Turning(Layers):
    """A weight that passes a threshold at an update."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if self.trainer.global_step + 1 == AT:
            with torch.no_grad():
                self.layer.bias += 100.0


def is_turned(module: Any) -> bool:
    """Whether the threshold is passed, in this process's part of the weights."""
    bias = module.layer.bias
    local = bias.to_local() if hasattr(bias, "to_local") else bias
    return bool((local > 50).any())


def parts(folder: Path, strategy: str, **arguments: Any) -> tuple[Trainer, Any, Any]:
    seed_everything(3)
    loader = DataLoader(dataset(48), 3, shuffle=True, num_workers=1, **arguments)
    callbacks = [
        RunLedger(folder, weights_every_n_steps=3),
        ModelCheckpoint(folder / "kept", every_n_train_steps=5, save_top_k=-1, filename="{step}"),
    ]
    limits = {"max_epochs": -1, "max_steps": NUM_STEPS, "accumulate_grad_batches": 2, "enable_checkpointing": True}
    trainer = quiet_trainer(folder, accelerator="cpu", devices=2, strategy=strategy, callbacks=callbacks, **limits)
    return trainer, Turning(dropout=0.2), loader


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder, strategy = Path(sys.argv[1]), sys.argv[2]
    trainer, module, loader = parts(folder, strategy)
    trainer.fit(module, loader)

    trainer, module, loader = parts(folder, strategy)
    steps = replay(trainer, module, loader, ckpt_path=folder / "kept", to_step=14)
    assert trainer.global_step == 13 and [one.step for one in steps] == [14, 14], steps
    assert all("layer" in {call.name for call in one.inspection.calls} for one in steps)
    assert all(set(one.gradients) == {name for name, _ in module.named_parameters()} for one in steps)

    trainer, module, loader = parts(folder, strategy)
    good, bad = (folder / "kept" / f"step={step}.ckpt" for step in (5, 15))
    found = bisect(trainer, module, loader, good=good, bad=bad, when=is_turned)
    assert found == AT, found

    trainer, module, loader = parts(folder, strategy, generator=torch.Generator().manual_seed(1))
    try:
        replay(trainer, module, loader, to_step=14)
    except DepartureError as error:
        print(f"rank {trainer.global_rank}: {error}", flush=True)


if __name__ == "__main__":
    main()
