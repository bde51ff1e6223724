"""Stores that fsspec reaches: what each operation of a run leaves there, and the same put there again.

A store keeps what it has acknowledged, so a run that is cut off leaves what was there after one of its operations. An
object of S3 is put whole, and parts of an upload that was not completed cannot be seen. A file in fsspec's memory is
there, empty, as soon as it is opened; in the middle of each write there is half of what it writes.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from camshaft.hooks_core.support.remote_files import join
from crashes.recorder import Operation

State = dict[str, bytes]
"""The files of a run by their path below its URL, the one that was written last at the end."""


class StoreRecorder:
    """Notes what is at a URL whenever that has changed.

    Args:
        url: The URL.

    Attributes:
        operations: Of kind "store", with what is there afterwards, and the marks of the run.
    """

    def __init__(self, url: str) -> None:
        self.operations: list[Operation] = []
        self._url = url
        self._state: State = {}

    def mark(self, **facts: Any) -> None:
        """Append a mark."""
        self.operations.append(Operation("mark", data=facts))

    def look(self) -> None:
        """Append what is there, if it is not as before."""
        found = contents_of(self._url)
        kept = {path: data for path, data in self._state.items() if found.get(path) == data}
        state = kept | {path: data for path, data in found.items() if path not in kept}
        if state != self._state:
            self._state = state
            self.operations.append(Operation("store", data=state))


@contextlib.contextmanager
def recording_store(url: str) -> Iterator[StoreRecorder]:
    """Record the operations of this process on the files below a URL of memory or S3."""
    recorder = StoreRecorder(url)
    with _memory(recorder) if url.startswith("memory") else _s3(recorder):
        yield recorder
    recorder.look()


@contextlib.contextmanager
def _memory(recorder: StoreRecorder) -> Iterator[None]:
    from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

    class Files(dict[str, Any]):
        def __setitem__(self, path: str, file: Any) -> None:
            super().__setitem__(path, file)
            recorder.look()

        def __delitem__(self, path: str) -> None:
            super().__delitem__(path)
            recorder.look()

        def pop(self, path: str, *default: Any) -> Any:
            file = super().pop(path, *default)
            recorder.look()
            return file

    def write(file: Any, data: Any) -> int:
        content = bytes(data)
        half = len(content) // 2
        for part in (content[:half], content[half:]):
            super(MemoryFile, file).write(part)
            recorder.look()
        return len(content)

    MemoryFileSystem.store = Files(MemoryFileSystem.store)
    MemoryFile.write = write
    try:
        yield
    finally:
        del MemoryFile.write
        MemoryFileSystem.store = dict(MemoryFileSystem.store)


@contextlib.contextmanager
def _s3(recorder: StoreRecorder) -> Iterator[None]:
    from s3fs import S3FileSystem

    real: Callable[..., Any] = S3FileSystem._call_s3

    async def call(self: Any, method: str, *arguments: Any, **options: Any) -> Any:
        result = await real(self, method, *arguments, **options)
        if not method.startswith(("get_", "head_", "list_")):
            recorder.look()
        return result

    S3FileSystem._call_s3 = call
    try:
        yield
    finally:
        S3FileSystem._call_s3 = real


def contents_of(url: str) -> State:
    """Return the files below a URL, without what fsspec remembers of them."""
    protocol, _, place = url.partition("://")
    if protocol == "memory":
        from fsspec.implementations.memory import MemoryFileSystem

        start = f"/{place}/"
        files = dict(MemoryFileSystem.store)
        return {path.removeprefix(start): file.getvalue() for path, file in files.items() if path.startswith(start)}
    bucket, _, folder = place.partition("/")
    client = _client()
    listed = client.list_objects_v2(Bucket=bucket, Prefix=f"{folder}/")
    assert not listed["IsTruncated"]
    read = partial(_read_object, client, bucket)
    return {one["Key"].removeprefix(f"{folder}/"): read(one["Key"], one["ETag"]) for one in listed.get("Contents", [])}


def put(state: State, url: str) -> None:
    """Let a store have these files below a URL, written in this order, and no others."""
    protocol, _, place = url.partition("://")
    if protocol == "memory":
        from fsspec.implementations.memory import MemoryFileSystem

        MemoryFileSystem.store.clear()
        MemoryFileSystem.pseudo_dirs[:] = [""]
        memory = MemoryFileSystem()
        for path, data in state.items():
            memory.makedirs(f"/{join(place, path)}".rpartition("/")[0], exist_ok=True)
            memory.pipe_file(f"/{join(place, path)}", data)
        return
    bucket, _, folder = place.partition("/")
    client = _client()
    there = {one["Key"]: one for one in client.list_objects_v2(Bucket=bucket).get("Contents", [])}
    wanted = {join(folder, path): data for path, data in state.items()}
    kept: list[Any] = []  # the first ones, if they are there already and were written in this order
    for key, data in wanted.items():
        one = there.get(key)
        if one is None or one["ETag"].strip('"') != hashlib.md5(data, usedforsecurity=False).hexdigest():
            break
        if kept and one["LastModified"] < kept[-1]["LastModified"]:
            break
        kept.append(one)
    others = there.keys() - {one["Key"] for one in kept}
    if others:
        client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in sorted(others)]})
    for key in list(wanted)[len(kept) :]:
        client.put_object(Bucket=bucket, Key=key, Body=wanted[key])


def make_bucket(url: str) -> None:
    """Make the bucket of a URL, for clients that have not seen it."""
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()
    _clients.clear()
    _objects.clear()
    _client().create_bucket(Bucket=url.partition("://")[2].partition("/")[0])


_clients: list[Any] = []
_objects: dict[str, bytes] = {}


def _client() -> Any:
    """Return a client of its own, which sees what s3fs does, from any thread."""
    if not _clients:
        import boto3

        _clients.append(boto3.client("s3"))
    return _clients[0]


def _read_object(client: Any, bucket: str, key: str, tag: str) -> bytes:
    """Return an object; of one with a tag that was seen the bytes are known."""
    if tag not in _objects:
        _objects[tag] = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    return _objects[tag]
