from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bare_parts import BareStrategy, Net, Sized, make_batches, same_bits, seeded, weights
from compat_parts import BareTrainer
from torch.optim import SGD

from camshaft.compat.eras.optimization import Amp


class Mixed(BareStrategy):
    """Says that its steps run under autocast."""

    precision = SimpleNamespace(autocast_dtype=torch.bfloat16)


def fit(module: Any, strategy: Any) -> BareTrainer:
    return BareTrainer(module, max_epochs=1, limit_val_batches=0, strategy=strategy).fit(Sized(make_batches(3)))


class OfApex(Net):
    hook_era = "0.8"

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def configure_apex(self, amp: Any, model: Any, optimizers: Any, amp_level: str) -> Any:
        self.calls.append((amp, model, list(optimizers), amp_level))
        return amp.initialize(model, optimizers, opt_level=amp_level)

    def backward(self, trainer: Any, loss: Any, optimizer: Any, optimizer_idx: int) -> None:
        amp = self.calls[0][0] if self.calls else Amp()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()


def test_under_mixed_precision_it_gets_what_stands_for_apex_and_trains_as_without() -> None:
    module, plain = seeded(OfApex), seeded(Net)
    trainer = fit(module, Mixed())
    ((amp, model, optimizers, level),) = module.calls
    assert isinstance(amp, Amp) and model is module and level == "O1"
    assert optimizers == trainer.fit_loop.optimization.optimizers
    fit(plain, Mixed())
    assert same_bits(weights(module), weights(plain))


def test_in_full_precision_it_is_not_called() -> None:
    module = OfApex()
    fit(module, BareStrategy())
    assert module.calls == []


def test_the_optimizers_that_it_returns_are_used() -> None:
    class Slower(OfApex):
        def configure_apex(self, amp: Any, model: Any, optimizers: Any, amp_level: str) -> Any:
            self.own = SGD(self.parameters(), lr=0.25)
            return model, self.own

    module = Slower()
    trainer = fit(module, Mixed())
    assert trainer.fit_loop.optimization.optimizers == [module.own]


def test_what_it_returns_must_be_the_module_and_its_optimizers() -> None:
    class Nothing(OfApex):
        def configure_apex(self, amp: Any, model: Any, optimizers: Any, amp_level: str) -> Any:
            return model

    with pytest.raises(TypeError, match=r"`return value` must be the module itself and its optimizers \(1\).*Nothing"):
        fit(Nothing(), Mixed())


def test_settings_are_taken_if_torch_does_the_same() -> None:
    model, optimizer = Net(), object()
    amp = Amp()
    assert amp.initialize(model, optimizer, opt_level="O2", loss_scale="dynamic", num_losses=2) == (model, optimizer)
    assert amp.initialize(model, opt_level="O1", keep_batchnorm_fp32=True) is model
    for setting, value in (("opt_level", "O3"), ("loss_scale", 128.0), ("enabled", False), ("min_loss_scale", 1.0)):
        with pytest.raises(NotImplementedError, match=f"`{setting}` must be one of .*got {value!r}"):
            amp.initialize(model, optimizer, **{setting: value})
    with pytest.raises(NotImplementedError, match="`level` must be one of None"):
        amp.initialize(model, optimizer, level="O1")


def test_the_rest_of_apex_says_what_there_is() -> None:
    module = Net()
    optimizer = SGD(module.parameters(), lr=0.1)
    assert list(Amp().master_params(optimizer)) == list(module.parameters())
    with pytest.raises(AttributeError, match=r"`amp.register_half_function` must be one of `initialize`"):
        Amp().register_half_function  # noqa: B018
