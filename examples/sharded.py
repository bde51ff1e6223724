"""Train a small transformer that writes like Python's documentation, with each process holding a part of its weights.

The text is what `help()` says about the language; it comes with Python, so nothing is downloaded. From the root of the
repository, train two epochs on two processes, and a third on one:

    torchrun --nproc-per-node 2 examples/sharded.py --max-epochs 2 --output sharded_output
    python examples/sharded.py --max-epochs 3 --output sharded_output --resume

The layers are made in `configure_sharded_model`: there they take no memory, so a model may be larger than the memory of
any one process. Of the checkpoint, every process writes its parts; any number of processes reads it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

from camshaft.strategies import ShardedStrategy, SingleDeviceStrategy, find_process_environment
from camshaft.trainer import Trainer, TrainingModule, seed_everything

Loader = DataLoader[tuple[Tensor, ...]]
Batch = list[Tensor]  # [characters (batch, time), those that follow each of them (batch, time)], by their indices


class Block(nn.Module):
    """Attention to what comes before, then a perceptron."""

    def __init__(self, size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))
        self.queries_keys_values = nn.Linear(size, 3 * size)
        self.mix = nn.Linear(size, size)
        self.perceptron = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))

    def forward(self, x: Tensor) -> Tensor:
        projected = self.queries_keys_values(self.norms[0](x))
        heads = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in projected.chunk(3, dim=-1))
        queries, keys, values = heads
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.mix(attended.transpose(1, 2).flatten(2))
        return x + self.perceptron(self.norms[1](x))


class Transformer(TrainingModule):
    """Predicts the next character from those before it."""

    def __init__(
        self, num_characters: int, length: int, size: int = 64, num_heads: int = 4, num_blocks: int = 4
    ) -> None:
        super().__init__()
        self.num_characters, self.length = num_characters, length
        self.size, self.num_heads, self.num_blocks = size, num_heads, num_blocks
        self.blocks: nn.ModuleList | None = None

    def configure_sharded_model(self) -> None:
        if self.blocks is not None:  # the hook runs in every stage
            return
        self.characters = nn.Embedding(self.num_characters, self.size)
        self.positions = nn.Parameter(torch.randn(self.length, self.size) * 0.02)
        self.blocks = nn.ModuleList(Block(self.size, num_heads=4) for _ in range(self.num_blocks))
        self.norm = nn.LayerNorm(self.size)
        self.head = nn.Linear(self.size, self.num_characters, bias=False)
        self.head.weight = self.characters.weight
        self.apply(self.init)

    def init(self, part: nn.Module) -> None:
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=0.02)

    def forward(self, characters: Tensor) -> Tensor:
        x = self.characters(characters) + self.positions
        for block in self.blocks or []:
            x = block(x)
        return self.head(self.norm(x))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self(batch[0]).flatten(0, 1), batch[1].flatten())
        self.log("train_loss", loss.detach(), prog_bar=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        loss = F.cross_entropy(self(batch[0]).flatten(0, 1), batch[1].flatten())
        self.log("val_loss", loss, prog_bar=True, sync_dist=True, batch_size=len(batch[0]))

    def configure_optimizers(self) -> Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)  # of the parts of weights that this process holds


def make_loaders(
    length: int, num_characters: int
) -> tuple[str, DataLoader[tuple[Tensor, ...]], DataLoader[tuple[Tensor, ...]]]:
    """The characters that occur, and loaders of sequences of text for training and validation."""
    text = "\n\n".join(topics[name] for name in sorted(topics))[:num_characters]
    vocabulary = "".join(sorted(set(text)))
    indices = torch.tensor([vocabulary.index(character) for character in text])
    sequences = indices.unfold(0, length + 1, length)  # with the character after the last
    data = TensorDataset(sequences[:, :-1], sequences[:, 1:])
    training, validation = torch.utils.data.random_split(data, [0.9, 0.1], torch.Generator().manual_seed(0))
    return vocabulary, DataLoader(training, batch_size=16, shuffle=True), DataLoader(validation, batch_size=16)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a transformer on sharded weights.")
    parser.add_argument("--output", type=Path, default=Path("sharded_output"), help="folder of checkpoint and logs")
    parser.add_argument("--max-epochs", type=int, default=2, help="epochs to train in all")
    parser.add_argument("--num-characters", type=int, default=150_000, help="how much of the text to take")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in the folder")
    arguments = parser.parse_args()

    seed_everything(0)
    vocabulary, train_loader, val_loader = make_loaders(length=64, num_characters=arguments.num_characters)
    is_alone = find_process_environment().world_size == 1
    # Each block is gathered when it computes; what is outside of blocks, such as the shared weights of embedding and
    # head, is gathered for the whole step.
    strategy = SingleDeviceStrategy() if is_alone else ShardedStrategy(policy=Block)
    trainer = Trainer(
        strategy=strategy,
        max_epochs=arguments.max_epochs,
        gradient_clip_val=1.0,
        default_root_dir=arguments.output,
        enable_checkpointing=False,
    )
    checkpoint = arguments.output / "transformer.ckpt"
    model = Transformer(len(vocabulary), length=64)
    trainer.fit(model, train_loader, val_loader, ckpt_path=checkpoint if arguments.resume else None)
    trainer.save_checkpoint(checkpoint)
    if trainer.is_global_zero:
        loss = float(trainer.callback_metrics["val_loss"])
        print(f"{strategy.world_size} process(es), {trainer.global_step} updates: validation loss {loss:.3f}")


if __name__ == "__main__":
    main()
