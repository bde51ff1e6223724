"""What the sanity check leaves behind: under the import names as in Lightning, with camshaft's trainer nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics import SumMetric

from camshaft.hooks_core import Callback

lightning = pytest.importorskip("lightning.pytorch", reason="compares with Lightning")
compat = pytest.importorskip("camshaft.compat")
trainer = pytest.importorskip("camshaft.trainer")

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}


class Averaging:
    """A callback whose state holds tensors in a graph; loading copies it, as libraries of averages do."""

    def __init__(self) -> None:
        self.num_seen = self.num_loads = 0

    def on_fit_start(self, trainer: Any, module: nn.Module) -> None:
        self.module = module
        self.collected = [parameter.clone() for parameter in module.parameters()]

    def on_validation_batch_end(self, *_: Any) -> None:
        self.num_seen += 1

    def state_dict(self) -> dict[str, Any]:
        return {"num_seen": self.num_seen, "collected": self.collected, "module": self.module}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_loads += 1
        self.num_seen, self.collected = state["num_seen"], copy.deepcopy(state["collected"])


def seen_after(framework: Any) -> dict[str, Any]:
    """What a fit finds in `on_train_start`, and its validation order."""
    base: Any = getattr(framework, "LightningModule", None) or framework.TrainingModule
    generator = torch.Generator().manual_seed(1)
    callback = type("Average", (Averaging, getattr(framework, "Callback", Callback)), {})()
    seen: dict[str, Any] = {"order": []}

    class Module(base):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)
            self.layer.derived = 2 * self.layer.weight  # so that it cannot be copied
            self.logged, self.own = SumMetric(), SumMetric()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch).mean()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            seen["order"].append(batch.item())
            self.logged(1.0)
            self.own(1.0)
            self.log("logged", self.logged)

        def on_train_start(self) -> None:
            metrics = [float(metric.sum_value) for metric in (self.logged, self.own)]
            seen["states"] = (generator.get_state().tolist(), callback.num_seen, *metrics, torch.rand(1).item())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    torch.manual_seed(0)
    one = framework.Trainer(accelerator="cpu", max_epochs=1, callbacks=[callback], **QUIET)
    one.fit(Module(), DataLoader(torch.ones(2, 1)), DataLoader(torch.arange(4.0), shuffle=True, generator=generator))
    return {**seen, "num_loads": callback.num_loads}


@pytest.mark.filterwarnings("ignore")
def test_what_it_leaves_under_the_import_names() -> None:
    own = seen_after(compat)
    assert own == seen_after(lightning)
    assert (own["states"][1:4], own["num_loads"]) == ((2, 0.0, 2.0), 0)


@pytest.mark.filterwarnings("ignore")
def test_what_it_leaves_with_the_trainer_of_today() -> None:
    own = seen_after(trainer)
    fresh = torch.Generator().manual_seed(1).get_state().tolist()
    assert (own["states"][:4], own["num_loads"]) == ((fresh, 0, 0.0, 0.0), 1)
    assert own["order"][:2] == own["order"][2:4]


@pytest.mark.parametrize("num_steps", [0, 2])
@pytest.mark.filterwarnings("ignore")
def test_persistent_workers_live_on(num_steps: int) -> None:
    def drawn(framework: Any) -> Any:
        base: Any = getattr(framework, "LightningModule", None) or framework.TrainingModule

        class Module(base):
            def training_step(self, batch: Any, batch_idx: int) -> None: ...

            def validation_step(self, batch: Any, batch_idx: int) -> None: ...

            def configure_optimizers(self) -> None: ...

        loader = DataLoader(torch.ones(3, 1), num_workers=1, persistent_workers=True)
        torch.manual_seed(0)
        one = framework.Trainer(accelerator="cpu", max_epochs=1, num_sanity_val_steps=num_steps, **QUIET)
        one.fit(Module(), DataLoader(torch.ones(2, 1)), loader)
        return torch.rand(1).item()

    assert drawn(compat) == drawn(lightning)
