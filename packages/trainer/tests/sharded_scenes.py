"""What two processes do with a trainer whose model is sharded over them.

torchrun --nproc-per-node 2 sharded_scenes.py FOLDER
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from launching import report
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, DistributedSampler
from trainer_parts import Regression, loader

from camshaft.callbacks import ModelCheckpoint
from camshaft.hooks_core import Callback
from camshaft.strategies import DDPStrategy, ShardedStrategy, read_checkpoint
from camshaft.strategies.precision import ScaledPrecision
from camshaft.trainer import JointOptimizer, Trainer, WeightedLoss, seed_everything


class Layers(Regression):
    """Builds its layers in the hook, and notes what it knows there."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.width = width
        self.meshes: list[Any] = []

    def configure_sharded_model(self) -> None:
        self.meshes.append(None if self.device_mesh is None else self.device_mesh.mesh_dim_names)
        if not hasattr(self, "blocks"):
            self.blocks = nn.Sequential(nn.Linear(3, self.width), nn.Tanh(), nn.Linear(self.width, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(self.blocks(inputs))
        return outputs

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.02)


def trainer_in(folder: Path, **arguments: Any) -> Trainer:
    seed_everything(5)
    checkpoint = ModelCheckpoint(
        folder / "kept", monitor="val_loss", save_top_k=1, save_last=True, filename="{epoch}", every_n_epochs=1
    )
    defaults: dict[str, Any] = {"max_epochs": 3, "callbacks": checkpoint, "logger": False}
    return Trainer(default_root_dir=folder, accelerator="cpu", enable_progress_bar=False, **{**defaults, **arguments})


def whole(module: nn.Module) -> dict[str, Tensor]:
    """The weights, put together. Collective if they are sharded."""
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
        for name, value in module.state_dict().items()
    }


def train(folder: Path, num_processes: int, **arguments: Any) -> dict[str, Any]:
    """A fit, and one that was stopped after an epoch and gone on with."""
    trainer = trainer_in(folder / "whole", **arguments)
    module = Layers()
    trainer.fit(module, loaders(num_processes), loader(3))
    losses = trainer.validate(module, loader(3), verbose=False)
    first = trainer_in(folder / "parts", **{**arguments, "max_epochs": 1})
    first.fit(Layers(), loaders(num_processes), loader(3))
    second = trainer_in(folder / "parts", **arguments)
    resumed = Layers()
    second.fit(resumed, loaders(num_processes), loader(3), ckpt_path="last")
    best = trainer.validate(Layers(), loader(3), ckpt_path="best", verbose=False)
    kept = folder / "whole" / "kept"
    return {
        "weights": whole(module),
        "resumed": whole(resumed),
        "losses": losses,
        "best": best,
        "meshes": module.meshes,
        "kept": sorted(path.name for path in kept.iterdir()),
        "are_folders": [path.is_dir() for path in sorted(kept.iterdir())],
        "best_path": trainer.checkpoint_callback.best_model_path,
    }


class Joint(Layers):
    """Matrices of the blocks by Muon, all other parameters by AdamW."""

    def configure_optimizers(self) -> Any:
        matrices = [one for one in self.blocks.parameters() if one.ndim == 2]
        others = [*self.layer.parameters(), *(one for one in self.blocks.parameters() if one.ndim != 2)]
        return JointOptimizer(torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=0.02))


def train_jointly(folder: Path) -> dict[str, Any]:
    """Two optimizers on one loss: a fit, one that goes on from its first epoch, and the loop by hand."""
    found, settings = {}, {"strategy": "sharded", "gradient_clip_val": 0.1}
    for name, max_epochs, ckpt_path in (("whole", 2, None), ("first", 1, None), ("resumed", 2, "last")):
        trainer = trainer_in(folder / f"is whole {name == 'whole'}", max_epochs=max_epochs, **settings)
        module = Joint()
        trainer.fit(module, loaders(2), loader(3), ckpt_path=ckpt_path)
        found[name] = whole(module)
    seed_everything(5)
    module = Joint()
    module.blocks = nn.Sequential(nn.Linear(3, module.width), nn.Tanh(), nn.Linear(module.width, 3))
    fully_shard(module)
    optimizer = module.configure_optimizers()
    for _ in range(2):
        dataset: Any = loaders(2).dataset
        for batch in DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset, shuffle=False)):
            optimizer.zero_grad()
            module.training_step(batch, 0).backward()
            nn.utils.clip_grad_norm_(module.parameters(), 0.1)
            optimizer.step()
    return {**found, "by hand": whole(module)}


class Frozen(Layers):
    """Its blocks are a frozen base; the layer is trained."""

    def configure_sharded_model(self) -> None:
        super().configure_sharded_model()
        self.blocks.requires_grad_(False)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.layer.parameters(), lr=0.02)


def train_adapters(folder: Path) -> dict[str, Any]:
    """A fit whose checkpoints hold what is trained, and one that goes on from its first epoch."""
    found: dict[str, Any] = {}
    for name, max_epochs, ckpt_path in (("whole", 2, None), ("first", 1, None), ("resumed", 2, "last")):
        root = folder / f"is whole {name == 'whole'}"
        trainer = trainer_in(root, max_epochs=max_epochs, strategy="sharded", save_only="trainable")
        module = Frozen()
        trainer.fit(module, loaders(2), loader(3), ckpt_path=ckpt_path)
        found[name] = whole(module)
    found["saved"] = sorted(read_checkpoint(root / "kept" / "last.ckpt")["state_dict"])
    return found


def loaders(num_processes: int) -> Any:
    whole_batches: Any = loader(8)
    return torch.utils.data.DataLoader(whole_batches.dataset, batch_size=8 // num_processes)


class Inside(Callback):
    """Saves inside of an accumulation window, or stops there."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1 and trainer.current_epoch == 0:
            if self.path is None:
                trainer.should_stop = True
            else:
                trainer.save_checkpoint(self.path)


def train_by_windows(folder: Path, **arguments: Any) -> dict[str, Any]:
    """A fit that saves inside of a window, one that goes on from there, and one from where a fit stopped in between."""
    found: dict[str, Any] = {}

    def fit(name: str, ckpt_path: Path | None = None, callback: Callback | None = None) -> Trainer:
        settings = {
            "accumulate_grad_batches": 3,
            "max_epochs": 2,
            "val_check_interval": 2,
        }
        trainer = trainer_in(
            folder,
            callbacks=[callback] if callback else [],
            strategy=ShardedStrategy(**arguments),
            enable_checkpointing=False,
            **settings,
        )
        module = Layers()
        trainer.fit(module, loaders(2), loader(3), ckpt_path=ckpt_path)
        found[name] = whole(module)
        return trainer

    saved, stopped = folder / "saved.ckpt", folder / "stopped.ckpt"
    fit("uninterrupted")
    fit("saving", callback=Inside(saved))
    fit("from saved", saved)
    fit("stopping", callback=Inside(None)).save_checkpoint(stopped)
    fit("from stopped", stopped)
    return found


class Weighing(Layers):
    """Counts a sample in some batches only."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        inputs, targets = batch
        counts = (inputs[:, 0] > 0.5 * (batch_idx % 3 - 1)).float()
        errors = (self(inputs) - targets).square().squeeze(1)
        loss = WeightedLoss((errors * counts).sum() / counts.sum().clamp(min=1), counts.sum())
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def fit_weighted(folder: Path, num_processes: int, strategy: Any, **arguments: Any) -> dict[str, Any]:
    """A fit with a short last window."""
    settings = {"max_epochs": 2, "accumulate_grad_batches": 3, "gradient_clip_val": 0.5, "callbacks": []}
    trainer = trainer_in(folder, strategy=strategy, enable_checkpointing=False, **{**settings, **arguments})
    module = Weighing()
    trainer.fit(module, loaders(num_processes))
    return {"weights": whole(module), "loss": float(trainer.callback_metrics["loss"])}


def train_weighted(folder: Path) -> dict[str, Any]:
    """Two ranks of every strategy, and in half precision."""
    found = {name: fit_weighted(folder, 2, name) for name in ("ddp", "sharded")}
    for accumulation in ("keep", "keep_all"):
        found[accumulation] = fit_weighted(folder, 2, ShardedStrategy(accelerator="cpu", accumulation=accumulation))
    for strategy in (DDPStrategy, ShardedStrategy):
        half = ScaledPrecision("cpu", init_scale=256.0)  # with which no update overflows
        found[f"{strategy.__name__} in half"] = fit_weighted(folder, 2, strategy(accelerator="cpu", precision=half))
    return found


def main() -> None:
    warnings.filterwarnings("ignore", message="Detected call of")
    folder = Path(sys.argv[1])
    report("train", train(folder, 2, strategy="sharded"))
    report("jointly", train_jointly(folder / "jointly"))
    report("adapters", train_adapters(folder / "adapters"))
    report("weighted", train_weighted(folder / "weighted"))
    for accumulation in ("reduce", "keep", "keep_all"):
        arguments = {"accelerator": "cpu", "accumulation": accumulation}
        report(accumulation, train_by_windows(folder / accumulation, **arguments))


if __name__ == "__main__":
    main()
