"""Files and folders by path or URL: `s3://bucket/runs`, `gs://`, `memory://` and all else that fsspec reaches.

What takes a path takes one of this machine too, unless it says otherwise, and never imports fsspec for it. Paths of
users first go through `absolute`, which turns `file://` into a path of this machine.

A file in a store is whole or absent, like one on a disk: it is made on this machine, in a temporary folder, and then
uploaded. An object store shows it when the upload has ended; elsewhere it is uploaded under a name of its own and
renamed. A folder in a store is whole once it has its index, `INDEX_FILE`, which comes last and goes first.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

from camshaft.hooks_core.support import durable_files
from camshaft.hooks_core.support.messages import must_be

INDEX_FILE = "plain.ckpt"
"""The file of a folder that is written last and removed first, so that a folder with it is whole."""

_URL = re.compile(r"[A-Za-z][\w+.-]+(://|::\S*://)")
_OF_THIS_MACHINE = re.compile(r"(file|local)://")
_WITHOUT_A_SLASH = re.compile(r"[A-Za-z][\w+.-]+:/(?!/)")
_OBJECT_STORES = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss", "tos"))
"""Protocols of stores that show an object when its upload has ended, and the earlier one until then."""


def is_url(path: object) -> bool:
    """Return whether a path is that of a store, rather than of this machine (`C:\\folder`, `file://` too)."""
    return isinstance(path, str) and _URL.match(path) is not None and _OF_THIS_MACHINE.match(path) is None


def absolute(path: str | os.PathLike[str]) -> str:
    """Return the absolute path of a path, "~" being the home directory, or a URL without slashes at its end.

    Raises:
        ValueError: If a URL was made a `Path`, which drops a slash.
    """
    text = local_path(path)
    if is_url(text):
        return text if text.endswith("://") else text.rstrip("/")
    return os.path.abspath(os.path.expanduser(text))


def local_path(path: str | os.PathLike[str]) -> str:
    """Return a path as it is, but that of `file:///folder` as "/folder".

    Raises:
        ValueError: If a URL was made a `Path`, which drops a slash.
    """
    text = os.fspath(path)
    if isinstance(path, PurePath) and _WITHOUT_A_SLASH.match(text):
        rule = "a string if it is a URL, since a `Path` drops one of its slashes"
        raise ValueError(must_be("path", rule, text, "a path", "Pass the string."))
    if _OF_THIS_MACHINE.match(text) is None:
        return text
    text = text.partition("://")[2]
    return text[1:] if re.match(r"/[A-Za-z]:", text) else text


def check_store(field: str, path: str, where: str) -> None:
    """Check that files can be written where a path or URL leads, as far as that is known without a connection.

    Args:
        field: Name of the argument.
        path: The path.
        where: The class or function that takes it.

    Raises:
        ValueError: If no store is known by the URL's protocol, or nothing can be written there.
        ModuleNotFoundError: If fsspec is not installed.
        ImportError: If fsspec misses the library for the store.
    """
    if not is_url(path):
        return
    protocol, action = _protocol(path), "Pass one such as 's3://bucket/folder'."
    if protocol in ("http", "https") or "::" in path:
        rule = "a folder of this machine, or of one store that can be written to"
        raise ValueError(must_be(field, rule, path, where, action))
    fsspec = _import_fsspec(path)
    try:
        fsspec.get_filesystem_class(protocol)
    except ValueError as error:
        raise ValueError(must_be(field, "a URL whose protocol fsspec knows", path, where, action)) from error
    except ImportError as error:
        told = must_be(field, "a URL whose library is installed", path, where, f"{error}.")
        raise ImportError(told, name=error.name) from error


def check_on_disk(field: str, path: str, where: str) -> None:
    """Check that a path is one of this machine, for what a library writes that takes no URLs.

    Args:
        field: Name of the argument, for the error.
        path: The path.
        where: The class or function that checks it, for the error.

    Raises:
        ValueError: If it is a URL.
    """
    if is_url(path):
        rule = "a path of this machine, as what writes there takes no URLs"
        raise ValueError(must_be(field, rule, path, where, "Write to a local folder, and copy it afterwards."))


def join(folder: str, *names: str) -> str:
    """Return the path of a file in a folder."""
    return posixpath.join(folder, *names) if is_url(folder) else os.path.join(folder, *names)


def parent_of(path: str) -> str:
    """Return the folder of a file."""
    if not is_url(path):
        return os.path.dirname(path)
    folder = path.rpartition("/")[0]
    return f"{folder}/" if folder.endswith(":/") else folder


def lies_in(path: str, folder: str) -> bool:
    """Return whether a path is below a folder; one that was read from a file may lead out of it by ".."."""
    if is_url(path) or is_url(folder):
        return path.startswith(join(folder, "")) and ".." not in path.split("/")
    return Path(folder) in Path(os.path.abspath(path)).parents


def exists(path: str) -> bool:
    """Return whether there is a file or a folder, or a link to one.

    Raises:
        Exception: If a store cannot be asked; "no" would let its files be replaced.
    """
    return os.path.exists(path) if not is_url(path) else _kind(*_store(path)) is not None


def is_folder(path: str) -> bool:
    """Return whether there is a folder, or a link to one.

    Raises:
        Exception: If a store cannot be asked.
    """
    return os.path.isdir(path) if not is_url(path) else _kind(*_store(path)) == "directory"


def make_folder(path: str) -> None:
    """Make a folder with its parents, unless it is there; object stores have none."""
    if not is_url(path):
        os.makedirs(path, exist_ok=True)
    elif _protocol(path) not in _OBJECT_STORES:
        store, place = _store(path)
        store.makedirs(place, exist_ok=True)


def entries_of(folder: str) -> list[str]:
    """Return the names of the files and folders in a folder; none if it does not exist."""
    if not is_url(folder):
        try:
            return os.listdir(folder or os.curdir)
        except OSError:
            return []
    store, place = _store(folder)
    try:
        names = store.ls(place, detail=False) or ()
    except (FileNotFoundError, NotADirectoryError):
        return []
    # An object store may list an object with the folder's own name, which some tools put there.
    return [name for name in (str(one).rstrip("/").rpartition("/")[2] for one in names) if name]


def files_below(folder: str) -> list[str]:
    """Return the URLs of all files in a folder of a store and in the folders below it; none if it does not exist."""
    store, place = _store(folder)
    start = place.rstrip("/") + "/"
    return [join(folder, name.removeprefix(start)) for name in store.find(place) if name.startswith(start)]


def size_of(path: str) -> int:
    """Return the number of bytes of a file.

    Raises:
        FileNotFoundError: If there is none.
    """
    if not is_url(path):
        return os.stat(path).st_size
    store, place = _store(path)
    return int(store.info(place)["size"])


def modified(url: str) -> datetime:
    """Return when a file in a store was written, by the clock of the store.

    Raises:
        NotImplementedError: If the store does not tell.
    """
    store, place = _store(url)
    when: datetime = store.modified(place)
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def written_at(path: str) -> int:
    """Return when a file was written, in nanoseconds; of a folder its index, as names in a folder change later, too.

    Raises:
        FileNotFoundError: If there is none.
    """
    if not is_url(path):
        found = durable_files.found_at(Path(path)) or Path(path)
        index = found / INDEX_FILE
        return (index if index.exists() else found).stat().st_mtime_ns
    files = [path]
    if is_folder(path):
        index_url = join(path, INDEX_FILE)
        files = [index_url] if exists(index_url) else files_below(path)
    return max(int(modified(file).timestamp() * 1e9) for file in files)


def remove(path: str) -> None:
    """Remove a file, or a folder with all that it holds, if it is there."""
    if not is_url(path):
        durable_files.remove(Path(path))
        return
    store, place = _store(path)
    kind = _kind(store, place)
    if kind == "file":
        store.rm_file(place)
    if kind != "directory":
        return
    for url in _index_first(files_below(path)):
        with contextlib.suppress(FileNotFoundError):
            store.rm_file(_store(url)[1])
    if _protocol(path) not in _OBJECT_STORES:
        found = store.find(place, withdirs=True, detail=True)
        folders = {place, *(name for name, info in found.items() if info["type"] == "directory")}
        for folder in sorted(folders, key=len, reverse=True):
            with contextlib.suppress(FileNotFoundError):
                store.rmdir(folder)


@contextlib.contextmanager
def new_file(url: str) -> Iterator[Path]:
    """Give the path of a temporary file, which is published in a store when the block ends without an error.

    Until then, and if the upload fails, the store shows what it had.

    Args:
        url: The file; what is there is replaced, a folder too. Folders are made as needed.

    Raises:
        OSError: If the store refuses, or another error of its library; a note has the URL.
    """
    with _temporary_file(url) as path:
        yield path
        with _noting(url):
            _publish(url, lambda store, place: store.put_file(str(path), place))


@contextlib.contextmanager
def _temporary_file(url: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="camshaft-") as folder:
        yield Path(folder, url.rpartition("/")[2] or "file")


@contextlib.contextmanager
def replace_file(path: str) -> Iterator[Path]:
    """Give a path of this machine, whose file takes the place of a file when the block ends: never half a file.

    Args:
        path: The file; folders are made as needed.

    Raises:
        OSError: If disk or store refuse; the file is as it was then.
    """
    if is_url(path):
        with new_file(path) as fresh:
            yield fresh
        return
    make_folder(os.path.dirname(path) or os.curdir)
    with durable_files.replace_file(Path(path)) as fresh:
        yield fresh


@contextlib.contextmanager
def local_copy(path: str) -> Iterator[Path]:
    """Yield a local path; remote files are downloaded to a temporary copy.

    Raises:
        FileNotFoundError: If a store has no such file.
    """
    if not is_url(path):
        yield Path(path)
        return
    with _temporary_file(path) as copied:
        with _noting(path):
            store, place = _store(path)
            if _kind(store, place) is None:
                raise FileNotFoundError(must_be("path", "an existing file", path, "a read", "Check the path."))
            store.get_file(place, str(copied))
        yield copied


@contextlib.contextmanager
def edit_file(path: str) -> Iterator[Path]:
    """Yield a local path; remote files are downloaded, and uploaded on exit.

    Args:
        path: The file, which need not exist. Folders are created as needed.

    Raises:
        OSError: If the store refuses; the file is as it was then.
    """
    if not is_url(path):
        make_folder(os.path.dirname(path) or os.curdir)
        yield Path(path)
        return
    with new_file(path) as copied:
        store, place = _store(path)
        if _kind(store, place) is not None:
            store.get_file(place, str(copied))
        yield copied


def claim(url: str) -> bool:
    """Make an empty file in a store; return False if there is one already.

    Only one of several processes succeeds, where the store can tell (S3, Google Cloud Storage, a disk).
    """
    store, place = _store(url)
    make_folder(parent_of(url))
    try:
        store.pipe_file(place, b"", mode="create")
    except FileExistsError:
        return False
    return True


def copy(source: str, target: str) -> None:
    """Make a file or a folder of a store the same as another one of it: each file whole or absent, the index last.

    Args:
        source: The file or folder.
        target: What becomes the same.

    Raises:
        FileNotFoundError: If the source does not exist.
        OSError: If the store refuses, or another error of its library.
    """
    with _noting(target):
        if not is_folder(source):
            _copy_file(source, target)
            return
        names = [url.removeprefix(join(source, "")) for url in _index_first(files_below(source))]
        for name in reversed(names):
            _copy_file(join(source, name), join(target, name))
        for url in files_below(target):
            if url.removeprefix(join(target, "")) not in names:
                remove(url)


def _copy_file(source: str, target: str) -> None:
    if _protocol(source) in _OBJECT_STORES:
        _publish(target, lambda store, place: store.cp_file(_store(source)[1], place))
        return
    with local_copy(source) as copied:
        _publish(target, lambda store, place: store.put_file(str(copied), place))


def _publish(url: str, write: Any) -> None:
    """Have a function write a file of a store, by the means with which it is whole or absent there."""
    store, place = _store(url)
    if _protocol(url) in _OBJECT_STORES:
        former = _index_first(files_below(url))  # of a folder with this name, which the file takes the place of
        write(store, place)
        for one in former:
            remove(one)
        return
    make_folder(parent_of(url))
    folder, _, name = place.rpartition("/")
    partial = f"{folder}/.{name}.{uuid.uuid4().hex[:8]}{durable_files.SUFFIX}"
    try:
        write(store, partial)
        if is_folder(url):
            remove(url)
        _rename(store, partial, place)
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one to raise
            store.rm_file(partial)
        raise


def _rename(store: Any, partial: str, place: str) -> None:
    if type(store).mv is _import_fsspec(place).AbstractFileSystem.mv:  # it takes a name with brackets for a pattern
        store.cp_file(partial, place)
        store.rm_file(partial)
    else:
        store.mv(partial, place)


def _index_first(urls: Iterable[str]) -> list[str]:
    return sorted(urls, key=lambda url: (url.rpartition("/")[2] != INDEX_FILE, url))


def _kind(store: Any, place: str) -> str | None:
    """Return "file" or "directory", as a store has it; None if there is neither. Other errors are raised."""
    try:
        return str(store.info(place)["type"])
    except FileNotFoundError:
        return None


def _store(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, without what it remembers of folders, and the URL's place in it."""
    _import_fsspec(url)
    from fsspec.core import url_to_fs  # type: ignore[import-untyped, unused-ignore]

    store, place = url_to_fs(url)
    store.invalidate_cache()  # other processes write there too
    return store, str(place)


def _protocol(url: str) -> str:
    return url.partition("://")[0].lower()


def _import_fsspec(url: str) -> Any:
    try:
        import fsspec  # type: ignore[import-untyped, unused-ignore]
    except ModuleNotFoundError as error:
        if error.name != "fsspec":
            raise
        action = "Run `pip install fsspec`, or install camshaft-hooks-core with its extra `fsspec`."
        raise ModuleNotFoundError(f"{url!r} needs `fsspec`, which is not installed. {action}", name="fsspec") from error
    return fsspec


@contextlib.contextmanager
def _noting(url: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"Raised for {url!r}.")
        raise
