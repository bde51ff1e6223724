"""The file of a ledger: JSON lines that are chained by hash, appended whole, and cut back when a run is resumed.

The format knows of no trainer:

- Each line is a JSON object that ends with `"chain"`: 64 bits, as 16 hexadecimal digits, of the SHA-256 of the chain of
  the line before and of the line up to there. So a line that was changed, left out or moved is found, and one chain
  stands for all lines up to it.
- The first line is the header: `"ledger"` is the version of this format, everything else is up to the writer.
- A last line without a line break is one that a killed process left unfinished. It does not count.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import attrs
import torch

from camshaft.callbacks.arguments import check_local
from camshaft.callbacks.ledger.digests import hex_of
from camshaft.hooks_core.durable_files import append, flush
from camshaft.hooks_core.messages import must_be

_DISTRIBUTIONS = ("hooks-core", "loops", "strategies", "callbacks", "trainer", "compat")

FORMAT_VERSION = 1
"""Version of the format of ledgers, which their headers state."""
FILE_NAME = "ledger.jsonl"
"""Name of a ledger's file in the folder of its run."""

_CHAIN = ',"chain":"'
_encode = json.JSONEncoder(separators=(",", ":")).encode
_LENGTH_OF_CHAIN = len(_CHAIN) + 16 + len('"}')


class LedgerError(ValueError):
    """A file is no ledger, is damaged, or belongs to another run.

    Attributes:
        path: The file.
    """

    def __init__(self, rule: str, found: object, path: Path, action: str) -> None:
        super().__init__(must_be("ledger", rule, found, str(path), action))
        self.path = path
        self._arguments = rule, found, path, action

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the constructor's arguments, so that the error can be sent to other processes."""
        return type(self), self._arguments


@attrs.frozen
class Ledger:
    """The content of a ledger.

    Attributes:
        path: The file.
        header: The first line.
        lines: The others, in order.
    """

    path: Path
    header: dict[str, Any]
    lines: list[dict[str, Any]]


@attrs.frozen
class Position:
    """A place between two lines of a ledger.

    Attributes:
        num_lines: Number of lines before it, the header among them.
        chain: The chain of the last of these.
    """

    num_lines: int
    chain: str


class LedgerFile:
    """Writes a ledger, in one process.

    The disk is reached in `_read`, `_append`, `_cut` and `_begin` alone: storage of another kind takes their places.

    Args:
        path: The file, or a folder, as `ledger_path` takes it, on a file system of this machine.

    Attributes:
        path: The file.
        position: The place after the last line; None until `begin` or `resume`.

    Raises:
        InvalidArgumentError: If the path is a URL.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        check_local("path", os.fspath(path), "RunLedger")
        self.path = ledger_path(path)
        self.position: Position | None = None

    def begin(self, header: dict[str, Any]) -> None:
        """Begin a ledger. One that is there already is kept beside it, as `previous_ledger_of` names it.

        Raises:
            OSError: If the disk refuses.
        """
        self._begin()
        self.position = Position(0, "")
        self.append([json_of({"ledger": FORMAT_VERSION, **header})])
        flush(self.path.parent)

    def resume(self, position: Position) -> dict[str, Any]:
        """Go on with a ledger at a place in it; later lines are cut off.

        Returns:
            The header.

        Raises:
            FileNotFoundError: If there is no ledger.
            LedgerError: If it is damaged before that place, is shorter, or is that of another run.
        """
        if not self.path.exists():
            action = "Put the ledger of the run there, or resume without RunLedger."
            rule = "the ledger of the run that the checkpoint is from"
            raise FileNotFoundError(must_be("path", rule, str(self.path), "RunLedger", action))
        lines = whole_lines(self._read())[: position.num_lines]
        action = "Resume with the ledger that was written with the checkpoint."
        if len(lines) < position.num_lines:
            rule = f"one of at least {position.num_lines} lines, as many as when the checkpoint was saved"
            raise LedgerError(rule, len(lines), self.path, action)
        found = chain_of(lines, self.path)
        if found != position.chain:
            rule = f"that of the run which the checkpoint is from, with the chain {position.chain} there"
            raise LedgerError(rule, found, self.path, action)
        self._cut(sum(len(line) + 1 for line in lines))
        self.position = position
        header: dict[str, Any] = json.loads(lines[0])
        return header

    def append(self, bodies: Sequence[str]) -> None:
        """Append lines; they survive the end of this process when this returns.

        Args:
            bodies: JSON objects in a line each, without the chain.

        Raises:
            OSError: If the disk refuses.
        """
        assert self.position is not None
        chain, lines = self.position.chain, []
        for body in bodies:
            body = body[:-1]  # without the brace
            chain = hex_of((chain + body).encode())
            lines.append(f'{body}{_CHAIN}{chain}"}}\n')
        self._append("".join(lines).encode())
        self.position = Position(self.position.num_lines + len(lines), chain)

    def sync(self) -> None:
        """Flush all lines to the disk: they survive a power cut when this returns."""
        flush(self.path)

    def _begin(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            os.replace(self.path, previous_ledger_of(self.path))

    def _read(self) -> bytes:
        return self.path.read_bytes()

    def _cut(self, size: int) -> None:
        os.truncate(self.path, size)  # in one step of the file system

    def _append(self, data: bytes) -> None:
        append(self.path, data)


def previous_ledger_of(path: Path) -> Path:
    """Return where the ledger of the run before is kept when another one begins at its path."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def ledger_path(path: str | os.PathLike[str]) -> Path:
    """Return the file of a path: a path without a suffix, or of an existing folder, is that of a folder."""
    given = Path(path)
    return given / FILE_NAME if given.is_dir() or not given.suffix else given


def find_ledger(run: str | os.PathLike[str]) -> Path:
    """Return the ledger of a run.

    Args:
        run: The file, or a folder with one file named `ledger.jsonl` in it or below it.

    Raises:
        FileNotFoundError: If there is none, or more than one.
    """
    given = Path(run)
    if given.is_file():
        return given
    direct = ledger_path(given)
    found = [direct] if direct.is_file() else sorted(given.rglob(FILE_NAME)) if given.is_dir() else []
    if len(found) != 1:
        rule = f"a ledger, or a folder with one file {FILE_NAME}"
        value = [str(path) for path in found] if found else str(run)
        raise FileNotFoundError(must_be("run", rule, value, "find_ledger", "Pass the path of the ledger."))
    return found[0]


def read_ledger(path: Path) -> Ledger:
    """Read a ledger, and check that it is whole.

    Raises:
        FileNotFoundError: If there is none.
        LedgerError: If the file is none, or is damaged, or of a later format.
    """
    lines = whole_lines(path.read_bytes())
    if not lines or not lines[0].startswith(b'{"ledger":'):
        raise LedgerError("a file that RunLedger wrote", (lines or [b""])[0][:40], path, "Pass another path.")
    chain_of(lines, path)
    header, *others = map(json.loads, lines)
    if header["ledger"] != FORMAT_VERSION:
        action = "Read it with the version of camshaft-callbacks that wrote it, or a newer one."
        raise LedgerError(f"of format {FORMAT_VERSION}", header["ledger"], path, action)
    return Ledger(path, header, others)


def whole_lines(data: bytes) -> list[bytes]:
    """Return the lines of a file, without one at its end that was not written to its end."""
    return data.split(b"\n")[:-1]


def chain_of(lines: Iterable[bytes], path: Path) -> str:
    """Return the chain of the last line, once every line is found to be chained to the one before.

    Args:
        lines: The lines of a ledger.
        path: Its file, for the error.

    Raises:
        LedgerError: If one is not; it names the line.
    """
    chain = ""
    for number, line in enumerate(lines, 1):
        body, tail = line[:-_LENGTH_OF_CHAIN], line[-_LENGTH_OF_CHAIN:]
        expected = hex_of(chain.encode() + body)
        if tail != f'{_CHAIN}{expected}"}}'.encode():
            rule = "whole, each line chained to the one before"
            raise LedgerError(rule, f"another line {number}", path, "Take a copy that was not changed.")
        chain = expected
    return chain


def json_of(value: Any) -> str:
    """Return a value as JSON in a line, without blanks."""
    return _encode(value)


def versions() -> dict[str, str]:
    """Return the versions of Python, torch and camshaft's packages."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in _DISTRIBUTIONS:
        try:
            found[f"camshaft-{name}"] = version(f"camshaft-{name}")
        except PackageNotFoundError:  # not installed, or run from its sources
            continue
    return found
