"""Failing together: a process that fails tells the others, and those that do not notice by themselves are ended.

Each process has a thread that looks into the job's store about once a second, by a connection of its own. It says there
where the process stands, sees whether another process published a failure, and whether its neighbours live. Another
thread ends the process where that is due, even if the store answers no more. When a collective waited in vain, all
positions are read, so that its error names the ranks that did not come. The training steps cost nothing.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from attrs import asdict, field, frozen
from torch.distributed import Store  # type: ignore[attr-defined]

from camshaft.strategies.launch.peers import (
    OwnPosition,
    PeerProcess,
    ProcessPosition,
    answer_with_stacks,
    describe_positions,
    missing_ranks,
    own_identity,
    position_key,
    stack_of_run,
)

_STATUS = 1
_LONGEST_GRACE_SECONDS = 3.0
_SECONDS_TO_PRINT = 0.3


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
        self._is_informed = self._has_first_rank_left = self._is_store_lost = self._is_done = False
        self._has_told_stack = self._is_store_silent = False
        self._here = OwnPosition()
        self._is_leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="camshaft-failure-watch", daemon=True)
        self._looking = threading.Thread(target=self._keep_looking, name="camshaft-failure-look", daemon=True)
        # Rounds are counted, not seconds: when the whole job was paused, the store is not to blame.
        self._allowed_rounds = max(2, round(self._timeout / 2 / self._interval))
        self._num_unanswered = 0
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
        self._store.set(f"process/{self._rank}", f"{own_identity()}/{answer_with_stacks() or 0}")
        self._store.set(position_key(self._rank), self._here.look().to_json())
        self._looking.start()
        self._thread.start()

    def note(self, error: BaseException) -> None:
        """Publish that this process failed; if another did before, note that on the error. Only the first call counts.

        If it failed because others did not come to a collective, or are gone, a note on the error says where each of
        them stands, and those that are missing print their stacks.

        Args:
            error: The reason.
        """
        if self._own is not None or os.getpid() != self._process_id:
            return
        may_follow = may_follow_from_another(error)
        if may_follow:
            self._here.stay(error)
        self._own, self._own_since = error_text(error), time.monotonic()
        first = self._publish(error, may_follow)
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
        if self._first is not None:
            self._kill_silent()
        deadline = time.monotonic() + 2 * self._interval + 2
        try:
            if not self._is_store_lost:
                self._store.set(position_key(self._rank), self._here.leave().to_json())
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
        """Watch no more; when this returns, the threads have ended, unless the store does not answer."""
        self._is_leaving.set()
        # A thread that comes out of torch while the interpreter is being taken down would abort the process.
        for thread in (self._thread, self._looking):
            thread.join(2 * self._interval + 3)

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

    def _publish(self, error: BaseException, may_follow: bool) -> Failure:
        """Put this process's failure where the others see it. Returns the first one, its own or another's."""
        own = Failure(self._rank, error_text(error))
        try:
            if not self._is_store_lost:
                self._store.add("num_failed", 1)
                positions: dict[int, ProcessPosition] = {}
                if may_follow and not self._hears_of_cause():
                    positions = self._positions(self._store)
                    missing = missing_ranks(positions)
                    where = describe_positions(positions, missing, self._interval)
                    own = Failure(self._rank, f"{own.text}\n{where}", missing=missing)
                first = Failure.from_json(self._store.compare_set("failure", "", own.to_json()))
                if positions and first == own:
                    error.add_note(where)
                    self._await_stacks([rank for rank in own.missing if not positions[rank].collective])
                return first
        except dist.DistError:
            self._is_store_lost = True
        return self._first or (self._why_store_lost() if may_follow else own)

    def _hears_of_cause(self) -> bool:
        """Give whoever caused this process's failure the time to be heard first. Returns whether somebody was."""
        self._store.set(position_key(self._rank), self._here.look().to_json())
        deadline = time.monotonic() + 2 * self._interval + 0.5
        while time.monotonic() < deadline:
            if self._store.check(["failure"]):
                return True
            time.sleep(0.02)
        return False

    def _positions(self, store: Store) -> dict[int, ProcessPosition]:
        """Where every process said last that it stands, by rank."""
        keys = {rank: position_key(rank) for rank in range(self._world_size)}
        return {rank: ProcessPosition.from_json(store.get(key)) for rank, key in keys.items() if store.check([key])}

    def _await_stacks(self, missing: list[int]) -> None:
        """Give missing processes the time to print their stacks, before anybody ends them; ask those that do not."""
        missing = [rank for rank in missing if not self._store.check([f"left/{rank}"])]
        keys = [f"stack/{rank}" for rank in missing]
        deadline = time.monotonic() + 2 * self._interval + 0.5
        while time.monotonic() < deadline and not self._store.check(keys):
            time.sleep(0.02)
        silent = [rank for rank in missing if not self._store.check([f"stack/{rank}"])]
        peers = [PeerProcess(rank, self._timeout / 2, self._interval) for rank in silent]
        if any([peer.print_stack(self._store) for peer in peers]):
            time.sleep(_SECONDS_TO_PRINT)

    def _run(self) -> None:
        while not self._is_leaving.wait(self._interval) and not self._is_done:
            self._num_unanswered += 1
            if not self._is_store_lost and self._num_unanswered > self._allowed_rounds:
                self._is_store_lost = self._is_store_silent = True
            if self._is_store_lost:
                self._learn_of(self._why_store_lost())
                self._left_since = min(self._left_since, time.monotonic())
            self._end_if_due()

    def _keep_looking(self) -> None:
        while not self._is_leaving.wait(self._interval) and not self._is_store_lost:
            try:
                self._is_done = self._look(self._store_of_thread)
            except dist.DistError:
                self._is_store_lost = True
            if self._is_done:
                return
            self._num_unanswered = 0

    def _look(self, store: Store) -> bool:
        """Give a sign of life and look for others'. Returns whether there is nothing to watch any more."""
        store.set(position_key(self._rank), self._here.look().to_json())
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
                reason += "\n" + describe_positions(self._positions(store), [], self._interval)
                peer.print_stack(store)
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
            if self._rank in failure.missing and self._own is None:
                self._has_told_stack = True
                print_message(f"Rank {self._rank}, which the others wait for, is at:\n{stack_of_run()}")
                self._store_of_thread.set(f"stack/{self._rank}", "1")

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
            stack = stack_of_run()
            print_message(text if self._has_told_stack else f"{text}\nIt was at:\n{stack}")
            self._kill_silent()
            self._tell_agent(text, stack)
            sys.stdout.flush()
            os._exit(_STATUS)

    def _kill_silent(self) -> None:
        """End neighbours that cannot end themselves: stopped, or within C code that holds the interpreter."""
        for peer in self._peers:
            is_silent = peer.is_silent or (peer.rank == 0 and self._is_store_silent)
            if is_silent and peer.kill():
                print_message(f"Rank {peer.rank}, which gave no sign of life, was killed by rank {self._rank}.")

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
        reason = "was stopped, hangs" if self._is_store_silent else "was killed (as when memory runs out), crashed"
        seen = {peer.rank: peer.position for peer in self._peers if peer.rank == 0}
        positions = {**{rank: one for rank, one in seen.items() if one is not None}, self._rank: self._here.look()}
        where = describe_positions(positions, [], self._interval)
        return Failure(0, f"its process {reason}, or cannot be reached.\n{where}")


class CollectiveError(RuntimeError):
    """A collective was called where other processes would not join it."""


@frozen
class Failure:
    """What ended a run.

    Attributes:
        rank: Of the process that failed.
        text: The error's kind, message and notes; or what else became of that process.
        unix_seconds: When it became known.
        missing: The ranks that the others waited for, as far as the failure is that they did not come.
    """

    rank: int
    text: str
    unix_seconds: int = field(factory=lambda: int(time.time()))
    missing: list[int] = field(factory=list, hash=False)

    def to_json(self) -> str:
        """This failure as the store keeps it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, stored: str | bytes) -> Failure:
        """A failure that the store kept."""
        return cls(**json.loads(stored))


def error_text(error: BaseException) -> str:
    """An error's kind, message and notes, without its traceback."""
    return "".join(traceback.format_exception_only(error)).strip()


def may_follow_from_another(error: BaseException) -> bool:
    """Whether an error is one of the backend, as it comes when another process is gone or does not join."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error).lower())


def write_error_file(text: str, traceback_text: str, unix_seconds: int) -> None:
    """Tell the elastic agent, if there is one, what this process ended by; of several it reports the earliest.

    The file's format is that of `torch.distributed.elastic.multiprocessing.errors.ErrorHandler`.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        extra = {"py_callstack": traceback_text, "timestamp": str(unix_seconds)}
        Path(path).write_text(json.dumps({"message": {"message": text, "extraInfo": extra}}))


def print_message(text: str) -> None:
    """Print lines to stderr, marked as this package's."""
    # One call, so that the lines of several processes do not mix.
    sys.stderr.write("".join(f"[camshaft] {line}\n" for line in text.splitlines()))
    sys.stderr.flush()
