"""Whether a loss may leave parameters unused, where nobody says so: as the module's era had it."""

from __future__ import annotations

from typing import Any

import pytest
from bare_parts import BareStrategy
from torch import nn

from camshaft.compat.eras import extend
from camshaft.compat.eras.adapter import finds_unused
from camshaft.loops import Run


class OfToday(nn.Module):
    def training_step(self, batch: Any, batch_idx: int) -> Any: ...

    def on_train_epoch_end(self) -> None: ...


class InTurn(nn.Module):
    def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> Any: ...


class Of1x(OfToday):
    def training_epoch_end(self, outputs: Any) -> None: ...


class Of08(nn.Module):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": batch, "log": {"loss": batch}}


@pytest.mark.parametrize(
    ("kind", "expected"), [(OfToday, False), (nn.Linear, False), (InTurn, True), (Of1x, True), (Of08, True)]
)
def test_eras_before_2_0_and_optimizers_in_turn_may(kind: Any, expected: bool) -> None:
    module = kind(1, 1) if kind is nn.Linear else kind()
    assert finds_unused(module) is expected


@pytest.mark.parametrize(("era", "expected"), [("0.5", True), ("1.1.8", True), ("1.9", True), ("2.0", False)])
def test_a_declared_release_decides(era: str, expected: bool) -> None:
    module = OfToday()
    module.hook_era = era
    assert finds_unused(module) is expected


def test_a_strategy_that_asks_is_told_unless_somebody_else_does() -> None:
    class Asking(BareStrategy):
        finds_unused_in: Any = None

    def own(module: nn.Module) -> bool:
        return False

    for before, after in ((None, finds_unused), (own, own)):
        strategy = Asking()
        strategy.finds_unused_in = before
        run = Run(verb="fit", module=OfToday(), strategy=strategy, trainer=None)
        extend(run)
        run.resolve_hooks(())
        assert strategy.finds_unused_in is after
