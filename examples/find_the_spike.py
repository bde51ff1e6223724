"""Find a spike of the loss: detect it, go back to its step, name the submodule, and search for the first bad update.

A small network learns to predict a rate, with a ledger of what each update did. One sample has a value that is far too
large, as a broken file or a wrong unit gives. Four questions are answered one after the other:

1. When? ``SpikeDetection`` warns of the batch. Training goes on, but its weights are NaN from then on.
2. Where? ``replay`` makes that update again from the checkpoint before, checked against the ledger, and names
   the first submodule whose output is not finite.
3. What was it? The batch of the replayed step has the sample.
4. Since when are the weights damaged? ``bisect`` searches between a good and a bad checkpoint.

Run ``python examples/find_the_spike.py``; ``--plot spike.png`` draws a picture (needs matplotlib).
"""

from __future__ import annotations

import argparse
import math
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.callbacks import ModelCheckpoint, SpikeDetection
from camshaft.forensics import ReplayedStep, RunLedger, bisect, replay
from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer, TrainingModule, seed_everything

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NUM_SAMPLES, BATCH_SIZE, NUM_EPOCHS, CHECKPOINT_EVERY = 4096, 16, 2, 50
BAD_SAMPLE, BAD_VALUE = 390, 3e4


class Exponential(nn.Module):
    """Makes a rate, which is positive, of any number."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.exp()


class RateNetwork(TrainingModule):
    """Predicts a rate."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1))
        self.mixer = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 1)
        self.rate = Exponential()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self.rate(self.head(self.mixer(self.encoder(inputs)))), targets)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Losses(Callback):
    """Keeps the losses, for the picture."""

    only_observes = True  # a replay leaves it out

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_before_backward(self, trainer: Any, module: Any, loss: Tensor) -> None:
        self.values.append(loss.item())


def make_parts(folder: Path) -> tuple[Trainer, RateNetwork, Any]:
    """Return trainer, network and data. A replay needs the same as the training."""
    seed_everything(4)
    inputs = torch.randn(NUM_SAMPLES, 8)
    targets = (0.5 * inputs.sum(dim=1, keepdim=True) / 8**0.5).exp()
    inputs[BAD_SAMPLE] *= BAD_VALUE  # the planted fault
    loader: Any = DataLoader(TensorDataset(inputs, targets), BATCH_SIZE, shuffle=True)
    trainer = Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        max_epochs=NUM_EPOCHS,
        callbacks=[
            Losses(),
            RunLedger(folder),
            ModelCheckpoint(folder, every_n_train_steps=CHECKPOINT_EVERY, save_top_k=-1, filename="{step}"),
            SpikeDetection(atol=10.0, rtol=20.0, warmup=50, action="warn", exclude_batches_path=folder),
        ],
        logger=False,
        enable_progress_bar=False,
    )
    return trainer, RateNetwork(), loader


def is_damaged(module: nn.Module) -> bool:
    """Return whether a weight is not finite."""
    return not all(bool(parameter.isfinite().all()) for parameter in module.parameters())


def find(folder: Path) -> tuple[list[float], ReplayedStep, ReplayedStep]:
    """Train, and answer the questions.

    Returns:
        The losses of the training, the step before the spike and that of the spike.
    """
    trainer, network, data = make_parts(folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(network, data)
    told = next(str(one.message) for one in caught if "jumped" in str(one.message))
    print(f"1. SpikeDetection: {told}")

    watch: Any = next(one for one in trainer.callbacks if isinstance(one, SpikeDetection))
    losses = next(one.values for one in trainer.callbacks if isinstance(one, Losses))
    epoch, batch_idx = watch.bad_batches[1]  # the first is the batch before it
    step = epoch * math.ceil(NUM_SAMPLES / BATCH_SIZE) + batch_idx + 1

    steps = []
    for number in (step - 1, step):
        trainer, network, data = make_parts(folder)
        steps += replay(trainer, network, data, ckpt_path=folder, to_step=number)
    before, spike = steps
    print(f"2. The replay of step {step} equals the ledger. {spike.inspection.first_non_finite}")
    print(spike.inspection.render(max_rows=12))

    largest = spike.batch[0].abs().amax(dim=1)
    print(f"3. Its batch: the largest values of its samples are {', '.join(f'{one:.3g}' for one in largest.tolist())}.")

    trainer, network, data = make_parts(folder)
    last = len(losses) // CHECKPOINT_EVERY * CHECKPOINT_EVERY
    good, bad = (folder / f"step={number}.ckpt" for number in (CHECKPOINT_EVERY, last))
    found = bisect(trainer, network, data, good=good, bad=bad, when=is_damaged)
    print(f"4. The weights are damaged from step {found} on, between {good.name} and {bad.name}.")
    return losses, before, spike


def draw(path: Path, losses: list[float], before: ReplayedStep, spike: ReplayedStep) -> None:
    """Draw the losses, and how large the outputs of the submodules are before the spike and at it."""
    import matplotlib

    matplotlib.use("Agg")  # draws without a screen
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    draw_losses(left, losses, spike.step)
    draw_norms(right, before, spike)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def draw_losses(axes: Axes, losses: list[float], step: int) -> None:
    """Draw the losses up to the spike, which has no finite value."""
    axes.plot(range(1, step), losses[: step - 1], linewidth=0.9, color="tab:blue")
    axes.axvline(step, color="tab:red", linewidth=1.5)
    axes.axvspan(step, len(losses), color="tab:red", alpha=0.08, linewidth=0)
    axes.text(0.98, 0.95, "weights are NaN", transform=axes.transAxes, ha="right", va="top", color="tab:red")
    axes.set(title=f"The loss becomes infinite at step {step}", xlabel="step", ylabel="loss", yscale="log")
    axes.set_xlim(0, len(losses))


def draw_norms(axes: Axes, before: ReplayedStep, spike: ReplayedStep) -> None:
    """Draw the norms of the submodules' outputs at both steps; a cross where some of it is not finite."""
    shown = {call.name: call.outputs[""] for call in spike.inspection.calls}
    names = list(shown)
    usual = [call.outputs[""].norm for call in before.inspection.calls]
    norms = [one.norm for one in shown.values()]
    rows = range(len(names))
    top = 10 * max(norm for norm in (*usual, *norms) if math.isfinite(norm))
    bad = [row for row, one in zip(rows, shown.values(), strict=True) if one.num_non_finite]
    axes.hlines(rows, usual, [top if row in bad else norms[row] for row in rows], color="lightgray", linewidth=3)
    axes.plot(usual, rows, "o", color="tab:blue", label=f"step {before.step}")
    good = [row for row in rows if row not in bad]
    axes.plot([norms[row] for row in good], good, "o", color="tab:red", label=f"step {spike.step}")
    axes.plot([top] * len(bad), bad, "x", color="tab:red", markersize=10, markeredgewidth=2.5, label="not finite")
    axes.set_yticks(rows, names)
    axes.invert_yaxis()
    first = spike.inspection.first_non_finite
    assert first is not None
    axes.set(title=f"`{first.name}` is the first that is not finite", xlabel="norm of the outputs", xscale="log")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    axes.grid(axis="x", alpha=0.3)


def main() -> None:
    """Tell the story, in files that are removed afterwards."""
    parser = argparse.ArgumentParser(description="Find a spike of the loss and its cause.")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a picture")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        losses, before, spike = find(Path(folder))
    if options.plot is not None:
        draw(options.plot, losses, before, spike)


if __name__ == "__main__":
    main()
