"""How long `min_epochs` and `min_steps` keep a fit going that was asked to stop: as in Lightning."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

lightning = pytest.importorskip("lightning.pytorch", reason="compares with Lightning")
compat = pytest.importorskip("camshaft.compat")

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def run(framework: Any, stops_at: int, **minimum: int | None) -> Any:
    """Return the number of updates of a fit that is asked to stop at one of them, and its minimum of epochs."""
    base: Any = getattr(framework, "LightningModule", None) or framework.TrainingModule

    class Module(base):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch).mean()

        def on_fit_start(self) -> None:
            self.trainer.should_stop = stops_at == 0

        def on_train_batch_end(self, *_: Any) -> None:
            self.trainer.should_stop |= self.trainer.global_step == stops_at

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1.0)

    trainer = framework.Trainer(accelerator="cpu", max_epochs=3, **QUIET, **minimum)
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(5, 1)))
    return trainer.global_step, trainer.min_epochs, trainer.fit_loop.min_epochs


@pytest.mark.parametrize(("min_epochs", "min_steps"), list(product((None, 0, 1, 2), (None, 2, 6))))
@pytest.mark.parametrize("stops_at", [0, 1, 3, 7])
@pytest.mark.filterwarnings("ignore")
def test_a_fit_that_is_asked_to_stop_goes_on_as_long_as_in_lightning(
    stops_at: int, min_epochs: int | None, min_steps: int | None
) -> None:
    minimum = {"min_epochs": min_epochs, "min_steps": min_steps}
    assert run(compat, stops_at, **minimum) == run(lightning, stops_at, **minimum)
