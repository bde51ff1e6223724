"""The run of all checks, each in a thread so that no process waits for ever, and their report."""

from __future__ import annotations

import contextvars
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import FunctionType, MappingProxyType

import torch
from attrs import frozen

from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.support.devices import make_current
from camshaft.hooks_core.support.messages import must_be
from camshaft.strategies.conformance import protocol_checks, training_checks
from camshaft.strategies.conformance.trial import CheckStopped, OutOfStepError, Ranks, Trial

_POLL_SECONDS = 0.02
_GRACE_SECONDS = 5.0
_NUM_FRAMES = 6
_STUCK = "stuck"
_NO_END = "the check did not end on this rank"


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
            finding = f"it raised {_describe(cause)} before the check began"
            raise ConformanceError(self.name, {0: [finding]}, in_step=False) from cause
        trial = Trial(make_strategy, directory, rtol, ranks)
        error, kind = _run(self.function, trial, timeout_seconds, strategy.device)
        ends = {rank: end or ([_NO_END], _STUCK) for rank, end in ranks.end(trial.findings, kind).items()}
        if any(findings for findings, _ in ends.values()):
            kinds = {kind for _, kind in ends.values()}
            findings = {rank: found for rank, (found, _) in ends.items()}
            raise ConformanceError(self.name, findings, in_step=len(kinds) == 1 and _STUCK not in kinds) from error


def _run(
    function: Callable[[Trial], None], trial: Trial, timeout_seconds: float, device: torch.device
) -> tuple[BaseException | None, str | None]:
    """Run a check in a thread, and return its error, if any, and the name of its type or "stuck"."""
    raised: list[BaseException] = []

    def body() -> None:
        try:
            make_current(device)  # each thread has its own
            function(trial)
        except CheckStopped:
            pass
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(body,), daemon=True)
    thread.start()
    deadline = time.monotonic() + timeout_seconds
    reason = f"the strategy did not return within {timeout_seconds:g} s"
    while thread.is_alive():
        thread.join(_POLL_SECONDS)
        if deadline > time.monotonic() + _GRACE_SECONDS and trial.ranks.has_failed_elsewhere():
            reason = "the strategy waits for another rank, where the check failed"
            deadline = time.monotonic() + _GRACE_SECONDS
        if thread.is_alive() and time.monotonic() > deadline:
            trial.findings.append(f"{reason}; it is still at {_place(thread)}")
            return None, _STUCK
    if not raised:
        return None, None
    error = raised[0]
    trial.findings.append(str(error) if isinstance(error, OutOfStepError) else f"it raised {_describe(error)}")
    return error, type(error).__name__


def _describe(error: BaseException) -> str:
    """Return an exception's text with the line of code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _place(thread: threading.Thread) -> str:
    """Return the innermost lines of a thread's stack."""
    frame = sys._current_frames().get(thread.ident or 0)
    entries = traceback.extract_stack(frame)[-_NUM_FRAMES:] if frame is not None else []
    return " > ".join(f"{Path(entry.filename).name}:{entry.lineno} {entry.name}" for entry in entries)


CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        name: Check(value)
        for module in (protocol_checks, training_checks)
        for name, value in vars(module).items()
        if isinstance(value, FunctionType) and value.__module__ == module.__name__ and not name.startswith("_")
    }
)
"""The checks by name, basic ones first: the public functions of these modules, in the order of their definition."""


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
    outcomes: dict[str, ConformanceError | None] = {}
    chosen = [name for name in CHECKS if names is None or name in names]
    for name in chosen:
        outcomes[name] = None
        try:
            CHECKS[name](make_strategy, Path(directory, name), rtol=rtol, timeout_seconds=timeout_seconds)
        except ConformanceError as error:
            outcomes[name] = error
            if not error.in_step:
                break
    return Report(outcomes, tuple(chosen[len(outcomes) :]))


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
        super().__init__(f"{check}: the strategy departs from its protocol.\n{self.describe()}")

    def describe(self) -> str:
        """Return the findings, one per line; equal findings of several ranks are one line."""
        ranks_of: dict[str, list[int]] = {}
        for rank, lines in self.findings.items():
            for line in dict.fromkeys(lines):
                ranks_of.setdefault(line, []).append(rank)
        return "\n".join(f"rank {', '.join(map(str, ranks))}: {line}" for line, ranks in ranks_of.items())


@frozen
class Report:
    """The outcomes of all checks; `str` gives a table.

    Attributes:
        outcomes: The error of each check that ran, by its name; None if the strategy keeps the promise.
        not_run: The names of the checks that did not run, as an earlier one left the ranks out of step.
    """

    outcomes: Mapping[str, ConformanceError | None]
    not_run: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """True if every check ran and found nothing."""
        return not self.failed and not self.not_run

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the checks that found something."""
        return tuple(name for name, error in self.outcomes.items() if error is not None)

    def raise_if_failed(self) -> None:
        """Raise `AssertionError` with the whole table unless every check passed."""
        if not self.passed:
            raise AssertionError(f"The strategy departs from its protocol. Correct what the checks found.\n{self}")

    def __str__(self) -> str:
        names = (*self.outcomes, *self.not_run)
        width = max(map(len, names), default=0)
        lines = []
        for name in names:
            error = self.outcomes.get(name)
            state = "not run" if name in self.not_run else "passed" if error is None else "FAILED"
            lines.append(f"{state:8} {name:{width}}  {CHECKS[name].promise}")
            if error is not None:
                lines += [f"{'':9}{line}" for line in error.describe().splitlines()]
        return "\n".join(lines)
