"""Percentiles of many durations in little memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

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

    def add(self, durations_ns: Sequence[int]) -> None:
        """Count durations, each 0 or more; many at once take less time than one by one."""
        if not durations_ns:
            return
        ordered = sorted(durations_ns)
        idx, num = 0, len(ordered)
        while idx < num:
            bucket = _bucket(ordered[idx])
            start_idx, idx = idx, bisect_left(ordered, _start(bucket + 1), idx)
            self._counts[bucket] = self._counts.get(bucket, 0) + idx - start_idx
        self.min_ns = min(self.min_ns, ordered[0]) if self.num else ordered[0]
        self.max_ns = max(self.max_ns, ordered[-1])
        self.num += num
        self.total_ns += sum(ordered)

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


def _bucket(duration_ns: int) -> int:
    shift = duration_ns.bit_length() - _LINEAR_BITS
    return duration_ns if shift <= 0 else (shift << (_LINEAR_BITS - 1)) + (duration_ns >> shift)


def _shift(bucket: int) -> int:
    """The width of a bucket is two to the power of this."""
    return max((bucket >> (_LINEAR_BITS - 1)) - 1, 0)


def _start(bucket: int) -> int:
    """The least duration in a bucket."""
    shift = _shift(bucket)
    return (bucket - (shift << (_LINEAR_BITS - 1))) << shift


def _middle(bucket: int) -> int:
    return _start(bucket) + ((1 << _shift(bucket)) >> 1)
