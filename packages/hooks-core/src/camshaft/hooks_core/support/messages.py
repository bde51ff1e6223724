"""Texts of errors, notes and warnings, in the one form that all packages use."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from camshaft.hooks_core.dispatch.implementation import receiver_name


def must_be(field: str, rule: str, value: object, where: str, action: str) -> str:
    """Return the message of an error about a value.

    Args:
        field: Name of the argument or attribute.
        rule: What it must be.
        value: What it was.
        where: The class or function that checks it.
        action: One thing to do about it, as a sentence.
    """
    return f"`{field}` must be {rule}, but got {value!r} ({type(value).__name__}) in {where}. {action}"


def process_rank() -> int | None:
    """Return the rank of this process, by torch's process group or else a launcher's variables; None without either."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    text = next((os.environ[name] for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK") if name in os.environ), "")
    return int(text) if text.isdecimal() else None


def warn_user(message: str, category: type[Warning] = UserWarning, *, of_rank: bool = False) -> None:
    """Warn at the innermost line outside of camshaft: the call of a verb, or a hook that called into camshaft.

    Of several ranks, rank 0 alone warns.

    Args:
        message: What to say.
        category: The kind of warning.
        of_rank: Whether the cause is this rank's own, such as its data. Each rank that calls warns then, by its number.
    """
    rank = process_rank()
    if of_rank and rank is not None:
        message = f"Rank {rank}: {message}"
    elif rank:
        return
    frame: FrameType | None = sys._getframe(1)
    stacklevel = 2
    while frame is not None and _is_own(frame):
        frame = frame.f_back
        stacklevel += 1
    warnings.warn(message, category, stacklevel=stacklevel)


_BETWEEN = ("camshaft", "contextlib", "multiprocessing")  # the last where ranks are forks


def _is_own(frame: FrameType) -> bool:
    """Return whether a frame is camshaft's: its modules, functions that dispatch generates, or what calls between."""
    if frame.f_code.co_filename.startswith("<camshaft "):
        return True
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _BETWEEN


_MARK = "Raised in hook "


def add_note(error: BaseException, receiver: object, hook: str, position: str) -> None:
    """Note on an error which receiver's hook raised it and where the run was; the innermost hook's note stays alone.

    Args:
        error: The error.
        receiver: The receiver.
        hook: The hook's name.
        position: Where the run was, such as "epoch 0, batch 2"; empty if nothing is known.
    """
    if any(note.startswith(_MARK) for note in getattr(error, "__notes__", ())):
        return
    where = f" ({position})" if position else ""
    error.add_note(f"{_MARK}`{hook}` of {receiver_name(receiver)}{where}.")


def note_position(error: BaseException, position: str) -> None:
    """Note on an error where the run was, unless a note says where it was raised.

    Args:
        error: The error.
        position: Where the run was, such as "epoch 0, batch 2".
    """
    if not any(note.startswith("Raised ") for note in getattr(error, "__notes__", ())):
        error.add_note(f"Raised in {position}.")


@contextmanager
def note_errors(receiver: object, hook: str, position: Callable[[], str]) -> Iterator[None]:
    """Add the note to any error raised inside, for calls that do not go through `Hooks`.

    Args:
        receiver: The receiver that is called.
        hook: The hook's name.
        position: Tells where the run is; it is only called for an error.
    """
    try:
        yield
    except BaseException as error:
        add_note(error, receiver, hook, position())
        raise


def describe(error: BaseException) -> str:
    """Return an error with its notes on one line, to mention it in another error's notes."""
    notes = " ".join(getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {error} {notes}".rstrip()
