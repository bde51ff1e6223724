"""Trains every module of `old_modules` in one process and prints, as JSON, what came of each.

Started as `python old_modules_run.py DIRECTORY [NAME ...]`, so that the names old code imports are there in it alone.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util.tensor_util import make_ndarray

from camshaft.compat import install_aliases
from camshaft.trainer import seed_everything

Facts = dict[str, Any]


def alternating_gan_0_5(trainer: Any, module: Any, root: Path) -> Facts:
    samples = module(torch.randn(256, 4)).detach()
    return {
        "distance": float((samples.mean(0) - 3.0).norm()),
        "generator_steps": module.num_generator_steps,
        "discriminator_steps": module.num_discriminator_steps,
        "gradient_norms": module.gradient_norms,
        "epoch": trainer.current_epoch,
        "metrics": sorted(trainer.callback_metrics),
        "columns": columns(root),
    }


def vae_0_7(trainer: Any, module: Any, root: Path) -> Facts:
    return {
        "validations": module.epochs_of_validation,
        "best": trainer.checkpoint_callback.best_model_path,
        "best_score": float(trainer.checkpoint_callback.best_model_score),
        "progress_bar": sorted(trainer.progress_bar_metrics),
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "latent_dim": module.hparams.latent_dim,
        "event_files": len(list(root.rglob("events.out.tfevents*"))),
        "lr": trainer.optimizers[0].param_groups[0]["lr"],
    }


def classifier_0_8(trainer: Any, module: Any, root: Path) -> Facts:
    return {
        "called": module.called,
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "checkpoints": [path.name for path in root.rglob("best*")],
        "columns": columns(root),
        "global_step": trainer.global_step,
    }


def dqn_0_8(trainer: Any, module: Any, root: Path) -> Facts:
    rewards = module.rewards
    return {
        "first": sum(rewards[:10]) / 10,
        "last": sum(rewards[-10:]) / 10,
        "steps": trainer.global_step,
        "columns": columns(root),
    }


def language_model_1_1(trainer: Any, module: Any, root: Path) -> Facts:
    return {"seen": module.seen, "losses": module.epoch_losses, "columns": columns(root)}


def byol_1_3(trainer: Any, module: Any, root: Path) -> Facts:
    rows = read_rows(root)
    losses = [float(row["train_loss"]) for row in rows if row.get("train_loss")]
    apart = [
        float((a - b).abs().max())
        for a, b in zip(module.online_network.parameters(), module.target_network.parameters(), strict=True)
    ]
    return {
        "losses": losses,
        "apart": apart,
        "lrs": module.lrs,
        "num_updates": module.weight_callback.num_updates,
        "steps": trainer.global_step,
    }


def finetuning_1_2(trainer: Any, module: Any, root: Path) -> Facts:
    return {
        "trainable": module.finetuning.trainable,
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "num_groups": len(trainer.optimizers[0].param_groups),
    }


def vq_model_1_4(trainer: Any, module: Any, root: Path) -> Facts:
    rows = read_rows(root)
    return {
        "val": [float(row["val/rec_loss"]) for row in rows if row.get("val/rec_loss")],
        "optimizer_idxs": module.optimizer_idxs,
        "logged": module.image_logger.logged,
        "prepared": module.image_logger.prepared,
        "columns": columns(root),
        "epochs": trainer.current_epoch,
    }


def manual_gan_1_1(trainer: Any, module: Any, root: Path) -> Facts:
    mean = module.sample(512).detach().mean(0)
    return {
        "distance": math.dist(mean.tolist(), [3.0, -2.0]),
        "metrics": sorted(trainer.callback_metrics),
        "num_outputs": module.num_outputs,
    }


FACTS: dict[str, Callable[[Any, Any, Path], Facts]] = {
    function.__name__: function
    for function in (
        alternating_gan_0_5,
        vae_0_7,
        classifier_0_8,
        dqn_0_8,
        language_model_1_1,
        manual_gan_1_1,
        finetuning_1_2,
        byol_1_3,
        vq_model_1_4,
    )
}


def read_rows(root: Path) -> list[dict[str, str]]:
    """The values that the default logger wrote for TensorBoard, in order."""
    rows = []
    for file in sorted(root.rglob("events.out.tfevents*")):
        for event in EventFileLoader(str(file)).Load():
            values = {
                value.tag: make_ndarray(value.tensor) for value in event.summary.value if value.HasField("tensor")
            }
            rows += [
                {name: str(value.item())}
                for name, value in values.items()
                if value.dtype.kind == "f" and value.size == 1
            ]
    return rows


def columns(root: Path) -> list[str]:
    """Names of these values."""
    return sorted({name for row in read_rows(root) for name, value in row.items() if value})


def main(root: str, *names: str) -> None:
    """Print what came of each module; the output of training itself goes to standard error."""
    install_aliases()
    out, sys.stdout = sys.stdout, sys.stderr
    for name in names or FACTS:
        directory = Path(root, name)
        directory.mkdir(parents=True)
        seed_everything(1)
        try:
            trainer, module = importlib.import_module(f"old_modules.{name}").main(str(directory))
            facts = FACTS[name](trainer, module, directory)
        except Exception:
            facts = {"error": traceback.format_exc()}
        print(json.dumps({"name": name, **facts}), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
