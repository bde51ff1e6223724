"""A terminal for progress bars whose speed plays no part."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator


class NullTerminal(io.TextIOBase):
    """A text stream that claims to be a terminal and throws away what it is given, counting the characters."""

    def __init__(self) -> None:
        self.num_characters = 0

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.num_characters += len(text)
        return len(text)


@contextlib.contextmanager
def null_terminal(owner: str) -> Iterator[None]:
    """Put a `NullTerminal` in the place of standard output and standard error.

    Args:
        owner: whose progress bar is expected to draw, for the message.

    Raises:
        RuntimeError: if nothing was drawn.
    """
    terminal = NullTerminal()
    with contextlib.redirect_stdout(terminal), contextlib.redirect_stderr(terminal):
        yield
    if terminal.num_characters == 0:
        raise RuntimeError(f"The progress bar of {owner} drew nothing, so its run lacks what the others did.")
