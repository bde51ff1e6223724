"""Enough of a terminal to see what a program has left on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

_TOKEN = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


class Screen:
    """Understands text, line ends, moving up, erasing a line, colours (ignored) and the cursor's visibility (ignored).

    Args:
        columns: Width; text that would go beyond it is an error, since it would wrap.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._rows: list[list[str]] = [[]]
        self._row_idx = self._column_idx = 0

    def feed(self, output: str) -> Screen:
        position = 0
        while position < len(output):
            token = _TOKEN.match(output, position)
            assert token is not None, f"unknown control code {output[position : position + 8]!r}"
            position = token.end()
            argument, command, line_end, text = token.groups()
            if command is not None:
                self._control(argument, command)
            elif line_end is not None:
                self._end_line(line_end)
            else:
                self._write(text)
        return self

    def lines(self) -> list[str]:
        """The lines that are not blank."""
        return [line for line in ("".join(row).rstrip() for row in self._rows) if line]

    def _control(self, argument: str, command: str) -> None:
        if command == "A":
            self._row_idx -= int(argument or 1)
            assert self._row_idx >= 0
        elif command == "K":
            assert argument == "2"
            self._rows[self._row_idx] = []
        else:
            assert command == "m" or (command in "hl" and argument == "?25"), f"unknown {argument}{command}"

    def _end_line(self, line_end: str) -> None:
        self._column_idx = 0 if line_end == "\r" else self._column_idx
        if line_end == "\n":
            self._row_idx += 1
            if self._row_idx == len(self._rows):
                self._rows.append([])

    def _write(self, text: str) -> None:
        row = self._rows[self._row_idx]
        row += " " * (self._column_idx - len(row))
        row[self._column_idx : self._column_idx + len(text)] = text
        self._column_idx += len(text)
        assert self._column_idx <= self._columns


def run_on_terminal(arguments: list[str], columns: int = 110, **environment: str) -> str:
    """Run a Python program with a pseudo-terminal as its standard output; return what it wrote there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**inherited, "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )
    os.close(theirs)
    output = b""
    try:
        while chunk := os.read(ours, 65536):
            output += chunk
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(ours)
    assert process.wait(timeout=120) == 0, output.decode()
    return output.decode()
