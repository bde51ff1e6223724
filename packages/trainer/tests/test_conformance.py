"""The trainer passes the conformance kit, with everything attached that it attaches by default."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from camshaft.hooks_core import CATALOGUE, Catalogue, HookPlace, HookSpec, Receiver
from camshaft.hooks_core.conformance import SCENARIOS, Adapter, Scenario, certify, run_scenario
from camshaft.strategies import SingleDeviceStrategy
from camshaft.trainer import DataModule, Trainer, TrainingModule


class Line(TrainingModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.layer(batch).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val_loss", self.layer(batch).mean())

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("test_loss", self.layer(batch).mean())

    def predict_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.layer(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


class Batches(DataModule):
    """Gives each stage as many batches as the scenario asks for."""

    scenario: Scenario | None = None

    def loader(self, num_batches: int) -> Any:
        return DataLoader(torch.randn(num_batches, 2)) if num_batches else None

    def train_dataloader(self) -> Any:
        return self.loader(self.scenario.num_batches)  # type: ignore[union-attr]

    def val_dataloader(self) -> Any:
        fits = self.scenario.verb == "fit"  # type: ignore[union-attr]
        return self.loader(self.scenario.num_val_batches if fits else self.scenario.num_batches)  # type: ignore[union-attr]

    def test_dataloader(self) -> Any:
        return self.loader(self.scenario.num_batches)  # type: ignore[union-attr]

    predict_dataloader = test_dataloader


def run(
    root: Path,
    scenario: Scenario,
    module: Any,
    callbacks: Any,
    data: Any = None,
    strategy: Any = "auto",
    catalogue: Catalogue | None = None,
) -> None:
    data.scenario = scenario
    trainer = Trainer(
        accelerator="cpu",
        strategy=strategy,
        max_epochs=scenario.num_epochs,
        num_sanity_val_steps=scenario.num_sanity_val_batches,
        val_check_interval=scenario.val_check_interval,
        accumulate_grad_batches=scenario.accumulate_grad_batches,
        callbacks=list(callbacks),
        default_root_dir=root,
        catalogue=catalogue,
    )
    getattr(trainer, scenario.verb)(module, datamodule=data)


@pytest.mark.filterwarnings("ignore:There is a `validation_step` but no validation loader")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_trainer_conforms(scenario: Scenario, tmp_path: Path) -> None:
    adapter = Adapter(partial(run, tmp_path), Line, Batches, partial(SingleDeviceStrategy, "cpu"))
    assert len(run_scenario(adapter, scenario)) > 0


class Painting(Line):
    """Calls a hook that a third party registered, at the end of its own."""

    def on_validation_epoch_end(self) -> None:
        self.trainer.hooks.on_images_saved("out")


@pytest.mark.new_feature("hooks-core")
@pytest.mark.parametrize(("hook", "passes"), [("on_validation_epoch_end", True), ("on_train_start", False)])
def test_a_registered_hook_of_a_copied_catalogue_is_found_and_held_to_its_place(
    hook: str, passes: bool, tmp_path: Path
) -> None:
    spec = HookSpec("on_images_saved", "After images were saved.", (Receiver.CALLBACK,), ("folder",))
    catalogue = CATALOGUE.copy()
    catalogue.register(spec, HookPlace("within", hook, "at_most_once"))
    adapter = Adapter(partial(run, tmp_path, catalogue=catalogue), Painting, Batches)
    validating = [one for one in SCENARIOS if one.name == "fit-validation"]
    report = certify(adapter, scenarios=validating, catalogue=catalogue)
    assert report.passed is passes and validating, report
    assert passes or "on_images_saved" in str(report)
