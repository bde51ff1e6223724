"""Train on a stream of Hugging Face's `datasets`: tell lines of Python from lines of its documentation.

The texts come with Python, and are written as files of JSON lines first, as a corpus would lie on a disk. They are read
as a stream, shuffled in a buffer, and shared out between processes by `split_dataset_by_node`. The lines that the model
knows best and worst are printed:

    python examples/recipes/streaming.py --output streaming_output
"""

from __future__ import annotations

import argparse
import inspect
import json
import random
import zlib
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from datasets import load_dataset
from datasets.distributed import split_dataset_by_node
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchmetrics.classification import BinaryAccuracy

from camshaft.trainer import DataModule, Trainer, TrainingModule, seed_everything

NUM_BUCKETS, LENGTH = 4096, 80


def features(row: dict[str, Any]) -> dict[str, Any]:
    """Add the bucket of each three characters in a row; bucket 0 is padding."""
    triples = [row["text"][at : at + 3] for at in range(LENGTH)]
    return {**row, "triples": [1 + zlib.crc32(one.encode()) % (NUM_BUCKETS - 1) if one else 0 for one in triples]}


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    columns = {name: torch.tensor([row[name] for row in rows]) for name in ("triples", "is_code")}
    return {**columns, "text": [row["text"] for row in rows]}


class Lines(DataModule):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def prepare_data(self) -> None:  # in one process of each machine
        code = {line for module in (argparse, inspect, json, random) for line in inspect.getsource(module).split("\n")}
        prose = {line for text in topics.values() for line in text.split("\n")}
        rows = [{"text": line, "is_code": line in code} for line in sorted(code ^ prose) if len(line.strip()) > 8]
        random.Random(0).shuffle(rows)
        self.folder.mkdir(parents=True, exist_ok=True)
        for idx in range(8):
            lines = "\n".join(json.dumps(row) for row in rows[idx::8])
            (self.folder / f"{'val' if idx == 0 else 'train'}-{idx}.jsonl").write_text(lines)

    def stream(self, name: str) -> Any:
        files = sorted(str(path) for path in self.folder.glob(f"{name}-*.jsonl"))
        lines = load_dataset("json", data_files=files, split="train", streaming=True).map(features)
        return split_dataset_by_node(lines, self.trainer.global_rank, self.trainer.world_size)

    def train_dataloader(self) -> DataLoader[Any]:
        shuffled = self.stream("train").shuffle(seed=0, buffer_size=1000)  # otherwise in each epoch
        return DataLoader(shuffled, batch_size=64, collate_fn=collate)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.stream("val"), batch_size=256, collate_fn=collate)

    predict_dataloader = val_dataloader


class Classifier(TrainingModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.EmbeddingBag(NUM_BUCKETS, 16, padding_idx=0), nn.ReLU(), nn.Linear(16, 1))
        self.accuracy = BinaryAccuracy()

    def forward(self, triples: Tensor) -> Tensor:
        return self.net(triples).squeeze(1)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        logits = self(batch["triples"])
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch["is_code"].float())
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.accuracy(self(batch["triples"]).sigmoid(), batch["is_code"])
        self.log("val_accuracy", self.accuracy, prog_bar=True)

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[tuple[float, str]]:
        return list(zip(self(batch["triples"]).sigmoid().tolist(), batch["text"], strict=True))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on a stream: tell lines of Python from its documentation.")
    parser.add_argument("--max-epochs", type=int, default=3, help="epochs to train (default: 3)")
    parser.add_argument("--output", type=Path, default=Path("streaming_output"), help="folder of data and checkpoints")
    arguments = parser.parse_args()
    seed_everything(0)
    # a buffer has no state: a run that is stopped inside an epoch reads again what it has read, and drops it
    options: dict[str, Any] = {"stateless_loaders": "fast_forward", "default_root_dir": arguments.output}
    trainer = Trainer(max_epochs=arguments.max_epochs, logger=False, **options)
    model, lines = Classifier(), Lines(arguments.output / "lines")
    trainer.fit(model, lines)
    accuracy = float(trainer.callback_metrics["val_accuracy"])  # another verb begins with none
    found = sorted(one for batch in trainer.predict(model, lines) for one in batch)
    for title, shown in (("most like prose:", found[:5]), ("most like code:", found[-5:])):
        print(title, *(text for _, text in shown), sep="\n  ")
    print(f"lines told right: {accuracy:.1%}")


if __name__ == "__main__":
    main()
