"""Runs modules of earlier eras on this rank that decide, log and ask by themselves, and reports what they found.

agreement.py FOLDER [NAME...]
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from launching import report
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

from camshaft.compat import install_aliases
from camshaft.strategies import DDPStrategy

install_aliases()

import pytorch_lightning as pl  # noqa: E402
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint  # noqa: E402
from pytorch_lightning.utilities import rank_zero_only  # noqa: E402


def make_trainer(folder: Path, **arguments: Any) -> Any:
    """A trainer that is quiet, and without logger and checkpoints unless these are asked for."""
    quiet = {"progress_bar_refresh_rate": 0, "weights_summary": None, "gpus": 0}
    defaults = {"default_root_dir": str(folder), "logger": False, "checkpoint_callback": False}
    return pl.Trainer(**{**quiet, **defaults, **arguments})


class Net(pl.LightningModule):
    """One weight; batches are numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.seen: list[Any] = []

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Dictionaries08(Net):
    """Dictionaries from every epoch's end; the two ranks would decide differently by what they see themselves."""

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        loss = self.layer(batch).square().mean()
        return {"loss": loss, "log": {"train_loss": loss}}

    def validation_step(self, batch: Tensor, batch_idx: int) -> Any:
        return {"values": batch.flatten().tolist()}

    def validation_epoch_end(self, outputs: Any) -> Any:
        self.seen.append((self.current_epoch, [output["values"] for output in outputs]))
        rank, epoch = self.trainer.proc_rank, self.current_epoch
        val_loss = torch.tensor([4.0 - epoch, 4.0 + 3 * abs(epoch - 1)][rank])  # together best in epoch 1
        return {"val_loss": val_loss, "log": {"avg_val_loss": val_loss}, "progress_bar": {"shown": val_loss + 1}}


def dictionaries_0_8(folder: Path) -> dict[str, Any]:
    checkpoint = ModelCheckpoint(filepath=str(folder / "best" / "{epoch}"), monitor="val_loss", mode="min")
    trainer = make_trainer(
        folder,
        distributed_backend="ddp",
        logger=pl.loggers.CSVLogger(str(folder / "csv")),
        max_epochs=8,
        row_log_interval=1,
        early_stop_callback=EarlyStopping("val_loss", patience=2),
        checkpoint_callback=checkpoint,
        num_sanity_val_steps=0,
    )
    module = Dictionaries08()
    numbers = torch.arange(8.0)[:, None]
    trainer.fit(module, DataLoader(numbers, 2), DataLoader(numbers[:6], 2))
    return {
        "seen": module.seen,
        "epochs": trainer.current_epoch,
        "best": Path(checkpoint.best_model_path).name,
        "best_score": float(checkpoint.best_model_score),
        "shown": float(trainer.progress_bar_metrics["shown"]),
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
    }


class FewBatches08(Net):
    """Validates fewer batches than there are ranks."""

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        return {"loss": self.layer(batch).square().mean()}

    def validation_step(self, batch: Tensor, batch_idx: int) -> Any:
        return {"val_loss": batch.mean()}

    def validation_epoch_end(self, outputs: Any) -> Any:
        self.seen.append(len(outputs))
        val_loss = torch.stack([output["val_loss"] for output in outputs]).mean()
        return {"val_loss": val_loss, "log": {"avg_val_loss": val_loss}}


def few_batches_0_8(folder: Path) -> dict[str, Any]:
    checkpoint = ModelCheckpoint(filepath=str(folder / "few" / "{epoch}"), monitor="val_loss")
    arguments = {"checkpoint_callback": checkpoint, "early_stop_callback": True, "max_epochs": 2}
    trainer = make_trainer(folder, distributed_backend="ddp_cpu", **arguments)
    module = FewBatches08()
    trainer.fit(module, DataLoader(torch.ones(4, 1)), DataLoader(torch.full((1, 1), 3.0)))
    return {"seen": module.seen, "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()}}


class Hooks15(Net):
    """Everything of 1.x around the steps, and each way of asking for the rank."""

    @rank_zero_only
    def note(self) -> None:
        self.seen.append("rank_zero_only")

    def prepare_data(self) -> None:
        self.seen.append("prepare_data")

    def setup(self, stage: str | None = None) -> None:
        self.seen.append(f"setup {stage}")

    def teardown(self, stage: str | None = None) -> None:
        self.seen.append(f"teardown {stage}")

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.log("rank", float(self.global_rank), sync_dist=True, on_step=True, on_epoch=True)
        self.log("own", float(self.global_rank), on_step=True)
        return self.layer(batch).square().mean()

    def validation_step(self, batch: Tensor, batch_idx: int) -> Any:
        return batch.sum()

    def validation_step_end(self, outputs: Any) -> Any:
        return {"twice": 2 * outputs}

    def validation_epoch_end(self, outputs: Any) -> None:
        twice = torch.stack([output["twice"] for output in outputs]).sum()
        self.seen.append(("validation_epoch_end", len(outputs), float(twice)))
        self.log("summed", twice, sync_dist=True, reduce_fx="sum")

    def on_epoch_start(self) -> None:
        self.seen.append("on_epoch_start")

    def on_epoch_end(self) -> None:
        self.seen.append("on_epoch_end")


def hooks_1_5(folder: Path) -> dict[str, Any]:
    module = Hooks15()
    trainer = make_trainer(folder, accelerator="ddp_cpu", max_epochs=1)
    numbers = torch.arange(8.0)[:, None]
    trainer.fit(module, DataLoader(numbers, 2), DataLoader(numbers, 2))
    module.note()
    asked = (trainer.is_global_zero, module.global_rank, trainer.global_rank, trainer.proc_rank, rank_zero_only.rank)
    return {
        "seen": module.seen,
        "asked": asked,
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "of_trainer": (trainer.world_size, trainer.use_ddp, trainer.distributed_backend, trainer.num_processes),
    }


class Preparing08(Net):
    """0.x prepares on the first process of all."""

    def prepare_data(self) -> None:
        self.seen.append("prepare_data")

    def setup(self, stage: str) -> None:
        self.seen.append(f"setup {stage}")

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        loss = self.layer(batch).square().mean()
        return {"loss": loss, "log": {"train_loss": loss}}


def preparing_0_8(folder: Path) -> dict[str, Any]:
    module = Preparing08()
    trainer = make_trainer(folder, distributed_backend="ddp", max_epochs=1)
    trainer.fit(module, DataLoader(torch.ones(4, 1)))
    return {"seen": module.seen, "batches": trainer.num_training_batches}


class OwnSampler05(Net):
    """Data shared out by the module itself, as 0.5 asked for."""

    def _loader(self) -> DataLoader[Any]:
        numbers: Any = torch.arange(16.0)[:, None]
        sampler = DistributedSampler(numbers) if self.use_ddp else None
        return DataLoader(numbers, batch_size=4, sampler=sampler, shuffle=sampler is None)

    @pl.data_loader
    def tng_dataloader(self) -> DataLoader[Any]:
        return self._loader()

    @pl.data_loader
    def test_dataloader(self) -> DataLoader[Any]:
        return self._loader()

    def on_epoch_start(self) -> None:
        self.seen.append([])

    def training_step(self, batch: Tensor, batch_nb: int) -> Any:
        self.seen[-1] += batch.flatten().tolist()
        return {"loss": self.layer(batch).square().mean()}

    def test_step(self, batch: Tensor, batch_nb: int) -> Any:
        return {"test_loss": batch.mean()}

    def test_end(self, outputs: Any) -> Any:
        return {"log": {"test_loss": torch.stack([output["test_loss"] for output in outputs]).mean()}}


def own_sampler_0_5(folder: Path) -> dict[str, Any]:
    module = OwnSampler05()
    trainer = make_trainer(folder, distributed_backend="ddp", max_nb_epochs=2)
    trainer.fit(module)
    return {"seen": module.seen, "tested": trainer.test(module)}


class Stopping13(Net):
    """One rank alone wants to stop."""

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        if self.global_rank == 1 and self.current_epoch == 1 and batch_idx == 2:
            self.trainer.should_stop = True
        return self.layer(batch).square().mean()

    def training_epoch_end(self, outputs: Any) -> None:
        self.seen.append((self.current_epoch, len(outputs)))


def stopping_1_3(folder: Path) -> dict[str, Any]:
    module = Stopping13()
    trainer = make_trainer(folder, accelerator="ddp", max_epochs=6)
    trainer.fit(module, DataLoader(torch.ones(16, 1)))
    return {"seen": module.seen, "epochs": trainer.current_epoch, "steps": trainer.global_step}


class Skipping(Net):
    """One rank alone skips the rest of an epoch, by the hook of its era."""

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        self.seen.append((self.current_epoch, batch_idx))
        return {"loss": self.layer(batch).square().mean()}

    def _skips(self) -> bool:
        return self.global_rank == 1 and self.current_epoch == 0 and self.trainer.batch_idx == 3


class Skipping08(Skipping):
    def on_batch_start(self, batch: Tensor) -> int | None:
        return -1 if self._skips() else None


class Skipping15(Skipping):
    def on_train_batch_start(self, batch: Tensor, batch_idx: int, unused: int = 0) -> int | None:
        if self._skips():
            return -1
        return None

    def on_epoch_start(self) -> None: ...


def skipping(folder: Path) -> dict[str, Any]:
    found = {}
    for kind in (Skipping08, Skipping15):
        module = kind()
        trainer = make_trainer(folder, strategy=DDPStrategy(devices=2, accelerator="cpu", timeout=20), max_epochs=2)
        trainer.fit(module, DataLoader(torch.ones(10, 1)))
        found[kind.__name__] = (module.seen, module.layer.weight.item())
    return found


CHECKS: tuple[Callable[[Path], dict[str, Any]], ...] = (
    dictionaries_0_8,
    hooks_1_5,
    preparing_0_8,
    own_sampler_0_5,
    stopping_1_3,
    few_batches_0_8,
    skipping,
)


def main(folder: str, *names: str) -> None:
    warnings.simplefilter("ignore")
    for check in CHECKS:
        if not names or check.__name__ in names:
            report((check.__name__, check(Path(folder))))


if __name__ == "__main__":
    main(*sys.argv[1:])
