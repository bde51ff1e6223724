"""The project's own loops pass the kit that it offers to others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bare_parts import BareStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader

from camshaft.hooks_core import CheckpointHooks, DataHooks, ModelHooks, StrategyHooks
from camshaft.hooks_core.conformance import SCENARIOS, Adapter, Scenario, run_scenario
from camshaft.loops import (
    FitLimits,
    FitLoop,
    OptimizationSettings,
    PredictLoop,
    Run,
    TestLoop,
    ValidationLoop,
    run_verb,
)


class Line(ModelHooks, DataHooks, CheckpointHooks, nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.layer(batch).mean()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.layer(batch)

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        self.layer(batch)

    def predict_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.layer(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


class HookedStrategy(BareStrategy, StrategyHooks):
    pass


def loop_for(scenario: Scenario) -> Any:
    limits = FitLimits(
        max_epochs=scenario.num_epochs,
        num_sanity_val_steps=scenario.num_sanity_val_batches,
        val_check_interval=scenario.val_check_interval or 1.0,
    )
    return {
        "fit": FitLoop(limits, OptimizationSettings(accumulate_grad_batches=scenario.accumulate_grad_batches)),
        "validate": ValidationLoop(),
        "test": TestLoop(),
        "predict": PredictLoop(),
    }[scenario.verb]


def run(scenario: Scenario, module: Any, callbacks: Any, data: Any = None, strategy: Any = None) -> None:
    def loader(num_batches: int) -> Any:
        return DataLoader(torch.randn(num_batches, 2)) if num_batches else None

    stage = "train" if scenario.verb == "fit" else scenario.verb
    loaders = {"validate": loader(scenario.num_val_batches), stage: loader(scenario.num_batches)}
    strategy = strategy if strategy is not None else BareStrategy()
    run_verb(
        Run(
            verb=scenario.verb,
            module=module,
            strategy=strategy,
            data=data,
            trainer=None,
            callbacks=list(callbacks),
            loaders=loaders,
        ),
        loop_for(scenario),
    )


@pytest.mark.filterwarnings("ignore:There is a `validation_step` but no validation loader")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("everyone", [False, True], ids=["module and callbacks", "and data module and strategy"])
def test_the_loops_conform(scenario: Scenario, everyone: bool) -> None:
    adapter = Adapter(run, Line, DataHooks, HookedStrategy) if everyone else Adapter(run, Line)
    assert len(run_scenario(adapter, scenario)) > 0
