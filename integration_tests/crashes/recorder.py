"""Records the file operations below a folder, of one or several processes, in the order in which they happen.

Python's own calls are replaced for the time: those of `os` that change files, and `open`, whose files then write by a
raw file that notes each system call. A library that writes without Python is not seen; `checks.record` shows that
nothing was missed, since the folder that the record makes must be the real one, byte for byte.
"""

from __future__ import annotations

import builtins
import contextlib
import fcntl
import io
import os
import pickle
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Operation:
    """One change that a process asked the operating system for, or a mark of the run.

    Attributes:
        kind: "create", "mkdir", "link", "symlink", "rename", "unlink", "rmdir": changes of names; "write", "truncate":
            changes of a file; "utime": its time is set; "sync": a flush of a file or folder; "mark": something that
            the run tells.
        path: What it is about, relative to the folder.
        other: New name, or target of a symbolic link.
        inode: The number of the file or folder.
        offset: Where data begins, or a new size or time.
        data: What was written, or a mark's contents.
        time_ns: When.
    """

    kind: str
    path: str = ""
    other: str = ""
    inode: int = 0
    offset: int = 0
    data: Any = b""
    time_ns: int = 0


class Recorder:
    """Notes operations in a file that processes share.

    Args:
        root: The folder whose operations count.
        log: The file; not below the folder.
    """

    def __init__(self, root: Path, log: Path) -> None:
        self._root = f"{root}/"
        self._log = io.FileIO(log, "a")
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._depth = 0

    def note(self, kind: str, path: str = "", **facts: Any) -> None:
        """Append an operation."""
        relative = f"{path}/".removeprefix(self._root).rstrip("/") if path else ""
        self._log.write(pickle.dumps(Operation(kind, relative, time_ns=time.time_ns(), **facts)))

    def mark(self, **facts: Any) -> None:
        """Append a mark."""
        with self.held():
            self.note("mark", data=facts)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let no other thread or process change or note anything."""
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                fcntl.flock(self._log, fcntl.LOCK_EX)
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    fcntl.flock(self._log, fcntl.LOCK_UN)

    def counts(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Return the absolute path that a call is about, if it lies in the folder."""
        if isinstance(path, int):
            text = os.readlink(f"/proc/self/fd/{path}")
        else:
            start = os.getcwd() if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
            text = os.path.normpath(os.path.join(start, os.fsdecode(path)))
        is_here = f"{text}/".startswith(self._root) and os.getpid() == self._process
        return text if is_here else None


def operations_of(log: Path) -> list[Operation]:
    """Return what was recorded."""
    found = []
    with log.open("rb") as file:
        while file.peek(1):
            found.append(pickle.load(file))
    return found


@contextlib.contextmanager
def recording(root: Path, log: Path) -> Iterator[Recorder]:
    """Record what this process does to the files in a folder, which exists and is empty at first."""
    recorder = Recorder(root, log)
    real = {name: getattr(os, name) for name in _OF_OS}
    real_open = builtins.open
    try:
        for name, make in _OF_OS.items():
            setattr(os, name, make(recorder, real[name]))
        shutil._USE_CP_SENDFILE = False  # type: ignore[attr-defined]  # copies by reading and writing
        builtins.open = io.open = _open(recorder, real_open)  # type: ignore[assignment]
        yield recorder
    finally:
        builtins.open = io.open = real_open
        shutil._USE_CP_SENDFILE = True  # type: ignore[attr-defined]
        for name, function in real.items():
            setattr(os, name, function)


def _open(recorder: Recorder, real: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **options: Any) -> Any:
        path = None if not set(mode) & set("wax+") else recorder.counts(file)
        if path is None:
            return real(file, mode, buffering, *args, **options)
        raw = _RawFile(recorder, file, mode.replace("b", "").replace("t", ""), path, options.pop("closefd", True))
        if buffering == 0:
            return raw
        size = io.DEFAULT_BUFFER_SIZE if buffering in (-1, 1) else buffering
        is_both = "+" in mode
        buffered = io.BufferedRandom(raw, size) if is_both else io.BufferedWriter(raw, size)
        if "b" in mode:
            return buffered
        text = io.TextIOWrapper(buffered, *args, line_buffering=buffering == 1, **options)
        text.mode = mode
        return text

    return recorded


class _RawFile(io.FileIO):
    """A file whose writes are noted, each as the operating system gets it."""

    def __init__(self, recorder: Recorder, file: Any, mode: str, path: str, closefd: bool) -> None:
        self._recorder, self._path = recorder, path
        with recorder.held():
            is_new = not isinstance(file, int) and not os.path.lexists(path)
            super().__init__(file, mode, closefd=closefd)
            self._inode = os.fstat(self.fileno()).st_ino
            if is_new:
                recorder.note("create", path, inode=self._inode)
            elif "w" in mode and not isinstance(file, int):
                recorder.note("truncate", path, inode=self._inode, offset=0)

    def write(self, data: Any) -> int:
        with self._recorder.held():
            offset = os.fstat(self.fileno()).st_size if "a" in self.mode else self.tell()
            written = super().write(data)
            content = bytes(memoryview(data).cast("B")[:written])
            self._recorder.note("write", self._path, inode=self._inode, offset=offset, data=content)
        return written

    def truncate(self, size: int | None = None) -> int:
        with self._recorder.held():
            size = super().truncate(size)
            self._recorder.note("truncate", self._path, inode=self._inode, offset=size)
        return size


def _one_path(kind: str) -> Any:
    def make(recorder: Recorder, real: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(path: Any, *args: Any, dir_fd: int | None = None, **options: Any) -> Any:
            found = recorder.counts(path, dir_fd)
            with recorder.held() if found else contextlib.nullcontext():
                result = real(path, *args, dir_fd=dir_fd, **options)
                if found:
                    recorder.note(kind, found, inode=os.stat(found).st_ino if kind == "mkdir" else 0)
            return result

        return recorded

    return make


def _two_paths(kind: str) -> Any:
    def make(recorder: Recorder, real: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(source: Any, target: Any, *args: Any, **options: Any) -> Any:
            found = recorder.counts(target)
            with recorder.held() if found else contextlib.nullcontext():
                # rename() between two names of one file does nothing
                is_same = (
                    kind == "rename" and os.path.lexists(target) and os.path.samestat(*map(os.lstat, (source, target)))
                )
                result = real(source, target, *args, **options)
                if found and not is_same:
                    other = found.removeprefix(recorder._root)
                    given = os.fsdecode(source) if kind == "symlink" else str(recorder.counts(source))
                    recorder.note(kind, given, other=other)
            return result

        return recorded

    return make


def _truncate(recorder: Recorder, real: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(path: Any, length: int) -> None:
        found = recorder.counts(path)
        with recorder.held() if found else contextlib.nullcontext():
            real(path, length)
            if found:
                recorder.note("truncate", found, inode=os.stat(path).st_ino, offset=length)

    return recorded


def _utime(recorder: Recorder, real: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(path: Any, *args: Any, **options: Any) -> None:
        found = recorder.counts(path)
        with recorder.held() if found else contextlib.nullcontext():
            real(path, *args, **options)
            if found:
                status = os.lstat(found)
                recorder.note("utime", found, inode=status.st_ino, offset=status.st_mtime_ns)

    return recorded


def _fsync(recorder: Recorder, real: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(file: Any) -> None:
        number = file if isinstance(file, int) else file.fileno()
        found = recorder.counts(number)
        with recorder.held() if found else contextlib.nullcontext():
            real(number)
            if found:
                recorder.note("sync", found, inode=os.fstat(number).st_ino)

    return recorded


def _os_open(recorder: Recorder, real: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(path: Any, flags: int, *args: Any, dir_fd: int | None = None, **options: Any) -> int:
        unnamed = getattr(os, "O_TMPFILE", 0)  # a file without a name, which leaves nothing
        is_creating = flags & os.O_CREAT and not (unnamed and flags & unnamed == unnamed)
        found = recorder.counts(path, dir_fd) if is_creating else None
        with recorder.held() if found else contextlib.nullcontext():
            is_new = found is not None and not os.path.lexists(found)
            number: int = real(path, flags, *args, dir_fd=dir_fd, **options)
            if is_new and found:
                recorder.note("create", found, inode=os.fstat(number).st_ino)
        return number

    return recorded


_OF_OS: dict[str, Any] = {
    "mkdir": _one_path("mkdir"),
    "rmdir": _one_path("rmdir"),
    "unlink": _one_path("unlink"),
    "remove": _one_path("unlink"),
    "rename": _two_paths("rename"),
    "replace": _two_paths("rename"),
    "link": _two_paths("link"),
    "symlink": _two_paths("symlink"),
    "truncate": _truncate,
    "ftruncate": _truncate,
    "utime": _utime,
    "fsync": _fsync,
    "fdatasync": _fsync,
    "open": _os_open,
}
