"""Objects in a checkpoint lie in a separate part, and are unpickled only from trusted files."""

from __future__ import annotations

import enum
import os
import pickle
from argparse import Namespace
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from camshaft.strategies import (
    CheckpointError,
    SingleDeviceStrategy,
    objects_left_out,
    read_checkpoint,
    write_checkpoint,
)
from camshaft.strategies.checkpoints.contents import OBJECTS_KEY


class Color(enum.Enum):
    RED = 1


@dataclass
class Config:
    width: int
    weight: Any = None


class Named(dict):  # type: ignore[type-arg]
    def __getattr__(self, name: str) -> Any:
        return self[name]


class Runs:
    """An object whose unpickling makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


OBJECTS = {
    "path": Path("a/b"),
    "enum": Color.RED,
    "class": nn.ReLU,
    "function": torch.relu,
    "partial": partial(nn.Linear, 3),
    "dataclass": Config(3),
    "set": {1, 2},
    "frozen": frozenset([3]),
    "sequence": [nn.ReLU, 1],
    "keys": {Color.RED: 1},
}


def same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other) and type(one) is type(other)


def test_everything_else_is_read_by_any_reader_that_unpickles_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    write_checkpoint({"mine": {**OBJECTS, "deep": [{"a": 1, "b": Color.RED}]}, "step": 3}, path)
    for read in (read_checkpoint(path), torch.load(path, weights_only=True), torch.load(path, weights_only=False)):
        assert read["mine"] == {"deep": [{"a": 1}]}
        assert read["step"] == 3
    left_out = objects_left_out(read_checkpoint(path))
    assert left_out.keys() == {*(("mine", name) for name in OBJECTS), ("mine", "deep", 0, "b")}
    assert left_out["mine", "class"] == "torch.nn.modules.activation.ReLU"


def test_a_caller_who_trusts_the_file_gets_the_objects_where_they_were(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    write_checkpoint({"mine": {**OBJECTS, "deep": [{"a": 1, "b": Color.RED}]}}, path)
    read = read_checkpoint(path, weights_only=False)
    assert read.keys() == {"mine"}
    for name, value in OBJECTS.items():
        assert same(read["mine"][name], value), name
    assert read["mine"]["deep"] == [{"a": 1, "b": Color.RED}]
    assert objects_left_out(read) == {}


def test_nothing_is_unpickled_unless_the_caller_says_so(tmp_path: Path) -> None:
    path, ran = tmp_path / "a.ckpt", tmp_path / "ran"
    write_checkpoint({"evil": Runs(ran)}, path)
    for weights_only in (None, True):
        assert "evil" not in read_checkpoint(path, weights_only=weights_only)
        assert not ran.exists()
    torch.load(path, weights_only=False)
    assert not ran.exists()
    read_checkpoint(path, weights_only=False)
    assert ran.exists()


def test_tensors_in_objects_share_memory_with_the_rest_as_they_did(tmp_path: Path) -> None:
    module = nn.Linear(200, 100)
    config = Config(1, module.weight.data)
    checkpoint = {"state_dict": module.state_dict(), "module": module, "config": config, "again": config}
    write_checkpoint(checkpoint, tmp_path / "a.ckpt")
    assert (tmp_path / "a.ckpt").stat().st_size < 1.5 * module.weight.nbytes
    read = read_checkpoint(tmp_path / "a.ckpt", weights_only=False)
    assert type(read["module"].weight) is nn.Parameter and read["module"].weight.requires_grad
    assert torch.equal(read["module"].weight, module.weight)
    assert read["config"] is read["again"]
    assert read["config"].weight.data_ptr() == read["module"].weight.data_ptr()


def test_an_asynchronous_save_takes_objects_as_they_are_when_it_is_asked_for(tmp_path: Path) -> None:
    strategy = SingleDeviceStrategy("cpu", save_asynchronously=True)
    config = Config(1, torch.ones(1000))
    pending = strategy.save_checkpoint({"config": config}, str(tmp_path / "a.ckpt"))
    config.width = 2
    config.weight.zero_()
    assert pending is not None
    pending.wait()
    read = strategy.load_checkpoint(str(tmp_path / "a.ckpt"), weights_only=False)["config"]
    assert read.width == 1 and bool(read.weight.all())
    assert "config" not in strategy.load_checkpoint(str(tmp_path / "a.ckpt"))


def test_namespaces_are_plain_and_are_namespaces_again(tmp_path: Path) -> None:
    args = Namespace(width=3, inner=Namespace(rate=0.1), many=[Namespace(a=1)])
    write_checkpoint({"args": args}, tmp_path / "a.ckpt")
    assert read_checkpoint(tmp_path / "a.ckpt") == {"args": args}
    write_checkpoint({"args": Namespace(path=Path("a"), width=3)}, tmp_path / "b.ckpt")
    assert read_checkpoint(tmp_path / "b.ckpt")["args"] == Namespace(width=3)
    read = read_checkpoint(tmp_path / "b.ckpt", weights_only=False)
    assert read == {"args": Namespace(path=Path("a"), width=3)}


def test_dictionaries_of_other_classes_are_plain_ones_without_unpickling(tmp_path: Path) -> None:
    named = Named(width=3, inner=Named(rate=0.1), path=Path("a"))
    write_checkpoint({"named": named, "list": [named], "tuple": (Named(a=1),), "count": Counter("a")}, tmp_path / "a")
    plain = read_checkpoint(tmp_path / "a")
    assert plain["named"] == {"width": 3, "inner": {"rate": 0.1}}
    assert [type(value) for value in (plain["named"], plain["named"]["inner"])] == [dict, dict]
    assert plain["list"] == [plain["named"]] and plain["tuple"] == ({"a": 1},) and plain["count"] == {"a": 1}
    read = read_checkpoint(tmp_path / "a", weights_only=False)
    assert type(read["named"].inner) is Named
    assert read["list"][0] is read["named"]


def test_a_checkpoint_that_was_read_without_its_objects_keeps_them_when_it_is_written_again(tmp_path: Path) -> None:
    write_checkpoint({"a": Color.RED}, tmp_path / "a.ckpt")
    read = read_checkpoint(tmp_path / "a.ckpt")
    write_checkpoint({**read, "b": Config(2)}, tmp_path / "b.ckpt")
    assert objects_left_out(read_checkpoint(tmp_path / "b.ckpt")).keys() == {("a",), ("b",)}
    assert read_checkpoint(tmp_path / "b.ckpt", weights_only=False) == {"a": Color.RED, "b": Config(2)}


def test_an_object_that_cannot_be_unpickled_is_an_error_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint({"mine": {"config": Config(1)}}, tmp_path / "a.ckpt")
    monkeypatch.delitem(globals(), "Config")
    with pytest.raises(CheckpointError, match=r"at checkpoint\['mine'\]\['config'\], of .*Config") as caught:
        read_checkpoint(tmp_path / "a.ckpt", weights_only=False)
    assert caught.value.path == str(tmp_path / "a.ckpt")
    assert read_checkpoint(tmp_path / "a.ckpt")["mine"] == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda part: part.pop("types"),
        lambda part: part["places"].append(["x"]),
        lambda part: part.update(places=3),
        lambda part: part.update(pickle=pickle.dumps(1)),
        lambda part: part.update(namespaces=[["absent", "x"]]),
        lambda part: part.update(places=[["step", "x"]]),
    ],
)
def test_a_damaged_part_is_an_error(change: Any, tmp_path: Path) -> None:
    write_checkpoint({"a": Color.RED, "step": 1}, tmp_path / "a.ckpt")
    raw = torch.load(tmp_path / "a.ckpt", weights_only=True)
    change(raw[OBJECTS_KEY][0])
    torch.save(raw, tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError):
        read_checkpoint(tmp_path / "a.ckpt", weights_only=False)


def test_arrays_are_objects(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    write_checkpoint({"array": numpy.arange(3), "number": numpy.float32(0.5)}, tmp_path / "a.ckpt")
    assert read_checkpoint(tmp_path / "a.ckpt")["number"] == 0.5
    assert read_checkpoint(tmp_path / "a.ckpt", weights_only=False)["array"].tolist() == [0, 1, 2]


def test_configurations_of_omegaconf_keep_their_type(tmp_path: Path) -> None:
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.create({"model": {"width": 3, "size": "${model.width}"}, "list": [1, {"a": 2}]})
    omegaconf.OmegaConf.set_struct(config, True)
    write_checkpoint({"config": config, "inner": {"list": config.list}}, tmp_path / "a.ckpt")
    plain = {"model": {"width": 3, "size": "${model.width}"}, "list": [1, {"a": 2}]}
    read = read_checkpoint(tmp_path / "a.ckpt")
    assert read["config"] == plain and type(read["config"]) is dict and read["inner"]["list"] == [1, {"a": 2}]
    read = read_checkpoint(tmp_path / "a.ckpt", weights_only=False)
    assert read["config"] == config and read["config"].model.size == 3 and omegaconf.OmegaConf.is_struct(read["config"])
    assert type(read["inner"]["list"]) is omegaconf.ListConfig
