"""How a failure is told: to the other processes, to the elastic agent and to whoever reads the output."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path

import torch.distributed as dist
from attrs import asdict, field, frozen


class CollectiveError(RuntimeError):
    """A collective was called where other processes would not join it."""


@frozen
class Failure:
    """What ended a run.

    Attributes:
        rank: Of the process that failed.
        text: The error's kind, message and notes; or what else became of that process.
        unix_seconds: When it became known.
        missing: The ranks that the others waited for, as far as the failure is that they did not come.
    """

    rank: int
    text: str
    unix_seconds: int = field(factory=lambda: int(time.time()))
    missing: list[int] = field(factory=list, hash=False)

    def to_json(self) -> str:
        """This failure as the store keeps it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, stored: str | bytes) -> Failure:
        """A failure that the store kept."""
        return cls(**json.loads(stored))


def error_text(error: BaseException) -> str:
    """An error's kind, message and notes, without its traceback."""
    return "".join(traceback.format_exception_only(error)).strip()


def may_follow_from_another(error: BaseException) -> bool:
    """Whether an error is one of the backend, as it comes when another process is gone or does not join."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error).lower())


def write_error_file(text: str, traceback_text: str, unix_seconds: int) -> None:
    """Tell the elastic agent, if there is one, what this process ended by; of several it reports the earliest.

    The file's format is that of `torch.distributed.elastic.multiprocessing.errors.ErrorHandler`.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        extra = {"py_callstack": traceback_text, "timestamp": str(unix_seconds)}
        Path(path).write_text(json.dumps({"message": {"message": text, "extraInfo": extra}}))


def print_message(text: str) -> None:
    """Print lines to stderr, marked as this package's."""
    # One call, so that the lines of several processes do not mix.
    sys.stderr.write("".join(f"[camshaft] {line}\n" for line in text.splitlines()))
    sys.stderr.flush()
