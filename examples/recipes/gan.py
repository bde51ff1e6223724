"""Train a generative adversarial network, whose two networks are updated by hand, each in its own way.

The data is made: points around eight places on a circle. Networks that play against each other often find a few of the
places only; this pair finds all. The picture has points of both:

    python examples/recipes/gan.py --output gan.png
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.trainer import Trainer, TrainingModule, seed_everything

ANGLES = torch.arange(8) * torch.pi / 4
PLACES = 2 * torch.stack([ANGLES.cos(), ANGLES.sin()], dim=1)
SPREAD = 0.1  # standard deviation around a place


class GAN(TrainingModule):
    def __init__(self, noise_size: int = 16, width: int = 64) -> None:
        super().__init__()
        self.automatic_optimization = False  # `training_step` differentiates and steps
        self.noise_size = noise_size
        self.generator = nn.Sequential(
            nn.Linear(noise_size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
        )
        self.discriminator = nn.Sequential(
            nn.Linear(2, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, 1)
        )

    def forward(self, num_points: int) -> Tensor:
        return self.generator(torch.randn(num_points, self.noise_size, device=self.device))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        (real,) = batch
        optimizers: Any = self.optimizers()
        generator, discriminator = optimizers

        self.toggle_optimizer(discriminator)  # only its parameters require gradients
        real = real.requires_grad_()
        on_real = self.discriminator(real)
        (slope,) = torch.autograd.grad(on_real.sum(), real, create_graph=True)
        penalty = slope.square().sum(dim=1).mean()  # a flat discriminator at the data makes the game converge
        loss = self.loss(on_real, 1.0) + self.loss(self.discriminator(self(len(real)).detach()), 0.0)
        self.update(discriminator, loss + 0.05 * penalty)
        self.untoggle_optimizer(discriminator)

        self.toggle_optimizer(generator)
        generator_loss = self.loss(self.discriminator(self(len(real))), 1.0)
        self.update(generator, generator_loss)
        self.untoggle_optimizer(generator)

        self.log_dict({"discriminator_loss": loss, "generator_loss": generator_loss}, prog_bar=True)

    def loss(self, logits: Tensor, label: float) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, label))

    def update(self, optimizer: Any, loss: Tensor) -> None:
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        parts = (self.generator, self.discriminator)
        return [torch.optim.Adam(part.parameters(), lr=2e-3, betas=(0.5, 0.9)) for part in parts]


def draw(path: Path, real: Tensor, made: Tensor) -> None:
    """Draw the points of the data and of the generator side by side."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    both = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, points, title in zip(both, (real, made), ("data", "generator"), strict=True):
        axes.scatter(*points.T, s=4, alpha=0.5)
        axes.set(title=title, aspect="equal")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a generative adversarial network on eight heaps of points.")
    parser.add_argument("--max-steps", type=int, default=4000, help="batches to train on (default: 4000)")
    parser.add_argument("--output", type=Path, default=Path("gan.png"), help="the picture")
    arguments = parser.parse_args()
    seed_everything(0)
    real = PLACES.repeat(2000, 1) + SPREAD * torch.randn(16000, 2)
    model = GAN()
    trainer = Trainer(max_steps=arguments.max_steps, logger=False, enable_checkpointing=False)
    trainer.fit(model, DataLoader(TensorDataset(real), batch_size=128, shuffle=True))

    made = model(2000).detach().cpu()
    distances, nearest = torch.cdist(made, PLACES).min(dim=1)
    close = distances < 4 * SPREAD
    counts = nearest[close].bincount(minlength=len(PLACES))
    draw(arguments.output, real[:2000], made)
    print(f"picture: {arguments.output.resolve()}")
    print(f"places found: {int((counts > 50).sum())} of {len(PLACES)}, points near one: {close.float().mean():.1%}")


if __name__ == "__main__":
    main()
