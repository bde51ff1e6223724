"""Modules of 1.0 and 1.1 that optimize by hand."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from compat_parts import Regression, quiet_trainer
from torch import Tensor
from trainer_parts import NO_VALIDATION, assert_same, loader, weights

from camshaft.callbacks import ModelCheckpoint
from camshaft.compat import Callback, Trainer
from camshaft.compat.module import _told
from camshaft.strategies import SingleDeviceStrategy
from camshaft.strategies.precision import ScaledPrecision

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


class ByHand(Regression):
    """Optimization by hand, of two optimizers."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD([one], lr=0.1, momentum=0.9) for one in self.layer.parameters()]


def by_hand(module: Any, num_batches: int, zeroes: bool = True, steps: Any = lambda batch_idx: True) -> Any:
    """The weights after steps of all optimizers for each batch, in plain torch."""
    optimizers = module.configure_optimizers()
    for batch_idx, batch in enumerate(loader(num_batches)):
        module.loss(batch).backward()
        for optimizer in optimizers:
            if steps(batch_idx):
                optimizer.step()
                if zeroes:
                    optimizer.zero_grad()
    return weights(module)


def fit(kind: type, folder: Path, num_batches: int = 3, **arguments: Any) -> tuple[Any, Trainer, list[str]]:
    """A fit; the module, the trainer and what was warned."""
    torch.manual_seed(1)
    module = kind()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = quiet_trainer(folder, **arguments)
        trainer.fit(module, loader(num_batches))
    return module, trainer, [str(one.message) for one in caught]


def reference() -> Any:
    torch.manual_seed(1)
    return ByHand()


@pytest.mark.parametrize("era", [None, "1.0", "1.0.8"])
def test_what_1_0_documented_runs_as_it_is_where_the_trainer_is_told(tmp_path: Path, era: str | None) -> None:
    class Documented(ByHand):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = True

        def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
            first, second = self.optimizers()
            self.manual_backward(self.loss(batch), first)
            for optimizer in (first, second):
                optimizer.step()
                optimizer.zero_grad()

    if era is not None:
        Documented.hook_era = era  # type: ignore[attr-defined]
    module, trainer, _ = fit(Documented, tmp_path, **{"automatic_optimization": False})
    assert_same(weights(module), by_hand(reference(), 3))
    assert trainer.global_step == 3


@pytest.mark.parametrize("era", [None, "1.0.8", "1.4"])
def test_a_step_that_takes_an_index_gets_one_call_per_batch(tmp_path: Path, era: str | None) -> None:
    class Indexed(ByHand):
        def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> None:  # type: ignore[override]
            assert optimizer_idx == 0
            first, second = self.optimizers()
            self.manual_backward(self.loss(batch), first)
            self.manual_optimizer_step(first)
            self.manual_optimizer_step(second)

    if era is not None:
        Indexed.hook_era = era  # type: ignore[attr-defined]
    module, _, _ = fit(Indexed, tmp_path)
    assert_same(weights(module), by_hand(reference(), 3))


@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
def test_a_step_of_1_0_zeroes_gradients_and_may_be_left_at_its_closure(tmp_path: Path, precision: str) -> None:
    class Accumulating(ByHand):
        def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
            first, second = self.optimizers()
            is_due = batch_idx % 2 == 1

            def closure() -> None:
                self.manual_backward(self.loss(batch), first)

            self.manual_optimizer_step(first, optimizer_closure=closure, make_optimizer_step=is_due)
            self.manual_optimizer_step(second, make_optimizer_step=is_due)
            gradients = [one.grad for one in self.layer.parameters()]
            assert all(one is None for one in gradients) == is_due

    chosen: Any = ScaledPrecision("cpu", init_scale=64.0) if precision == "16-mixed" else precision
    module, trainer, _ = fit(Accumulating, tmp_path, 4, strategy=SingleDeviceStrategy("cpu", precision=chosen))
    assert trainer.global_step == 2
    expected = by_hand(reference(), 4, steps=lambda batch_idx: batch_idx % 2 == 1)
    if precision == "32-true":
        assert_same(weights(module), expected)
    for name, weight in weights(module).items():
        torch.testing.assert_close(weight, expected[name], rtol=0.02, atol=0.02)


def test_an_override_of_the_step_makes_it(tmp_path: Path) -> None:
    class Overriding(ByHand):
        hook_era = "1.0.8"

        def __init__(self) -> None:
            super().__init__()
            self.told: list[Any] = []

        def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
            first, second = self.optimizers()
            self.manual_backward(self.loss(batch), first)
            self.manual_optimizer_step(first)
            self.manual_optimizer_step(second)

        def optimizer_step(  # type: ignore[override]
            self, epoch: int, batch_idx: int, optimizer: Any, optimizer_idx: Any, optimizer_closure: Any, **kwargs: Any
        ) -> None:
            self.told.append((epoch, batch_idx, optimizer_idx))
            optimizer.step(closure=optimizer_closure)

    module, _, _ = fit(Overriding, tmp_path, 2)
    assert module.told == [(0, 0, None)] * 2 + [(0, 1, None)] * 2
    assert_same(weights(module), by_hand(reference(), 2))


def test_under_automatic_optimization_it_is_an_error(tmp_path: Path) -> None:
    class Automatic(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.manual_optimizer_step(self.optimizers())  # type: ignore[arg-type]
            return self.loss(batch)

    with pytest.raises(RuntimeError, match=r"`automatic_optimization` must be False.*manual_optimizer_step"):
        quiet_trainer(tmp_path).fit(Automatic(), loader(1))


class TestZeroing:
    """1.1 zeroed gradients after each step, which nobody can tell from a class that does not declare it."""

    class OfDocuments(ByHand):
        """As the documents of 1.1 had it."""

        def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
            first, second = self.optimizers()
            self.manual_backward(self.loss(batch), first)
            first.step()
            second.step()

    def test_a_class_that_declares_1_1_has_its_gradients_zeroed(self, tmp_path: Path) -> None:
        class Declared(self.OfDocuments):  # type: ignore[name-defined, misc]
            hook_era = "1.1"

        module, _, told = fit(Declared, tmp_path)
        assert_same(weights(module), by_hand(reference(), 3))
        assert not any("zeroes gradients nowhere" in one for one in told)

    def test_of_one_that_zeroes_nowhere_it_is_said_once_what_to_declare(self, tmp_path: Path) -> None:
        class Undeclared(self.OfDocuments):  # type: ignore[name-defined, misc]
            pass

        module, _, told = fit(Undeclared, tmp_path)
        assert_same(weights(module), by_hand(reference(), 3, zeroes=False))
        (one,) = (one for one in told if "zeroes gradients nowhere" in one)
        assert "Undeclared optimizes by hand" in one and 'declare `hook_era = "1.1"` if it was written for 1.1' in one

    def test_of_one_that_zeroes_somewhere_nothing_is_said(self, tmp_path: Path) -> None:
        class Zeroing(self.OfDocuments):  # type: ignore[name-defined, misc]
            def training_step(self, batch: Any, batch_idx: int) -> None:
                [one.zero_grad() for one in self.optimizers()]
                super().training_step(batch, batch_idx)

        assert not any("zeroes gradients nowhere" in one for one in fit(Zeroing, tmp_path)[2])
        assert Zeroing in _told


@pytest.mark.parametrize(("era", "is_told"), [(None, True), ("1.6", True), ("1.5", False)])
def test_counts_of_steps_that_a_release_gave_for_each_optimizer_are_told(
    tmp_path: Path, era: str | None, is_told: bool
) -> None:
    class Stepping(ByHand):
        def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
            first, second = self.optimizers()
            self.manual_backward(self.loss(batch))
            for optimizer in (first, second):
                optimizer.step()
                optimizer.zero_grad()

    if era is not None:
        Stepping.hook_era = era  # type: ignore[attr-defined]
    every = ModelCheckpoint(tmp_path, every_n_train_steps=4)
    _, trainer, told = fit(Stepping, tmp_path, 6, max_steps=5, callbacks=[every, Callback()], enable_checkpointing=True)
    assert trainer.global_step == 5
    for name in ("`max_steps=5`", "`every_n_train_steps=4`"):
        assert any(name in one and "if all optimizers step in each" in one for one in told) is is_told


def test_counts_of_steps_mean_one_thing_with_one_optimizer(tmp_path: Path) -> None:
    _, _, told = fit(Regression, tmp_path, max_steps=2)
    assert not any("max_steps" in one for one in told)
