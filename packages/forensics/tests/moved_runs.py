"""Trains a small model on four logical ranks, and tells what the run gave; for any number of processes.

moved_runs.py FOLDER [--model NAME] [--kill-at STEP MOMENT]... A folder with a checkpoint is gone on with.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
from pathlib import Path
from typing import Any

import torch
from launching import report
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.callbacks import CSVLogger, ModelCheckpoint, SpikeDetection
from camshaft.forensics import RunLedger
from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer, TrainingModule, seed_everything

NUM_RANKS = 4


class Model(TrainingModule):
    """Tells the mean of a sequence of 6 numbers, and logs in several ways."""

    def loss(self, batch: list[Tensor]) -> Tensor:
        tokens, means = batch
        return nn.functional.mse_loss(self(tokens).squeeze(1), means)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Transformer(Model):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(tokens)).mean(dim=1))


class Convolutions(Model):
    """Batch normalisation, whose statistics are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv1d(1, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.1)),
            *(nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 1)),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layers(tokens.float().unsqueeze(1))


class Recurrent(Model):
    """Truncated backpropagation through time: three splits in each batch."""

    truncated_bptt_steps = 2

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.dropout, self.head = nn.GRU(1, 6, batch_first=True), nn.Dropout(0.1), nn.Linear(6, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.cell(tokens.float().unsqueeze(2))[0][:, -1])

    def tbptt_split_batch(self, batch: list[Tensor], split_size: int) -> list[Any]:
        tokens, means = batch
        return [(part, means) for part in tokens.split(split_size, dim=1)]

    def training_step(self, batch: Any, batch_idx: int, hiddens: Any) -> Any:
        out, hiddens = self.cell(batch[0].float().unsqueeze(2), hiddens)
        loss = nn.functional.mse_loss(self.head(self.dropout(out[:, -1])).squeeze(1), batch[1])
        self.log("loss", loss, on_step=True, on_epoch=True)
        return {"loss": loss, "hiddens": hiddens}


class Adversarial(Model):
    """Two optimizers that take turns."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6))
        self.critic = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.critic(tokens.float())

    def training_step(self, batch: list[Tensor], batch_idx: int, optimizer_idx: int) -> Tensor:
        made = self.generator(torch.randn(len(batch[0]), 3))
        if optimizer_idx == 0:
            loss = -self.critic(made).mean()
        else:
            loss = self.critic(made.detach()).square().mean() + (self.critic(batch[0].float()) - 1).square().mean()
        self.log(f"loss_{optimizer_idx}", loss, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters(), lr=0.01) for part in (self.generator, self.critic)]


class AdversarialByHand(Adversarial):
    """The same by hand: the generator updates twice in a batch, the critic in every second one."""

    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.noise = 0.0

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:  # type: ignore[override]
        of_generator, of_critic = self.optimizers()
        scheduler, plateau = self.lr_schedulers()
        real = self.norm(batch[0].float())
        for _ in range(2):
            self.toggle_optimizer(of_generator)
            of_generator.zero_grad()
            loss = -self.critic(self.generator(torch.randn(len(real), 3))).mean() * (1 + 0.1 * random.random())
            self.manual_backward(loss)
            self.clip_gradients(of_generator, 0.1, "norm")
            of_generator.step()
            self.untoggle_optimizer(of_generator)
        self.toggle_optimizer(of_critic)
        made = self.generator(torch.randn(len(real), 3)).detach()
        of_loss = self.critic(made).square().mean() + (self.critic(real) - 1).square().mean()
        self.manual_backward(of_loss / 2)
        if batch_idx % 2:
            of_critic.step()
            of_critic.zero_grad()
            plateau.step(of_loss.item())
        self.untoggle_optimizer(of_critic)
        scheduler.step()
        self.log_dict({"of_generator": loss, "of_critic": of_loss}, on_step=True, on_epoch=True)
        return loss.detach() + of_loss.detach()

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.log("drawn", torch.rand(()) + sum(one.grad.norm() for one in self.parameters() if one.grad is not None))

    def configure_optimizers(self) -> Any:
        optimizers = super().configure_optimizers()
        of_generator = torch.optim.lr_scheduler.StepLR(optimizers[0], 3, gamma=0.5)
        of_critic = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizers[1], patience=0, threshold=0.2)
        return optimizers, [of_generator, {"scheduler": of_critic, "monitor": "of_critic"}]


class ByClosures(Model):
    """LBFGS, whose line search evaluates the loss several times."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.1), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layers(tokens.float() / 16)

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), 0.5, 3, line_search_fn="strong_wolfe")


class ByClosuresByHand(ByClosures):
    automatic_optimization = False

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        optimizer = self.optimizers()

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self.loss(batch)
            self.manual_backward(loss)
            return loss

        loss = optimizer.step(closure)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss


MODELS: dict[str, type[Model]] = {
    "transformer": Transformer,
    "convolutions": Convolutions,
    "recurrent": Recurrent,
    "adversarial": Adversarial,
    "adversarial-by-hand": AdversarialByHand,
    "closures": ByClosures,
    "closures-by-hand": ByClosuresByHand,
}


class Killed(Callback):
    """Kills all processes in an update, at a moment of it: when a batch begins, before the update, or after it."""

    def __init__(self, step: int, moment: str) -> None:
        self.step, self.moment = step, moment

    def kill(self, trainer: Any, moment: str) -> None:
        is_last = trainer.logical_rank in (None, trainer.strategy.logical_ranks[-1])
        if moment == self.moment and trainer.global_step >= self.step and is_last:
            trainer.strategy.barrier()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.kill(trainer, "start")

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.kill(trainer, "update")

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.kill(trainer, "end")


def hashed(values: dict[str, Any]) -> str:
    named = {name: getattr(value, "full_tensor", lambda: value)() for name, value in values.items()}  # noqa: B023
    leaves = sorted((name, value) for name, value in named.items() if isinstance(value, Tensor))
    return hashlib.sha256(b"".join(value.numpy().tobytes() for _, value in leaves)).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=MODELS, default="transformer")
    parser.add_argument("--kill-at", nargs=2)
    parser.add_argument("--strategy", help="by default the simplest one that has the processes")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--accumulate", type=int, default=3)
    parser.add_argument("--clip", type=float, default=0.7)
    given = parser.parse_args()
    torch.set_num_threads(1)
    seed_everything(3)
    tokens = torch.randint(16, (70, 6), generator=torch.Generator().manual_seed(1))
    data = TensorDataset(tokens, tokens.float().mean(dim=1))
    module = MODELS[given.model]()
    checkpoints = ModelCheckpoint(given.folder / "checkpoints", save_last=True, every_n_train_steps=1, save_top_k=0)
    several = "ddp_find_unused_parameters_true" if given.model.startswith("adversarial") else "ddp"
    callbacks: list[Any] = [RunLedger(given.folder, weights_every_n_steps=2), checkpoints]
    detection = SpikeDetection(window=3, rtol=0.01, action="skip", exclude_batches_path=given.folder)
    if given.model in ("transformer", "convolutions"):  # with one optimizer, of one update in a batch
        callbacks.append(detection)
    trainer = Trainer(
        strategy=given.strategy or (several if int(os.environ.get("WORLD_SIZE", 1)) > 1 else "auto"),
        accelerator="cpu",
        precision=given.precision,
        logical_ranks=NUM_RANKS,
        max_epochs=3,
        accumulate_grad_batches=given.accumulate,
        gradient_clip_val=given.clip if MODELS[given.model].automatic_optimization else None,
        log_every_n_steps=1,
        logger=CSVLogger(given.folder, name="", version="logs"),
        callbacks=[*callbacks, *([] if given.kill_at is None else [Killed(int(given.kill_at[0]), given.kill_at[1])])],
        enable_progress_bar=False,
    )
    last = given.folder / "checkpoints" / "last.ckpt"
    loaders = (DataLoader(data, 4, shuffle=True, num_workers=given.workers), DataLoader(data, 8))
    trainer.fit(module, *loaders, ckpt_path=last if last.exists() else None)
    states = [optimizer.state_dict()["state"] for optimizer in trainer.optimizers]
    moments = {
        f"{place}.{key}.{name}": value
        for place, state in enumerate(states)
        for key, of_parameter in state.items()
        for name, value in of_parameter.items()
    }
    hashes = [hashed(module.state_dict()), hashed(moments)]
    if trainer.global_rank == 0:
        logged = {name: value.item().hex() for name, value in sorted(trainer.callback_metrics.items())}
        lines = (given.folder / "ledger.jsonl").read_text().splitlines()
        rows = (given.folder / "logs" / "metrics.csv").read_text().splitlines()
        report([*hashes, logged, lines, rows, detection.state_dict()])


if __name__ == "__main__":
    main()
