"""Durable files and directories: writing, renaming, removing and flushing, for checkpoints on disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import uuid
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path


def rename_durably(partial: Path, target: Path) -> None:
    """Rename a file or directory that is whole to its target, durably; what was there before is gone afterwards.

    A file takes a file's place in one step of the file system. Nothing else can, so the old one first gets the name
    `previous_of(target)`, under which it is to be looked for when there is no target.

    Args:
        partial: What is renamed; its contents are on the disk already.
        target: Its new name in the same directory.

    Raises:
        OSError: If the disk refuses.
    """
    previous = previous_of(target)
    if os.path.lexists(target) and (is_directory(partial) or is_directory(target)):
        remove(previous)
        os.rename(target, previous)
        try:
            os.rename(partial, target)
        except BaseException:
            os.rename(previous, target)
            raise
    else:
        os.replace(partial, target)
    flush(target.parent)
    remove(previous)


_certain_folders: set[tuple[int, int]] = set()
"""Device and inode of folders whose names this process has flushed."""


def make_folder(folder: Path) -> None:
    """Make a folder with its parents, so that a power cut leaves them all.

    Those that are there may have been made a moment ago, by others that did not flush them: this process does, once.

    Raises:
        OSError: If it cannot be made, such as where there is a file. A parent that cannot be flushed, as one that may
            not be read, is no error.
    """
    folder = folder.absolute()
    made = {one for one in (folder, *folder.parents) if not one.exists()}
    folder.mkdir(parents=True, exist_ok=True)
    for one in (folder, *folder.parents[:-1]):
        status = os.stat(one)
        identity = status.st_dev, status.st_ino
        if identity in _certain_folders and one not in made:
            break
        with contextlib.suppress(OSError):
            flush(one.parent)
        _certain_folders.add(identity)


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Create an empty file beside a target; at the end of the block, flush it to disk and rename it to the target.

    A crash at any moment leaves either the earlier file or the new one, and possibly a partial file, which
    `abandoned_files` finds.

    Args:
        target: The final path; an earlier file there is replaced. Its directory is there.

    Yields:
        The path of the empty file.

    Raises:
        OSError: If the disk refuses; the target is untouched then, and no partial file stays.
    """
    partial = new_partial_name(target)
    partial.touch(exist_ok=False)
    try:
        with lock(partial):
            yield partial
            flush(partial)
            rename_durably(partial, target)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to raise
            partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Give a path beside a file, which replaces the file when the block ends: never half a file, but not flushed.

    Args:
        path: The file; its directory is there.

    Raises:
        OSError: If the disk refuses; the file is as it was then.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        yield fresh
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def previous_of(target: Path) -> Path:
    """Return the path of a target's old contents after a crash interrupted `rename_durably`."""
    return target.with_name(f".{target.name}{_PREVIOUS}")


def found_at(target: Path) -> Path | None:
    """Return where a target is: at its path, or beside it if a crash interrupted `rename_durably`; None if nowhere."""
    return next((path for path in (target, previous_of(target)) if path.exists()), None)


def remove(path: Path) -> None:
    """Remove a file, a link or a directory with all that it holds, if it is there.

    A directory loses its name first, durably: a crash leaves it whole, or as one that `abandoned_files` finds.
    """
    if is_directory(path):
        if not path.name.endswith((SUFFIX, _PREVIOUS)):
            doomed = new_partial_name(path)
            os.rename(path, doomed)
            flush(path.parent)
            path = doomed
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def append(path: Path, data: bytes) -> None:
    """Append bytes to a file, which is made if it is missing: all of them, or none if writing fails.

    The operating system has them then, so a killed process loses nothing; `flush` waits for the disk.

    Args:
        path: The file.
        data: The bytes.

    Raises:
        OSError: If they cannot be written.
    """
    left = memoryview(data)
    # Unbuffered, since closing the file would write the rest of a buffer after `truncate`.
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            while left:
                left = left[file.write(left) :]
        except BaseException:
            file.truncate(size)
            raise


def flush(path: str | os.PathLike[str]) -> None:
    """Flush a file's contents, or a directory's names, to disk."""
    if os.name == "nt" and os.path.isdir(path):
        return  # Windows opens no directories; its renames are journalled
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_PREVIOUS = ".previous"


def interrupted_targets(folder: Path, extension: str) -> list[Path]:
    """Return the paths in a folder, and below it, that lack what a crash left beside them; see `found_at`."""
    found = folder.rglob(f".*{extension}{_PREVIOUS}")
    targets = [path.with_name(path.name[1:].removesuffix(_PREVIOUS)) for path in found]
    return [target for target in targets if not target.exists()]


def is_directory(path: Path) -> bool:
    """Return whether a path is a directory itself, and no link to one."""
    return path.is_dir() and not path.is_symlink()


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".partial"
"""End of the name of a file that is not whole yet."""
QUIET_SECONDS = 3600.0
"""Seconds without a change after which a partial file is abandoned, wherever its writer was."""

_SECONDS_TO_LOCK = 2.0  # within which a writer that has made its file holds the lock on it


def new_partial_name(target: Path) -> Path:
    """Return a unique name beside a target."""
    return target.with_name(f".{target.name}.{_kernel()}.{uuid.uuid4().hex[:8]}{SUFFIX}")


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a lock on a file or directory while it is written; where there are no locks, nothing happens."""
    if fcntl is None:
        yield
        return
    descriptor = _open(path)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        with contextlib.suppress(OSError):  # processes that were forked meanwhile hold it as well
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def abandoned_files(folder: Path, pattern: str) -> list[Path]:
    """Return the partial files and directories in a folder whose writers are gone.

    One is, if its lock is free and its writer was on this running operating system, where locks are certain; of
    one from elsewhere, and where there are no locks, if nothing of it has changed for `QUIET_SECONDS` by the clock of
    the file system.

    Args:
        folder: Where to look; it need not exist.
        pattern: Which names to look at, as `Path.glob` has it.
    """
    found = [path for path in folder.glob(pattern) if path.name.startswith(".") and path.name.endswith(SUFFIX)]
    if not found:
        return []
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            now = os.fstat(file.fileno()).st_mtime
    except OSError:  # what cannot be written to cannot be tidied up either
        return []
    return [path for path in found if _is_abandoned(path, now)]


def _is_abandoned(path: Path, now: float) -> bool:
    try:
        quiet_seconds, is_held = now - _last_change(path), _is_held(path)
    except OSError:  # it is gone, or another user's
        return False
    is_from_here = path.name.split(".")[-3:-2] == [_kernel()]
    is_free_here = is_from_here and quiet_seconds >= _SECONDS_TO_LOCK and is_held is False
    return not is_held if quiet_seconds >= QUIET_SECONDS else is_free_here


def _last_change(path: Path) -> float:
    """Return the time of the last change of a file, or of anything in a directory, in Unix seconds."""
    paths = [path]
    if is_directory(path):
        paths += [Path(folder, name) for folder, folders, files in os.walk(path) for name in [*folders, *files]]
    status = [os.lstat(one) for one in paths]
    return max(max(one.st_mtime, one.st_ctime) for one in status)


def _is_held(path: Path) -> bool | None:
    """Return whether the lock is held; None if there are no locks."""
    if fcntl is None:
        return None
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False


def _open(path: Path) -> int:
    # A network file system locks for writing only what is open for writing; a directory cannot be.
    return os.open(path, os.O_RDONLY if is_directory(path) else os.O_RDWR)


@cache
def _kernel() -> str:
    """Return an identifier of this boot of the operating system."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        name = f"{socket.gethostname()} {uuid.getnode()}"
    return sha256(name.encode()).hexdigest()[:12]
