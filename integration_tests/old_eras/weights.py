"""Trains modules of earlier eras on this rank, and reports what came of each.

    weights.py FOLDER [NAME...]

Each is trained three times: on one device with whole batches, on two ranks with a share of each batch, and once more on
two ranks, from a checkpoint that the second training wrote inside an epoch.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from launching import report
from torch.utils.data import DataLoader, TensorDataset

from camshaft.compat import install_aliases
from camshaft.strategies import DDPStrategy, SingleDeviceStrategy

install_aliases()
sys.path.insert(0, str(Path(__file__).parents[1]))

import pytorch_lightning as pl  # noqa: E402

from old_eras import modules  # noqa: E402

NUM_SAMPLES, NUM_FEATURES, GLOBAL_BATCH_SIZE, NUM_EPOCHS = 48, modules.NUM_FEATURES, 8, 2
SAVED_AT = 3  # batches of the second epoch, in which a window of two is open


class SaveInside(pl.Callback):
    """Saves once, inside the second epoch, by the hook as 1.1 had it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int
    ) -> None:
        if trainer.current_epoch == 1 and batch_idx + 1 == SAVED_AT:
            trainer.save_checkpoint(self.path)


CASES: dict[str, tuple[type[modules.Net], dict[str, Any]]] = {
    "gan_0_5": (modules.GanOfOwnSteps05, {}),
    "gan_0_8": (modules.Gan08, {}),
    "gan_0_8 accumulated": (modules.Gan08, {"accumulate_grad_batches": 2}),
    "gan_1_x": (modules.GanInTurn1x, {}),
    "gan_1_3": (modules.GanOfOwnSteps13, {}),
    "manual_gan_1_1": (modules.ManualGan11, {}),
    "branches_1_4": (modules.Branches14, {}),
    "language_model_0_7": (modules.LanguageModel07, {"truncated_bptt_steps": 4}),
    "language_model_0_7 accumulated": (
        modules.LanguageModel07,
        {"truncated_bptt_steps": 4, "accumulate_grad_batches": 2},
    ),
    "warmup_0_5": (modules.Warmup05, {}),
    "warmup_0_5 accumulated": (modules.Warmup05, {"accumulate_grad_batches": 2}),
    "warmup_0_7": (modules.Warmup07, {"gradient_clip_val": 0.05}),
    "warmup_0_7 accumulated": (modules.Warmup07, {"accumulate_grad_batches": {0: 2}}),
    "lbfgs_0_8": (modules.Lbfgs08, {"precision": 64}),
    "warmup_1_2": (modules.Warmup12, {"gradient_clip_val": 0.05}),
    "warmup_1_2 accumulated": (modules.Warmup12, {"accumulate_grad_batches": 2}),
    "step_end_1_1": (modules.StepEnd11, {}),
    "skipping_0_8": (modules.Skipping08, {}),
}


def make_data(module: modules.Net) -> TensorDataset:
    torch.manual_seed(2)
    if isinstance(module, modules.LanguageModel07):
        data = torch.randn(NUM_SAMPLES, 8, NUM_FEATURES // 4)
        return TensorDataset(data, torch.sin(data.sum(2).cumsum(1)))
    data = torch.randn(NUM_SAMPLES, NUM_FEATURES)
    return TensorDataset(data, torch.sin(data.sum(1)))


def train(name: str, num_ranks: int, folder: str, *, saves: bool = False, resumes: bool = False) -> dict[str, Any]:
    """Train. Returns the weights, what was logged, and what the module saw."""
    kind, given = CASES[name]
    arguments = {"accumulate_grad_batches": 1, **given}
    precision = arguments.pop("precision", 32)
    strategy: Any = SingleDeviceStrategy("cpu", precision=precision)
    if num_ranks > 1:
        strategy = DDPStrategy(accelerator="cpu", devices=num_ranks, precision=precision)
    torch.manual_seed(1)
    module = kind()
    path = os.path.join(folder, f"{name}.ckpt")
    trainer = pl.Trainer(
        strategy=strategy,
        max_epochs=NUM_EPOCHS,
        logger=False,
        checkpoint_callback=False,
        progress_bar_refresh_rate=0,
        weights_summary=None,
        callbacks=[SaveInside(path)] if saves else None,
        default_root_dir=folder,
        **arguments,
    )
    loader = DataLoader(make_data(module), GLOBAL_BATCH_SIZE // num_ranks, shuffle=True)
    trainer.fit(module, loader, ckpt_path=path if resumes else None)
    return {
        "weights": {key: value.detach().clone() for key, value in module.state_dict().items()},
        "metrics": {key: float(value) for key, value in trainer.callback_metrics.items()},
        "seen": module.seen,
        "steps": trainer.global_step,
    }


def run_case(name: str, folder: str) -> dict[str, Any]:
    alone = train(name, 1, folder)
    together = train(name, 2, folder, saves=True)
    resumed = train(name, 2, folder, resumes=True)
    torch.manual_seed(1)
    start = CASES[name][0]().state_dict()
    expected, weights = alone["weights"], together["weights"]
    strategy = DDPStrategy(accelerator="cpu", devices=2)
    strategy.connect()
    of_ranks = strategy.all_gather(weights)
    return {
        "moved": max(float((expected[key] - value).abs().max()) for key, value in start.items()),
        "error": max(float((weights[key] - value).abs().max()) for key, value in expected.items()),
        "same on all ranks": all(torch.equal(other[key], weights[key]) for other in of_ranks for key in weights),
        "resumed to the bit": all(torch.equal(resumed["weights"][key], weights[key]) for key in weights),
        **{
            run: {key: found[key] for key in ("metrics", "seen", "steps")}
            for run, found in (("alone", alone), ("together", together), ("resumed", resumed))
        },
    }


def main(folder: str, *names: str) -> None:
    warnings.simplefilter("ignore")
    for name in names or CASES:
        report((name, run_case(name, folder)))


if __name__ == "__main__":
    main(*sys.argv[1:])
