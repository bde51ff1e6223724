"""Stock callbacks do what Lightning's of the same name and arguments do: the same runs on both."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from comparison.frameworks import CAMSHAFT, LIGHTNING, Framework
from lightning.pytorch import callbacks as lightning_callbacks
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset

import camshaft.callbacks
from camshaft.compat.names.finder import load
from camshaft.compat.names.table import counterparts
from camshaft.compat.names.trainer import callbacks as compat_callbacks

CALLBACKS = {LIGHTNING.name: lightning_callbacks, CAMSHAFT.name: camshaft.callbacks}

Weights = dict[str, Tensor]


def loader(num_batches: int) -> DataLoader[Any]:
    inputs = torch.randn(4 * num_batches, 3, generator=torch.Generator().manual_seed(7))
    return DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=4)


def weights(module: nn.Module) -> Weights:
    """All but counters, which average as integers in Lightning."""
    return {name: value.clone() for name, value in module.state_dict().items() if value.is_floating_point()}


def assert_close(actual: dict[Any, Weights], expected: dict[Any, Weights]) -> None:
    assert list(actual) == list(expected)
    for where, values in expected.items():
        for name, value in values.items():
            torch.testing.assert_close(actual[where][name], value, rtol=1e-5, atol=1e-6, msg=f"{where}: {name}")


def normed_line(framework: Framework) -> Any:
    class NormedLine(framework.module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
            self.layer = nn.Linear(3, 1)
            self.validated: list[Weights] = []
            self.trained: list[Weights] = []

        def loss(self, batch: Any) -> Tensor:
            return nn.functional.mse_loss(self.layer(self.backbone(batch[0])), batch[1])

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self.loss(batch)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == 0:
                self.validated.append(weights(self))

        def on_train_epoch_end(self) -> None:
            self.trained.append(weights(self))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    torch.manual_seed(3)
    return NormedLine()


def averaged(
    framework: Framework, folder: Path, make: Callable[[Any], Any], options: dict[str, Any]
) -> dict[Any, Weights]:
    """The weights of each validation and epoch, at the end, and in checkpoints."""
    module = normed_line(framework)
    saving = framework.model_checkpoint(folder, filename="{step}", save_top_k=-1)
    trainer = framework.trainer(
        default_root_dir=folder,
        logger=False,
        num_sanity_val_steps=0,
        callbacks=[make(CALLBACKS[framework.name]), saving],
        **{**framework.quiet, "max_epochs": 3, **options},
    )
    trainer.fit(module, loader(6), loader(2))
    found: dict[Any, Weights] = {"end": weights(module)}
    found.update((("validated", idx), values) for idx, values in enumerate(module.validated))
    found.update((("trained", idx), values) for idx, values in enumerate(module.trained))
    for path in sorted(folder.glob("*.ckpt")):
        saved = torch.load(path, weights_only=False)
        for key in ("state_dict", "current_model_state"):
            found[path.name, key] = {name: value for name, value in saved[key].items() if value.is_floating_point()}
        found[path.name, "number"] = {"n_averaged": saved["averaging_state"]["n_averaged"]}
    return found


def not_the_third(callbacks: Any) -> Any:
    class NotTheThird(callbacks.EMAWeightAveraging):  # type: ignore[misc]
        def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
            return super().should_update(step_idx=step_idx, epoch_idx=epoch_idx) and step_idx != 2

    return NotTheThird(decay=0.5, update_starting_at_epoch=0)


AVERAGING: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "a starting epoch": (lambda c: c.EMAWeightAveraging(decay=0.7, update_starting_at_epoch=1), {}),
    "a starting epoch alone": (
        lambda c: c.EMAWeightAveraging(decay=0.7, update_every_n_steps=0, update_starting_at_epoch=0),
        {"limit_val_batches": 0},  # Lightning would validate the untrained weights before the first average
    ),
    "a starting epoch and sparse steps": (
        lambda c: c.EMAWeightAveraging(
            decay=0.7, use_buffers=False, update_every_n_steps=4, update_starting_at_step=3, update_starting_at_epoch=2
        ),
        {},
    ),
    "sparse steps without buffers, with accumulation": (
        lambda c: c.EMAWeightAveraging(decay=0.7, use_buffers=False, update_every_n_steps=2),
        {"accumulate_grad_batches": 2, "val_check_interval": 3},
    ),
    "equal shares": (lambda c: c.WeightAveraging(), {}),
    "equal shares without buffers": (lambda c: c.WeightAveraging(use_buffers=False), {"accumulate_grad_batches": 3}),
    "an override": (not_the_third, {}),
}


@pytest.mark.parametrize("kind", AVERAGING)
def test_weights_are_averaged_as_by_lightning(tmp_path: Path, kind: str) -> None:
    make, options = AVERAGING[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = averaged(LIGHTNING, tmp_path / "lightning", make, options)
        assert_close(averaged(CAMSHAFT, tmp_path / "camshaft", make, options), expected)


@pytest.mark.parametrize("name", ["ModelCheckpoint", "EarlyStopping", "RichProgressBar", "ModelSummary"])
def test_lightnings_own_callbacks_are_refused_at_once(name: str) -> None:
    callback = getattr(lightning_callbacks, name)(*(["loss"] if name == "EarlyStopping" else []))
    with pytest.raises(TypeError, match=f"without callbacks of Lightning.*Import `{name}` from `camshaft"):
        CAMSHAFT.trainer(callbacks=[callback])


def test_a_callback_that_only_has_lightnings_base_class_runs(tmp_path: Path) -> None:
    class Counting(lightning_callbacks.Callback):
        num_batches = 0

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.num_batches += 1

    callback = Counting()
    options = {**CAMSHAFT.quiet, "max_epochs": 2, "logger": False}
    CAMSHAFT.trainer(default_root_dir=tmp_path, callbacks=[callback], **options).fit(normed_line(CAMSHAFT), loader(3))
    assert callback.num_batches == 6


def scheduled_line(framework: Framework) -> Any:
    class ScheduledLine(framework.module):  # type: ignore[misc]
        def __init__(self, scheduler: str) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)
            self.scheduler = scheduler

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return nn.functional.mse_loss(self.layer(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            groups = [{"params": [self.layer.weight], "weight_decay": 0.1}, {"params": [self.layer.bias]}]
            optimizer = torch.optim.SGD(groups, lr=0.05)
            if not self.scheduler:
                return optimizer
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            return [optimizer], [{"scheduler": scheduler, "interval": self.scheduler}]

    torch.manual_seed(3)
    return ScheduledLine


def fit_scheduled(framework: Framework, folder: Path, scheduler: str, callback: Any, **options: Any) -> Any:
    module = scheduled_line(framework)(scheduler)
    arguments = {**framework.quiet, "max_epochs": 4, "logger": framework.csv_logger(folder), **options}
    trainer = framework.trainer(default_root_dir=folder, callbacks=[callback], **arguments)
    trainer.fit(module, loader(6))
    return trainer


@pytest.mark.parametrize(
    "arguments",
    [
        {"swa_lrs": 0.01, "swa_epoch_start": 2},
        {"swa_lrs": [0.01, 0.02], "swa_epoch_start": 0.5, "annealing_epochs": 2, "annealing_strategy": "linear"},
    ],
)
def test_the_import_names_swa_averages_as_lightnings(tmp_path: Path, arguments: dict[str, Any]) -> None:
    trainers = {
        framework.name: fit_scheduled(framework, tmp_path / framework.name, "epoch", swa(**arguments))
        for framework, swa in (
            (LIGHTNING, lightning_callbacks.StochasticWeightAveraging),
            (CAMSHAFT, compat_callbacks.StochasticWeightAveraging),
        )
    }
    ends = {name: {"end": weights(trainer.model)} for name, trainer in trainers.items()}
    assert_close(ends[CAMSHAFT.name], ends[LIGHTNING.name])
    rates = [[group["initial_lr"] for group in one.optimizers[0].param_groups] for one in trainers.values()]
    assert rates[0] == rates[1]


@pytest.mark.parametrize("scheduler", ["", "epoch", "step"])
@pytest.mark.parametrize("interval", [None, "epoch", "step"])
def test_rates_are_logged_as_by_lightning(tmp_path: Path, interval: str | None, scheduler: str) -> None:
    found = []
    for framework in (LIGHTNING, CAMSHAFT):
        monitor = CALLBACKS[framework.name].LearningRateMonitor(interval, log_momentum=True, log_weight_decay=True)
        folder = tmp_path / framework.name
        trainer = fit_scheduled(framework, folder, scheduler, monitor, log_every_n_steps=4)
        values = {name: round(float(value), 6) for name, value in trainer.callback_metrics.items()}
        latest = (monitor.last_momentum_values, monitor.last_weight_decay_values)
        found.append((dict(monitor.lrs), values, *latest))
    assert found[1] == found[0]


class EverySecond(prune.BasePruningMethod):
    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        mask = default_mask.clone()
        mask.view(-1)[::2] = 0
        return mask


# With a ticket once: in Lightning the values from before training are trained after the first time.
PRUNING: dict[str, dict[str, Any]] = {
    "all together": {"pruning_fn": "l1_unstructured", "amount": 0.3, "apply_pruning": lambda epoch: epoch == 1},
    "each, without a ticket": {
        "pruning_fn": "l1_unstructured",
        "amount": 0.2,
        "use_global_unstructured": False,
        "use_lottery_ticket_hypothesis": False,
    },
    "structures, at validation": {
        "pruning_fn": "ln_structured",
        "use_global_unstructured": False,
        "layers": ["weight"],
        "apply_pruning": lambda epoch: epoch == 2,
        "pruning_dim": 0,
        "pruning_norm": 2,
        "prune_on_train_epoch_end": False,
    },
    "by functions of the epoch": {
        "pruning_fn": "random_unstructured",
        "amount": lambda epoch: 0.1 * epoch,
        "apply_pruning": lambda epoch: epoch != 1,
        "use_lottery_ticket_hypothesis": lambda epoch: epoch == 2,
        "resample_parameters": True,
    },
    "by a method of one's own, masks that stay": {
        "pruning_fn": EverySecond,
        "use_lottery_ticket_hypothesis": False,
        "make_pruning_permanent": False,
    },
}


@pytest.mark.parametrize("kind", PRUNING)
def test_a_module_is_pruned_as_by_lightning(tmp_path: Path, kind: str) -> None:
    found: dict[str, dict[Any, Weights]] = {}
    for framework in (LIGHTNING, CAMSHAFT):
        module, folder = normed_line(framework), tmp_path / framework.name
        arguments = dict(PRUNING[kind])
        if names := arguments.pop("layers", None):
            arguments["parameters_to_prune"] = [(module.backbone[0], name) for name in names]
        pruning = CALLBACKS[framework.name].ModelPruning(**arguments)
        saving = framework.model_checkpoint(folder, filename="{step}", save_top_k=-1)
        torch.manual_seed(5)
        framework.trainer(
            default_root_dir=folder, logger=False, max_epochs=4, callbacks=[pruning, saving], **framework.quiet
        ).fit(module, loader(6), loader(2))
        found[framework.name] = {"end": weights(module)}
        for path in sorted(folder.glob("*.ckpt")):
            saved = torch.load(path, weights_only=False)["state_dict"]
            found[framework.name][path.name] = {name: one for name, one in saved.items() if one.is_floating_point()}
    for where, expected in found[LIGHTNING.name].items():
        assert found[CAMSHAFT.name][where].keys() == expected.keys()
    assert_close(found[CAMSHAFT.name], found[LIGHTNING.name])


def written(framework: Framework, folder: Path, loaders: Any, returns: bool) -> Any:
    """What a prediction writer gets, and what prediction returns."""
    calls: list[Any] = []

    class Writer(CALLBACKS[framework.name].BasePredictionWriter):  # type: ignore[misc, name-defined]
        def write_on_batch_end(
            self,
            trainer: Any,
            pl_module: Any,
            prediction: Any,
            batch_indices: Any,
            batch: Any,
            batch_idx: int,
            dataloader_idx: int,
        ) -> None:
            calls.append(("batch", prediction.tolist(), batch_indices, batch[0].tolist(), batch_idx, dataloader_idx))

        def write_on_epoch_end(self, trainer: Any, pl_module: Any, predictions: Any, batch_indices: Any) -> None:
            calls.append(("epoch", to_lists(predictions), batch_indices))

    class Sum(framework.module):  # type: ignore[misc]
        def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
            return batch[0].sum(dim=1)  # type: ignore[no-any-return]

    trainer = framework.trainer(
        default_root_dir=folder,
        logger=False,
        limit_predict_batches=3,
        callbacks=[Writer("batch_and_epoch")],
        **framework.quiet,
    )
    torch.manual_seed(1)
    return calls, to_lists(trainer.predict(Sum(), loaders(), return_predictions=returns))


def to_lists(values: Any) -> Any:
    if isinstance(values, list):
        return [to_lists(value) for value in values]
    return values.tolist() if isinstance(values, Tensor) else values


def ordered(order: Any) -> DataLoader[Any]:
    return DataLoader(loader(5).dataset, batch_size=4, sampler=order)


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize(
    "loaders",
    [
        lambda: loader(2),
        lambda: [loader(2)],
        lambda: [loader(5), ordered([7, 3, 1, 0, 2])],
        lambda: DataLoader(loader(5).dataset, batch_size=4, shuffle=True),
        lambda: ordered(torch.utils.data.SubsetRandomSampler([5, 1, 9, 2, 3])),
    ],
    ids=["one", "a list of one", "two", "shuffled", "a random sampler"],
)
def test_a_prediction_writer_gets_what_it_gets_from_lightning(tmp_path: Path, loaders: Any, returns: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = written(LIGHTNING, tmp_path / "lightning", loaders, returns)
        assert written(CAMSHAFT, tmp_path / "camshaft", loaders, returns) == expected


def all_of(module: nn.Module) -> list[dict[str, Any]]:
    return [{"params": list(module.parameters())}]


def trainable_of(module: nn.Module) -> list[dict[str, Any]]:
    return [{"params": [parameter for parameter in module.parameters() if parameter.requires_grad]}]


def in_groups(module: Any) -> list[dict[str, Any]]:
    return [{"params": module.layer.parameters()}, {"params": module.backbone.parameters(), "lr": 0.01}]


def layer_by_layer(callbacks: Any) -> Any:
    class LayerByLayer(callbacks.BaseFinetuning):  # type: ignore[misc]
        def freeze_before_training(self, pl_module: Any) -> None:
            self.freeze(pl_module.backbone, train_bn=False)

        def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
            if epoch in (1, 2):
                self.unfreeze_and_add_param_group(pl_module.backbone[2 - epoch], optimizer, initial_denom_lr=4.0)

    return LayerByLayer()


FINETUNING: dict[str, Callable[[Any], Any]] = {
    "default": lambda c: c.BackboneFinetuning(1),
    "from the start": lambda c: c.BackboneFinetuning(0, lambda epoch: 1.5, backbone_initial_ratio_lr=0.5),
    "without aligning": lambda c: c.BackboneFinetuning(1, lambda epoch: 8.0, should_align=False),
    "from a rate": lambda c: c.BackboneFinetuning(2, backbone_initial_lr=0.002),
    "layers": layer_by_layer,
}

OPTIMIZATION: dict[str, Any] = {
    "adamw": (torch.optim.AdamW, None),
    "sgd and steps": (torch.optim.SGD, lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)),
}


def finetuned(framework: Framework, folder: Path, make: Any, groups: Any, optimizer: Any, scheduler: Any) -> Any:
    """Names and learning rates of the optimizer's groups in each batch, and weights after each epoch."""
    module = normed_line(framework)
    seen: list[Any] = []

    class Grouped(type(module)):  # type: ignore[misc]
        def configure_optimizers(self) -> Any:
            made = optimizer(groups(self), lr=0.05)
            return made if scheduler is None else ([made], [scheduler(made)])

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            names = {id(parameter): name for name, parameter in self.named_parameters()}
            of_groups = self.trainer.optimizers[0].param_groups
            seen.append([(sorted(names[id(p)] for p in group["params"]), round(group["lr"], 9)) for group in of_groups])

    module.__class__ = Grouped
    trainer = framework.trainer(
        default_root_dir=folder,
        logger=False,
        limit_val_batches=0,
        callbacks=[make(CALLBACKS[framework.name])],
        **{**framework.quiet, "max_epochs": 4, "enable_checkpointing": False},
    )
    trainer.fit(module, loader(3))
    return seen, dict(enumerate(module.trained))


@pytest.mark.parametrize("optimization", OPTIMIZATION)
@pytest.mark.parametrize("groups", [trainable_of, all_of, in_groups])
@pytest.mark.parametrize("kind", FINETUNING)
def test_a_module_is_finetuned_as_by_lightning(tmp_path: Path, kind: str, groups: Any, optimization: str) -> None:
    arguments = FINETUNING[kind], groups, *OPTIMIZATION[optimization]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected_groups, expected = finetuned(LIGHTNING, tmp_path / "lightning", *arguments)
        found_groups, found = finetuned(CAMSHAFT, tmp_path / "camshaft", *arguments)
    assert found_groups == expected_groups
    assert_close(found, expected)


@pytest.mark.parametrize("name", ["ProgressBar", "TQDMProgressBar", "RichProgressBar"])
def test_each_method_of_lightnings_bars_is_called_or_said_not_to_be(name: str) -> None:
    theirs, ours = getattr(lightning_callbacks, name), load(counterparts()["", name])
    inherited = set(dir(lightning_callbacks.Callback))
    methods = {one for one in dir(theirs) if one not in inherited and not one.startswith("__") and one != "_abc_impl"}
    uncalled = {one for klass in ours.__mro__ for one in vars(klass).get("_uncalled_methods", ())}
    assert uncalled <= methods
    assert {one for one in methods - uncalled if not hasattr(ours, one)} <= {"refresh_rate", "process_position"}
