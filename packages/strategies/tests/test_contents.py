"""Objects in a checkpoint lie in a separate part, and are unpickled only from trusted files."""

from __future__ import annotations

import enum
import io
import os
import pickle
import threading
from argparse import Namespace
from collections import Counter, OrderedDict
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.serialization import get_unsafe_globals_in_checkpoint

from camshaft.strategies import (
    CheckpointError,
    ObjectsInPlace,
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


def test_an_object_in_place_that_cannot_be_unpickled_is_an_error_of_plain_unpickling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(ObjectsInPlace({"mine": {"config": Config(1)}}), tmp_path / "a.ckpt")
    monkeypatch.delitem(globals(), "Config")
    message = (
        r"`f` must be a whole checkpoint .*, but got one that holds .* at checkpoint\['mine'\]\['config'\], .* Make"
    )
    with pytest.raises(ValueError, match=message):
        torch.load(tmp_path / "a.ckpt", weights_only=False)


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


def test_objects_in_place_are_there_for_plain_unpickling_and_for_no_other_reader(tmp_path: Path) -> None:
    path = tmp_path / "in_place.ckpt"
    objects = {name: value for name, value in OBJECTS.items() if name != "partial"}  # equal to nothing else
    checkpoint = {"state_dict": {"weight": torch.ones(2)}, "hyper_parameters": {**objects, "width": 3}}
    write_checkpoint(ObjectsInPlace(checkpoint), path)

    unpickled = torch.load(path, weights_only=False)
    assert unpickled["hyper_parameters"] == {**objects, "width": 3}
    assert OBJECTS_KEY not in unpickled

    for read in (torch.load(path, weights_only=True), read_checkpoint(path)):
        assert read["hyper_parameters"] == {"width": 3}
        assert set(objects_left_out(read)) == {("hyper_parameters", name) for name in objects}
        assert torch.equal(read["state_dict"]["weight"], torch.ones(2))
    assert read_checkpoint(path, weights_only=False)["hyper_parameters"] == {**objects, "width": 3}


def test_objects_in_place_are_not_unpickled_without_trust(tmp_path: Path) -> None:
    made = tmp_path / "made"
    write_checkpoint(ObjectsInPlace({"hyper_parameters": {"object": Runs(made)}}), tmp_path / "a.ckpt")
    torch.serialization.clear_safe_globals()
    read_checkpoint(tmp_path / "a.ckpt")
    torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert not made.exists()
    torch.load(tmp_path / "a.ckpt", weights_only=False)
    assert made.exists()


def test_a_file_without_objects_holds_no_name(tmp_path: Path) -> None:
    checkpoint = {"state_dict": OrderedDict(weight=torch.ones(2)), "epoch": 3}
    write_checkpoint(ObjectsInPlace(checkpoint), tmp_path / "a.ckpt")
    torch.save(ObjectsInPlace(checkpoint), tmp_path / "b.ckpt")  # as a strategy of someone else's may
    for name in ("a.ckpt", "b.ckpt"):
        assert get_unsafe_globals_in_checkpoint(str(tmp_path / name)) == []
        assert torch.load(tmp_path / name, weights_only=True)["epoch"] == 3


def test_torch_s_variable_allows_objects_where_nothing_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint({"object": Config(3)}, tmp_path / "a.ckpt")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    assert read_checkpoint(tmp_path / "a.ckpt")["object"] == Config(3)
    assert "object" not in read_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    monkeypatch.delenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
    assert "object" not in read_checkpoint(tmp_path / "a.ckpt", weights_only=False)


def test_a_checkpoint_is_read_from_a_file_object_and_from_an_address(tmp_path: Path) -> None:
    write_checkpoint({"object": Config(3), "weight": torch.ones(2)}, tmp_path / "a.ckpt")
    stream = io.BytesIO((tmp_path / "a.ckpt").read_bytes())
    assert set(read_checkpoint(stream)) == {"weight", OBJECTS_KEY}
    stream.seek(0)
    assert read_checkpoint(stream, weights_only=False)["object"] == Config(3)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_checkpoint(io.BytesIO(b"no checkpoint"))

    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/a.ckpt"
        assert set(read_checkpoint(address)) == {"weight", OBJECTS_KEY}
        assert read_checkpoint(address, weights_only=False)["object"] == Config(3)
        server.shutdown()


def test_namespaces_within_what_is_pickled_as_a_whole_are_left_out_with_it(tmp_path: Path) -> None:
    write_checkpoint({"many": [Namespace(width=3), Path("folder")], "epoch": 1}, tmp_path / "a.ckpt")
    checkpoint = read_checkpoint(tmp_path / "a.ckpt")
    assert checkpoint["epoch"] == 1 and "many" not in checkpoint
    assert objects_left_out(checkpoint) == {("many",): "builtins.list"}
    assert read_checkpoint(tmp_path / "a.ckpt", weights_only=False)["many"] == [Namespace(width=3), Path("folder")]
