"""How deep the user's step is below the user's call: at most seven frames of camshaft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from trainer_parts import NO_VALIDATION, Regression, loader, own_frames

from camshaft.trainer import Trainer

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)

MOST_FRAMES = 7


class Deep(Regression):
    frames: dict[str, list[str]]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.frames["fit"] = own_frames()
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.frames["validate"] = own_frames()

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.frames["test"] = own_frames()


@pytest.mark.parametrize("verb", ["fit", "validate", "test"])
@pytest.mark.parametrize("is_bare", [True, False], ids=["barebones", "with the default callbacks"])
def test_a_step_is_at_most_seven_frames_below_the_verb(verb: str, is_bare: bool, tmp_path: Path) -> None:
    module = Deep()
    module.frames = {}
    getattr(Trainer(max_epochs=1, barebones=is_bare, default_root_dir=tmp_path), verb)(module, loader())

    frames = module.frames[verb]
    assert frames[0].endswith(f"{'training' if verb == 'fit' else 'validation' if verb == 'validate' else 'test'}_step")
    assert frames[-1] == f"trainer.py:{verb}"
    assert len(frames) <= MOST_FRAMES, frames


@pytest.mark.parametrize("loss_from", ["manual", "accumulating"])
def test_other_modes_of_optimization_are_no_deeper(loss_from: str, tmp_path: Path) -> None:
    class Manual(Deep):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
            self.frames["fit"] = own_frames()
            optimizer = self.optimizers()
            optimizer.zero_grad()  # type: ignore[union-attr]
            self.manual_backward(self.loss(batch))
            optimizer.step()  # type: ignore[union-attr]

    module = Manual() if loss_from == "manual" else Deep()
    module.frames = {}
    num_batches = 1 if loss_from == "manual" else 2
    Trainer(max_epochs=1, barebones=True, default_root_dir=tmp_path, accumulate_grad_batches=num_batches).fit(
        module, loader()
    )
    assert len(module.frames["fit"]) <= MOST_FRAMES
