"""`configure_apex`, as code of releases 0.7 to 0.9 overrides it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from compat_parts import Regression, quiet_trainer
from torch import Tensor
from trainer_parts import NO_VALIDATION, assert_same, loader, weights

from camshaft.strategies.precision import ScaledPrecision

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


class OfApex(Regression):
    hook_era = "0.8"

    def __init__(self, calls_super: bool = False) -> None:
        super().__init__()
        self.calls_super = calls_super
        self.levels: list[str] = []

    def configure_apex(self, amp: Any, model: Any, optimizers: Any, amp_level: str) -> Any:
        self.levels.append(amp_level)
        self.amp = amp
        if self.calls_super:
            return super().configure_apex(amp, model, optimizers, amp_level)
        return amp.initialize(model, optimizers, opt_level=amp_level, loss_scale="dynamic")

    def backward(self, trainer: Any, loss: Tensor, optimizer: Any, optimizer_idx: int) -> None:  # type: ignore[override]
        with self.amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()


def fit(module: Regression, folder: Path, precision: str) -> dict[str, Tensor]:
    with torch.no_grad():
        for one in module.parameters():
            one.copy_(torch.linspace(-0.5, 0.5, one.numel()).reshape(one.shape))
    chosen: Any = ScaledPrecision("cpu") if precision == "16-mixed" else precision
    quiet_trainer(folder, precision=chosen, accelerator="cpu", max_epochs=2).fit(module, loader(4))
    return weights(module)


class Plain(Regression):
    hook_era = "0.8"


@pytest.mark.parametrize("calls_super", [False, True])
@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
def test_mixed_precision_is_that_of_torch(tmp_path: Path, precision: str, calls_super: bool) -> None:
    module = OfApex(calls_super)
    assert_same(fit(module, tmp_path, precision), fit(Plain(), tmp_path, precision))
    assert module.levels == ["O1"]


def test_a_level_that_is_not_mixed_precision_is_refused(tmp_path: Path) -> None:
    class Halved(OfApex):
        def configure_apex(self, amp: Any, model: Any, optimizers: Any, amp_level: str) -> Any:
            return amp.initialize(model, optimizers, opt_level="O3")

    with pytest.raises(NotImplementedError, match=r"`opt_level` must be one of 'O1', 'O2'.*such as.*'16-true'"):
        fit(Halved(), tmp_path, "16-mixed")
