"""The trial of a strategy by one check: expectations, findings, and exchange between ranks by files."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen
from torch import Tensor

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Strategy

_POLL_SECONDS = 0.002
_ACTION = "Let all ranks make the same exchanges in the same order."


class CheckStopped(Exception):
    """The end of a check on all ranks after a finding on any."""


class Trial:
    """One check of one strategy on one process.

    Args:
        make_strategy: A function that makes a new strategy.
        directory: A folder of this check alone, which all ranks see.
        rtol: The tolerance of results, relative to the largest value of the expected tensor.
        ranks: The ranks.

    Attributes:
        make_strategy, directory, ranks: As above.
        findings: The findings so far on this rank.
    """

    def __init__(self, make_strategy: Callable[[], Strategy], directory: Path, rtol: float, ranks: Ranks) -> None:
        self.make_strategy = make_strategy
        self.directory = directory
        self.ranks = ranks
        self.findings: list[str] = []
        self._rtol = rtol

    def connect(self) -> Strategy:
        """Make a strategy, and connect it. Collective."""
        strategy = self.make_strategy()
        strategy.connect()
        return strategy

    def expect(self, holds: bool, promise: str, seen: object) -> bool:
        """Record a finding unless a promise holds. Return whether it holds."""
        if not holds:
            self.findings.append(f"{promise}, but {seen}.")
        return holds

    def stop_if_failed(self) -> None:
        """End the check on all ranks if any has a finding. Collective."""
        if any(self.ranks.exchange(bool(self.findings))):
            raise CheckStopped

    def expect_equal(self, actual: object, expected: object, what: str) -> bool:
        """Expect nested plain values and tensors to be the same, in type and to the bit."""
        return self.expect(same(actual, expected), f"{what} must be {shorten(expected)}", f"got {shorten(actual)}")

    def expect_close(self, actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str) -> bool:
        """Expect named tensors of the same names and shapes, with values within the tolerance."""
        if not self.expect(
            list(actual) == list(expected), f"{what} must be of {list(expected)}", f"got {list(actual)}"
        ):
            return False
        return all([self._expect_close(actual[name], expected[name], f"{what} `{name}`") for name in expected])

    def expect_same_everywhere(self, value: Any, what: str) -> bool:
        """Expect a value to be the same on all ranks, to the bit. Collective."""
        first = self.ranks.exchange(value)[0]
        holds, seen = same(value, first), f"rank 0 has {shorten(first)} and this rank {shorten(value)}"
        if isinstance(value, dict) and isinstance(first, dict):
            differing = [name for name in value if name not in first or not same(value[name], first[name])]
            seen = f"differs from that of rank 0 in {', '.join(map(repr, differing))}"
        return self.expect(holds, f"{what} must be the same on all ranks", seen)

    def _expect_close(self, actual: Tensor, expected: Tensor, what: str) -> bool:
        rule = f"{what} must be of shape {tuple(expected.shape)}"
        if not self.expect(actual.shape == expected.shape, rule, f"is of {tuple(actual.shape)}"):
            return False
        if not expected.numel():
            return True
        wanted, got = expected.double(), actual.double()
        largest = wanted.abs().max().item()
        error = (got - wanted).abs().max().item()
        rule = f"{what} must be within {self._rtol:g} of one device's on the whole batches, relative to the largest"
        return self.expect(
            error <= self._rtol * max(largest, 1e-3), rule, f"is {error:.3g} off values up to {largest:.3g}"
        )


def same(actual: object, expected: object) -> bool:
    """Return whether nested values are the same in type and value, tensors to the bit."""
    if isinstance(expected, Tensor):
        return (
            isinstance(actual, Tensor)
            and actual.dtype == expected.dtype
            and actual.shape == expected.shape
            and bool(((actual == expected) | ((actual != actual) & (expected != expected))).all())  # or both NaN
        )
    if isinstance(expected, dict):
        return (
            isinstance(actual, dict)
            and actual.keys() == expected.keys()
            and all(same(actual[key], value) for key, value in expected.items())
        )
    if type(actual) is not type(expected):
        return False
    if isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple)):
        return len(actual) == len(expected) and all(map(same, actual, expected))
    return bool(actual == expected)


def shorten(value: object) -> str:
    """Return a value's representation in one line of at most 160 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 160 else f"{text[:157]}..."


class OutOfStepError(RuntimeError):
    """A rank that does not reach the exchange at which this one waits."""


@frozen
class RankResult:
    """The result of a check on one rank.

    Attributes:
        findings: The departures from the protocol.
        kind: The name of the exception's type, or "stuck"; None without either. Ranks compare it.
        text: The exception or the place of the stuck thread, in words.
    """

    findings: list[str]
    kind: str | None = None
    text: str = ""


class Ranks:
    """The ranks of one check.

    Args:
        directory: A folder that all of them see and that no earlier check has used.
        rank: The rank of this process.
        size: The number of ranks.
        timeout_seconds: The time that one waits for another.

    Raises:
        RuntimeError: If this rank exists already.
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
            action = "Pass an empty folder, and check `global_rank`."
            raise RuntimeError(must_be("directory", rule, str(directory), f"rank {rank} of {size}", action)) from None

    def exchange(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order. Collective.

        Raises:
            OutOfStepError: If another rank has ended the check, or does not call this in time.
        """
        self._num_exchanges += 1
        what = str(self._num_exchanges)
        self._write(what, value)
        return [self._wait_for(what, other) for other in range(self.size)]

    def end(self, ended: RankResult) -> dict[int, RankResult | None]:
        """Publish this rank's result, and return those of all; None for ranks without one. Collective."""
        self._write("ended", ended)
        deadline = time.monotonic() + 1.5 * self._timeout_seconds
        while not all(self._path("ended", other).exists() for other in range(self.size)):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        return {other: self.ended(other) for other in range(self.size)}

    def ended(self, other: int) -> RankResult | None:
        """Return the result of another rank; None if there is none yet."""
        path = self._path("ended", other)
        return pickle.loads(path.read_bytes()) if path.exists() else None

    def has_failed_elsewhere(self) -> bool:
        """Return whether the check raised or got stuck on another rank so far."""
        results = [self.ended(other) for other in range(self.size) if other != self.rank]
        return any(result is not None and result.kind is not None for result in results)

    def _wait_for(self, what: str, other: int) -> Any:
        path = self._path(what, other)
        deadline = time.monotonic() + self._timeout_seconds
        while not path.exists():
            if self._path("ended", other).exists() and not path.exists():
                raise OutOfStepError(
                    f"Rank {other} has ended the check before the exchange at which this rank is. {_ACTION}"
                )
            if time.monotonic() > deadline:
                seconds = self._timeout_seconds
                raise OutOfStepError(
                    f"Rank {other} has not reached the exchange of this rank within {seconds:g} s. {_ACTION}"
                )
            time.sleep(_POLL_SECONDS)
        return pickle.loads(path.read_bytes())

    def _write(self, what: str, value: Any) -> None:
        partial = self._directory / f"{what}.{self.rank}.partial"
        partial.write_bytes(pickle.dumps(value))
        os.replace(partial, self._path(what, self.rank))

    def _path(self, what: str, rank: int) -> Path:
        return self._directory / f"{what}.{rank}"
