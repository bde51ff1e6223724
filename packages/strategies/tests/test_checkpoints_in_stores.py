"""Checkpoints in stores: the same as on a disk, whole or absent, and readable by torch's own tools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fsspec.implementations.memory import MemoryFileSystem
from torch import Tensor
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from camshaft.hooks_core.support.remote_files import copy, files_below, new_file
from camshaft.strategies import (
    CheckpointError,
    consolidate_checkpoint,
    read_checkpoint,
    read_safetensors,
    write_checkpoint,
)
from camshaft.strategies.checkpoints.writer import CheckpointWriter

URL = "memory://bucket/run/x.ckpt"


class OnlyRank:
    device, global_rank, world_size = torch.device("cpu"), 0, 1

    def all_gather(self, value: Any) -> list[Any]:
        return [value]


@pytest.fixture(autouse=True)
def empty_store() -> Iterator[None]:
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def mesh() -> Iterator[Any]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def sharded(mesh: Any, value: float) -> DTensor:
    return distribute_tensor(torch.full((5, 2), value), mesh, [Shard(0)])


def save(checkpoint: dict[str, Any], asynchronous: bool = False) -> None:
    pending = CheckpointWriter(OnlyRank(), asynchronous).save(checkpoint, URL)  # type: ignore[arg-type]
    if pending is not None:
        pending.wait()


def names() -> list[str]:
    return [url.removeprefix(URL) for url in files_below("memory://bucket")]


class Opaque:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_file_is_what_it_is_on_a_disk(asynchronous: bool, tmp_path: Path) -> None:
    checkpoint = {"state_dict": {"w": torch.arange(4.0)}, "steps": 3, "mine": Opaque()}
    save(checkpoint, asynchronous)
    write_checkpoint(checkpoint, f"file://{tmp_path}/x.ckpt")
    stored, on_disk = (read_checkpoint(path, weights_only=False) for path in (URL, tmp_path / "x.ckpt"))
    assert torch.equal(stored["state_dict"].pop("w"), on_disk["state_dict"].pop("w")) and stored == on_disk
    assert stored["mine"] == Opaque() and "mine" not in read_checkpoint(URL)
    consolidate_checkpoint(URL, "memory://bucket/run/x.safetensors")
    assert torch.equal(read_safetensors("memory://bucket/run/x.safetensors")["w"], torch.arange(4.0))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_directory_is_replaced_by_its_index_and_its_old_parts_are_removed(mesh: Any, asynchronous: bool) -> None:
    writer = CheckpointWriter(OnlyRank(), asynchronous)  # type: ignore[arg-type]
    for value in (1.0, 2.0):
        pending = writer.save({"w": sharded(mesh, value), "steps": value}, URL)
        if pending is not None:
            pending.wait()
        whole = read_checkpoint(URL)
        assert torch.equal(whole["w"], torch.full((5, 2), value)) and whole["steps"] == value
        chunks = CheckpointWriter(OnlyRank(), False).load(URL, sharded=True)["w"]  # type: ignore[arg-type]
        assert isinstance(chunks, DTensor) and torch.equal(chunks.full_tensor(), whole["w"])
        assert sorted(name.partition("__0_")[2] or name for name in names()) == [
            "/.metadata",
            "/plain.ckpt",
            "0.distcp",
        ]
    tensors: dict[str, Tensor] = {"w": torch.zeros(5, 2)}
    dcp.load(tensors, storage_reader=FsspecReader(URL))
    assert torch.equal(tensors["w"], torch.full((5, 2), 2.0))
    copy(URL, "memory://bucket/run/last.ckpt")
    assert torch.equal(read_checkpoint("memory://bucket/run/last.ckpt")["w"], tensors["w"])


@pytest.mark.parametrize("part", ["tensors", "index"])
def test_a_directory_that_cannot_be_written_leaves_the_earlier_one(
    mesh: Any, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save({"w": sharded(mesh, 1.0)})
    before = names()

    def fail(*arguments: Any, **options: Any) -> None:
        raise ConnectionError("the line is dead")

    with monkeypatch.context() as patch:
        if part == "index":
            patch.setattr(MemoryFileSystem, "put_file", fail)
        else:
            patch.setattr("torch.save", fail)
        with pytest.raises(ConnectionError):
            save({"w": sharded(mesh, 2.0)})
    assert names() == before and torch.equal(read_checkpoint(URL)["w"], torch.ones(5, 2))


def test_parts_of_a_killed_writer_are_no_checkpoint_and_give_way(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def fail(*arguments: Any, **options: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("camshaft.strategies.checkpoints.sharded_in_store.write_plain", fail)
        patch.setattr("camshaft.strategies.checkpoints.sharded_in_store.NewStoreDirectory.discard", lambda self: None)
        with pytest.raises(Killed):
            save({"w": sharded(mesh, 1.0)})
    assert len(names()) == 1
    with pytest.raises(CheckpointError, match=r"memory://bucket/run/x\.ckpt.*has no plain\.ckpt"):
        read_checkpoint(URL)
    save({"w": sharded(mesh, 2.0)})
    assert len(names()) == 3 and torch.equal(read_checkpoint(URL)["w"], torch.full((5, 2), 2.0))


def test_either_form_takes_the_place_of_the_other(mesh: Any) -> None:
    save({"w": sharded(mesh, 1.0)})
    save({"w": torch.zeros(1)})
    assert names() == [""] and read_checkpoint(URL)["w"].shape == (1,)


def test_a_folder_of_something_else_is_not_replaced(mesh: Any) -> None:
    with new_file(f"{URL}/thesis.tex") as file:
        file.write_text("years of work")
    for checkpoint in ({"w": torch.zeros(1)}, {"w": sharded(mesh, 1.0)}):
        with pytest.raises(IsADirectoryError, match="a directory that is no checkpoint is not replaced"):
            save(checkpoint)
    assert names() == ["/thesis.tex"]


@pytest.mark.parametrize("name", ["plain.ckpt", "0.distcp"])
def test_a_damaged_or_missing_part_is_named(mesh: Any, name: str) -> None:
    save({"w": sharded(mesh, 1.0)})
    (found,) = (key for key in MemoryFileSystem.store if key.endswith(name))
    content = bytearray(MemoryFileSystem.store[found].getvalue())
    content[len(content) // 2] ^= 1
    MemoryFileSystem().pipe_file(found, bytes(content))
    with pytest.raises(CheckpointError, match=rf"memory://bucket/run/x\.ckpt.*{name}"):
        read_checkpoint(URL)
    MemoryFileSystem().rm_file(found)
    with pytest.raises(CheckpointError, match=rf"memory://bucket/run/x\.ckpt.*has no .*{name}"):
        read_checkpoint(URL)


def test_a_file_that_is_missing_or_damaged_is_named_by_its_url() -> None:
    with pytest.raises(FileNotFoundError, match=URL):
        read_checkpoint(URL)
    save({"w": torch.arange(1000)})
    content = MemoryFileSystem.store["/bucket/run/x.ckpt"].getvalue()
    MemoryFileSystem().pipe_file("/bucket/run/x.ckpt", content[:-200])
    with pytest.raises(CheckpointError, match=f"got '{URL}'") as caught:
        read_checkpoint(URL)
    assert caught.value.path == URL


def test_a_store_is_not_flushed_as_a_disk_is(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sync", lambda: pytest.fail("all disks of this machine are flushed"))
    save({"w": sharded(mesh, 1.0)})
