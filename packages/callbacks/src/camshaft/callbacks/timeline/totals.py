"""What a timeline has measured so far, summed by verb."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from camshaft.callbacks.timeline.histogram import DurationHistogram
from camshaft.callbacks.timeline.recording import Recording
from camshaft.callbacks.timeline.sites import Tally


@attrs.frozen
class Row:
    """One row's identity.

    Args:
        hook: The hook's or span's name.
        receiver: The receiver's name; empty for a span of the loop.
        kind: What the receiver is, or "loop".
        is_sanity_check: Whether it is the part of the sanity check.
    """

    hook: str
    receiver: str
    kind: str
    is_sanity_check: bool


@attrs.define(eq=False)
class VerbTimes:
    """The sums of all runs of one verb.

    Attributes:
        num_runs: How often it ran.
        duration_ns: How long, in all.
        tallies: Sums by row, in the order in which the rows first came.
        steps: By kind of batch, the times that the batch and its hooks took in each.
    """

    num_runs: int = 0
    duration_ns: int = 0
    tallies: dict[Row, Tally] = attrs.field(factory=dict)
    steps: dict[str, dict[str, DurationHistogram]] = attrs.field(factory=dict)

    def add(self, recording: Recording, duration_ns: int) -> None:
        """Add a run that is finished."""
        self.num_runs += 1
        self.duration_ns += duration_ns
        for site in recording.sites:
            for tally, is_sanity_check in ((site.tally, False), (site.sanity_tally, True)):
                if tally.num_calls:
                    row = Row(site.hook, site.receiver, site.kind, is_sanity_check)
                    self.tallies.setdefault(row, Tally()).merge(tally)
        for span, histograms in recording.steps.items():
            merged = self.steps.setdefault(span, {})
            for name, histogram in histograms.items():
                merged.setdefault(name, DurationHistogram()).merge(histogram)

    def of_hook(self, hook: str, is_sanity_check: bool | None = None) -> Iterator[tuple[Row, Tally]]:
        """The rows of a hook or span; those in and out of the sanity check if that is None."""
        for row, tally in self.tallies.items():
            if row.hook == hook and is_sanity_check in (None, row.is_sanity_check):
                yield row, tally


def sum_of(tallies: Iterator[Tally] | list[Tally]) -> Tally:
    """One tally of several."""
    total = Tally()
    for tally in tallies:
        total.merge(tally)
    return total
