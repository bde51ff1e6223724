from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import pytest
from import_names_parts import names_of_earlier_code

from camshaft.compat.names.finder import counterpart_of, load, names_in
from camshaft.compat.names.table import ROOTS, advice, counterparts, released, released_modules

pytest.importorskip("torchmetrics")


ROWS = counterparts()


def modules() -> Iterator[tuple[str, str]]:
    """Every importable module with a name that stands for one of ours, and its place."""
    for place in released_modules():
        for root, first in ROOTS.items():
            is_below = place == first or place.startswith(f"{first}.") if first else not place.startswith("@")
            if is_below and any(counterpart_of(place, name) for name in names_in(place)):
                yield f"{root}.{place.removeprefix(first).strip('.')}".removesuffix("."), place


MODULE_PLACES = sorted(modules())

# What public research code imports most, as far as a sample of it shows.
FREQUENT = """
pytorch_lightning:LightningModule pytorch_lightning:Trainer pytorch_lightning:seed_everything
pytorch_lightning:LightningDataModule pytorch_lightning:Callback pytorch_lightning:loggers pytorch_lightning:callbacks
pytorch_lightning:_logger pytorch_lightning:data_loader pytorch_lightning:metrics pytorch_lightning:__version__
pytorch_lightning.callbacks:ModelCheckpoint pytorch_lightning.callbacks:EarlyStopping
pytorch_lightning.callbacks:LearningRateMonitor pytorch_lightning.callbacks:LearningRateLogger
pytorch_lightning.callbacks:TQDMProgressBar pytorch_lightning.callbacks:RichProgressBar
pytorch_lightning.callbacks:ProgressBar pytorch_lightning.callbacks:ModelSummary
pytorch_lightning.callbacks:StochasticWeightAveraging pytorch_lightning.callbacks:GradientAccumulationScheduler
pytorch_lightning.callbacks:DeviceStatsMonitor pytorch_lightning.callbacks:BasePredictionWriter
pytorch_lightning.callbacks:Callback pytorch_lightning.callbacks:Timer pytorch_lightning.callbacks:BackboneFinetuning
pytorch_lightning.callbacks.early_stopping:EarlyStopping pytorch_lightning.callbacks.base:Callback
pytorch_lightning.callbacks.callback:Callback pytorch_lightning.callbacks.model_checkpoint:ModelCheckpoint
pytorch_lightning.callbacks.lr_monitor:LearningRateMonitor pytorch_lightning.callbacks.progress:TQDMProgressBar
pytorch_lightning.callbacks.timer:Timer pytorch_lightning.loggers:WandbLogger
pytorch_lightning.loggers:TensorBoardLogger pytorch_lightning.loggers:CSVLogger pytorch_lightning.loggers:MLFlowLogger
pytorch_lightning.loggers:LightningLoggerBase pytorch_lightning.loggers.wandb:WandbLogger
pytorch_lightning.loggers.tensorboard:TensorBoardLogger pytorch_lightning.loggers.mlflow:MLFlowLogger
pytorch_lightning.loggers.logger:Logger pytorch_lightning.loggers.logger:DummyLogger
pytorch_lightning.loggers.base:rank_zero_experiment pytorch_lightning.logging:TensorBoardLogger
pytorch_lightning.core.lightning:LightningModule pytorch_lightning.core.module:LightningModule
pytorch_lightning.core.decorators:auto_move_data pytorch_lightning.core.hooks:CheckpointHooks
pytorch_lightning.core.optimizer:LightningOptimizer pytorch_lightning.core.memory:ModelSummary
pytorch_lightning.root_module.root_module:LightningModule pytorch_lightning.root_module.decorators:data_loader
pytorch_lightning.metrics:Accuracy pytorch_lightning.metrics:Metric pytorch_lightning.metrics:F1
pytorch_lightning.metrics.functional:accuracy pytorch_lightning.metrics.functional:f1
pytorch_lightning.metrics.functional:confusion_matrix pytorch_lightning.metrics.regression:MeanSquaredError
pytorch_lightning.utilities:rank_zero_only pytorch_lightning.utilities:rank_zero_info
pytorch_lightning.utilities:rank_zero_warn pytorch_lightning.utilities:AttributeDict
pytorch_lightning.utilities:CombinedLoader pytorch_lightning.utilities:_OMEGACONF_AVAILABLE
pytorch_lightning.utilities.distributed:rank_zero_only pytorch_lightning.utilities.distributed:rank_zero_info
pytorch_lightning.utilities.rank_zero:rank_zero_only pytorch_lightning.utilities.types:STEP_OUTPUT
pytorch_lightning.utilities.types:EPOCH_OUTPUT pytorch_lightning.utilities.types:EVAL_DATALOADERS
pytorch_lightning.utilities.types:OptimizerLRScheduler pytorch_lightning.utilities.seed:seed_everything
pytorch_lightning.utilities.parsing:AttributeDict pytorch_lightning.utilities.exceptions:MisconfigurationException
pytorch_lightning.utilities.cloud_io:load pytorch_lightning.utilities.apply_func:move_data_to_device
pytorch_lightning.utilities.model_helpers:is_overridden pytorch_lightning.utilities.data:has_len
pytorch_lightning.trainer.trainer:Trainer pytorch_lightning.trainer:Trainer
pytorch_lightning.trainer.supporters:CombinedLoader pytorch_lightning.trainer.states:RunningStage
pytorch_lightning.plugins:DDPPlugin pytorch_lightning.plugins.ddp_plugin:DDPPlugin
pytorch_lightning.strategies:DDPStrategy pytorch_lightning.strategies.ddp:DDPStrategy
pytorch_lightning.profiler:SimpleProfiler pytorch_lightning.profiler:PassThroughProfiler
pytorch_lightning.profilers:PyTorchProfiler
pytorch_lightning.overrides.data_parallel:LightningDistributedDataParallel
lightning:LightningModule lightning:Trainer lightning:seed_everything lightning:pytorch
lightning.pytorch:LightningModule lightning.pytorch.callbacks:ModelCheckpoint lightning.pytorch.loggers:WandbLogger
lightning.pytorch.strategies:FSDPStrategy lightning.pytorch.utilities:rank_zero_only
lightning.fabric.utilities.seed:seed_everything lightning_fabric.utilities.cloud_io:_load
"""


@pytest.fixture(scope="module", autouse=True)
def names() -> Iterator[None]:
    with names_of_earlier_code():
        yield


@pytest.mark.parametrize(("module", "place"), MODULE_PLACES, ids=[name for name, _ in MODULE_PLACES])
def test_every_name_of_a_module_is_there(module: str, place: str) -> None:
    imported = import_module(module)
    for name in names_in(place):
        found = getattr(imported, name)
        assert found is not None or name.startswith("_")
        assert name in dir(imported)
        counterpart = counterpart_of(place, name)
        assert counterpart is None or found is load(counterpart)


@pytest.mark.parametrize("at", FREQUENT.split())
def test_what_research_code_imports_most_is_there(at: str) -> None:
    module, _, name = at.partition(":")
    exec(f"from {module} import {name}", {})


def test_every_row_is_of_a_name_that_a_release_had() -> None:
    homes = {place: {**released(place).earlier, **released(place).current} for place in released_modules()}
    known = {name for names in homes.values() for name in names}
    known |= {home.partition(":")[2] for names in homes.values() for home in names.values()}
    assert not {name for place, name in ROWS if not place} - known
    for place, name in ROWS:
        at_or_below = [names for other, names in homes.items() if other == place or other.startswith(f"{place}.")]
        assert not place or name == "__version__" or any(name in names for names in at_or_below), (place, name)


def test_no_name_is_both_there_and_refused() -> None:
    refused = {name for name in advice() if not name.endswith(".")}
    assert not {name for (place, name), ours in ROWS.items() if ours and not place} & refused


@pytest.mark.parametrize("sentence", sorted({*advice().values()}))
def test_every_refusal_is_in_sentences(sentence: str) -> None:
    assert sentence[0].isupper() and sentence.endswith(".")
