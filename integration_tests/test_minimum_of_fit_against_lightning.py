"""How long `min_epochs` and `min_steps` keep a fit going that was asked to stop: as in Lightning."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

lightning = pytest.importorskip("lightning.pytorch", reason="compares with Lightning")
compat = pytest.importorskip("camshaft.compat")

from lightning.pytorch.demos.boring_classes import BoringModel as TheirModel  # noqa: E402

from camshaft.compat.names.modules.boring_classes import BoringModel as OurModel  # noqa: E402
from camshaft.forensics import replay  # noqa: E402

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
LIMITS = {"max_epochs": 3, "limit_train_batches": 5, "limit_val_batches": 0}


def made(framework: Any, stops_at: int, **minimum: int | None) -> tuple[Any, Any]:
    """Return a trainer, and a module that asks it to stop at an update."""

    class Module(TheirModel if framework is lightning else OurModel):  # type: ignore[misc]
        def on_fit_start(self) -> None:
            self.trainer.should_stop = stops_at == 0

        def on_train_batch_end(self, *_: Any) -> None:
            self.trainer.should_stop |= self.trainer.global_step == stops_at

    return framework.Trainer(accelerator="cpu", **LIMITS, **QUIET, **minimum), Module()


def run(framework: Any, stops_at: int, **minimum: int | None) -> Any:
    """Return the number of updates of a fit that is asked to stop at one of them, and its minimum of epochs."""
    trainer, module = made(framework, stops_at, **minimum)
    trainer.fit(module)
    return trainer.global_step, trainer.min_epochs, trainer.fit_loop.min_epochs


@pytest.mark.parametrize(("min_epochs", "min_steps"), list(product((None, 0, 1, 2), (None, 2, 6))))
@pytest.mark.parametrize("stops_at", [0, 1, 3, 7])
@pytest.mark.filterwarnings("ignore")
def test_a_fit_that_is_asked_to_stop_goes_on_as_long_as_in_lightning(
    stops_at: int, min_epochs: int | None, min_steps: int | None
) -> None:
    minimum = {"min_epochs": min_epochs, "min_steps": min_steps}
    assert run(compat, stops_at, **minimum) == run(lightning, stops_at, **minimum)


@pytest.mark.filterwarnings("ignore")
def test_a_replay_goes_on_as_long_as_the_fit() -> None:
    trainer, module = made(compat, stops_at=1, min_steps=2)
    assert [step.step for step in replay(trainer, module, to_step=4)] == [4]
