"""A small training, and ways to ask it for a checkpoint at any moment: in a hook, or between any two lines."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import StepLR
from trainer_parts import Regression, assert_same, loader, quiet_trainer, weights

from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer, seed_everything

NUM_EPOCHS = 2
NUM_BATCHES = 5

Act = Callable[[], None]


class Drawing(Regression):
    """Trains with dropout, and calls what it was given in its own steps."""

    def __init__(self, act: dict[str, Act] | None = None) -> None:
        super().__init__(dropout=0.3)
        self.act = act or {}

    def save_hyperparameters(self, *names: str, **settings: Any) -> None:
        """Nothing: a function is no plain value."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.act.get("training_step", int)()
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.act.get("validation_step", int)()

    def prepare_data(self) -> None:
        self.act.get("prepare_data", int)()

    def configure_model(self) -> None:
        self.act.get("configure_model", int)()

    def configure_callbacks(self) -> Any:
        self.act.get("configure_callbacks", int)()
        return []

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        return [optimizer], [{"scheduler": StepLR(optimizer, 2, 0.7), "interval": "step"}]


class Calling(Callback):
    """Calls something in one of its hooks."""

    def __init__(self, hook: str, act: Act) -> None:
        setattr(self, hook, lambda *_: act())


class Validations(Callback):
    """Notes after how many batches each validation ended, and with which value."""

    def __init__(self) -> None:
        self.losses: dict[int, Tensor] = {}

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if not trainer.sanity_checking:
            self.losses[trainer.fit_loop.progress.total_batches] = trainer.callback_metrics["val_loss"].clone()


def new_trainer(root: Path, *callbacks: Callback, max_epochs: int = NUM_EPOCHS) -> Trainer:
    return quiet_trainer(
        root, callbacks=list(callbacks), max_epochs=max_epochs, accumulate_grad_batches=2, val_check_interval=2
    )


def fit(trainer: Trainer, act: dict[str, Act] | None = None, ckpt_path: Path | None = None, seed: int = 0) -> Drawing:
    seed_everything(seed)
    module = Drawing(act)
    trainer.fit(module, loader(NUM_BATCHES, shuffle=True), loader(2, shuffle=True), ckpt_path=ckpt_path)
    return module


def end_of(module: Drawing, trainer: Trainer) -> dict[str, Any]:
    return {
        "weights": weights(module),
        "optimizer": trainer.optimizers[0].state_dict(),
        "step": trainer.global_step,
        "metrics": dict(trainer.callback_metrics),
        "random": torch.get_rng_state(),
    }


def assert_resumes_exactly(path: Path, undisturbed: dict[str, Any], where: str = "") -> None:
    """That a new trainer, which goes on from a checkpoint, ends like the run that nobody disturbed."""
    trainer = new_trainer(path.parent)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "fit has nothing to do")
        module = fit(trainer, ckpt_path=path, seed=99)
    assert_same(end_of(module, trainer), undisturbed, f"{path.name} {where}")


class AtLine(Callback):
    """Counts the lines of Python that run between two of its hooks, and acts before one of them.

    Args:
        first: The hook from which on it counts.
        last: The hook at which it stops; None goes on until `stop` is called.
        act: What to do.
        line: How many lines come before it; None only counts.

    Attributes:
        num_lines: Lines so far.
        where: The function and line before which it acted.
    """

    def __init__(self, first: str, last: str | None, act: Callable[[], None], line: int | None = None) -> None:
        self.act = act
        self.line = line
        self.num_lines = 0
        self.where = ""
        self.outer = sys.gettrace()
        setattr(self, first, lambda *_: self.start())
        if last is not None:
            setattr(self, last, lambda *_: self.stop())

    def start(self) -> None:
        """Begin to count."""
        sys.settrace(self._trace)
        frame: FrameType | None = sys._getframe()
        while frame is not None:  # the functions that run already
            frame.f_trace = self._trace
            frame = frame.f_back

    def stop(self) -> None:
        """Count no more."""
        sys.settrace(self.outer)
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            frame.f_trace = None
            frame = frame.f_back

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            if self.num_lines == self.line:
                self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                self.act()  # which is not traced itself
            self.num_lines += 1
        return self._trace


@contextmanager
def saving_at_line(root: Path, first: str, last: str | None, line: int | None) -> Iterator[tuple[Trainer, AtLine]]:
    """A trainer, and a callback that asks it for "asked.ckpt" before a line."""
    at_line = AtLine(first, last, lambda: trainer.save_checkpoint(root / "asked.ckpt"), line)
    trainer = new_trainer(root, at_line)
    try:
        yield trainer, at_line
    finally:
        at_line.stop()
