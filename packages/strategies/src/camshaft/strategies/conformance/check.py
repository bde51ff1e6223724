"""The run of all checks, each in a thread so that no process waits for ever, and their report."""

from __future__ import annotations

import contextvars
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

import torch
from attrs import frozen

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Strategy
from camshaft.strategies.conformance import protocol_checks, training_checks
from camshaft.strategies.conformance.trial import CheckStopped, OutOfStepError, RankResult, Ranks, Trial

_POLL_SECONDS = 0.02
_GRACE_SECONDS = 5.0
_NUM_FRAMES = 6
_STUCK = "stuck"


@frozen
class Check:
    """A check of one promise of the strategy protocol.

    Attributes:
        function: The function that tries the strategy and records findings.
    """

    function: Callable[[Trial], None]

    @property
    def name(self) -> str:
        """The name, such as "training_equals_one_device"."""
        return self.function.__name__

    @property
    def promise(self) -> str:
        """The promise as a sentence."""
        return (self.function.__doc__ or "").strip()

    def __call__(
        self,
        make_strategy: Callable[[], Strategy],
        directory: Path | str,
        *,
        rtol: float = 1e-4,
        timeout_seconds: float = 120.0,
    ) -> None:
        """Check a strategy. Collective.

        It runs in a thread of its own, so that a strategy that waits for ever is reported.

        Args:
            make_strategy: A function that makes a new strategy. The launcher, or `connect`, starts the processes.
            directory: A folder that all ranks see and that no other check uses; created if needed.
            rtol: The tolerance for weights against those of one device in 32 bits, relative to a tensor's largest.
            timeout_seconds: The time after which a rank gives up.

        Raises:
            ConformanceError: If the strategy breaks the promise, raises, or waits for ever. It is raised on every
                rank, with the findings of all.
            Exception: Any error of the first call of `make_strategy`.
        """
        directory = Path(directory)
        strategy = make_strategy()
        try:
            strategy.connect()
            ranks = Ranks(directory, strategy.global_rank, strategy.world_size, timeout_seconds)
        except Exception as cause:
            finding = f"it raised {_in_words(cause)} before the check began"
            raise ConformanceError(self.name, {0: [finding]}, in_step=False) from cause
        trial = Trial(make_strategy, directory, rtol, ranks)
        error, ended = _run(self.function, trial, timeout_seconds)
        everywhere = ranks.end(ended)
        findings = {rank: _findings_of(result) for rank, result in everywhere.items()}
        if any(findings.values()):
            kinds = {result.kind if result is not None else "missing" for result in everywhere.values()}
            in_step = len(kinds) == 1 and not kinds & {"missing", _STUCK}
            raise ConformanceError(self.name, findings, in_step=in_step) from error


def _run(
    function: Callable[[Trial], None], trial: Trial, timeout_seconds: float
) -> tuple[BaseException | None, RankResult]:
    """Run a check in a thread, and return its error, if any, and its result."""
    done = threading.Event()
    raised: list[BaseException] = []
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def body() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)  # each thread has its own
            function(trial)
        except CheckStopped:
            pass
        except BaseException as error:
            raised.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=contextvars.copy_context().run, args=(body,), daemon=True)
    thread.start()
    reason = _wait(done, trial.ranks, timeout_seconds)
    if reason is not None:
        return None, RankResult(trial.findings, _STUCK, f"{reason}; it is still at {_place(thread)}")
    if not raised:
        return None, RankResult(trial.findings)
    error = raised[0]
    kind = type(error).__name__
    text = str(error) if isinstance(error, OutOfStepError) else f"it raised {_in_words(error)}"
    return error, RankResult(trial.findings, kind, text)


def _wait(done: threading.Event, ranks: Ranks, timeout_seconds: float) -> str | None:
    """Wait for the thread. Return why it was given up, or None if it ended."""
    deadline = time.monotonic() + timeout_seconds
    others_failed_at: float | None = None
    while not done.wait(_POLL_SECONDS):
        now = time.monotonic()
        if now > deadline:
            return f"the strategy did not return within {timeout_seconds:g} s"
        if others_failed_at is None and ranks.has_failed_elsewhere():
            others_failed_at = now
        if others_failed_at is not None and now > others_failed_at + _GRACE_SECONDS:
            return "the strategy waits for another rank, where the check failed"
    return None


def _findings_of(ended: RankResult | None) -> list[str]:
    if ended is None:
        return ["the check did not end on this rank"]
    return ended.findings + ([ended.text] if ended.kind is not None else [])


def _in_words(error: BaseException) -> str:
    """Return an exception's text with the line of code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _place(thread: threading.Thread) -> str:
    frame: Any = sys._current_frames().get(thread.ident or 0)
    entries = traceback.extract_stack(frame) if frame is not None else []
    names = [f"{Path(entry.filename).name}:{entry.lineno} {entry.name}" for entry in entries]
    own = [position for position, entry in enumerate(entries) if entry.filename == __file__]
    names = names[own[-1] + 1 :] if own else names  # the frames inside the check
    if len(names) > _NUM_FRAMES:
        names[_NUM_FRAMES - 2 : -2] = ["..."]
    return " > ".join(names) or "an unknown place"


def _checks_of(module: ModuleType) -> Iterator[Check]:
    """Yield the checks of a module: its public functions, in the order of their definition."""
    for name, value in vars(module).items():
        if isinstance(value, FunctionType) and value.__module__ == module.__name__ and not name.startswith("_"):
            yield Check(value)


CHECKS: Mapping[str, Check] = MappingProxyType(
    {check.name: check for module in (protocol_checks, training_checks) for check in _checks_of(module)}
)
"""The checks by name, basic ones first."""


def run(
    make_strategy: Callable[[], Strategy],
    directory: Path | str,
    *,
    rtol: float = 1e-4,
    timeout_seconds: float = 120.0,
    names: Collection[str] | None = None,
) -> Report:
    """Run all checks on a strategy. Collective.

    Args:
        make_strategy: A function that makes a new strategy. The launcher, or `connect`, starts the processes.
        directory: A folder that all ranks see and that no earlier run has used; created if needed.
        rtol: The tolerance for weights against those of one device in 32 bits, relative to a tensor's largest. The
            default is for 32 bits; 16 bits need about 0.05.
        timeout_seconds: The time after which a rank gives a check up.
        names: The checks to run; None for all.

    Returns:
        The report, the same on all ranks. A strategy that fails raises nothing.

    Raises:
        ValueError: If there is no check of a name.
    """
    unknown = sorted(set(names or ()) - set(CHECKS))
    if unknown:
        rule = f"names of checks ({', '.join(CHECKS)})"
        raise ValueError(must_be("names", rule, unknown, "conformance.run", "Pass names of `CHECKS`."))
    outcomes: list[Outcome] = []
    in_step = True
    for name, check in CHECKS.items():
        if names is not None and name not in names:
            continue
        error: ConformanceError | None = None
        if in_step:
            try:
                check(make_strategy, Path(directory, name), rtol=rtol, timeout_seconds=timeout_seconds)
            except ConformanceError as raised:
                error = raised
        outcomes.append(Outcome(name, check.promise, error, has_run=in_step))
        in_step = in_step and (error is None or error.in_step)
    return Report(tuple(outcomes))


class ConformanceError(AssertionError):
    """A departure of a strategy from the strategy protocol.

    Args:
        check: The name of the check.
        findings: The findings by rank; ranks without findings may be left out.
        in_step: Whether all ranks went through the same, so that further checks make sense.

    Attributes:
        check, findings, in_step: As above.
    """

    def __init__(self, check: str, findings: Mapping[int, list[str]], *, in_step: bool = True) -> None:
        self.check = check
        self.findings = {rank: list(lines) for rank, lines in sorted(findings.items()) if lines}
        self.in_step = in_step
        super().__init__(f"{check}: the strategy departs from its protocol.\n{self.in_words()}")

    def in_words(self) -> str:
        """Return the findings, one per line; equal findings of several ranks are one line."""
        ranks_of: dict[str, list[int]] = {}
        for rank, lines in self.findings.items():
            for line in dict.fromkeys(lines):
                ranks_of.setdefault(line, []).append(rank)
        return "\n".join(f"rank {', '.join(map(str, ranks))}: {line}" for line, ranks in ranks_of.items())


@frozen
class Outcome:
    """The outcome of a check.

    Attributes:
        check: The name of the check.
        promise: The promise that it checks.
        error: The error; None if the strategy keeps the promise.
        has_run: Whether it ran; it does not if an earlier check left the ranks out of step.
    """

    check: str
    promise: str
    error: ConformanceError | None = None
    has_run: bool = True


@frozen
class Report:
    """The outcomes of all checks; `str` gives a table."""

    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        """True if every check ran and found nothing."""
        return all(outcome.has_run and outcome.error is None for outcome in self.outcomes)

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the checks that found something."""
        return tuple(outcome.check for outcome in self.outcomes if outcome.error is not None)

    def raise_if_failed(self) -> None:
        """Raise `AssertionError` with the whole table unless every check passed."""
        if not self.passed:
            told = "The strategy departs from its protocol. Mend what the checks below found."
            raise AssertionError(f"{told}\n{self}")

    def __str__(self) -> str:
        width = max((len(outcome.check) for outcome in self.outcomes), default=0)
        lines = []
        for outcome in self.outcomes:
            state = "not run" if not outcome.has_run else "passed" if outcome.error is None else "FAILED"
            lines.append(f"{state:8} {outcome.check:{width}}  {outcome.promise}")
            if outcome.error is not None:
                lines += [f"{'':9}{line}" for line in outcome.error.in_words().splitlines()]
        return "\n".join(lines)
