"""Files and directories that are whole and durable once they have their name, or not there at all."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from camshaft.hooks_core import durable_paths
from camshaft.hooks_core.durable_paths import flush, is_directory, previous_of
from camshaft.hooks_core.partial_paths import SUFFIX, claimed, new_partial_name

_FAILED_WRITE = ("inline_container.cc", "PytorchStreamWriter")
"""Texts in torch's errors where its archive could not be written."""

PLAIN_FILE = "plain.ckpt"
"""What every directory that is a checkpoint has in it; no other directory is ever replaced."""


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[str]:
    """The path of an empty file beside a target; when the block ends, it is flushed to disk and renamed to the target.

    A crash at any moment leaves either what was there before or the new file, and maybe a partial file, which
    `hooks_core.partial_paths.abandoned_in` finds. Directories are created as needed.

    Args:
        target: Where the file is to be; what is there is replaced.

    Raises:
        IsADirectoryError: If the target is a directory that is no checkpoint.
        OSError: If the disk refuses; the target is untouched then, and no partial file stays.
    """
    check_replaceable(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = new_partial_name(target)
    with naming(target):
        partial.touch(mode=0o600, exist_ok=False)
        try:
            with claimed(partial):
                yield str(partial)
                flush(partial)
                os.chmod(partial, 0o666 & ~_umask())
                put_in_place(partial, target)
        except BaseException:
            with contextlib.suppress(OSError):  # what failed before is what is told
                partial.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def naming(target: Path) -> Iterator[None]:
    """Raise what the disk refuses as an `OSError` with the target's path.

    The operating system names no file where writing or flushing fails, and partial ones otherwise; `torch.save` raises
    a `RuntimeError` of its own if a write failed, and that write's error is its context, if anything is.
    """
    try:
        yield
    except OSError as error:
        is_named = error.filename is not None and not any(
            part.endswith(SUFFIX) for part in Path(os.fsdecode(error.filename)).parts
        )
        if is_named or error.errno is None:
            raise
        raise _named(error.errno, target, error) from error
    except RuntimeError as error:
        if not any(sign in str(error) for sign in _FAILED_WRITE):
            raise
        found: BaseException | None = error
        while found is not None and not (isinstance(found, OSError) and found.errno is not None):
            found = found.__cause__ or found.__context__
        number = errno.EIO if found is None else found.errno
        assert number is not None
        raise _named(number, target, error) from error


def _named(number: int, target: Path, cause: BaseException) -> OSError:
    error = OSError(number, os.strerror(number), str(target))
    for note in getattr(cause, "__notes__", ()):  # such as that of which process it comes from
        error.add_note(note)
    return error


def put_in_place(partial: Path, target: Path) -> None:
    """Rename what is whole to its target, as `durable_paths.put_in_place` does, if the target may be replaced.

    Args:
        partial: What is renamed; its contents are on the disk already.
        target: Its new name in the same directory.

    Raises:
        IsADirectoryError: If the target is a directory that is no checkpoint.
        OSError: If the disk refuses.
    """
    check_replaceable(target)
    durable_paths.put_in_place(partial, target)


def check_replaceable(target: Path) -> None:
    """Raise `IsADirectoryError` if something else than a checkpoint would be lost."""
    if is_directory(target) and not (target / PLAIN_FILE).is_file() and any(target.iterdir()):
        raise IsADirectoryError(errno.EISDIR, "a directory that is no checkpoint is not replaced", str(target))


def find_existing(path: str | os.PathLike[str]) -> Path | None:
    """Where something is that was to be at a path: there, or beside it if a crash interrupted `put_in_place`."""
    candidates = (Path(path), previous_of(Path(path)))
    return next((candidate for candidate in candidates if candidate.exists()), None)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
