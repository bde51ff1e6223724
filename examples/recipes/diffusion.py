"""Train a diffusion model that draws handwritten digits, with an average of its weights.

A network learns to tell the noise in a picture; to draw, it takes the noise out of nothing but noise, in small steps.
It is told which digit to draw, so that a classifier of real digits can judge the result. From noise to digits:

    python examples/recipes/diffusion.py --output digits.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.svm import SVC
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.callbacks import EMAWeightAveraging
from camshaft.trainer import Trainer, TrainingModule, seed_everything

NUM_STEPS = 50


class Diffusion(TrainingModule):
    signal: Tensor

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        angles = torch.linspace(0.05, 1, NUM_STEPS) * torch.pi / 2
        self.register_buffer("signal", angles.cos().square().clamp(min=1e-3))  # the share of the picture in each step
        self.time, self.digit = nn.Embedding(NUM_STEPS, width), nn.Embedding(10, width)
        self.pixels, self.out = nn.Linear(64, width), nn.Linear(width, 64)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            for _ in range(3)
        )

    def forward(self, noisy: Tensor, step: Tensor, digit: Tensor) -> Tensor:
        x, condition = self.pixels(noisy), self.time(step) + self.digit(digit)
        for layer in self.layers:
            x = x + layer(x + condition)
        return self.out(x)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        pictures, digits = batch
        step = torch.randint(NUM_STEPS, (len(pictures),), device=self.device)
        noise, signal = torch.randn_like(pictures), self.signal[step, None]
        noisy = signal.sqrt() * pictures + (1 - signal).sqrt() * noise
        loss = nn.functional.mse_loss(self(noisy, step, digits), noise)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)

    @torch.no_grad()
    def draw(self, digits: Tensor) -> list[Tensor]:
        """Return the pictures after each step: pure noise first, digits last."""
        pictures = [torch.randn(len(digits), 64, device=self.device)]
        for step in reversed(range(NUM_STEPS)):
            noise = self(pictures[-1], torch.full_like(digits, step), digits)
            signal = self.signal[step]
            clean = ((pictures[-1] - (1 - signal).sqrt() * noise) / signal.sqrt()).clamp(-1, 1)
            before = self.signal[step - 1] if step > 0 else torch.ones_like(signal)
            fresh = (1 - before) / (1 - signal) * (1 - signal / before)  # the variance of the noise that is new
            rest = (1 - before - fresh).clamp(min=0).sqrt() * noise
            pictures.append(before.sqrt() * clean + rest + fresh.sqrt() * torch.randn_like(noise))
        return pictures


def save(path: Path, pictures: list[Tensor]) -> None:
    """Draw how one picture of each digit comes out of noise, a column each."""
    shown = torch.stack([pictures[idx] for idx in (0, 20, 30, 40, 45, 50)])[:, :10].view(-1, 10, 8, 8)
    tiles = nn.functional.pad(shown, (1, 1, 1, 1), value=-1).transpose(1, 2)  # with margins
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.imshow(tiles.reshape(60, 100).numpy(), cmap="gray_r", vmin=-1, vmax=1)
    axes.axis("off")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a diffusion model that draws handwritten digits.")
    parser.add_argument("--max-epochs", type=int, default=150, help="epochs to train (default: 150)")
    parser.add_argument("--output", type=Path, default=Path("digits.png"), help="the picture")
    arguments = parser.parse_args()
    seed_everything(0)
    pixels, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pixels / 8 - 1, dtype=torch.float32), torch.tensor(labels))
    model = Diffusion()
    averaging = EMAWeightAveraging(decay=0.99)  # the module has the averages after fit
    trainer = Trainer(max_epochs=arguments.max_epochs, callbacks=[averaging], logger=False, enable_checkpointing=False)
    trainer.fit(model, DataLoader(data, batch_size=128, shuffle=True, drop_last=True))

    wanted = torch.arange(10).repeat(50)
    pictures = [one.cpu() for one in model.draw(wanted.to(model.device))]
    save(arguments.output, pictures)
    recognised = SVC().fit(pixels / 8 - 1, labels).predict(pictures[-1].numpy())
    print(f"picture: {arguments.output.resolve()}")
    print(f"digits that a classifier takes for those asked for: {(recognised == wanted.numpy()).mean():.1%}")


if __name__ == "__main__":
    main()
