"""The note that an error raised in a hook gains (PEP 678)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from camshaft.hooks_core.implementation import receiver_name

_MARK = "Raised in hook "


def add_note(error: BaseException, receiver: object, hook: str, position: str) -> None:
    """Say in an error's notes which receiver's hook raised it and where the run was; the innermost hook wins."""
    if any(note.startswith(_MARK) for note in getattr(error, "__notes__", ())):
        return
    where = f" ({position})" if position else ""
    error.add_note(f"{_MARK}`{hook}` of {receiver_name(receiver)}{where}.")


@contextmanager
def noting(receiver: object, hook: str, position: Callable[[], str]) -> Iterator[None]:
    """Add the note to whatever is raised inside, for calls that do not go through `Hooks`."""
    try:
        yield
    except BaseException as error:
        add_note(error, receiver, hook, position())
        raise


def describe(error: BaseException) -> str:
    """An error with its notes on one line, to mention it in another error's notes."""
    notes = " ".join(getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {error} {notes}".rstrip()
