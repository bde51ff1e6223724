"""The trial of a strategy by one check: expectations, findings, and exchange between ranks by a file."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import define, field
from torch import Tensor
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.utils import _pytree as pytree

from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.support.messages import must_be
from camshaft.strategies.launch.peers import to_stored

_POLL_SECONDS = 0.002


class CheckStopped(Exception):
    """The end of a check on all ranks after a finding on any."""


@define(eq=False)
class Trial:
    """One check of one strategy on one process.

    Attributes:
        make_strategy: A function that makes a new strategy.
        directory: A folder of this check alone, which all ranks see.
        rtol: The tolerance of results, relative to the largest value of the expected tensor.
        findings: The findings so far on this rank.
    """

    make_strategy: Callable[[], Strategy]
    directory: Path
    rtol: float
    ranks: Ranks
    findings: list[str] = field(factory=list)

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

    def expect_close(self, actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str) -> None:
        """Expect named tensors of the same names and shapes, with values within the tolerance."""
        if not self.expect_equal(list(actual), list(expected), f"the names of {what}"):
            return
        rule = f"within {self.rtol:g} of one device's on the whole batches, relative to the largest"
        for name, tensor in expected.items():
            wanted, got = tensor.double(), actual[name].double()
            atol = self.rtol * max(1e-3, *wanted.abs().flatten().tolist())
            is_close = got.shape == wanted.shape and torch.allclose(got, wanted, rtol=0, atol=atol)
            self.expect(is_close, f"{what} `{name}` must be {rule}", f"got {shorten(got)} for {shorten(wanted)}")

    def expect_unchanged(self, actual: Mapping[str, Any], expected: Mapping[str, Any], promise: str) -> None:
        """Expect named values to be the same, to the bit; the finding lists those that differ."""
        differing = [name for name in actual if name not in expected or not same(actual[name], expected[name])]
        self.expect(not differing, promise, f"{', '.join(differing)} differ")

    def expect_same_everywhere(self, value: Any, what: str) -> None:
        """Expect a value, or named values, to be the same on all ranks, to the bit. Collective."""
        first, promise = self.ranks.exchange(value)[0], f"{what} must be the same on all ranks"
        if isinstance(value, dict) and isinstance(first, dict):
            self.expect_unchanged(value, first, promise)
        else:
            self.expect(same(value, first), promise, f"rank 0 has {first} and this rank {value}")


def same(actual: object, expected: object) -> bool:
    """Return whether nested values are the same in type and value, tensors to the bit."""
    (leaves, structure), (others, other_structure) = map(pytree.tree_flatten, (actual, expected))
    return structure == other_structure and all(map(_are_same, leaves, others))


def _are_same(leaf: Any, other: Any) -> bool:
    if isinstance(leaf, Tensor) and isinstance(other, Tensor):
        if leaf.dtype != other.dtype or leaf.shape != other.shape:
            return False
        return bool(((leaf == other) | ((leaf != leaf) & (other != other))).all())  # or both NaN
    return type(leaf) is type(other) and bool(leaf == other)


def shorten(value: object) -> str:
    """Return a value's representation in one line of at most 160 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 160 else f"{text[:157]}..."


class OutOfStepError(RuntimeError):
    """A rank that does not reach the exchange at which this one waits."""


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
        self._timeout_seconds = timeout_seconds
        self._num_exchanges = 0
        directory.mkdir(parents=True, exist_ok=True)
        self._store = FileStore(str(directory / "ranks"))
        if self._store.add(f"began/{rank}", 1) > 1:
            rule = "new for each check, and each process must have a `global_rank` of its own"
            action = "Pass an empty folder, and check `global_rank`."
            raise RuntimeError(must_be("directory", rule, str(directory), f"rank {rank} of {size}", action))

    def exchange(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order. Collective.

        Raises:
            OutOfStepError: If another rank has ended the check, or does not call this in time.
        """
        self._num_exchanges += 1
        name = str(self._num_exchanges)
        self._store.set(f"{name}/{self.rank}", to_stored(value))
        deadline = time.monotonic() + self._timeout_seconds
        for other in range(self.size):
            while not self._has(name, other):
                has_ended = self._has("ended", other) and not self._has(name, other)
                if has_ended or time.monotonic() > deadline:
                    problem = "has ended the check" if has_ended else f"has not come in {self._timeout_seconds:g} s"
                    rule = f"the same on all ranks; rank {self.rank} waits, but rank {other} {problem}"
                    action = "Let all ranks make the same exchanges in the same order."
                    raise OutOfStepError(must_be("exchanges", rule, int(name), "a check", action))
                time.sleep(_POLL_SECONDS)
        return [self._get(name, other) for other in range(self.size)]

    def end(self, findings: list[str], kind: str | None) -> dict[int, tuple[list[str], str | None] | None]:
        """Publish this rank's result, and return those of all; None for ranks without one. Collective.

        Args:
            findings: The departures from the protocol.
            kind: The name of the exception's type, or "stuck"; None without either.
        """
        self._store.set(f"ended/{self.rank}", to_stored((findings, kind)))
        deadline = time.monotonic() + 1.5 * self._timeout_seconds
        while time.monotonic() < deadline and not all(self._has("ended", other) for other in range(self.size)):
            time.sleep(_POLL_SECONDS)
        return {other: self._get("ended", other) for other in range(self.size)}

    def has_failed_elsewhere(self) -> bool:
        """Return whether the check raised or got stuck on another rank so far."""
        results = [self._get("ended", other) for other in range(self.size) if other != self.rank]
        return any(result is not None and result[1] is not None for result in results)

    def _has(self, name: str, rank: int) -> bool:
        return self._store.check([f"{name}/{rank}"])

    def _get(self, name: str, rank: int) -> Any:
        return pickle.loads(self._store.get(f"{name}/{rank}")) if self._has(name, rank) else None
