"""Files of other frameworks name classes; none of them is imported."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tarfile
import warnings
import zipfile
from argparse import Namespace
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import floats, integers
from torch.serialization import safe_globals

from camshaft.strategies import CheckpointError, objects_left_out, read_checkpoint
from camshaft.strategies.checkpoints.foreign_files import NamedValues, NumpyType, read_foreign_file, stand_in

pytestmark = pytest.mark.processes  # one, for all files

FAKES = """
import argparse, collections, enum, os, pathlib, sys, types
import numpy, torch

def module(name):
    parent = name.rpartition(".")[0]
    if parent and parent not in sys.modules:
        module(parent)
    made = sys.modules[name] = types.ModuleType(name)
    made.__path__ = []
    return made

def klass(full, bases=(object,), **members):
    where, _, name = full.rpartition(".")
    made = type(name, bases, {"__module__": where, **members})
    setattr(sys.modules.get(where) or module(where), name, made)
    return made

AttributeDict = klass("pytorch_lightning.utilities.parsing.AttributeDict", (dict,))
ModelCheckpoint = klass("pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint")
EarlyStopping = klass("pytorch_lightning.callbacks.early_stopping.EarlyStopping")
Loss = klass("research.losses.Loss")
Config = klass("research.config.Config", (dict,))
Layers = klass("research.config.Layers", (list,))
weights = collections.OrderedDict(weight=torch.arange(3.0), bias=torch.ones(1))

def begun():
    state = collections.OrderedDict(weights)
    return {"epoch": 3, "global_step": 12, "state_dict": state, "optimizer_states": [], "lr_schedulers": []}

def calling(function, *arguments):
    return type("Calling", (), {"__reduce__": lambda self: (function, arguments)})()
"""
"""The beginning of every script. No module of these names is installed."""

PLAIN = """
mine = AttributeDict(rate=numpy.float64(0.5), steps=numpy.int64(7), flag=numpy.bool_(True))
mine["nested"] = AttributeDict(dtype=torch.float16, size=torch.Size([2]))
checkpoint["hyper_parameters"] = mine
checkpoint["hparams"] = argparse.Namespace(folder=pathlib.PurePosixPath("/data/set"), inner=argparse.Namespace(a=1))
checkpoint["table"] = numpy.asfortranarray(numpy.arange(6, dtype="float32").reshape(2, 3))
checkpoint["mask"] = numpy.array([True, False])
checkpoint["counts"] = collections.defaultdict(list, a=[1])
checkpoint["names"] = frozenset(["b"])
checkpoint["queue"] = collections.deque([1, 2], maxlen=2)
checkpoint["config"] = Config(width=3)
checkpoint["layers"] = Layers([1, 2])
checkpoint["callbacks"] = {ModelCheckpoint: {"best_model_score": numpy.float32(0.25)}, EarlyStopping: {"wait": 1}}
"""

CONFIGURATION = """
DictConfig = klass("omegaconf.dictconfig.DictConfig")
ListConfig = klass("omegaconf.listconfig.ListConfig")
AnyNode = klass("omegaconf.nodes.AnyNode")
Metadata = klass("omegaconf.base.ContainerMetadata")

def built(kind, parent, **state):
    made = kind()
    vars(made).update(_metadata=Metadata(), _parent=parent, **state)
    return made

root = built(DictConfig, None)
inner = built(DictConfig, root)
sizes = built(ListConfig, inner)
vars(sizes)["_content"] = [built(AnyNode, sizes, _val=1), built(AnyNode, sizes, _val="${model.width}")]
vars(inner)["_content"] = {"width": built(AnyNode, inner, _val=8), "sizes": sizes}
vars(root)["_content"] = {"model": inner, "size": built(AnyNode, root, _val="${model.width}")}
vars(root)["_content"]["text"] = built(AnyNode, root, _val="${oc.env:HOME}")
checkpoint["hyper_parameters"] = root
checkpoint["hparams_type"] = DictConfig
"""

SCRIPTS = {
    "plain": PLAIN,
    "configuration": CONFIGURATION,
    "objects": 'checkpoint["hyper_parameters"] = {"width": 3, "loss": Loss(), "many": [1, Loss()], "kind": Loss}',
    "empty": 'checkpoint["table"] = numpy.empty((2**50, 0), dtype="float32")',
    "twice": 'one = Loss(); checkpoint["hyper_parameters"] = {"width": 3, "a": one, "b": {"c": one}, "d": [one]}',
    "namespace": 'checkpoint["hparams"] = argparse.Namespace(a=1)',
    "optimizer": 'checkpoint["optimizer_states"] = [{"state": Loss()}]',
    "weights": 'checkpoint["state_dict"]["extra"] = Loss()',
    "foreign": "checkpoint.clear(); checkpoint.update(weights=weights, loss=Loss())",
    "blocked": 'checkpoint["hparams"] = {"width": 3, "run": calling(os.system, "touch " + path + ".ran")}',
    "code": """checkpoint["hparams"] = {"width": 3, "run": calling(exec, "open(" + repr(path + ".ran") + ", 'w')")}""",
    "evaluated": 'checkpoint["hparams"] = {"width": 3, "run": calling(eval, "open(" + repr(path + ".ran") + ", 1")}',
    "metadata": 'checkpoint["state_dict"]._metadata = Loss()',
    "protected": 'checkpoint["hparams"] = {"width": 3, "run": calling(getattr, calling(__import__, "os"), "system")}',
}
"""Code that fills `checkpoint` before it is saved."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of the scripts, as archives (.ckpt) and in the format before torch 1.6 (.old)."""
    folder = tmp_path_factory.mktemp("files")
    program = f"""
{FAKES}
for name, script in {SCRIPTS!r}.items():
    names = dict(globals(), checkpoint=begun(), path={str(folder)!r} + "/" + name)
    exec(script, names)
    torch.save(names["checkpoint"], names["path"] + ".ckpt")
    torch.save(names["checkpoint"], names["path"] + ".old", _use_new_zipfile_serialization=False)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    return folder


def read_silently(path: Path) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return read_checkpoint(path)


@pytest.mark.parametrize("extension", ["ckpt", "old"])
def test_plain_data_takes_the_place_of_every_name_that_such_files_have(extension: str, files: Path) -> None:
    path = files / f"plain.{extension}"
    before = set(sys.modules)
    checkpoint = read_silently(path)
    assert not [name for name in set(sys.modules) - before if name.startswith(("pytorch_lightning", "research"))]
    assert b"pytorch_lightning.utilities.parsing\nAttributeDict" in path.read_bytes()
    saved = checkpoint["hyper_parameters"]
    assert isinstance(saved, NamedValues)
    assert (saved.rate, saved.steps, saved.flag) == (0.5, 7, True)
    assert type(saved.rate) is float
    assert saved.nested == {"dtype": torch.float16, "size": torch.Size([2])}
    assert checkpoint["hparams"].folder == "/data/set"
    assert checkpoint["hparams"].inner.a == 1
    assert torch.equal(checkpoint["table"], torch.arange(6.0).reshape(2, 3))
    assert checkpoint["mask"].tolist() == [True, False]
    assert (checkpoint["counts"], checkpoint["names"], checkpoint["queue"]) == ({"a": [1]}, {"b"}, [1, 2])
    assert (checkpoint["config"], checkpoint["layers"]) == ({"width": 3}, [1, 2])
    assert checkpoint["callbacks"] == {"ModelCheckpoint": {"best_model_score": 0.25}, "EarlyStopping": {"wait": 1}}
    assert torch.equal(checkpoint["state_dict"]["weight"], torch.arange(3.0))
    assert type(checkpoint["state_dict"]) is OrderedDict


def test_objects_that_are_no_plain_data_are_left_out_and_named(files: Path) -> None:
    with pytest.warns(UserWarning, match=r"\['loss'\] \(a research\.losses\.Loss\).*\['many'\]\[1\].*\['kind'\]"):
        checkpoint = read_checkpoint(files / "objects.ckpt")
    assert checkpoint["hyper_parameters"] == {"width": 3}


def test_an_object_in_several_places_is_named_at_each(files: Path) -> None:
    with pytest.warns(UserWarning, match="research"):
        left_out = objects_left_out(read_checkpoint(files / "twice.ckpt"))
    places = {("a",), ("b", "c"), ("d", 0)}
    assert left_out == {("hyper_parameters", *place): "research.losses.Loss" for place in places}


def test_an_array_without_numbers_allocates_no_memory(files: Path) -> None:
    assert read_checkpoint(files / "empty.ckpt")["table"].shape == (2**50, 0)
    claims = stand_in("numpy.ndarray")()
    claims.state = (1, (2**50,), NumpyType("f4"), False, b"")
    with pytest.raises(RuntimeError, match="shape"):
        claims.tensor()


def test_the_first_process_alone_says_so(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert read_silently(files / "objects.ckpt")["hyper_parameters"] == {"width": 3}
    assert read_silently(files / "configuration.ckpt")["hyper_parameters"]["model"]["width"] == 8


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("optimizer", r"needs research\.losses\.Loss, .* at checkpoint\['optimizer_states'\]\[0\]\['state'\]"),
        ("weights", r"add_safe_globals\(\[\(stand_in, 'research\.losses\.Loss'\)\]"),
        ("foreign", r"not imported: research\.losses\.Loss\b"),
        ("metadata", r"needs research\.losses\.Loss, .* at checkpoint\['state_dict'\]\['_metadata'\]"),
    ],
)
@pytest.mark.parametrize("extension", ["ckpt", "old"])
def test_what_cannot_be_read_is_named(name: str, message: str, extension: str, files: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(files / f"{name}.{extension}")


@pytest.mark.parametrize("extension", ["ckpt", "old"])
@pytest.mark.parametrize(
    ("name", "named"),
    [("code", "builtins.exec"), ("evaluated", "builtins.eval"), ("protected", ""), ("blocked", "posix.system")],
)
def test_a_name_is_left_out_and_not_called_whatever_it_is(name: str, named: str, extension: str, files: Path) -> None:
    with pytest.warns(UserWarning, match=rf"\['hparams'\]\['run'\] \(a {named}"):
        checkpoint = read_checkpoint(files / f"{name}.{extension}")
    assert checkpoint["hparams"] == {"width": 3}
    assert objects_left_out(checkpoint).keys() == {("hparams", "run")}
    assert not (files / f"{name}.ran").exists()


@pytest.mark.parametrize(
    "instructions",
    [
        b"ctorch._utils\n_rebuild_tensor_v2\n}X\x04\x00\x00\x00nameK\x01sb.",  # changes a function of torch
        b"ccollections\nOrderedDict\n}X\x04\x00\x00\x00nameK\x01sb.",  # or a class
        b"\x82\x01.",  # a name by its number in this process's registry
        b"(X\x06\x00\x00\x00moduleX\x01\x00\x00\x00aX\x01\x00\x00\x00btQ.",  # a module with its source code
    ],
)
def test_a_file_changes_nothing_of_the_process(instructions: bytes, tmp_path: Path) -> None:
    path = tmp_path / "hostile.ckpt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + instructions)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    with pytest.raises(CheckpointError, match="must be a whole checkpoint"):
        read_checkpoint(path)
    assert not hasattr(torch._utils._rebuild_tensor_v2, "name")


def test_a_tar_file_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "old.ckpt"
    with tarfile.open(path, "w") as archive:
        archive.add(Path(__file__), "storages")
    with pytest.raises(CheckpointError, match="must be a whole checkpoint"):
        read_checkpoint(path)
    with pytest.raises(pickle.UnpicklingError, match="tar"):
        read_foreign_file(path)


@pytest.mark.parametrize("protocol", [2, 4])
def test_plain_values_are_read_whatever_the_protocol(protocol: int, tmp_path: Path) -> None:
    values = {"empty": b"", "bytes": b"a", "nested": [{"weight": torch.ones(2)}]}
    torch.save(values, tmp_path / "plain.ckpt", pickle_protocol=protocol)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected pickle protocol")
        checkpoint = read_checkpoint(tmp_path / "plain.ckpt")
    assert (checkpoint["empty"], checkpoint["bytes"]) == (b"", b"a")
    assert torch.equal(checkpoint["nested"][0]["weight"], torch.ones(2))


@pytest.mark.parametrize("extension", ["ckpt", "old"])
def test_a_trusted_file_gives_its_objects_but_those_whose_classes_are_absent(extension: str, files: Path) -> None:
    read_checkpoint(files / f"blocked.{extension}", weights_only=False)
    assert (files / "blocked.ran").exists()  # so the tests above would have seen it
    (files / "blocked.ran").unlink()
    checkpoint = read_checkpoint(files / f"namespace.{extension}", weights_only=False)
    assert checkpoint["hparams"] == Namespace(a=1)
    with pytest.warns(UserWarning, match=r"\['loss'\] \(a research\.losses\.Loss\).*cannot|cannot.*\['loss'\]"):
        checkpoint = read_checkpoint(files / f"objects.{extension}", weights_only=False)
    assert checkpoint["hyper_parameters"] == {"width": 3}
    assert ("hyper_parameters", "loss") in objects_left_out(checkpoint)
    checkpoint = read_checkpoint(files / f"plain.{extension}", weights_only=False)
    assert (checkpoint["config"], checkpoint["layers"]) == ({"width": 3}, [1, 2])
    assert checkpoint["hyper_parameters"].nested.dtype is torch.float16


def test_the_environment_can_forbid_to_trust_a_file(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
    with pytest.warns(UserWarning, match="posix.system"):
        read_checkpoint(files / "blocked.ckpt", weights_only=False)
    assert not (files / "blocked.ran").exists()


def test_what_the_user_declared_safe_is_used(files: Path) -> None:
    class StandIn:
        pass

    with safe_globals([(StandIn, "research.losses.Loss")]):
        assert type(read_silently(files / "weights.ckpt")["state_dict"]["extra"]) is StandIn


@pytest.mark.parametrize("extension", ["ckpt", "old"])
def test_a_truncated_file_is_reported_as_one(extension: str, files: Path, tmp_path: Path) -> None:
    content = (files / f"namespace.{extension}").read_bytes()
    path = tmp_path / "truncated.ckpt"
    for share in (0.2, 0.6, 0.95):
        path.write_bytes(content[: int(len(content) * share)])
        with pytest.raises(CheckpointError, match="must be a whole checkpoint"):
            read_checkpoint(path)
    path.write_bytes(content)
    assert read_silently(path)["hparams"] == {"a": 1}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=floats(0, 1, exclude_max=True), value=integers(0, 255))
def test_a_damaged_file_is_read_or_refused_in_words(share: float, value: int, files: Path, tmp_path: Path) -> None:
    for extension in ("ckpt", "old"):
        content = bytearray((files / f"plain.{extension}").read_bytes())
        content[int(share * len(content))] = value
        path = tmp_path / "damaged.ckpt"
        path.write_bytes(content)
        with warnings.catch_warnings(), suppress(CheckpointError):
            warnings.simplefilter("ignore")
            assert "state_dict" in read_checkpoint(path)


def test_a_configuration_becomes_dictionaries_with_its_references_resolved(files: Path) -> None:
    with pytest.warns(UserWarning, match=r"references that stay text: .*\['text'\]"):
        checkpoint = read_checkpoint(files / "configuration.ckpt")
    saved = checkpoint["hyper_parameters"]
    assert saved == {"model": {"width": 8, "sizes": [1, 8]}, "size": 8, "text": "${oc.env:HOME}"}
    assert saved.model.width == 8
    assert checkpoint["hparams_type"] == "DictConfig"
