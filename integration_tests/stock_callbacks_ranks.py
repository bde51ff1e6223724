"""What two processes do with stock callbacks; the test beside it compares the frameworks.

torchrun --nproc-per-node 2 stock_callbacks_ranks.py FOLDER lightning|camshaft
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from comparison.frameworks import CAMSHAFT, LIGHTNING, Framework
from launching import report
from lightning.pytorch import callbacks as lightning_callbacks
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.callbacks import ModelPruning

PRUNINGS = {LIGHTNING.name: lightning_callbacks.ModelPruning, CAMSHAFT.name: ModelPruning}
NUM_BATCHES = 8
INTERVAL = timedelta(seconds=0.3)

PRUNING: dict[str, dict[str, Any]] = {
    "all together, with a ticket": {"pruning_fn": "l1_unstructured", "apply_pruning": lambda epoch: epoch == 1},
    "each, masks that stay": {
        "pruning_fn": "random_unstructured",
        "use_global_unstructured": False,
        "use_lottery_ticket_hypothesis": False,
        "make_pruning_permanent": False,
    },
    "structures": {
        "pruning_fn": "ln_structured",
        "use_global_unstructured": False,
        "use_lottery_ticket_hypothesis": False,
        "parameter_names": ["weight"],
        "pruning_dim": 0,
        "pruning_norm": 2,
    },
}


def make_line(framework: Framework) -> Any:
    class Line(framework.module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 1))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return nn.functional.mse_loss(self.layer(batch[0]), batch[1])

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            pass

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.02)

    torch.manual_seed(3)
    return Line()


def own_batches(num_batches: int = NUM_BATCHES) -> DataLoader[Any]:
    """Batches of this process alone."""
    inputs = torch.randn(4 * num_batches, 3, generator=torch.Generator().manual_seed(int(os.environ["RANK"])))
    return DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=4)


def trainer_of(framework: Framework, folder: Path, *callbacks: Any, **arguments: Any) -> Any:
    quiet = {**framework.quiet, "enable_checkpointing": False, "logger": False, "use_distributed_sampler": False}
    own = {"strategy": "ddp", "devices": 2, "default_root_dir": folder, "callbacks": list(callbacks)}
    return framework.trainer(**quiet, **own, **arguments)


def pruned(framework: Framework, folder: Path, kind: str, *, seed: int = 5) -> dict[str, Tensor]:
    module = make_line(framework)
    callback = PRUNINGS[framework.name](amount=0.3, **PRUNING[kind])
    torch.manual_seed(seed)
    trainer_of(framework, folder, callback, max_epochs=3, limit_val_batches=0).fit(module, own_batches())
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def timed(framework: Framework, folder: Path) -> tuple[list[int], list[float], dict[str, Tensor]]:
    """Return the updates before each validation, and the seconds since the last one, by a clock of each process."""

    class Watching(framework.callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.steps: list[int] = []
            self.seconds: list[float] = []

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.began = time.monotonic()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            time.sleep(0.02)

        def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
            self.steps.append(trainer.global_step)
            self.seconds.append(time.monotonic() - self.began)

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            time.sleep(0.15 * trainer.global_rank)  # the clocks of the processes never agree
            self.began = time.monotonic()

    watching, module = Watching(), make_line(framework)
    times = {"val_check_interval": INTERVAL, "check_val_every_n_epoch": None, "num_sanity_val_steps": 0}
    trainer = trainer_of(framework, folder, watching, max_epochs=2, **times)
    trainer.fit(module, own_batches(40), own_batches(1))
    return watching.steps, watching.seconds, {name: value.clone() for name, value in module.state_dict().items()}


def main(folder: Path, framework: Framework) -> None:
    for kind in PRUNING:
        report(f"pruned: {kind}", pruned(framework, folder, kind))
    if framework is CAMSHAFT:  # Lightning's processes each follow a clock of their own, and wait for each other forever
        seed = int(os.environ["RANK"])
        report("pruned by other numbers", pruned(framework, folder, "each, masks that stay", seed=seed))
        report("timed", timed(framework, folder))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), {"lightning": LIGHTNING, "camshaft": CAMSHAFT}[sys.argv[2]])
