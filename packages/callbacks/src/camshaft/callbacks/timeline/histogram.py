"""Percentiles of many durations in little memory."""

from __future__ import annotations

_LINEAR_BITS = 7
"""Durations below 2 ** 7 ns are counted one by one; each doubling above is divided into 2 ** 6 equal parts."""


class DurationHistogram:
    """Counts durations in buckets whose width grows with them.

    A percentile is the nearest-rank one, read from the buckets: the middle of the bucket that holds the duration of
    that rank, so at most 1/128 (0.8 %) off. Number, sum, least and greatest are exact. There are at most 64 buckets for
    each doubling, however many durations are added.
    """

    __slots__ = ("_counts", "max_ns", "min_ns", "num", "total_ns")

    def __init__(self) -> None:
        self.num = 0
        self.total_ns = 0
        self.min_ns = 0
        self.max_ns = 0
        self._counts: dict[int, int] = {}

    def add(self, duration_ns: int) -> None:
        """Count a duration, 0 or more."""
        shift = duration_ns.bit_length() - _LINEAR_BITS
        bucket = duration_ns if shift <= 0 else (shift << (_LINEAR_BITS - 1)) + (duration_ns >> shift)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        if duration_ns > self.max_ns:
            self.max_ns = duration_ns
        if duration_ns < self.min_ns or not self.num:
            self.min_ns = duration_ns
        self.num += 1
        self.total_ns += duration_ns

    def merge(self, other: DurationHistogram) -> None:
        """Count what another has counted as well."""
        if not other.num:
            return
        for bucket, count in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.min_ns = min(self.min_ns, other.min_ns) if self.num else other.min_ns
        self.max_ns = max(self.max_ns, other.max_ns)
        self.num += other.num
        self.total_ns += other.total_ns

    def percentile_ns(self, percent: float) -> int:
        """The duration that so many percent do not exceed; 0 if nothing was added.

        Args:
            percent: Above 0, up to 100.
        """
        rank = max(1, -int(-percent * self.num // 100))
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= rank:
                return min(max(_middle(bucket), self.min_ns), self.max_ns)
        return 0


def _middle(bucket: int) -> int:
    """The middle of a bucket's durations."""
    shift = max((bucket >> (_LINEAR_BITS - 1)) - 1, 0)
    return ((bucket - (shift << (_LINEAR_BITS - 1))) << shift) + ((1 << shift) >> 1)
