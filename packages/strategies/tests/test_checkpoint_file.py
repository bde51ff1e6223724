from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from camshaft.strategies import CheckpointError, read_checkpoint, write_checkpoint
from camshaft.strategies.checkpoints.file import disk_errors, new_file, rename_durably
from camshaft.strategies.checkpoints.reading import locate


class Custom:
    pass


def example() -> dict[str, Any]:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    return {
        "state_dict": model.state_dict(),
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [scheduler.state_dict()],
        "rng": {"torch": torch.get_rng_state()},
        "plain": [1, 2.5, "three", None, True, (4, b"five"), float("inf")],
    }


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    written = example()
    write_checkpoint(written, tmp_path / "deep" / "a.ckpt")
    read = read_checkpoint(tmp_path / "deep" / "a.ckpt")
    assert read["plain"] == written["plain"]
    assert read["lr_schedulers"] == written["lr_schedulers"]
    assert type(read["state_dict"]) is OrderedDict
    assert all(torch.equal(read["state_dict"][name], value) for name, value in written["state_dict"].items())
    assert torch.equal(read["rng"]["torch"], written["rng"]["torch"])


def test_nothing_but_the_checkpoint_is_left_in_the_directory(tmp_path: Path) -> None:
    for _ in range(3):
        write_checkpoint(example(), tmp_path / "a.ckpt")
    assert os.listdir(tmp_path) == ["a.ckpt"]


@pytest.mark.parametrize("value", [(number for number in (1,)), threading.Lock(), lambda: None])
def test_what_cannot_be_pickled_is_refused_with_its_place(value: object, tmp_path: Path) -> None:
    with pytest.raises(
        TypeError, match=r"`checkpoint\['callbacks'\]\['mine'\]\[0\]` must be a tensor or a plain value"
    ):
        write_checkpoint({"callbacks": {"mine": [value]}}, tmp_path / "a.ckpt")
    assert os.listdir(tmp_path) == []


def test_numpy_scalars_and_dictionary_subclasses_become_plain(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    write_checkpoint({"a": numpy.float64(1.5), "b": defaultdict(int, x=1)}, tmp_path / "a.ckpt")
    read = read_checkpoint(tmp_path / "a.ckpt")
    assert read == {"a": 1.5, "b": {"x": 1}}
    assert type(read["a"]) is float


def test_a_name_in_a_file_is_never_imported(tmp_path: Path) -> None:
    torch.save({"evil": Custom}, tmp_path / "evil.ckpt")
    with pytest.raises(CheckpointError, match="tensors and plain values") as caught:
        read_checkpoint(tmp_path / "evil.ckpt")
    assert caught.value.path == str(tmp_path / "evil.ckpt")


def test_a_missing_file_is_told_from_a_broken_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="must be an existing checkpoint"):
        read_checkpoint(tmp_path / "absent.ckpt")


def test_a_path_that_could_block_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.ckpt")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket.ckpt"))
    (tmp_path / "link.ckpt").symlink_to(tmp_path / "fifo.ckpt")
    places = {tmp_path / "fifo.ckpt": "FIFO", tmp_path / "socket.ckpt": "socket", tmp_path / "link.ckpt": "FIFO"}
    for path, kind in {**places, Path("/dev/zero"): "device"}.items():
        for weights_only in (None, False):
            with pytest.raises(CheckpointError, match=f"which is a {kind}, in read_checkpoint"):
                read_checkpoint(path, weights_only=weights_only)


def test_a_file_that_holds_no_dictionary_is_refused(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "list.ckpt")
    with pytest.raises(CheckpointError, match="with a list"):
        read_checkpoint(tmp_path / "list.ckpt")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "a.ckpt"
    write_checkpoint({"weights": torch.arange(2000.0), "step": 3}, path)
    return path.read_bytes()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_truncated_file_is_an_error(
    data: st.DataObject, whole: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.ckpt"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_checkpoint(path)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_is_an_error_or_changes_nothing(
    data: st.DataObject, whole: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path_factory.mktemp("flip") / "a.ckpt"
    path.write_bytes(damaged)
    try:
        read = read_checkpoint(path)
    except CheckpointError:
        return
    assert read["step"] == 3  # the bit was in padding
    assert torch.equal(read["weights"], torch.arange(2000.0))


@pytest.mark.exhaustive
def test_no_bit_of_the_archives_directory_changes_a_value_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    write_checkpoint({"step": torch.tensor(3.0), "order": torch.arange(5)}, path)
    content = path.read_bytes()
    for position in range(content.index(b"PK\x01\x02"), len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                read = read_checkpoint(path)
            except CheckpointError:
                continue
            assert read["step"] == 3
            assert read["order"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("mmap", [False, True])
def test_tensors_may_be_views_of_the_file(tmp_path: Path, mmap: bool) -> None:
    path = tmp_path / "a.ckpt"
    write_checkpoint({"weights": torch.arange(3000.0)}, path)
    weights = read_checkpoint(path, mmap=mmap)["weights"]
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert (str(path) in maps.read_text()) is mmap
    write_checkpoint({"weights": torch.zeros(3000)}, path)  # the view is of the file that was opened
    assert torch.equal(weights, torch.arange(3000.0))
    weights += 1  # and is this process's own
    assert read_checkpoint(path)["weights"].sum() == 0
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_checkpoint(path, mmap=mmap)


def test_long_lists_of_plain_values_are_checked_one_by_one(tmp_path: Path) -> None:
    order = [*range(1000), (1, [2, {"x": threading.Lock()}])]
    with pytest.raises(TypeError, match=r"`checkpoint\['order'\]\[1000\]\[1\]\[1\]\['x'\]` must be a tensor"):
        write_checkpoint({"order": order}, tmp_path / "a.ckpt")


def test_a_failing_disk_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint({"step": 1}, tmp_path / "a.ckpt")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_checkpoint({"step": 2}, tmp_path / "a.ckpt")
    assert os.listdir(tmp_path) == ["a.ckpt"]
    assert read_checkpoint(tmp_path / "a.ckpt") == {"step": 1}


SAVE_BELOW_A_LIMIT = """
import os, resource, signal, sys
import torch
from camshaft.strategies.checkpoints.writer import CheckpointWriter
from camshaft.strategies import SingleDeviceStrategy

path = sys.argv[1]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

def save(writer, num_numbers, value):
    content = {"a": torch.full((num_numbers,), value), "text": "x" * 100, "b": torch.full((num_numbers,), value)}
    pending = writer.save(content, path)
    if pending is not None:
        pending.wait()

for num_numbers, limit in eval(sys.argv[2]):
    for is_asynchronous in (False, True):
        writer = CheckpointWriter(SingleDeviceStrategy("cpu"), is_asynchronous)
        save(writer, 10, 1.0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            save(writer, num_numbers, 2.0)
        except OSError as error:
            found = error.errno, error.filename == path and path in str(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(*found, os.listdir(os.path.dirname(path)), torch.load(path)["b"].unique().tolist())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="this system limits no file's size")
def test_a_file_that_cannot_grow_is_an_oserror_with_the_path_and_the_earlier_one_survives(tmp_path: Path) -> None:
    sizes = [(10, 0), (10, 500), (10, 1500), (3000, 5000), (3000, 25_000), (10**6, 6 * 10**6)]
    arguments = [str(tmp_path / "kept" / "a.ckpt"), str(sizes)]
    child = subprocess.run([sys.executable, "-c", SAVE_BELOW_A_LIMIT, *arguments], capture_output=True, text=True)
    outcomes = child.stdout.splitlines()
    assert outcomes == [f"{errno.EFBIG} True ['a.ckpt'] [1.0]"] * 2 * len(sizes), child.stderr


def test_an_error_of_torch_without_a_cause_is_an_oserror_as_well(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"a\.ckpt") as caught, disk_errors(tmp_path / "a.ckpt"):
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 832 vs 726")
    assert caught.value.errno == errno.EIO
    with pytest.raises(RuntimeError, match="another"), disk_errors(tmp_path / "a.ckpt"):
        raise RuntimeError("another")


def directory(path: Path, content: str) -> Path:
    path.mkdir(parents=True)
    (path / "plain.ckpt").write_text(content)
    return path


def content_of(path: Path) -> str:
    return (path / "plain.ckpt").read_text() if path.is_dir() else path.read_text()


@pytest.mark.parametrize("moment", [1, 2])
def test_a_crash_between_two_renames_leaves_one_of_both_where_it_is_found(
    tmp_path: Path, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, partial = directory(tmp_path / "x.ckpt", "old"), directory(tmp_path / "partial", "new")
    rename, num_renames = os.rename, 0

    def crash(*paths: Path) -> None:
        nonlocal num_renames
        num_renames += 1
        if num_renames >= moment:
            raise KeyboardInterrupt  # and nothing that it would clean up is done either
        rename(*paths)

    monkeypatch.setattr(os, "rename", crash)
    with pytest.raises(KeyboardInterrupt):
        rename_durably(partial, target)
    monkeypatch.undo()
    assert content_of(locate(target)) == "old"
    rename_durably(partial, target)  # the next save heals what is left
    assert content_of(target) == "new"
    assert os.listdir(tmp_path) == ["x.ckpt"]


def test_what_was_put_aside_is_found_only_where_nothing_has_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="must be an existing checkpoint"):
        locate(tmp_path / "x.ckpt")
    directory(tmp_path / ".x.ckpt.previous", "old")
    assert locate(tmp_path / "x.ckpt") == tmp_path / ".x.ckpt.previous"
    directory(tmp_path / "x.ckpt", "new")
    assert locate(tmp_path / "x.ckpt") == tmp_path / "x.ckpt"


def test_a_directory_that_is_no_checkpoint_is_never_replaced(tmp_path: Path) -> None:
    target = tmp_path / "runs"
    target.mkdir()
    (target / "precious").write_text("work")
    partial = tmp_path / "partial"
    partial.write_text("new")
    with pytest.raises(IsADirectoryError, match="a directory that is no checkpoint is not replaced"):
        rename_durably(partial, target)
    with (
        pytest.raises(IsADirectoryError, match="a directory that is no checkpoint is not replaced"),
        new_file(target),
    ):
        pass
    assert (target / "precious").read_text() == "work"
    assert sorted(os.listdir(tmp_path)) == ["partial", "runs"]


def test_an_empty_directory_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "x.ckpt").mkdir()
    with new_file(tmp_path / "x.ckpt") as partial:
        Path(partial).write_text("new")
    assert content_of(tmp_path / "x.ckpt") == "new"


def test_a_new_file_has_the_rights_that_files_get(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    with new_file(tmp_path / "deep" / "x") as partial:
        Path(partial).write_text("new")
    assert (tmp_path / "deep" / "x").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_file_that_was_not_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    with pytest.raises(ValueError, match="mine"), new_file(tmp_path / "x"):
        raise ValueError("mine")
    assert os.listdir(tmp_path) == ["x"]
    assert (tmp_path / "x").read_text() == "old"
