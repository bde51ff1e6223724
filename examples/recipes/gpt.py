"""Train a small GPT to write like Python's documentation, one character after the other.

Muon updates the matrices of its blocks and AdamW all else; a batch counts by its characters, of which paragraphs have
unlike numbers; averaged weights are validated and write. With more steps a second run goes on where the first ended;
`tensorboard --logdir gpt_output` shows samples of text beside the curves:

    python examples/recipes/gpt.py --output gpt_output
"""

from __future__ import annotations

import argparse
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from camshaft.callbacks import EMAWeightAveraging, ModelCheckpoint, TensorBoardLogger
from camshaft.trainer import JointOptimizer, Trainer, TrainingModule, WeightedLoss, seed_everything

PADDING = -100  # the target that `cross_entropy` leaves out


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.heads, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        query, key, value = self.heads(self.norms[0](x)).view(batch, time, 3, 4, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.mlp(self.norms[1](x))


class GPT(TrainingModule):
    def __init__(self, vocabulary: str, context: int = 64, width: int = 64) -> None:
        super().__init__()
        self.vocabulary, self.context = vocabulary, context
        self.characters, self.places = nn.Embedding(len(vocabulary), width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(vocabulary))

    def forward(self, characters: Tensor) -> Tensor:
        places = torch.arange(characters.shape[1], device=characters.device)
        return self.head(self.norm(self.blocks(self.characters(characters) + self.places(places))))

    def loss(self, text: Tensor) -> WeightedLoss:
        inputs, targets = text[:, :-1].clamp(min=0), text[:, 1:]
        loss = nn.functional.cross_entropy(self(inputs).flatten(0, 1), targets.flatten(), ignore_index=PADDING)
        return WeightedLoss(loss, (targets != PADDING).sum())

    def training_step(self, batch: Tensor, batch_idx: int) -> WeightedLoss:
        loss = self.loss(batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), prog_bar=True)

    def on_validation_epoch_end(self) -> None:  # the module has the averaged weights here
        if not self.trainer.sanity_checking:
            self.logger.experiment.add_text("sample", self.write("The "), self.global_step)

    def encode(self, text: str, length: int) -> Tensor:
        return torch.tensor([self.vocabulary.index(one) for one in text] + [PADDING] * (length - len(text)))

    @torch.no_grad()
    def write(self, text: str) -> str:
        generator = torch.Generator().manual_seed(0)
        for _ in range(150):
            logits = self(self.encode(text[-self.context :], self.context)[None].clamp(min=0).to(self.device))
            chances = (logits[0, min(len(text), self.context) - 1].float() / 0.6).softmax(0).cpu()  # temperature 0.6
            text += self.vocabulary[int(torch.multinomial(chances, 1, generator=generator))]
        return text

    def configure_optimizers(self) -> Any:
        matrices = [one for name, one in self.named_parameters() if name.startswith("blocks") and one.ndim == 2]
        others = [one for name, one in self.named_parameters() if not name.startswith("blocks") or one.ndim < 2]
        muon = torch.optim.Muon(matrices, lr=1e-2, adjust_lr_fn="match_rms_adamw")
        optimizer = JointOptimizer(muon, torch.optim.AdamW(others, lr=1e-2))
        warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=20)  # of both
        return [optimizer], [{"scheduler": warmup, "interval": "step"}]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT on Python's documentation.")
    parser.add_argument("--max-steps", type=int, default=800, help="updates of two batches each (default: 800)")
    parser.add_argument("--devices", default="auto", help="their number: processes, where it is more than one")
    parser.add_argument("--compile", metavar="BACKEND", help="compile the blocks by it, such as inductor")
    parser.add_argument("--output", type=Path, default=Path("gpt_output"), help="folder of the run")
    arguments = parser.parse_args()
    seed_everything(0)
    paragraphs = list(dict.fromkeys("\n\n".join(topics.values()).split("\n\n")))  # each of them once
    model = GPT(vocabulary="".join(sorted(set("".join(paragraphs)))))
    rows = [model.encode(one[: model.context + 1], model.context + 1) for one in paragraphs if len(one) > 1]
    train: DataLoader[Tensor] = DataLoader(rows[200:], 16, shuffle=True)  # type: ignore[arg-type]
    held_out: DataLoader[Tensor] = DataLoader(rows[:200], 64)  # type: ignore[arg-type]
    trainer = Trainer(
        devices=arguments.devices,
        max_steps=arguments.max_steps,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        compile={"backend": arguments.compile, "policy": Block} if arguments.compile else None,
        callbacks=[EMAWeightAveraging(decay=0.95), ModelCheckpoint(arguments.output / "checkpoints", save_last=True)],
        logger=TensorBoardLogger(arguments.output, name="", version="log"),
    )
    trainer.fit(model, train, held_out, ckpt_path="last")  # the newest checkpoint in the folder, if there is one
    loss = trainer.validate(model, held_out)[0]["val_loss"]
    print(f"\n{model.write('The ')}\n\nloss per character after {trainer.global_step} updates: {loss:.3f}")


if __name__ == "__main__":
    main()
