"""Train on a Ray cluster: Ray's TorchTrainer starts the workers, and a camshaft trainer runs in each of them.

Ray is not among the project's requirements: ``pip install "ray[train]"``. From the root of the repository:

    python examples/ray_train.py --num-workers 2 --output ray_output

``--learning-rates 0.0003 0.003`` first tries each of these by Ray Tune, in a process of its own, and trains with the
best.

Without a cluster (``--address``) Ray starts one on this machine. The workers share one process group that Ray has
initialised; the trainer finds it and uses it, so it needs no argument for it: `strategy="auto"` is DDP there. Metrics
go to Ray after every epoch and the trained model at the end.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray import tune
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer, seed_everything
from digits import DigitClassifier, DigitsData

MODEL_FILE = "model.ckpt"


class ReportToRay(Callback):
    """Gives Ray the epoch's metrics, which are the same in all workers. All of them have to report."""

    monitors = True  # the values of the epoch are complete then

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        ray.train.report({name: float(value) for name, value in trainer.callback_metrics.items()})


class ReportToTune(Callback):
    """Gives Ray Tune the epoch's metrics with a checkpoint, from which a trial that was paused or moved goes on."""

    monitors = True

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        trainer.at_save_point(lambda: self.report(trainer))  # where a checkpoint is written at once

    def report(self, trainer: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            trainer.save_checkpoint(Path(folder, MODEL_FILE))
            metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


def run_trial(config: dict[str, Any]) -> None:
    """What each trial does, in a process of its own."""
    torch.set_num_threads(1)
    seed_everything(config["seed"])
    data, module = DigitsData(), DigitClassifier(config["learning_rate"])
    trainer = Trainer(
        max_epochs=config["max_epochs"],
        accelerator="cpu",
        callbacks=ReportToTune(),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    checkpoint = tune.get_checkpoint()  # of this trial, if it goes on
    with nullcontext() if checkpoint is None else checkpoint.as_directory() as folder:
        trainer.fit(module, datamodule=data, ckpt_path=None if folder is None else Path(folder, MODEL_FILE))


def best_learning_rate(rates: list[float], seed: int, output: Path) -> float:
    """Try each rate for two epochs, and return the one with the lowest validation loss."""
    results = tune.Tuner(
        tune.with_resources(run_trial, {"cpu": 1}),
        param_space={"learning_rate": tune.grid_search(rates), "seed": seed, "max_epochs": 2},
        tune_config=tune.TuneConfig(metric="val_loss", mode="min"),
        run_config=tune.RunConfig(name="search", storage_path=str(output.resolve())),
    ).fit()
    best = results.get_best_result()
    assert best.config is not None and best.checkpoint is not None and not results.errors
    print(f"The best of {len(results)} learning rates is {best.config['learning_rate']}.")
    return float(best.config["learning_rate"])


def train(config: dict[str, Any]) -> None:
    """What each worker does."""
    torch.set_num_threads(1)
    seed_everything(config["seed"])
    data = DigitsData(batch_size=64 // ray.train.get_context().get_world_size())
    module = DigitClassifier(config["learning_rate"])
    trainer = Trainer(
        max_epochs=config["max_epochs"],
        accelerator="cpu",
        callbacks=ReportToRay(),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(module, datamodule=data)
    results = trainer.test(module, datamodule=data, verbose=False)[0]
    report = {"num_updates": trainer.global_step, "num_processes": trainer.world_size, **results}
    with tempfile.TemporaryDirectory() as folder:
        trainer.save_checkpoint(Path(folder, MODEL_FILE))  # by all workers; the first one writes
        ray.train.report(report, checkpoint=Checkpoint.from_directory(folder) if trainer.is_global_zero else None)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits with Ray.")
    parser.add_argument("--num-workers", type=int, default=2, help="processes that train together (default: 2)")
    parser.add_argument("--max-epochs", type=int, default=10, help="epochs to train (default: 10)")
    help_of_rates = "peak of the learning rate; of several, which are tried first, the best (default: 0.003)"
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[3e-3], help=help_of_rates)
    parser.add_argument("--seed", type=int, default=0, help="of the weights, order and augmentation (default: 0)")
    parser.add_argument("--output", type=Path, default=Path("ray_output"), help="folder for Ray's results")
    parser.add_argument("--address", help="of a Ray cluster; Ray starts one on this machine without")
    arguments = parser.parse_args()
    if arguments.address is None:
        ray.init(num_cpus=arguments.num_workers, include_dashboard=False)
    else:
        ray.init(arguments.address)
    rate = arguments.learning_rates[0]
    if len(arguments.learning_rates) > 1:
        rate = best_learning_rate(arguments.learning_rates, arguments.seed, arguments.output)
    result = TorchTrainer(
        train,
        train_loop_config={"seed": arguments.seed, "max_epochs": arguments.max_epochs, "learning_rate": rate},
        scaling_config=ScalingConfig(num_workers=arguments.num_workers, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(name="digits", storage_path=str(arguments.output.resolve())),
    ).fit()
    assert result.metrics is not None and result.checkpoint is not None
    with result.checkpoint.as_directory() as folder:
        module = DigitClassifier.load_from_checkpoint(Path(folder, MODEL_FILE))
    data = DigitsData()
    alone = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    test_accuracy = alone.test(module, datamodule=data, verbose=False)[0]["test_accuracy"]
    ray.shutdown()

    print(f"\n{result.metrics['num_processes']} workers made {result.metrics['num_updates']} updates.")
    print(f"  test accuracy in the workers          {result.metrics['test_accuracy']:.2%}")
    print(f"  of the model that they left, here     {test_accuracy:.2%}")


if __name__ == "__main__":
    main()
