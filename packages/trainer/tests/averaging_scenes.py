"""What two processes do with callbacks that average or freeze weights, under DDP and sharded.

torchrun --nproc-per-node 2 averaging_scenes.py FOLDER
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from launching import report
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from trainer_parts import Regression, dataset

from camshaft.callbacks import BackboneFinetuning, EMAWeightAveraging, ModelCheckpoint, StochasticWeightAveraging
from camshaft.trainer import Trainer, seed_everything


class Layers(Regression):
    """A line behind a backbone that begins with batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(self.backbone(inputs))
        return outputs

    def configure_optimizers(self) -> Any:
        trainable = [parameter for parameter in self.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trainable, lr=0.02)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)]


class Manual(Layers):
    """Optimizes by hand: inside of its step, parameters are gathered after the update."""

    automatic_optimization = False

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:  # type: ignore[override]
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()


CALLBACKS = {
    "ema": lambda: EMAWeightAveraging(decay=0.6),
    "manual": lambda: EMAWeightAveraging(decay=0.6),
    "swa": lambda: StochasticWeightAveraging(0.01, 2, annealing_epochs=1),
    "backbone": lambda: BackboneFinetuning(1, lambda epoch: 1.5),
}


RESUMED_AT = (6, 8)
"""Updates after which a fit goes on: inside of the second of three epochs, and at its end."""


def whole(values: Any) -> dict[str, Tensor]:
    """Tensors by name, put together. Collective if they are sharded."""
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().cpu().clone()
        for name, value in values.items()
    }


def loader(num_processes: int) -> Any:
    return torch.utils.data.DataLoader(dataset(32), batch_size=8 // num_processes)


def fit(folder: Path, strategy: str, kind: str, num_processes: int, ckpt_path: Any = None) -> dict[str, Any]:
    """Three epochs of four updates; a checkpoint after every one."""
    seed_everything(5 if ckpt_path is None else 6)
    callback: Any = CALLBACKS[kind]()
    saving = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    trainer = Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        strategy=strategy,
        callbacks=[callback, saving],
        max_epochs=3,
        logger=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
    )
    module = Manual() if kind == "manual" else Layers()
    loaders = loader(num_processes)
    trainer.fit(module, loaders, loaders, ckpt_path=ckpt_path)
    trainer.save_checkpoint(folder / "end.ckpt")
    average = getattr(callback, "average_model", None)
    saved = trainer.strategy.load_checkpoint(str(folder / "end.ckpt"))
    return {
        "weights": whole(module.state_dict()),
        "training": {} if average is None else whole(average.named_values()),
        "saved": whole(saved["state_dict"]),
        "saved_training": whole(saved.get("current_model_state", {})),
        "rates": [group["lr"] for group in trainer.optimizers[0].param_groups],
        "val_loss": float(trainer.callback_metrics["val_loss"]),
    }


def scenes(folder: Path, strategy: str, num_processes: int) -> dict[str, Any]:
    """Each callback in a fit, and in fits that go on from inside each of its epochs."""
    found: dict[str, Any] = {}
    for kind in CALLBACKS:
        if strategy == "sharded" and kind == "backbone":
            try:
                fit(folder / "refused", strategy, kind, num_processes)
            except ValueError as error:
                found["refused"] = str(error)
            continue
        found[kind] = fit(folder / kind, strategy, kind, num_processes)
        for step in RESUMED_AT:
            path = folder / kind / f"step={step}.ckpt"
            found[f"{kind} from {step}"] = fit(folder / f"{kind}_{step}", strategy, kind, num_processes, path)
    return found


def main() -> None:
    warnings.filterwarnings("ignore", message="Detected call of")
    folder = Path(sys.argv[1])
    for strategy in ("ddp", "sharded"):
        report(strategy, scenes(folder / strategy, strategy, 2))


if __name__ == "__main__":
    main()
