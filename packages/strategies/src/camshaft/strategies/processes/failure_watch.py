"""Failing together: a process that fails tells the others, and those that do not notice by themselves are ended.

Each process has a thread that looks into the job's store about once a second, by a connection of its own. It tells of
itself there, sees whether another process published a failure, and whether its neighbours live. The training steps
cost nothing.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from camshaft.strategies.processes.failure_report import (
    CollectiveError,
    Failure,
    error_text,
    main_stack,
    may_follow_from_another,
    print_message,
    write_error_file,
)
from camshaft.strategies.processes.peer_process import PeerProcess, own_identity

_STATUS = 1
_LONGEST_GRACE_SECONDS = 3.0


class FailureWatch:
    """Publishes this process's failure, and learns of others'. One per process group; `start` begins.

    Args:
        store: Where the processes meet; the watch uses connections of its own.
        rank: Of this process.
        world_size: Number of processes.
        timeout: Within which all processes are to end after one failed. One that has not failed itself is ended a few
            seconds after the failed process ended, or when half of the time is over; one that has failed itself is
            given all of it to handle its error. If all have failed, none is ended: each has an error to handle.
    """

    def __init__(self, store: Store, rank: int, world_size: int, timeout: timedelta) -> None:
        self._store: Store = store.clone()  # type: ignore[attr-defined]
        self._store_of_thread: Store = store.clone()  # type: ignore[attr-defined]
        self._rank, self._world_size = rank, world_size
        self._timeout = timeout.total_seconds()
        self._interval = min(1.0, max(0.05, self._timeout / 20))
        self._process_id = os.getpid()
        self._first: Failure | None = None
        self._own: str | None = None
        self._own_since = self._first_since = self._left_since = float("inf")
        self._is_informed = self._has_first_rank_left = self._is_store_lost = False
        self._is_leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="camshaft-failure-watch", daemon=True)
        others = sorted({(rank + 1) % world_size, (rank - 1) % world_size} - {rank})
        self._peers = [PeerProcess(other, self._timeout / 2, self._interval) for other in others]

    @property
    def timeout_seconds(self) -> float:
        """Within which all processes are to end after one failed."""
        return self._timeout

    @property
    def failure(self) -> Failure | None:
        """The first failure that this process knows of: its own or another's."""
        return self._first

    def start(self) -> None:
        """Begin to watch."""
        self._store.set(f"process/{self._rank}", own_identity())
        self._thread.start()

    def note(self, error: BaseException) -> None:
        """Publish that this process failed; if another did before, note that on the error. Only the first call counts.

        Args:
            error: The reason.
        """
        if self._own is not None or os.getpid() != self._process_id:
            return
        self._own, self._own_since = error_text(error), time.monotonic()
        first = self._publish(Failure(self._rank, self._own), may_follow_from_another(error))
        self._first = first
        if first.rank != self._rank:
            error.add_note(f"Rank {first.rank} failed first: {first.text}")
        self._tell_agent(error_text(error), "".join(traceback.format_exception(error)))

    def check(self, collective: str) -> None:
        """Raise if not every process would join a collective. Raises `CollectiveError` after a failure."""
        if self._own is None and self._first is None:
            return
        first = self._first
        cause = "this process" if self._own is not None or first is None else f"rank {first.rank}"
        text = self._own if self._own is not None or first is None else first.text
        raise CollectiveError(
            f"`{collective}` must be called while no process has failed, but got a call on rank {self._rank} after "
            f"{cause} failed: {text}. See to that first."
        )

    def leave(self) -> None:
        """Say that this process ends, and stop. The first one, which may hold the store, lets the others know first."""
        if os.getpid() != self._process_id:
            return
        self._is_leaving.set()
        deadline = time.monotonic() + 2 * self._interval + 2
        try:
            if not self._is_store_lost:
                self._store.set(f"left/{self._rank}", "1")
                self._inform(self._store)
            while self._rank == 0 and not self._is_store_lost and time.monotonic() < deadline:
                if self._store.add("num_informed", 0) >= self._world_size:
                    break
                time.sleep(0.02)
        except dist.DistError:
            self._is_store_lost = True  # whoever held it has left
        self.stop()

    def stop(self) -> None:
        """Watch no more; when this returns, the thread has ended, unless the store does not answer."""
        self._is_leaving.set()
        # A thread that comes out of torch while the interpreter is being taken down would abort the process.
        self._thread.join(2 * self._interval + 3)

    def wait_until_all_failed(self) -> None:
        """Return when every process has failed by itself, so that all can begin anew together. Collective.

        Raises:
            CollectiveError: If others have not within the timeout.
        """
        deadline = time.monotonic() + self._timeout
        try:
            while self._store.add("num_failed", 0) < self._world_size:
                if time.monotonic() > deadline:
                    self.check("connect")
                time.sleep(0.05)
        except dist.DistError:
            self.check("connect")
            raise

    def _publish(self, own: Failure, may_follow: bool) -> Failure:
        """Put this process's failure where the others see it. Returns the first one, its own or another's."""
        try:
            if not self._is_store_lost:
                self._store.add("num_failed", 1)
                # Whoever caused this one is given the time to be heard first.
                deadline = time.monotonic() + 2 * self._interval + 0.5
                while may_follow and time.monotonic() < deadline and not self._store.check(["failure"]):
                    time.sleep(0.02)
                return Failure.from_json(self._store.compare_set("failure", "", own.to_json()))
        except dist.DistError:
            self._is_store_lost = True
        return self._first or (self._why_store_lost() if may_follow else own)

    def _run(self) -> None:
        while not self._is_leaving.wait(self._interval):
            try:
                if not self._is_store_lost and self._look(self._store_of_thread):
                    return
            except dist.DistError:
                self._is_store_lost = True
            if self._is_store_lost and not self._is_leaving.is_set():
                self._learn_of(self._why_store_lost())
                self._left_since = min(self._left_since, time.monotonic())
            self._end_if_due()

    def _look(self, store: Store) -> bool:
        """Give a sign of life and look for others'. Returns whether there is nothing to watch any more."""
        store.set(f"beat/{self._rank}", str(time.monotonic()))
        if store.check(["failure"]):
            self._learn_of(Failure.from_json(store.get("failure")))
            assert self._first is not None
            self._inform(store)
            if store.check([f"left/{self._first.rank}"]):
                self._left_since = min(self._left_since, time.monotonic())
            # Then each of them deals with an error of its own.
            return store.add("num_failed", 0) >= self._world_size
        if store.check(["left/0"]):
            # It ended well. It may have held the store, and without it there are no collectives anyway.
            self._has_first_rank_left = True
            self._inform(store)
            return True
        for peer in self._peers:
            reason = peer.why_lost(store)
            if reason is not None:
                # Learned of the next time: another process may have been the first to publish something.
                store.compare_set("failure", "", Failure(peer.rank, reason).to_json())
                store.set(f"left/{peer.rank}", "1")
        return False

    def _learn_of(self, failure: Failure) -> None:
        if self._first_since == float("inf"):
            self._first_since = time.monotonic()
            self._first = self._first or failure
            # Of those that have not failed themselves, the first one to learn of it says so.
            if failure.rank != self._rank and (self._is_store_lost or self._store_of_thread.add("num_told", 1) == 1):
                print_message(f"Rank {failure.rank} failed, which ends the run on every rank: {failure.text}")

    def _end_if_due(self) -> None:
        if self._first is None:
            return
        now = time.monotonic()
        if self._own is not None:
            is_due = now > self._own_since + self._timeout
        else:
            grace = min(_LONGEST_GRACE_SECONDS, self._timeout / 4)
            is_due = now > self._left_since + grace or now > self._first_since + self._timeout / 2
        if is_due:
            text = f"Rank {self._rank} was ended, because rank {self._first.rank} failed: {self._first.text}"
            stack = main_stack()
            print_message(f"{text}\nIt was at:\n{stack}")
            self._tell_agent(text, stack)
            sys.stdout.flush()
            os._exit(_STATUS)

    def _tell_agent(self, text: str, stack: str) -> None:
        assert self._first is not None
        # The agent reports the earliest of its processes' failures, by whole seconds.
        is_first = self._first.rank == self._rank
        write_error_file(text, stack, self._first.unix_seconds + (0 if is_first else 1))

    def _inform(self, store: Store) -> None:
        """Count this process, once, among those that rank 0 need not wait for when it leaves."""
        if not self._is_informed:
            self._is_informed = True
            store.add("num_informed", 1)

    def _why_store_lost(self) -> Failure:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            return Failure(0, "the launcher's agent, which holds the store of the job, is gone or cannot be reached.")
        if self._has_first_rank_left:
            return Failure(0, "it has ended, without an error, before this process.")
        return Failure(0, "its process was killed (as when memory runs out), crashed, or cannot be reached.")
