from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import checkpoint_ranks
import pytest
import torch
import torch.distributed as dist
from launching import run_ranks
from torch import nn
from torch.distributed.checkpoint import default_planner
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

from camshaft.strategies import CheckpointError, ObjectsInPlace, SingleDeviceStrategy, read_checkpoint, write_checkpoint
from camshaft.strategies.checkpoints.safetensors_files import consolidate_checkpoint
from camshaft.strategies.checkpoints.writer import CheckpointWriter

RANKS = Path(checkpoint_ranks.__file__)


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """Return a mesh of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.fixture
def directory(mesh: DeviceMesh, tmp_path: Path) -> Path:
    path = tmp_path / "a.ckpt"
    writer().save(checkpoint_ranks.example(mesh), str(path))
    return path


def writer() -> CheckpointWriter:
    return CheckpointWriter(SingleDeviceStrategy("cpu"), asynchronous=False)


def rewrite_plain_part(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = read_checkpoint(directory / "plain.ckpt")
    change(content)
    write_checkpoint(content, directory / "plain.ckpt")


@pytest.mark.processes
def test_what_some_ranks_saved_any_number_of_ranks_load(tmp_path: Path, mesh: DeviceMesh) -> None:
    alone = SingleDeviceStrategy("cpu")
    checkpoint_ranks.save_both_ways(alone, tmp_path)
    for num_ranks, arguments in ((4, ["--save", "--load", "1", "4"]), (2, ["--save", "--load", "1", "2", "4"])):
        outcome = run_ranks(RANKS, num_ranks, args=[str(tmp_path), *arguments]).succeeded()
        for reports in outcome.reports:
            assert reports[:2] == [[], []], outcome.output
    outcome = run_ranks(RANKS, 4, args=[str(tmp_path), "--load", "2"]).succeeded()
    assert [reports[0] for reports in outcome.reports] == [[]] * 4
    for num_ranks in (1, 2, 4):
        assert checkpoint_ranks.load_both_ways(alone, tmp_path, num_ranks) == []
        assert read_checkpoint(tmp_path / f"from-{num_ranks}-sync.ckpt")["epoch"] == 4
    consolidate_checkpoint(tmp_path / "from-4-async.ckpt", tmp_path / "one.ckpt")
    assert checkpoint_ranks.mismatches(read_checkpoint(tmp_path / "one.ckpt"), sharded=False) == []


def test_no_process_group_is_needed_to_read_whole_tensors(tmp_path: Path, directory: Path) -> None:
    dist.destroy_process_group()
    try:
        assert checkpoint_ranks.mismatches(read_checkpoint(directory), sharded=False) == []
        for sharded in (False, True):
            loaded = writer().load(str(directory), sharded=sharded)
            assert checkpoint_ranks.mismatches(loaded, sharded=False) == []
    finally:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def test_reading_without_other_processes_warns_of_nothing(
    directory: Path, recwarn: pytest.WarningsRecorder, capfd: pytest.CaptureFixture[str]
) -> None:
    read_checkpoint(directory)
    assert [str(warning.message) for warning in recwarn] == []
    assert capfd.readouterr() == ("", "")


def test_a_module_state_comes_back_as_one_with_its_version(mesh: DeviceMesh, tmp_path: Path) -> None:
    model = nn.BatchNorm1d(4)
    state = model.state_dict()
    state["weight"] = distribute_tensor(state["weight"], mesh, [Shard(0)])
    writer().save({"state_dict": state}, str(tmp_path / "a.ckpt"))
    read = read_checkpoint(tmp_path / "a.ckpt")["state_dict"]
    assert type(read) is type(state)
    assert read._metadata == state._metadata
    model.load_state_dict(read)


def test_tied_weights_are_written_once(mesh: DeviceMesh, tmp_path: Path) -> None:
    large = distribute_tensor(torch.randn(500, 100), mesh, [Shard(0)])
    writer().save({"state_dict": {"embedding": large, "head": large.detach()}}, str(tmp_path / "a.ckpt"))
    sizes = [path.stat().st_size for path in (tmp_path / "a.ckpt").iterdir()]
    assert 200_000 < sum(sizes) < 300_000


def test_saves_of_the_same_parts_are_planned_once(
    mesh: DeviceMesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_plans = 0
    plan = default_planner.create_default_global_save_plan

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_plans
        num_plans += 1
        return plan(*args, **kwargs)

    monkeypatch.setattr(default_planner, "create_default_global_save_plan", counted)
    saves = writer()

    def save(whole: torch.Tensor, expected: int, name: str = "a.ckpt") -> None:
        saves.save({"weights": distribute_tensor(whole, mesh, [Shard(0)])}, str(tmp_path / name))
        read = read_checkpoint(tmp_path / name)["weights"]
        assert read.dtype == whole.dtype and torch.equal(read, whole)
        assert num_plans == expected

    save(torch.zeros(4, 3), 1)
    save(torch.ones(4, 3), 1)
    save(torch.ones(4, 3), 1, "b.ckpt")
    save(torch.ones(4, 3, dtype=torch.bfloat16), 2)
    save(torch.ones(5, 3), 3)
    (tmp_path / "a-file").touch()
    with pytest.raises(NotADirectoryError):
        save(torch.zeros(5, 3), 3, "a-file/a.ckpt")
    save(torch.zeros(5, 3), 4)
    save(torch.ones(5, 3), 4)


def test_chunks_of_one_layout_are_unpickled_once(
    mesh: DeviceMesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wholes = [torch.randn(4, 3), torch.randn(4, 3), torch.randn(3, 4).t(), torch.randn(4, 3), torch.randn(3, 4).t()]
    # from_local: distribute_tensor would make all of them contiguous
    saved = [DTensor.from_local(whole, mesh, [Shard(0)]) for whole in wholes]
    writer().save({"weights": saved}, str(tmp_path / "a.ckpt"))
    calls = list[Any]()
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda file, **kwargs: (calls.append(file), load(file, **kwargs))[1])
    read = read_checkpoint(tmp_path / "a.ckpt")["weights"]
    assert all(map(torch.equal, read, wholes))
    assert len(calls) == 3  # the plain part, and one for each layout


def test_tools_of_torch_read_the_sharded_tensors(directory: Path, tmp_path: Path) -> None:
    dcp_to_torch_save(directory, tmp_path / "torch.pt")
    tensors = torch.load(tmp_path / "torch.pt")
    assert torch.equal(tensors["state_dict.layer.1"], checkpoint_ranks.whole_tensors()["layer.1"])


def test_no_path_of_this_machine_is_in_the_files(directory: Path) -> None:
    for part in directory.iterdir():
        assert os.fsencode(directory.parent) not in part.read_bytes()


def test_a_partial_sum_is_refused(mesh: DeviceMesh, tmp_path: Path) -> None:
    partial = DTensor.from_local(torch.ones(3), mesh, [Partial()])
    with pytest.raises(TypeError, match=r"`checkpoint\['a'\]\[0\]` must be sharded or replicated"):
        writer().save({"a": [partial]}, str(tmp_path / "a.ckpt"))
    assert os.listdir(tmp_path) == []


def test_a_file_of_one_process_takes_no_sharded_tensor(mesh: DeviceMesh, tmp_path: Path) -> None:
    sharded = distribute_tensor(torch.ones(3), mesh, [Shard(0)])
    with pytest.raises(
        TypeError, match=r"`checkpoint\['a'\]\['b'\]` must be a whole tensor where one process writes one file"
    ):
        write_checkpoint({"a": {"b": sharded}}, tmp_path / "a.ckpt")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("missing", ["plain.ckpt", "__0_0.distcp"])
def test_a_missing_part_is_named(directory: Path, missing: str) -> None:
    (directory / missing).unlink()
    for sharded in (False, True):
        with pytest.raises(
            CheckpointError, match=f"a.ckpt'.*which has no {missing}.*Use an earlier checkpoint"
        ) as caught:
            writer().load(str(directory), sharded=sharded)
        assert caught.value.path == str(directory)


def test_a_directory_that_is_no_checkpoint_is_told_from_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("something")
    with pytest.raises(CheckpointError, match=r"which has no plain\.ckpt"):
        read_checkpoint(tmp_path)
    write_checkpoint({"epoch": 1}, tmp_path / "plain.ckpt")
    with pytest.raises(CheckpointError, match=r"which has a plain\.ckpt of another format"):
        read_checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError, match="must be an existing checkpoint"):
        read_checkpoint(tmp_path / "absent")


@pytest.mark.parametrize("name", ["plain.ckpt", "__0_0.distcp"])
def test_a_damaged_part_is_an_error_or_changes_nothing(directory: Path, name: str) -> None:
    part = directory / name
    whole = part.read_bytes()
    num_errors = 0
    for position in range(0, len(whole), len(whole) // 60):
        for damaged in (whole[:position], whole[:position] + bytes([whole[position] ^ 16]) + whole[position + 1 :]):
            part.write_bytes(damaged)
            try:
                read = read_checkpoint(directory)
            except CheckpointError as error:
                num_errors += 1
                assert name in str(error), error
            else:  # the bit was in padding
                assert len(damaged) == len(whole)
                assert checkpoint_ranks.mismatches(read, sharded=False) == []
    assert num_errors > 80


def drop_a_chunk(content: dict[str, Any]) -> None:
    content["tensors"]["state_dict.layer.0"]["chunks"] = []


def move_a_chunk(content: dict[str, Any]) -> None:
    content["tensors"]["state_dict.layer.0"]["chunks"][0]["offsets"] = [5, 0]


def leave_the_directory(content: dict[str, Any]) -> None:
    content["tensors"]["state_dict.layer.0"]["chunks"][0]["file"] = "../secret"


def forget_a_tensor(content: dict[str, Any]) -> None:
    del content["tensors"]["state_dict.layer.0"]


def change_a_dtype(content: dict[str, Any]) -> None:
    content["tensors"]["state_dict.layer.0"]["dtype"] = "float"


def lose_the_index(content: dict[str, Any]) -> None:
    content["tensors"] = [1]


def come_from_the_future(content: dict[str, Any]) -> None:
    content["version"] = 2


def swap_regions(content: dict[str, Any]) -> None:
    chunk = content["tensors"]["state_dict.layer.0"]["chunks"][0]
    other = content["tensors"]["state_dict.layer.3"]["chunks"][0]
    chunk["start"], chunk["num_bytes"] = other["start"], other["num_bytes"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_a_chunk, "damaged index.*state_dict.layer.0 lacks a chunk"),
        (move_a_chunk, "damaged index.*state_dict.layer.0 has a chunk outside of it"),
        (leave_the_directory, r"damaged index.*has a chunk in '\.\./secret'"),
        (forget_a_tensor, "lacks the tensor 'state_dict.layer.0'"),
        (change_a_dtype, "damaged index.*state_dict.layer.0 has no dtype"),
        (lose_the_index, "damaged index"),
        (come_from_the_future, "has format version 2; this package reads 1"),
        (swap_regions, "damaged __0_0.distcp"),
    ],
)
def test_an_inconsistent_index_is_refused(
    directory: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    rewrite_plain_part(directory, change)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(directory)


def test_an_index_that_claims_more_than_the_file_has_is_refused_before_memory_is_allocated(directory: Path) -> None:
    def claim(content: dict[str, Any], *, num_bytes: int | None) -> None:
        entry = content["tensors"]["state_dict.layer.0"]
        entry["size"] = [2**50, *entry["size"][1:]]
        chunk = entry["chunks"][0]
        entry["chunks"] = [{**chunk, "offsets": [0] * len(entry["size"]), "sizes": entry["size"]}]
        if num_bytes is not None:
            entry["chunks"][0]["num_bytes"] = num_bytes

    rewrite_plain_part(directory, lambda content: claim(content, num_bytes=None))
    with pytest.raises(CheckpointError, match=r"a chunk that is larger than its part of __0_0\.distcp"):
        read_checkpoint(directory)
    rewrite_plain_part(directory, lambda content: claim(content, num_bytes=2**60))
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp, or an index that claims too much of it"):
        read_checkpoint(directory)


@pytest.mark.parametrize("name", ["__0_0.distcp", "plain.ckpt"])
def test_a_part_that_could_block_is_refused_at_once(directory: Path, name: str) -> None:
    (directory / name).unlink()
    os.mkfifo(directory / name)
    with pytest.raises(CheckpointError):
        read_checkpoint(directory)


class Holder:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


@pytest.mark.parametrize("kind", [dict, ObjectsInPlace])
def test_objects_beside_sharded_tensors_are_read_from_a_trusted_directory(
    kind: type[dict[str, Any]], mesh: DeviceMesh, tmp_path: Path
) -> None:
    weights = distribute_tensor(torch.arange(12.0).reshape(4, 3), mesh, [Shard(0)])
    path = tmp_path / "a.ckpt"
    writer().save(kind({"weights": weights, "holder": Holder(weights), "kind": nn.ReLU}), str(path))
    assert read_checkpoint(path)["weights"].sum() == 66
    assert "holder" not in read_checkpoint(path)
    read = read_checkpoint(path, weights_only=False)
    assert read["kind"] is nn.ReLU
    assert torch.equal(read["holder"].tensor, torch.arange(12.0).reshape(4, 3))
    chunks = writer().load(str(path), sharded=True, weights_only=False)
    assert isinstance(chunks["holder"].tensor, DTensor) and chunks["kind"] is nn.ReLU


class Malicious:
    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return Path.write_text, (Path(os.environ["CAMSHAFT_TEST_MALICE"]), "done")  # type: ignore[return-value]


def test_nothing_that_a_pickle_names_is_called(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tmp_path / "done"
    monkeypatch.setenv("CAMSHAFT_TEST_MALICE", str(done))
    malice = pickle.dumps(Malicious())
    (directory / ".metadata").write_bytes(malice)
    assert checkpoint_ranks.mismatches(read_checkpoint(directory), sharded=False) == []  # it is never read
    assert checkpoint_ranks.mismatches(writer().load(str(directory), sharded=True), sharded=True) == []
    for part in ("__0_0.distcp", "plain.ckpt"):
        (directory / part).write_bytes(malice)
        with pytest.raises(CheckpointError, match=part):
            read_checkpoint(directory)
    torch.save(Malicious(), directory / "plain.ckpt")
    with pytest.raises(CheckpointError, match=r"plain\.ckpt"):
        read_checkpoint(directory)
    assert not done.exists()
    pickle.loads(malice)
    assert done.exists()  # it would have worked


def test_a_malicious_tensor_in_an_archive_is_not_unpickled(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tmp_path / "done"
    monkeypatch.setenv("CAMSHAFT_TEST_MALICE", str(done))
    torch.save(Malicious(), directory / "__0_0.distcp")
    num_bytes = (directory / "__0_0.distcp").stat().st_size

    def point_there(content: dict[str, Any]) -> None:
        for entry in content["tensors"].values():
            for chunk in entry["chunks"]:
                chunk["start"], chunk["num_bytes"] = 0, num_bytes

    rewrite_plain_part(directory, point_there)
    with pytest.raises(CheckpointError, match=r"damaged __0_0\.distcp"):
        read_checkpoint(directory)
    assert not done.exists()


def test_a_file_and_a_directory_take_each_others_place(directory: Path, mesh: DeviceMesh) -> None:
    writer().save({"epoch": 5}, str(directory))
    assert read_checkpoint(directory) == {"epoch": 5}
    writer().save(checkpoint_ranks.example(mesh), str(directory))
    assert checkpoint_ranks.mismatches(read_checkpoint(directory), sharded=False) == []
    assert os.listdir(directory.parent) == ["a.ckpt"]


def test_a_directory_that_is_no_checkpoint_is_not_replaced(mesh: DeviceMesh, tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(IsADirectoryError, match="a directory that is no checkpoint is not replaced"):
        writer().save(checkpoint_ranks.example(mesh), str(tmp_path))
    assert os.listdir(tmp_path) == ["precious"]


def test_a_disk_that_fails_leaves_the_earlier_one(
    directory: Path, mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        writer().save(checkpoint_ranks.example(mesh), str(directory))
    monkeypatch.undo()
    assert checkpoint_ranks.mismatches(read_checkpoint(directory), sharded=False) == []
    assert os.listdir(directory.parent) == ["a.ckpt"]
