"""What two processes do that compare their hooks, and that repeat their steps."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from launching import report
from torch import Tensor
from trainer_parts import Regression, loader, quiet_trainer

from camshaft.callbacks import EarlyStopping, ModelCheckpoint
from camshaft.forensics import CorruptionError, HookComparison, HookDivergenceError, RepeatedStep
from camshaft.hooks_core import Callback


class Extra(Callback):
    """One that a careless script adds on one process."""

    def on_before_zero_grad(self, trainer: Any, module: Any, optimizer: Any) -> None: ...


class Plain(Regression):
    """Called `loss`, so that processes log the same."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), sync_dist=True)


def comparing(folder: Path) -> Any:
    """Hooks are compared: of a run in which nothing differs, and of one in which something does."""
    callbacks = [EarlyStopping("val_loss"), ModelCheckpoint(monitor="val_loss"), HookComparison(2)]
    saving = {"enable_checkpointing": True, "max_epochs": 3}
    same = quiet_trainer(folder / "same", accelerator="cpu", callbacks=callbacks, **saving)
    module = Plain()
    same.fit(module, loader(12), loader(3))
    left = [name for name in vars(module) if callable(getattr(type(module), name, None))]
    extra = [Extra()] if same.global_rank else []
    different = quiet_trainer(folder / "different", accelerator="cpu", callbacks=[*extra, HookComparison(3)])
    try:
        different.fit(Plain(), loader(12), loader(3))
    except HookDivergenceError as error:
        return same.global_step, left, str(error), error.position
    return None


class Faulty(Regression):
    """The loss is wrong in one forward pass of rank 1, by more than what the mean over ranks rounds away."""

    num_passes = 0

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        Faulty.num_passes += 1
        loss = super().training_step(batch, batch_idx)
        is_faulty = self.trainer.global_rank == 1 and Faulty.num_passes == 3 + 1 + 2  # in the repetitions of step 1
        return loss * (1 + 2**-8) if is_faulty else loss


def corrupted(folder: Path) -> tuple[dict[int, list[str]], int]:
    trainer = quiet_trainer(folder, accelerator="cpu", callbacks=[RepeatedStep(every_n_steps=1)])
    try:
        trainer.fit(Faulty(), loader(8))
    except CorruptionError as error:
        return error.differences, trainer.global_step
    return {}, trainer.global_step


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    scene = {"comparing": comparing, "corrupted": corrupted}[sys.argv[2]]
    report(scene(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
