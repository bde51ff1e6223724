"""Train a recurrent network to write like Python's documentation, one character after the other.

The text is what `help()` says about the language; it comes with Python, so nothing is downloaded. From the root of the
repository:

    python examples/char_gru.py --output char_gru_output

Sequences are 512 characters long, but gradients go back through 64 of them at most: the trainer cuts each batch into
splits and hands the hidden state, detached, from one to the next. So memory holds the graph of 64 characters, however
long sequences are. The folder then holds metrics (``logs/metrics.csv``) and a picture of them (``perplexity.png``).
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.text import Perplexity

from camshaft.callbacks import CSVLogger
from camshaft.trainer import Trainer, TrainingModule, seed_everything

Batch = list[Tensor]  # [characters (batch, time), those that follow each of them (batch, time)], by their indices


class CharGRU(TrainingModule):
    """Predicts the next character from those before it.

    Args:
        vocabulary: Every character, once.
        truncated_bptt_steps: Characters through which gradients go back; 0 leaves sequences whole.
    """

    def __init__(self, vocabulary: str, truncated_bptt_steps: int = 64) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.truncated_bptt_steps = truncated_bptt_steps  # the trainer reads this, and splits batches along time
        self.embedding = nn.Embedding(len(vocabulary), 64)
        self.gru = nn.GRU(64, 256, batch_first=True)
        self.head = nn.Linear(256, len(vocabulary))
        self.val_perplexity = Perplexity()

    def forward(self, characters: Tensor, hiddens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        outputs, hiddens = self.gru(self.embedding(characters), hiddens)
        return self.head(outputs), hiddens

    def training_step(self, batch: Batch, batch_idx: int, hiddens: Tensor | None) -> dict[str, Tensor]:
        characters, following = batch  # a split; `hiddens` is None in a batch's first
        logits, hiddens = self(characters, hiddens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())
        self.log("train_perplexity", loss.detach().exp(), prog_bar=True)
        return {"loss": loss, "hiddens": hiddens}  # the next split begins with these

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        characters, following = batch  # whole sequences: without gradients there is no graph to keep small
        logits, _ = self(characters)
        self.val_perplexity(logits, following)
        self.log("val_perplexity", self.val_perplexity, prog_bar=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=3e-3)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.65)]

    def encode(self, text: str) -> Tensor:
        return torch.tensor([self.vocabulary.index(character) for character in text])

    @torch.no_grad()
    def write(self, prompt: str, length: int, temperature: float, seed: int) -> str:
        """Go on with a text for `length` characters; the lower the temperature, the more likely ones."""
        written, characters, hiddens = "", self.encode(prompt), None
        generator = torch.Generator().manual_seed(seed)
        for _ in range(length):
            logits, hiddens = self(characters[None], hiddens)
            characters = torch.multinomial((logits[0, -1] / temperature).softmax(0), 1, generator=generator)
            written += self.vocabulary[int(characters)]
        return written


def read_text() -> str:
    """The help texts, each paragraph once, so that none is both trained on and held out; without tables."""
    paragraphs = "\n\n".join(topics.values()).split("\n\n")
    return "\n\n".join(paragraph for paragraph in dict.fromkeys(paragraphs) if " " * 12 not in paragraph)


def make_loader(indices: Tensor, sequence_length: int, shuffle: bool = False) -> DataLoader[tuple[Tensor, ...]]:
    sequences = indices.unfold(0, sequence_length + 1, sequence_length)  # with the character after the last
    return DataLoader(TensorDataset(sequences[:, :-1], sequences[:, 1:]), batch_size=16, shuffle=shuffle)


def unigram_perplexity(train_text: str, held_out_text: str) -> float:
    """What knowing how frequent each character is, and nothing else, reaches."""
    counts = Counter(train_text)
    surprises = [math.log(len(train_text) / max(counts[character], 1)) for character in held_out_text]
    return math.exp(sum(surprises) / len(surprises))


def draw(path: Path, metrics_path: Path, unigram: float) -> None:
    """Draw training and validation perplexity over the updates into a PNG."""
    import matplotlib

    matplotlib.use("Agg")  # Draws without a screen.
    import matplotlib.pyplot as plt

    with metrics_path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    labels = {"train_perplexity": ("training", "-"), "val_perplexity": ("validation", "o-")}
    for column, (label, style) in labels.items():
        points = [(int(row["step"]) + 1, float(row[column])) for row in rows if row[column]]
        axes.plot(*zip(*points, strict=True), style, label=label)
    axes.axhline(unigram, color="gray", linestyle="--", label="frequencies of characters alone")
    axes.set(xlabel="update", ylabel="perplexity", title="Python's documentation, character by character")
    ticks = [2, 3, 4, 6, 10, 20, 40]
    axes.set(xlim=(0, None), yscale="log", yticks=ticks, yticklabels=ticks)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a recurrent network to write like Python's documentation.")
    parser.add_argument("--seed", type=int, default=0, help="of the weights, order and writing (default: 0)")
    parser.add_argument("--max-epochs", type=int, default=6, help="epochs to train (default: 6)")
    parser.add_argument("--sequence-length", type=int, default=512, help="in characters (default: 512)")
    parser.add_argument("--split-size", type=int, default=64, help="in characters; 0 for no splits (default: 64)")
    parser.add_argument("--prompt", default="The ", help="what the network goes on with (default: 'The ')")
    parser.add_argument("--sample-length", type=int, default=500, help="characters to write (default: 500)")
    parser.add_argument("--temperature", type=float, default=0.5, help="of the writing (default: 0.5)")
    parser.add_argument("--output", type=Path, default=Path("char_gru_output"), help="folder for the results")
    arguments = parser.parse_args()
    text = read_text()
    if not arguments.prompt or not set(arguments.prompt) <= set(text):
        parser.error(f"--prompt must be made of characters of the text, but got {arguments.prompt!r}")
    output = arguments.output.resolve()
    metrics_path, plot_path = output / "logs/metrics.csv", output / "perplexity.png"
    for leftover in (metrics_path, plot_path):  # The folder describes one run only.
        leftover.unlink(missing_ok=True)

    seed_everything(arguments.seed)
    num_train = len(text) * 9 // 10
    train_text, held_out_text = text[:num_train], text[num_train:]
    model = CharGRU("".join(sorted(set(text))), arguments.split_size)
    train = make_loader(model.encode(train_text), arguments.sequence_length, shuffle=True)
    held_out = make_loader(model.encode(held_out_text), arguments.sequence_length)
    logger = CSVLogger(save_dir=output, name="", version="logs")
    options: dict[str, Any] = {"logger": logger, "log_every_n_steps": 1, "enable_checkpointing": False}
    trainer = Trainer(max_epochs=arguments.max_epochs, gradient_clip_val=1.0, **options)
    trainer.fit(model, train, held_out)

    unigram = unigram_perplexity(train_text, held_out_text)
    draw(plot_path, metrics_path, unigram)
    print("\nPerplexity per character of the held-out text; lower is better:")
    print(f"  guessing at random               {len(model.vocabulary):6.2f}")
    print(f"  frequencies of characters alone  {unigram:6.2f}")
    print(f"  after {trainer.global_step:4} updates               {trainer.callback_metrics['val_perplexity']:6.2f}")
    print(f"  metrics  {metrics_path}\n  picture  {plot_path}")
    print(f"\nThe network goes on after {arguments.prompt!r}:\n")
    written = model.write(arguments.prompt, arguments.sample_length, arguments.temperature, arguments.seed)
    print(arguments.prompt + written)


if __name__ == "__main__":
    main()
