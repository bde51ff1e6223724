"""The newest of what happened, for a trace."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from camshaft.callbacks.timeline.sites import Site

Event = tuple[Site, int, int]
"""What happened: where, when it began on `perf_counter_ns`, and how long it took in nanoseconds."""


class EventLog:
    """Keeps the newest events as plain numbers, three of each: no object of theirs stays in memory.

    Args:
        max_events: How many are kept.

    Attributes:
        numbers: Of each event the number of its site, its beginning and its duration, to be appended by who records.
    """

    def __init__(self, max_events: int) -> None:
        self.numbers = array("q")
        self._max_events = max_events
        self._sites: list[Site] = []

    def number_of(self, site: Site) -> int:
        """A new site's number."""
        self._sites.append(site)
        return len(self._sites) - 1

    def trim(self) -> None:
        """Drop old events if there are twice as many as are kept; to be called now and then."""
        if len(self.numbers) > 6 * self._max_events:
            del self.numbers[: -3 * self._max_events]

    def __iter__(self) -> Iterator[Event]:
        """Those that are kept, oldest first."""
        numbers = self.numbers[-3 * self._max_events :]
        for site_idx, start_ns, duration_ns in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
            yield self._sites[site_idx], start_ns, duration_ns
