"""What the conformance kit says of a strategy."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen


class ConformanceError(AssertionError):
    """A strategy departs from the strategy protocol.

    Args:
        check: Name of the check that found it.
        findings: What each rank saw, by rank; ranks that saw nothing wrong may be left out.
        in_step: Whether all processes went through the same, so that further checks make sense.

    Attributes:
        check, findings, in_step: As above.
    """

    def __init__(self, check: str, findings: Mapping[int, list[str]], *, in_step: bool = True) -> None:
        self.check = check
        self.findings = {rank: list(lines) for rank, lines in sorted(findings.items()) if lines}
        self.in_step = in_step
        super().__init__(f"{check}: the strategy departs from its protocol.\n{self.in_words()}")

    def in_words(self) -> str:
        """The findings, one a line; what several ranks saw alike is said once."""
        ranks: dict[str, list[int]] = {}
        for rank, lines in self.findings.items():
            for line in dict.fromkeys(lines):
                ranks.setdefault(line, []).append(rank)
        return "\n".join(f"rank {', '.join(map(str, who))}: {line}" for line, who in ranks.items())


@frozen
class Outcome:
    """How a check went.

    Attributes:
        check: Its name.
        promise: What of the protocol it checks.
        error: None if the strategy keeps the promise.
        has_run: Whether it ran; it does not where an earlier one left the processes out of step.
    """

    check: str
    promise: str
    error: ConformanceError | None = None
    has_run: bool = True


@frozen
class Report:
    """How all checks went; printed, it is a table."""

    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        """Whether every check ran and found nothing."""
        return all(outcome.has_run and outcome.error is None for outcome in self.outcomes)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that found something."""
        return tuple(outcome.check for outcome in self.outcomes if outcome.error is not None)

    def raise_if_failed(self) -> None:
        """Raise `AssertionError` with the whole table unless every check passed."""
        if not self.passed:
            raise AssertionError(f"The strategy departs from its protocol.\n{self}")

    def __str__(self) -> str:
        width = max((len(outcome.check) for outcome in self.outcomes), default=0)
        lines = []
        for outcome in self.outcomes:
            state = "not run" if not outcome.has_run else "passed" if outcome.error is None else "FAILED"
            lines.append(f"{state:8} {outcome.check:{width}}  {outcome.promise}")
            if outcome.error is not None:
                lines += [f"{'':9}{line}" for line in outcome.error.in_words().splitlines()]
        return "\n".join(lines)
