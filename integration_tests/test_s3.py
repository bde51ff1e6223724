"""Runs whose files are on S3: a server that speaks its protocol, as started by a test, and the library `s3fs`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import run_ranks
from s3_server import s3_server

from camshaft.hooks_core.support.remote_files import claim, files_below, new_file
from camshaft.strategies import read_checkpoint, write_checkpoint

pytest.importorskip("s3fs")
pytest.importorskip("moto.server")

RUN = Path(__file__).parent / "s3_ranks.py"
MEGABYTE = 2**20


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    """Return the variables with which clients find a server of this module."""
    with s3_server() as variables:
        yield variables


@pytest.fixture
def bucket(server: dict[str, str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of an empty bucket that s3fs reaches, in this process and in those that it starts."""
    import s3fs

    for name, value in server.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    name = f"bucket{abs(hash(request.node.nodeid))}"
    s3fs.S3FileSystem().mkdir(name)
    return f"s3://{name}"


def names_in(url: str) -> list[str]:
    return sorted(one.removeprefix(f"{url}/") for one in files_below(url))


def run(num_ranks: int, *arguments: str) -> list[Any]:
    return run_ranks(RUN, num_ranks, args=list(arguments)).succeeded().reports


def test_a_resumed_run_ends_with_the_same_bits(bucket: str, tmp_path: Path) -> None:
    (whole,) = run(1, f"{tmp_path}/whole", "6")
    run(1, f"{bucket}/run", "3")
    (resumed,) = run(1, f"{bucket}/run", "6", "--ckpt_path=last")
    assert resumed == whole
    names = names_in(f"{bucket}/run")
    on_disk = sorted(str(path.relative_to(tmp_path / "whole")) for path in (tmp_path / "whole").rglob("*.ckpt"))
    assert [name for name in names if name.endswith(".ckpt")] == on_disk
    assert {name for name in names if name.endswith(".csv")} == {
        f"camshaft_logs/version_{n}/metrics.csv" for n in (3, 6)
    }


@pytest.mark.parametrize("strategy", ["ddp", "sharded"])
def test_two_ranks_save_and_resume_there(strategy: str, bucket: str, tmp_path: Path) -> None:
    options = [f"--strategy={strategy}"]
    whole = run(2, f"{tmp_path}/whole", "4", *options)
    run(2, f"{bucket}/run", "2", *options)
    assert run(2, f"{bucket}/run", "4", "--ckpt_path=last", *options) == whole
    checkpoint = read_checkpoint(f"{bucket}/run/checkpoints/last.ckpt")
    assert {name: value.tolist() for name, value in checkpoint["state_dict"].items()} == whole[0][-1]
    parts = [name for name in names_in(f"{bucket}/run/checkpoints") if name.endswith(".distcp")]
    assert len(parts) == (0 if strategy == "ddp" else 6)  # of two ranks, for the two best and the last


def test_a_write_that_fails_half_way_is_not_seen(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    path = f"{bucket}/run/x.ckpt"
    write_checkpoint({"w": torch.ones(2)}, path)
    store = s3fs.S3FileSystem()
    call = s3fs.S3FileSystem._call_s3
    calls: list[str] = []

    async def fail_at_the_second_part(self: Any, method: str, *arguments: Any, **options: Any) -> Any:
        calls.append(method)
        if method == "upload_part" and options["PartNumber"] == 2:
            raise OSError("the line is dead")
        return await call(self, method, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(s3fs.S3FileSystem, "_call_s3", fail_at_the_second_part)
        with pytest.raises(OSError, match="the line is dead"):
            write_checkpoint({"w": torch.zeros(30 * MEGABYTE)}, path)
    assert "upload_part" in calls and "complete_multipart_upload" not in calls
    assert names_in(bucket) == ["run/x.ckpt"] and torch.equal(read_checkpoint(path)["w"], torch.ones(2))
    assert not store.list_multipart_uploads(bucket.removeprefix("s3://"))


KILLED_HALF_WAY = """
import os, sys, s3fs, torch
from camshaft.strategies import write_checkpoint
call = s3fs.S3FileSystem._call_s3
async def die_at_the_second_part(self, method, *arguments, **options):
    if method == "upload_part" and options["PartNumber"] == 2:
        os._exit(9)
    return await call(self, method, *arguments, **options)
s3fs.S3FileSystem._call_s3 = die_at_the_second_part
write_checkpoint({"w": torch.zeros(30 * 2**20)}, sys.argv[1])
"""


def test_a_process_that_is_killed_half_way_leaves_the_earlier_file(bucket: str) -> None:
    path = f"{bucket}/run/x.ckpt"
    write_checkpoint({"w": torch.ones(2)}, path)
    killed = subprocess.run([sys.executable, "-c", KILLED_HALF_WAY, path], env=dict(os.environ))
    assert killed.returncode == 9
    assert names_in(bucket) == ["run/x.ckpt"] and torch.equal(read_checkpoint(path)["w"], torch.ones(2))


def test_what_another_process_writes_is_seen(bucket: str) -> None:
    assert names_in(bucket) == []
    program = "import sys; from camshaft.hooks_core.support.remote_files import *\n"
    program += "with new_file(sys.argv[1]) as f: f.write_text('a')"
    subprocess.run([sys.executable, "-c", program, f"{bucket}/run/a"], check=True)
    assert names_in(bucket) == ["run/a"]
    assert not claim(f"{bucket}/run/a") and claim(f"{bucket}/run/c")
    with new_file(f"{bucket}/run/b") as file:
        file.write_text(json.dumps([]))
    assert names_in(bucket) == ["run/a", "run/b", "run/c"]
