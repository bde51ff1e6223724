from __future__ import annotations

from collections import OrderedDict, namedtuple
from types import SimpleNamespace
from typing import Any

import pytest

from camshaft.hooks_core import DataHooks
from camshaft.hooks_core.transfer import move_to_device

CPU = SimpleNamespace(type="cpu")
Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    "batch",
    [1, "text", None, [1, 2], (1, [2]), {"a": (1,)}, Pair(1, 2), OrderedDict(a=1), type("Items", (list,), {})([1])],
)
def test_what_cannot_move_stays_equal_and_of_its_type(batch: Any) -> None:
    moved = move_to_device(batch, CPU)
    assert moved == batch
    assert type(moved) is type(batch)


def test_tensors_move_in_any_nesting_and_containers_are_rebuilt() -> None:
    torch = pytest.importorskip("torch", reason="needs tensors")
    batch = {"x": [torch.ones(2), Pair(torch.zeros(1), "name")], "rest": OrderedDict(z=(torch.ones(1),))}
    moved = DataHooks().transfer_batch_to_device(batch, torch.device("meta"), 0)
    assert moved["x"][0].device.type == moved["x"][1].x.device.type == moved["rest"]["z"][0].device.type == "meta"
    assert moved["x"][1].y == "name"
    assert batch["x"][0].device.type == "cpu"


@pytest.mark.parametrize("in_place", [True, False])
def test_a_batch_of_a_class_of_its_own_moves_itself(in_place: bool) -> None:
    torch = pytest.importorskip("torch", reason="the transfer looks for tensors first")

    class Graph:
        device: Any = None

        def to(self, device: Any) -> Any:
            moved = self if in_place else Graph()
            moved.device = device
            return None if in_place else moved

    (moved,) = move_to_device([Graph()], torch.device("cpu"))
    assert moved.device == torch.device("cpu")
