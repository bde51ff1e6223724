"""What fits of one process, or of several, compile: graphs, breaks, and the weights in the end.

torchrun --nproc-per-node 2 compile_scenes.py STRATEGY FOLDER
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from launching import report
from sharded_scenes import whole
from torch import Tensor, nn
from trainer_parts import Regression, loader

from camshaft.strategies import ShardedStrategy
from camshaft.trainer import Trainer, seed_everything

BACKEND = {"backend": "aot_eager"}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(3, 8), nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.down(torch.relu(self.up(inputs)))


class Module(Regression):
    """Its steps call the module."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = self.net(inputs)
        for block in self.blocks:
            inputs = block(inputs)
        return self.layer(inputs)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.log_dict({"twice": 2 * loss})
        return loss


class CallsNet(Module):
    """Its steps call submodules, one of which is torch's own."""

    def loss(self, batch: list[Tensor]) -> Tensor:
        inputs, targets = batch
        outputs = self.net(inputs)
        for block in self.blocks:
            outputs = block(outputs)
        return nn.functional.mse_loss(self.layer(outputs), targets)


class CompilesStep(Module):
    """Its author compiled the step."""

    def __init__(self) -> None:
        super().__init__()
        self.training_step = torch.compile(self.training_step, **BACKEND)  # type: ignore[method-assign]


def strategy_of(name: str, **arguments: Any) -> Any:
    return ShardedStrategy(accelerator="cpu", policy=Block, **arguments) if name == "sharded" else name


def fit(name: str, folder: Path, module: nn.Module, compile: Any = None) -> dict[str, Any]:
    """Train a module by a strategy of this name; count graphs and breaks."""
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    is_sharded = name == "sharded" and compile is not None
    strategy = strategy_of(name, compile=compile) if is_sharded else strategy_of(name)
    trainer = Trainer(
        strategy=strategy,
        compile=None if is_sharded else compile,
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=folder,
    )
    trainer.fit(module, loader(), loader(2))
    return {
        "graphs": counters["stats"]["unique_graphs"],
        "breaks": sum(counters["graph_break"].values()),
        "skipped": counters["frames"]["total"] - counters["frames"]["ok"],
        "weights": whole(trainer.model),
        "logged": {name: float(value) for name, value in trainer.callback_metrics.items()},
    }


def made(kind: type[Module]) -> Any:
    seed_everything(3)
    return kind()


def scenes(name: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Return what each way to compile gave, by its name; "eager" compiles nothing."""
    by_hand = made(CallsNet)
    return {
        "eager": fit(name, folder, made(Module)),
        "module": fit(name, folder, made(Module), BACKEND),
        "net": fit(name, folder, made(CallsNet), BACKEND),
        "blocks": fit(name, folder, made(Module), {"policy": Block, **BACKEND}),
        "step": fit(name, folder, made(CompilesStep)),
        "given": fit(name, folder, torch.compile(by_hand, **BACKEND)),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    report("scenes", scenes(sys.argv[1], Path(sys.argv[2])))
