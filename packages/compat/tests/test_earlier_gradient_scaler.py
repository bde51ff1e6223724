"""`trainer.scaler`, as code of releases 0.7 to 1.6 uses it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from compat_parts import Regression, quiet_trainer
from torch import Tensor
from trainer_parts import NO_VALIDATION, assert_same, loader, weights

from camshaft.strategies import SingleDeviceStrategy
from camshaft.strategies.precision import ScaledPrecision

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


def strategy(precision: str) -> SingleDeviceStrategy:
    chosen: Any = ScaledPrecision("cpu", init_scale=256.0) if precision == "16-mixed" else precision
    return SingleDeviceStrategy("cpu", precision=chosen)


def fit(module: Regression, folder: Path, precision: str, **arguments: Any) -> Any:
    torch.manual_seed(1)
    with torch.no_grad():
        for one in module.parameters():
            one.copy_(torch.linspace(-0.5, 0.5, one.numel()).reshape(one.shape))
    trainer = quiet_trainer(folder, strategy=strategy(precision), **arguments)
    trainer.fit(module, loader(4))
    return trainer


class Of07(Regression):
    """An override as releases 0.7 documented it."""

    hook_era = "0.7"
    has_backward = False

    def optimizer_step(  # type: ignore[override]
        self, current_epoch: int, batch_idx: int, optimizer: Any, optimizer_idx: int, second_order_closure: Any = None
    ) -> None:
        if self.trainer.use_amp and self.trainer.use_native_amp:
            self.trainer.scaler.step(optimizer)
        else:
            optimizer.step()
        if self.trainer.use_amp and self.trainer.use_native_amp:
            self.trainer.scaler.update()
        self.on_before_zero_grad(optimizer)
        optimizer.zero_grad()


class Of07WithBackward(Of07):
    """And its backward."""

    def backward(self, use_amp: bool, loss: Tensor, optimizer: Any, optimizer_idx: int) -> None:  # type: ignore[override]
        if self.trainer.use_amp and self.trainer.use_native_amp:
            self.trainer.scaler.scale(loss).backward()
        else:
            loss.backward()


class Of09(Regression):
    """An override as that of 0.8 and 0.9."""

    hook_era = "0.9"

    def optimizer_step(  # type: ignore[override]
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Any,
        optimizer_idx: int,
        second_order_closure: Any = None,
        on_tpu: bool = False,
        using_native_amp: bool = False,
        using_lbfgs: bool = False,
    ) -> None:
        if using_native_amp:
            self.trainer.scaler.unscale_(optimizer)
            self.trainer.scaler.step(optimizer)
        else:
            optimizer.step()


class Of10(Regression):
    """An override as that of 1.0."""

    hook_era = "1.0"

    def optimizer_step(  # type: ignore[override]
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Any,
        optimizer_idx: int,
        optimizer_closure: Any,
        on_tpu: bool = False,
        using_native_amp: bool = False,
        using_lbfgs: bool = False,
    ) -> None:
        if using_native_amp:
            optimizer_closure()
            self.trainer.scaler.step(optimizer)
            self.trainer.scaler.update()
        else:
            optimizer.step(closure=optimizer_closure)


class ByHand(Regression):
    """Scales, steps and updates by itself, as with torch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        optimizer, scaler = self.optimizers(), self.trainer.scaler
        loss = self.loss(batch)
        (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is None:
            optimizer.step()  # type: ignore[union-attr]
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()  # type: ignore[union-attr]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize(
    ("kind", "gradient_clip_val"),
    [(kind, value) for kind in (Of07, Of07WithBackward, Of09, Of10) for value in (None, 0.5)] + [(ByHand, None)],
)
def test_an_override_that_steps_by_it_makes_the_steps_of_the_default(
    tmp_path: Path, kind: type[Regression], precision: str, gradient_clip_val: float | None
) -> None:
    overriding, plain = kind(), Regression()
    trainer = fit(overriding, tmp_path / "own", precision, gradient_clip_val=gradient_clip_val)
    fit(plain, tmp_path / "plain", precision, gradient_clip_val=gradient_clip_val)
    assert_same(weights(overriding), weights(plain))
    assert trainer.global_step == 4


@pytest.mark.parametrize("kind", [Of07, Of09, Of10])
def test_a_step_that_overflows_is_left_out_and_the_scale_backs_off(tmp_path: Path, kind: type[Regression]) -> None:
    class Overflowing(kind):  # type: ignore[valid-type, misc]
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.seen = [*getattr(self, "seen", []), self.layer.weight.detach().clone()]
            loss: Tensor = self.loss(batch)
            return loss * math.inf if batch_idx == 1 else loss

    module = Overflowing()
    trainer = fit(module, tmp_path, "16-mixed")
    assert not torch.equal(module.seen[0], module.seen[1]) and torch.equal(module.seen[1], module.seen[2])
    assert not torch.equal(module.seen[2], module.seen[3])
    assert trainer.scaler.get_scale() == 128.0


def test_without_mixed_precision_there_is_none(tmp_path: Path) -> None:
    assert quiet_trainer(tmp_path).scaler is None
    assert quiet_trainer(tmp_path, strategy=strategy("16-true")).scaler is None


def test_where_mixed_precision_scales_nothing_it_is_torchs_own_that_is_disabled(tmp_path: Path) -> None:
    scaler = quiet_trainer(tmp_path, strategy=strategy("bf16-mixed")).scaler
    loss = torch.ones(())
    assert not scaler.is_enabled() and scaler.scale(loss) is loss and scaler.get_scale() == 1.0


def test_its_state_is_that_of_the_precision(tmp_path: Path) -> None:
    scaler = quiet_trainer(tmp_path, strategy=strategy("16-mixed")).scaler
    state = scaler.state_dict()
    assert state["scale"] == 256.0 and scaler.is_enabled()
    scaler.load_state_dict({**state, "scale": 64.0})
    assert scaler.get_scale() == 64.0


def test_what_it_cannot_do_is_an_error(tmp_path: Path) -> None:
    scaler = quiet_trainer(tmp_path, strategy=strategy("16-mixed")).scaler
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(RuntimeError, match="`closure` must be left out"):
        scaler.step(optimizer, closure=lambda: None)
    with pytest.raises(RuntimeError, match="`closure` must be left out"):
        scaler.step(optimizer, lambda: None)
    with pytest.raises(ValueError, match="`optimizer` must be one that was set up"):
        scaler.step(optimizer)
    with pytest.raises(ValueError, match="`new_scale` must be left out"):
        scaler.update(1024.0)
