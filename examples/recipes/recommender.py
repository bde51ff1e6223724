"""Train a recommender on two kinds of data at once: few ratings, and many clicks.

Both loaders are read together; the shorter one begins anew. The data is made from tastes that the model does not see.
It is trained with the clicks and without, and asked for ratings of films that users have not rated:

    python examples/recipes/recommender.py --output ratings.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.loops import CombinedLoader
from camshaft.trainer import Trainer, TrainingModule, seed_everything

NUM_USERS, NUM_FILMS, NUM_TASTES = 300, 200, 4


class Recommender(TrainingModule):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.users, self.films = nn.Embedding(NUM_USERS, width), nn.Embedding(NUM_FILMS, width)
        self.scale, self.mean = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(()))
        for embedding in (self.users, self.films):
            nn.init.normal_(embedding.weight, std=0.1)

    def forward(self, user: Tensor, film: Tensor) -> Tensor:
        return (self.users(user) * self.films(film)).sum(dim=1)

    def rating(self, user: Tensor, film: Tensor) -> Tensor:
        return self.scale * self(user, film) + self.mean

    def training_step(self, batch: dict[str, list[Tensor]], batch_idx: int) -> Tensor:
        user, film, rating = batch["ratings"]
        losses = {"ratings_loss": nn.functional.mse_loss(self.rating(user, film), rating)}
        if "clicks" in batch:
            user, film = batch["clicks"]
            other = torch.randint(NUM_FILMS, film.shape, device=self.device)  # most likely not clicked on
            losses["clicks_loss"] = -nn.functional.logsigmoid(self(user, film) - self(user, other)).mean()
        self.log_dict(losses, prog_bar=True)
        return torch.stack(list(losses.values())).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-2, weight_decay=0.1)


def make_data() -> tuple[TensorDataset, TensorDataset, TensorDataset]:
    """Return a few ratings to train on, many clicks, and the ratings that are asked for."""
    users, films = torch.randn(NUM_USERS, NUM_TASTES), torch.randn(NUM_FILMS, NUM_TASTES)
    liking = users @ films.T / NUM_TASTES**0.5
    user, film = torch.cartesian_prod(torch.arange(NUM_USERS), torch.arange(NUM_FILMS)).T
    rating = (liking + 0.1 * torch.randn_like(liking)).flatten()
    order = torch.randperm(len(user))
    few, asked = order[:1500], order[1500:4500]  # five ratings of each user
    clicked = torch.rand_like(rating) < 0.7 * torch.sigmoid(3 * rating - 2)
    ratings = TensorDataset(user[few], film[few], rating[few])
    return ratings, TensorDataset(user[clicked], film[clicked]), TensorDataset(user[asked], film[asked], rating[asked])


def train(loaders: dict[str, DataLoader[tuple[Tensor, ...]]], asked: TensorDataset, max_steps: int) -> Tensor:
    """Return the ratings that are asked for, by a model that is trained on some data."""
    seed_everything(0)
    model, combined = Recommender(), CombinedLoader(loaders, mode="max_size_cycle")
    trainer = Trainer(
        max_steps=max_steps, gradient_clip_val=1.0, logger=False, enable_checkpointing=False, enable_model_summary=False
    )
    trainer.fit(model, combined)
    with torch.no_grad():  # all of them on every rank; `trainer.predict` would share them out
        return model.cpu().rating(*asked.tensors[:2])


def draw(path: Path, truth: Tensor, predicted: dict[str, Tensor]) -> None:
    figure = Figure(figsize=(8, 4), layout="constrained")
    both = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, (name, ratings) in zip(both, predicted.items(), strict=True):
        axes.scatter(truth, ratings, s=3, alpha=0.4)
        axes.axline((0, 0), slope=1, color="gray", linewidth=1)
        axes.set(title=name, xlabel="rating")
    both[0].set_ylabel("predicted")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a recommender on ratings and clicks.")
    parser.add_argument("--max-steps", type=int, default=600, help="updates of each model (default: 600)")
    parser.add_argument("--output", type=Path, default=Path("ratings.png"), help="the picture")
    arguments = parser.parse_args()
    seed_everything(0)
    ratings, clicks, asked = make_data()
    alone = {"ratings": DataLoader(ratings, batch_size=128, shuffle=True)}
    both = {**alone, "clicks": DataLoader(clicks, batch_size=512, shuffle=True)}
    predicted = {
        "ratings alone": train(alone, asked, arguments.max_steps),
        "ratings and clicks": train(both, asked, arguments.max_steps),
    }
    truth = asked.tensors[2]
    draw(arguments.output, truth, predicted)
    print(f"picture: {arguments.output.resolve()}")
    for name, values in predicted.items():
        explained = 1 - (values - truth).square().mean() / truth.var()
        print(f"variance of ratings explained by {name}: {explained:.1%}")


if __name__ == "__main__":
    main()
