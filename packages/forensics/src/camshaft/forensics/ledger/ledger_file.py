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
import shutil
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import attrs
import torch

from camshaft.callbacks.arguments import InvalidArgumentError, usable_path
from camshaft.forensics.ledger.digests import hex_of
from camshaft.hooks_core.support.durable_files import append, flush, make_folder
from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.remote_files import (
    absolute,
    copy,
    exists,
    files_below,
    is_folder,
    is_url,
    join,
    local_copy,
    local_path,
    replace_file,
)

_DISTRIBUTIONS = ("hooks-core", "loops", "strategies", "callbacks", "trainer", "forensics", "compat")

FORMAT_VERSION = 1
"""Version of the format of ledgers, which their headers state."""
FILE_NAME = "ledger.jsonl"
"""Name of a ledger's file in the folder of its run."""

_CHAIN = ',"chain":"'
_LENGTH_OF_CHAIN = len(_CHAIN) + 16 + len('"}')


class LedgerError(InvalidArgumentError):
    """A file is no ledger, is damaged, or belongs to another run; `where` is the file, or its URL."""


@attrs.frozen
class Ledger:
    """The content of a ledger.

    Attributes:
        path: The file, or its URL.
        header: The first line.
        lines: The others, in order.
    """

    path: Path | str
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

    A store has no files that grow: there `sync` uploads the whole ledger, of which a copy on this machine is kept.

    Args:
        path: The file, or a folder, as `ledger_path` takes it, or the URL of one.

    Attributes:
        path: The file, or its URL.
        position: The place after the last line; None until `begin` or `resume`.

    Raises:
        InvalidArgumentError: If nothing can be written at the URL.
        ModuleNotFoundError: If it is a URL and fsspec is not installed.
        ImportError: If fsspec misses the library for the store.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = ledger_path(usable_path("path", path, "RunLedger"))
        self.position: Position | None = None
        self._copy: tempfile.TemporaryDirectory[str] | None = None  # of a ledger in a store

    def begin(self, header: dict[str, Any]) -> None:
        """Begin a ledger. One that is there already is kept beside it, as `previous_ledger_of` names it.

        Raises:
            OSError: If the disk refuses, or another error of the store's library.
        """
        if isinstance(self.path, Path):
            make_folder(self.path.parent)
            if self.path.exists():
                os.replace(self.path, previous_ledger_of(self.path))
        else:
            if exists(self.path):
                copy(self.path, str(previous_ledger_of(self.path)))
            self._make_copy()
        self.position = Position(0, "")
        self.append([json_of({"ledger": FORMAT_VERSION, **header})])
        if isinstance(self.path, Path):
            flush(self.path.parent)
        else:
            self.sync()

    def resume(self, position: Position) -> dict[str, Any]:
        """Go on with a ledger at a place in it; later lines are cut off.

        Returns:
            The header, with what other runs that went on have changed.

        Raises:
            FileNotFoundError: If there is no ledger.
            LedgerError: If it is damaged before that place, is shorter, or is that of another run.
        """
        if not exists(str(self.path)):
            action = "Put the ledger of the run there, or resume without RunLedger."
            rule = "the ledger of the run that the checkpoint is from"
            raise FileNotFoundError(must_be("path", rule, str(self.path), "RunLedger", action))
        if isinstance(self.path, str):
            self._make_copy()
            with local_copy(self.path) as found_there:
                shutil.copyfile(found_there, self._local)
        lines = whole_lines(self._local.read_bytes())[: position.num_lines]
        action = "Resume with the ledger that was written with the checkpoint."
        if len(lines) < position.num_lines:
            rule = f"one of at least {position.num_lines} lines, as many as when the checkpoint was saved"
            raise LedgerError("ledger", rule, len(lines), str(self.path), action)
        found = chain_of(lines, self.path)
        if found != position.chain:
            rule = f"that of the run which the checkpoint is from, with the chain {position.chain} there"
            raise LedgerError("ledger", rule, found, str(self.path), action)
        os.truncate(self._local, sum(len(line) + 1 for line in lines))  # in one step of the file system
        self.position = position
        header: dict[str, Any] = json.loads(lines[0])
        for line in lines[1:]:
            if line.startswith(b'{"resumed":'):
                header |= {name: now for name, (_, now) in json.loads(line)["changed"].items()}
        return header

    def append(self, bodies: Sequence[str]) -> None:
        """Append lines; they survive the end of this process when this returns, those in a store when `sync` does.

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
        append(self._local, "".join(lines).encode())
        self.position = Position(self.position.num_lines + len(lines), chain)

    def sync(self) -> None:
        """Flush all lines to the disk, or upload them: they survive a power cut when this returns.

        Raises:
            OSError: If the disk refuses, or another error of the store's library.
        """
        if isinstance(self.path, Path):
            flush(self.path)
            return
        with replace_file(self.path) as fresh:
            shutil.copyfile(self._local, fresh)

    def close(self) -> None:
        """Remove the copy of a ledger in a store. Call `sync` before."""
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None

    @property
    def _local(self) -> Path:
        """The file that is written to."""
        if isinstance(self.path, Path):
            return self.path
        assert self._copy is not None
        return Path(self._copy.name, FILE_NAME)

    def _make_copy(self) -> None:
        self.close()
        self._copy = tempfile.TemporaryDirectory(prefix="camshaft-")


def previous_ledger_of(path: Path | str) -> Path | str:
    """Return where the ledger of the run before is kept when another one begins at its path or URL."""
    stem, suffix = os.path.splitext(path)
    return type(path)(f"{stem}.previous{suffix}")


def ledger_path(path: str | os.PathLike[str]) -> Path | str:
    """Return the file of a path or URL: one without a suffix, or of an existing folder, is that of a folder."""
    text = local_path(path)
    if is_url(text):
        url = absolute(text)
        return url if os.path.splitext(url)[1] else join(url, FILE_NAME)
    given = Path(text)
    return given / FILE_NAME if given.is_dir() or not given.suffix else given


def find_ledger(run: str | os.PathLike[str]) -> Path | str:
    """Return the ledger of a run.

    Args:
        run: The file, or a folder with one file named `ledger.jsonl` in it or below it, or the URL of one.

    Raises:
        FileNotFoundError: If there is none, or more than one.
        ModuleNotFoundError: If it is a URL and fsspec is not installed.
    """
    text = local_path(run)
    text = absolute(text) if is_url(text) else text
    direct = join(text, FILE_NAME)
    found = [text] if exists(text) and not is_folder(text) else [direct] if exists(direct) else []
    if not found:
        below = files_below(text) if is_url(text) else map(str, Path(text).rglob(FILE_NAME))
        found = sorted(one for one in below if os.path.basename(one) == FILE_NAME)
    if len(found) != 1:
        rule = f"a ledger, or a folder with one file {FILE_NAME}"
        raise FileNotFoundError(must_be("run", rule, found or str(run), "find_ledger", "Pass the path of the ledger."))
    return found[0] if is_url(text) else Path(found[0])


def read_ledger(path: Path | str) -> Ledger:
    """Read a ledger, and check that it is whole.

    Args:
        path: The file, or its URL.

    Raises:
        FileNotFoundError: If there is none.
        LedgerError: If the file is none, or is damaged, or of a later format.
    """
    with local_copy(str(path)) as file:
        lines = whole_lines(file.read_bytes())
    if not lines or not lines[0].startswith(b'{"ledger":'):
        start = b"".join(lines[:1])[:40]
        raise LedgerError("ledger", "a file that RunLedger wrote", start, str(path), "Pass another path.")
    chain_of(lines, path)
    header, *others = map(json.loads, lines)
    if header["ledger"] != FORMAT_VERSION:
        action = "Read it with the version of camshaft-forensics that wrote it, or a newer one."
        raise LedgerError("ledger", f"of format {FORMAT_VERSION}", header["ledger"], str(path), action)
    return Ledger(path, header, others)


def updates_of(ledger: Ledger) -> Iterator[tuple[dict[str, Any], list[int]]]:
    """Yield the lines of updates, each with the data ranks of the processes that made it."""
    data_ranks = ledger.header["data_ranks"]
    for line in ledger.lines:
        if "resumed" in line:
            data_ranks = line["changed"].get("data_ranks", (None, data_ranks))[1]
        elif "step" in line:
            yield line, data_ranks


def whole_lines(data: bytes) -> list[bytes]:
    """Return the lines of a file, without one at its end that was not written to its end."""
    return data.split(b"\n")[:-1]


def chain_of(lines: Iterable[bytes], path: Path | str) -> str:
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
            raise LedgerError("ledger", rule, f"another line {number}", str(path), "Take a copy that was not changed.")
        chain = expected
    return chain


json_of = json.JSONEncoder(separators=(",", ":")).encode
"""Returns a value as JSON in a line, without blanks."""


_LAYOUTS = {"float32": (">f", 4), "float64": (">d", 8), "float16": (">e", 2), "bfloat16": (">f", 2)}
"""By dtype the layout of a value, and how many bytes of that it has: bfloat16 is the upper half of float32."""


def bits_of(value: float, dtype: torch.dtype) -> str:
    """Return the bits of a value of a dtype, as `dtype:hexadecimal`."""
    name = str(dtype).removeprefix("torch.")
    if name not in _LAYOUTS:
        return f"{name}:{value!r}"
    layout, num_bytes = _LAYOUTS[name]
    return f"{name}:{struct.pack(layout, value)[:num_bytes].hex()}"


def number_of(bits: str) -> float:
    """Return the value whose bits `bits_of` returned."""
    name, _, text = bits.partition(":")
    if name not in _LAYOUTS:
        return float(text)
    layout, _ = _LAYOUTS[name]
    return float(struct.unpack(layout, bytes.fromhex(text).ljust(struct.calcsize(layout), b"\0"))[0])


def determinism() -> dict[str, Any]:
    """Return the switches of the process on which the bits of results depend."""
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "num_threads": torch.get_num_threads(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, torch and camshaft's packages, as far as these are installed."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in _DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            found[f"camshaft-{name}"] = version(f"camshaft-{name}")
    return found
