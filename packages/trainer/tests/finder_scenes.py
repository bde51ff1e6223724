"""What both processes find with finders and prediction writers."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from launching import report
from torch import Tensor
from torch.utils.data import DataLoader
from trainer_parts import Regression, dataset, loader, quiet_trainer, weights

from camshaft.callbacks import BatchSizeFinder, LearningRateFinder, NPZPredictionWriter
from camshaft.trainer import seed_everything


class Sized(Regression):
    """Runs out of memory above a size that depends on where and on the rank."""

    def __init__(self, batch_size: int, forward_limit: int = 1000, backward_limit: int = 1000) -> None:
        super().__init__(dropout=0.2)
        self.batch_size = batch_size
        self.limits = (forward_limit, backward_limit)
        self.sizes: list[int] = []

    def train_dataloader(self) -> Any:
        return DataLoader(dataset(64), batch_size=self.batch_size, shuffle=True)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if len(batch[0]) > self.limits[0]:
            raise torch.OutOfMemoryError("CUDA out of memory. (a test)")
        self.sizes.append(len(batch[0]))
        return super().training_step(batch, batch_idx)

    def backward(self, loss: Tensor) -> None:
        if self.sizes[-1] > self.limits[1]:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory (a test)")
        loss.backward()


def fit(folder: Path, module: Regression, callbacks: list[Any], *loaders: Any) -> dict[str, Any]:
    trainer = quiet_trainer(folder, callbacks=callbacks, max_epochs=2, accelerator="cpu", devices="auto")
    seed_everything(3 + trainer.global_rank)
    trainer.fit(module, *loaders)
    return {"weights": weights(module), "metrics": dict(trainer.callback_metrics), "step": trainer.global_step}


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    rank = quiet_trainer(folder, accelerator="cpu", devices="auto").global_rank

    def module() -> Regression:
        torch.manual_seed(1)
        return Regression(dropout=0.2)

    plain = fit(folder, module(), [], loader(8, shuffle=True), loader(2))
    finder = LearningRateFinder(min_lr=1e-4, num_training_steps=30, update_attr=False)
    report("plain", plain)
    report("searched", fit(folder, module(), [finder], loader(8, shuffle=True), loader(2)))
    report("curve", finder.state_dict())

    def sized(size: int, **limits: int) -> Sized:
        torch.manual_seed(1)
        return Sized(size, **limits)

    for name, limits in (
        ("forward", {"forward_limit": 8 if rank == 0 else 100}),
        ("backward", {"backward_limit": 100 if rank == 0 else 8}),
    ):
        sizes = BatchSizeFinder("binsearch", margin=0.0, max_trials=6)
        found = sized(4, **limits)
        report(name, {**fit(folder, found, [sizes]), "size": found.batch_size, "trials": sizes.trials})
    report("of the size", fit(folder, sized(8), []))

    trainer = quiet_trainer(folder, accelerator="cpu", devices="auto")
    trainer.callbacks.append(NPZPredictionWriter(folder / "predictions", rows_per_file=5))
    data = DataLoader(dataset(22), batch_size=4)
    trainer.predict(module(), data, return_predictions=False)
    trainer.strategy.connect()


if __name__ == "__main__":
    main()
