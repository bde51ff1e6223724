"""Runs every case of the matrix on this rank and reports what came of it.

    ranks.py DEVICE [PART_OF_A_NAME...]

Each is trained three times: on one device with whole batches, on the strategy with a share of each batch, and once more
on the strategy, from a checkpoint that the second training wrote inside an epoch (and inside an accumulation window).
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from launching import report
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset

from camshaft.hooks_core import Callback
from camshaft.strategies import DDPStrategy, ShardedStrategy, SingleDeviceStrategy
from camshaft.trainer import Trainer, TrainingModule

sys.path.insert(0, str(Path(__file__).parents[1]))

from matrix.cases import Case, cases

NUM_SAMPLES, NUM_FEATURES, GLOBAL_BATCH_SIZE, NUM_EPOCHS = 48, 8, 8, 2
SAVED_AT = 4  # batches of the second epoch; 4 is inside a window of 4, which the epoch of 6 begins anew


class Block(nn.Module):
    """A residual block of two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(TrainingModule):
    """A small regression that is built, and may be sharded, in its hook."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: nn.Module | None = None

    def configure_sharded_model(self) -> None:
        if self.blocks is not None:
            return
        self.blocks = nn.Sequential(Block(NUM_FEATURES), Block(NUM_FEATURES))
        self.head = nn.Linear(NUM_FEATURES, 1)
        mesh = self.device_mesh
        if mesh is not None and "tensor_parallel" in mesh.mesh_dim_names and mesh["tensor_parallel"].size() > 1:
            for block in self.blocks:
                plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
                parallelize_module(block, mesh["tensor_parallel"], plan)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = nn.functional.mse_loss(self.head(self.blocks(x)).squeeze(1), y)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.02, eps=1e-2)


class SaveInside(Callback):
    """Saves once, inside the second epoch."""

    def __init__(self, path: str) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == 1 and batch_idx + 1 == SAVED_AT:
            trainer.save_checkpoint(self.path)


def make_strategy(case: Case) -> Any:
    if case.strategy == "ddp":
        return DDPStrategy(accelerator=case.device, devices=case.size, precision=case.precision)
    options: dict[str, Any] = {
        "sharded": {"policy": {Block}},
        "sharded-offloaded": {"policy": {Block}, "cpu_offload": True},
        "replicated": {"policy": {Block}, "data_parallel_replicas": 2},
        "tensor-parallel": {"policy": {Block}, "tensor_parallel": 2},
    }[case.strategy]
    return ShardedStrategy(accelerator=case.device, devices=case.size, precision=case.precision, **options)


def train(case: Case, strategy: Any, folder: str, *, saves: bool = False, resumes: bool = False) -> dict[str, Tensor]:
    """Train. Returns the weights, whole."""
    batch_size = GLOBAL_BATCH_SIZE // strategy.num_data_ranks
    loader = DataLoader(make_dataset(), batch_size=batch_size, shuffle=True)
    path = os.path.join(folder, f"{case.name}.ckpt")
    trainer = Trainer(
        strategy=strategy,
        max_epochs=NUM_EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[SaveInside(path)] if saves else None,
        default_root_dir=folder,
        **case.arguments,
    )
    module = Net()
    trainer.fit(module, loader, ckpt_path=path if resumes else None)
    found = {name: whole(parameter) for name, parameter in module.named_parameters()}
    return found | {"logged loss": trainer.callback_metrics["loss"].detach().cpu().clone()}


def make_dataset() -> TensorDataset:
    """The data; afterwards, random numbers stand where they always do."""
    torch.manual_seed(1)
    data = torch.randn(NUM_SAMPLES, NUM_FEATURES)
    return TensorDataset(data, torch.sin(data.sum(1)))


def whole(parameter: Tensor) -> Tensor:
    tensor = parameter.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu().clone()


def run(case: Case, folder: str) -> dict[str, Any]:
    reference = train(case, SingleDeviceStrategy(case.device, precision=case.precision), folder)
    strategy = make_strategy(case)
    trained = train(case, strategy, folder, saves=True)
    resumed = train(case, make_strategy(case), folder, resumes=True)
    moved = max(float((reference[name] - start).abs().max()) for name, start in initial().items() if name in reference)
    return {
        "names": list(trained) == list(reference),
        "error": max(float((trained[name].double() - reference[name].double()).abs().max()) for name in reference),
        "moved": moved,
        "same on all ranks": all(
            all(torch.equal(other, tensor) for other in strategy.all_gather(tensor)) for tensor in trained.values()
        ),
        "resumed to the bit": all(torch.equal(trained[name], resumed[name]) for name in trained),
    }


def initial() -> dict[str, Tensor]:
    make_dataset()
    module = Net()
    module.configure_sharded_model()
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def main(device: str, *wanted: str) -> None:
    warnings.simplefilter("ignore")
    size = int(os.environ["WORLD_SIZE"])
    folders = [tempfile.mkdtemp() if os.environ["RANK"] == "0" else ""]
    first = DDPStrategy(accelerator=device, devices=size)
    first.connect()
    folder = first.broadcast(folders[0])
    for case in cases(size, device):
        if not wanted or any(part in case.name for part in wanted):
            report((case.name, run(case, folder)))


if __name__ == "__main__":
    main(*sys.argv[1:])
