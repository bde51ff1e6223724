"""What the processes of a check tell each other: through files, since the strategy's collectives are on trial."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

from attrs import frozen

from camshaft.hooks_core.messages import must_be

_POLL_SECONDS = 0.002


class OutOfStepError(RuntimeError):
    """Another process is not where this one is."""


@frozen
class Ended:
    """How a check ended on one process.

    Attributes:
        findings: What departs from the protocol.
        error: The exception that the strategy raised, or how the process got stuck; None if neither happened.
        kind: The exception's type, by which the ranks tell whether the same happened to all.
        text: What is said of it.
    """

    findings: list[str]
    kind: str | None = None
    text: str = ""


class Ranks:
    """The processes of one check.

    Args:
        directory: A folder that all of them see and that no earlier check has used.
        rank: Index of this one.
        size: How many there are.
        timeout_seconds: How long one waits for another.

    Raises:
        RuntimeError: If there is such a rank already.
    """

    def __init__(self, directory: Path, rank: int, size: int, timeout_seconds: float) -> None:
        self.rank = rank
        self.size = size
        self._directory = directory / "ranks"
        self._timeout_seconds = timeout_seconds
        self._num_exchanges = 0
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self._path("began", rank).touch(exist_ok=False)
        except FileExistsError:
            rule = "new for each check, and each process must have a `global_rank` of its own"
            action = "Pass an empty folder, and look at `global_rank`."
            raise RuntimeError(must_be("directory", rule, str(directory), f"rank {rank} of {size}", action)) from None

    def exchange(self, value: Any) -> list[Any]:
        """The values of all, in their order. Collective.

        Raises:
            OutOfStepError: If another process has ended instead of coming here, or does not come.
        """
        self._num_exchanges += 1
        what = str(self._num_exchanges)
        self._write(what, value)
        return [self._wait_for(what, other) for other in range(self.size)]

    def end(self, ended: Ended) -> dict[int, Ended | None]:
        """Say how the check ended here. Collective. Returns how it did everywhere; None where it did not."""
        self._write("ended", ended)
        deadline = time.monotonic() + 1.5 * self._timeout_seconds
        while not all(self._path("ended", other).exists() for other in range(self.size)):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        return {other: self.ended(other) for other in range(self.size)}

    def ended(self, other: int) -> Ended | None:
        """How the check ended on another process; None if it has not yet."""
        path = self._path("ended", other)
        return pickle.loads(path.read_bytes()) if path.exists() else None

    def first_error(self) -> tuple[int, Ended] | None:
        """Another process where the strategy raised, and what; None if there is none so far."""
        for other in range(self.size):
            ended = self.ended(other) if other != self.rank else None
            if ended is not None and ended.kind is not None:
                return other, ended
        return None

    def _wait_for(self, what: str, other: int) -> Any:
        path = self._path(what, other)
        deadline = time.monotonic() + self._timeout_seconds
        while not path.exists():
            if self._path("ended", other).exists() and not path.exists():
                raise OutOfStepError(f"Rank {other} has ended the check before it came to where this rank is.")
            if time.monotonic() > deadline:
                seconds = self._timeout_seconds
                raise OutOfStepError(f"Rank {other} has not come in {seconds:g} s to where this rank is.")
            time.sleep(_POLL_SECONDS)
        return pickle.loads(path.read_bytes())

    def _write(self, what: str, value: Any) -> None:
        partial = self._directory / f"{what}.{self.rank}.partial"
        partial.write_bytes(pickle.dumps(value))
        os.replace(partial, self._path(what, self.rank))

    def _path(self, what: str, rank: int) -> Path:
        return self._directory / f"{what}.{rank}"
