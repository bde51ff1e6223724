"""Whether another process of the job lives: at once on the same machine, by its signs of life elsewhere."""

from __future__ import annotations

import os
import select
from pathlib import Path

from torch.distributed import Store  # type: ignore[attr-defined]


class PeerProcess:
    """Another process, looked at now and then.

    Args:
        rank: Its rank.
        limit_seconds: How long it may give no sign of life.
        interval_seconds: How often `why_lost` is called.
    """

    def __init__(self, rank: int, limit_seconds: float, interval_seconds: float) -> None:
        self.rank = rank
        self._limit_seconds = limit_seconds
        # Looks are counted, not seconds: when the whole job was paused, nobody is to blame.
        self._allowed_looks = max(2, round(limit_seconds / interval_seconds))
        self._num_looks = 0
        self._beat = b""
        self._handle: int | None = None
        self._is_known = False

    def why_lost(self, store: Store) -> str | None:
        """Look at the process. Returns what became of it, unless it lives, left well, or has not yet said who it is."""
        if not self._is_known and not self._get_to_know(store):
            return None
        if store.check([f"left/{self.rank}"]):
            return None
        if self._handle is not None and _has_ended(self._handle):
            if store.check([f"left/{self.rank}"]):  # said in between
                return None
            return (
                "its process ended without a word: it was killed (as when memory runs out), crashed or called os._exit."
            )
        return self._why_silent(store)

    def _get_to_know(self, store: Store) -> bool:
        key = f"process/{self.rank}"
        if not store.check([key]):
            return False
        place, _, number = store.get(key).decode().rpartition("/")
        own_place = own_identity().rpartition("/")[0]
        if place == own_place and hasattr(os, "pidfd_open"):
            try:
                self._handle = os.pidfd_open(int(number))
            except OSError:
                self._handle = None
        self._is_known = True
        return True

    def _why_silent(self, store: Store) -> str | None:
        key = f"beat/{self.rank}"
        beat = store.get(key) if store.check([key]) else b""
        if beat != self._beat:
            self._beat, self._num_looks = beat, 0
            return None
        self._num_looks += 1
        if self._num_looks < self._allowed_looks:
            return None
        return f"its process gave no sign of life for {self._limit_seconds:.0f} s: it, or its machine, ended or hangs."


def own_identity() -> str:
    """What tells this process from all others of the job: machine, process namespace and number."""
    parts = []
    for name in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        path = Path(name)
        try:
            parts.append(os.readlink(path) if path.is_symlink() else path.read_text().strip())
        except OSError:
            parts.append("")
    # Without both, nobody takes a process for one of its own machine.
    place = "/".join(parts) if all(parts) else f"unknown-{os.getpid()}"
    return f"{place}/{os.getpid()}"


def _has_ended(handle: int) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))
