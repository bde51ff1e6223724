"""Whether a loss may leave parameters unused, where nobody says so."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from camshaft.strategies.ddp.ddp_arguments import DDPArguments
from camshaft.strategies.ddp.unused_parameters import finds_by_default


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


def arguments(**given: Any) -> DDPArguments:
    defaults: dict[str, Any] = {"find_unused_parameters": None, "static_graph": False, "gradient_as_bucket_view": False}
    more = {"bucket_cap_mb": 25, "broadcast_buffers": True, "comm_hook": None, "comm_state": None}
    return DDPArguments(**{**defaults, **more, **given})


@pytest.mark.parametrize(
    ("kind", "expected"), [(OfToday, False), (nn.Linear, False), (InTurn, True), (Of1x, True), (Of08, True)]
)
def test_eras_before_2_0_and_optimizers_in_turn_may(kind: Any, expected: bool) -> None:
    module = kind(1, 1) if kind is nn.Linear else kind()
    assert finds_by_default(module) is expected
    assert arguments().for_module(module).find_unused_parameters is expected


@pytest.mark.parametrize(("era", "expected"), [("0.5", True), ("1.1.8", True), ("1.9", True), ("2.0", False)])
def test_a_declared_release_decides(era: str, expected: bool) -> None:
    module = OfToday()
    module.hook_era = era
    assert finds_by_default(module) is expected


@pytest.mark.parametrize("asked", [True, False])
def test_who_says_so_is_heeded(asked: bool) -> None:
    for kind in (OfToday, InTurn, Of1x):
        assert arguments(find_unused_parameters=asked).for_module(kind()).find_unused_parameters is asked


def test_a_static_graph_is_learned_and_not_walked() -> None:
    assert not arguments(static_graph=True).for_module(InTurn()).find_unused_parameters
