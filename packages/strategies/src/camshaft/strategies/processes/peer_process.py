"""Whether another process of the job lives: at once on the same machine, by its signs of life elsewhere."""

from __future__ import annotations

import faulthandler
import os
import select
import signal
from pathlib import Path

from torch.distributed import Store  # type: ignore[attr-defined]

from camshaft.strategies.processes.process_position import ProcessPosition

_STDERR = 2


class PeerProcess:
    """Another process, looked at now and then.

    Args:
        rank: Its rank.
        limit_seconds: How long it may give no sign of life.
        interval_seconds: How often `why_lost` is called.

    Attributes:
        rank: Its rank.
        is_silent: Whether it was found to give no sign of life for so long.
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
        self._stack_signal = 0
        self.is_silent = False

    @property
    def position(self) -> ProcessPosition | None:
        """Where it said that it stands when it was last looked at; None if it said nothing."""
        return ProcessPosition.from_json(self._beat) if self._beat else None

    def print_stack(self, store: Store) -> bool:
        """Let the process print its stacks to its stderr, even if it runs no Python code. Returns whether it was asked.

        Only one on this machine can be asked; one that was stopped answers when it goes on.
        """
        is_known = self._is_known or self._get_to_know(store)
        return is_known and self._stack_signal != 0 and self._send(self._stack_signal)

    def kill(self) -> bool:
        """Kill the process, if it is on this machine. Returns whether that was done."""
        return self._send(signal.SIGKILL)

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
        identity, _, stack_signal = store.get(key).decode().rpartition("/")
        place, _, number = identity.rpartition("/")
        self._stack_signal = int(stack_signal)
        own_place = own_identity().rpartition("/")[0]
        if place == own_place and hasattr(os, "pidfd_open"):
            try:
                self._handle = os.pidfd_open(int(number))
            except OSError:
                self._handle = None
        self._is_known = True
        return True

    def _why_silent(self, store: Store) -> str | None:
        key = position_key(self.rank)
        beat = store.get(key) if store.check([key]) else b""
        if beat != self._beat:
            self._beat, self._num_looks = beat, 0
            return None
        self._num_looks += 1
        if self._num_looks < self._allowed_looks:
            return None
        self.is_silent = True
        return f"its process gave no sign of life for {self._limit_seconds:.0f} s: it, or its machine, ended or hangs."

    def _send(self, number: int) -> bool:
        if self._handle is None or _has_ended(self._handle):
            return False
        try:
            signal.pidfd_send_signal(self._handle, number)
        except OSError:
            return False
        return True


def position_key(rank: int) -> str:
    """Where a process says again and again where it stands, which is its sign of life."""
    return f"position/{rank}"


def answer_with_stacks() -> int | None:
    """Print the stacks of this process's threads to stderr whenever a certain signal comes.

    It is printed without the interpreter, which a call of C code may be holding.

    Returns:
        The signal's number; None if there is none that nobody uses.
    """
    number = next((one for one in _stack_signals() if signal.getsignal(one) is signal.SIG_DFL), None)
    if number is not None:
        faulthandler.register(number, file=_STDERR, all_threads=True, chain=False)
    return number


def _stack_signals() -> list[int]:
    """Real-time signals, of which programs hardly use the last."""
    last = getattr(signal, "SIGRTMAX", None)
    return [] if last is None or not hasattr(signal, "pidfd_send_signal") else [last - offset for offset in range(2, 8)]


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
