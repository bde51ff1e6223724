from __future__ import annotations

import dataclasses
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from hugging_face_parts import BatchEncoding, Prediction

from camshaft.hooks_core import DataHooks
from camshaft.hooks_core.support.transfer import map_nested, move_to_device

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


class Leaf:
    """Stands for a tensor; `moved` ones are others."""

    def __init__(self, name: str = "old") -> None:
        self.name = name


def renamed(value: Any) -> Any:
    return map_nested(value, lambda node: isinstance(node, Leaf), lambda leaf: Leaf("new"))


def test_an_output_that_refuses_to_be_changed_is_rebuilt_by_its_constructor() -> None:
    old = Prediction(loss=Leaf(), hidden_states=(Leaf(), Leaf()))
    new = renamed(old)
    assert type(new) is Prediction and list(new) == ["loss", "hidden_states"] and new.logits is None
    assert new.loss.name == new["loss"].name == new[0].name == new.hidden_states[1].name == "new"
    assert old.loss.name == old["loss"].name == "old"


def test_a_further_key_of_such_an_output_is_kept() -> None:
    old = Prediction(loss=Leaf())
    old["extra"] = Leaf()
    assert list(renamed(old)) == ["loss", "extra"] and renamed(old).extra.name == "new"


def test_a_user_dictionary_keeps_what_it_has_beside_its_data() -> None:
    old = BatchEncoding({"ids": Leaf()}, encoding=["tokens"])
    new = renamed(old)
    assert type(new) is BatchEncoding and new.ids.name == new["ids"].name == "new" and new[0] == "tokens"
    assert old.ids.name == "old"


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    size: int = dataclasses.field(default=0, init=False)

    @cached_property
    def name(self) -> str:
        return str(self.x.name)


def test_a_dataclass_is_copied_with_other_fields_and_without_what_it_computed_of_them() -> None:
    old = Frozen(Leaf())
    assert old.name == "old"
    new = renamed({"batch": old})["batch"]
    assert (type(new), new.x.name, new.name, new.size) == (Frozen, "new", "new", 0)


class AttributeDict(dict[str, Any]):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__dict__ = self


class NamedArguments(dict[str, Any]):
    def __init__(self, *, x: Any) -> None:
        super().__init__(x=x)


class ReadOnly(Mapping[str, Any]):
    def __init__(self, items: Any) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Any:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


@pytest.mark.parametrize(
    "old",
    [
        AttributeDict(x=Leaf()),
        NamedArguments(x=Leaf()),
        ReadOnly({"x": Leaf()}),
        MappingProxyType({"x": Leaf()}),
        defaultdict(list, x=Leaf()),
        Counter({"x": Leaf()}),  # type: ignore[dict-item]
        UserDict({"x": Leaf()}),
    ],
    ids=lambda old: type(old).__name__,
)
def test_a_mapping_of_any_class_is_rebuilt(old: Any) -> None:
    new = renamed(old)
    assert type(new) is type(old) and new["x"].name == "new" and old["x"].name == "old"
    if isinstance(old, AttributeDict):
        assert new.x is new["x"]
    if isinstance(old, defaultdict):
        assert new["y"] == []


@pytest.mark.parametrize(
    "old", [deque([Leaf(), 1], maxlen=2), UserList([Leaf(), 1]), type("Items", (list,), {})([Leaf(), 1])]
)
def test_a_sequence_of_any_class_is_rebuilt(old: Any) -> None:
    new = renamed(old)
    assert type(new) is type(old) and new[0].name == "new" and new[1] == 1 and old[0].name == "old"
    assert getattr(new, "maxlen", None) == getattr(old, "maxlen", None)


def test_a_container_of_a_class_of_its_own_in_which_nothing_changes_is_returned_itself() -> None:
    class Odd(dict[str, Any]):
        def __init__(self, *, size: int) -> None:
            super().__init__()
            self.size = size

    odd = Odd(size=3)
    odd["x"] = 1
    assert renamed([odd])[0] is odd


def test_tensors_of_an_output_and_of_a_dataclass_move() -> None:
    torch = pytest.importorskip("torch", reason="needs tensors")
    batch = {"output": Prediction(logits=torch.ones(1)), "frozen": Frozen(torch.ones(1))}
    moved = move_to_device(batch, torch.device("meta"))
    assert moved["output"].logits.device.type == moved["output"]["logits"].device.type == "meta"
    assert moved["frozen"].x.device.type == "meta"
    assert batch["output"].logits.device.type == "cpu"
