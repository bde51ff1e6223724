"""Failures: a rank that fails publishes it, and every other rank ends within the timeout.

Torch's elastic agent ends its processes when one exits. This covers the other cases: a launcher without an agent
(SLURM), a rank that hangs or is stopped, and the cause of a failure, which is reported by rank, hook and position.

Each process has a thread that reads the job's store about once a second, by a connection of its own. It publishes the
position of the process, and looks for failures and for signs of life of its neighbours. Another thread ends the
process when it is due, even if the store does not answer. When a collective times out, all positions are read, so that
its error names the missing ranks, and each rank dumps its last collectives. Training steps have no overhead.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from attrs import field, frozen
from torch.distributed import Store  # type: ignore[attr-defined]

from camshaft.strategies.launch import peers
from camshaft.strategies.launch.flight_recorder import dump_collectives, nccl_dump
from camshaft.strategies.launch.starts import has_agent_store

_STATUS = 1
_LONGEST_GRACE_SECONDS = 3.0
_SECONDS_TO_PRINT = 0.3
_SECONDS_TO_DUMP = 5.0  # torch imports much for the first stack of a dump


class FailureWatch:
    """A watch that publishes this process's failure and ends this process after another's. One per process group.

    Args:
        store: The store of the job; the watch uses connections of its own.
        rank: The rank of this process.
        world_size: The number of processes.
        timeout: The time within which all processes end after a failure. A process that has not failed itself is ended
            a few seconds after the failed process ended, or after half of the time; one that has failed has all of it
            to handle its error. If all have failed, none is ended: each handles its own error.

    Attributes:
        timeout_seconds: The time within which all processes end after a failure.
        failure: The first failure that is known here, of this rank or another.
    """

    def __init__(self, store: Store, rank: int, world_size: int, timeout: timedelta) -> None:
        self._store: Store = store.clone()  # type: ignore[attr-defined]
        self._store_of_thread: Store = store.clone()  # type: ignore[attr-defined]
        self._rank, self._world_size = rank, world_size
        self.timeout_seconds = self._timeout = timeout.total_seconds()
        self.failure: Failure | None = None
        self._interval = min(1.0, max(0.05, self._timeout / 20))
        self._started = time.time()
        self._process_id = os.getpid()
        self._own: str | None = None
        self._own_since = self._first_since = self._left_since = float("inf")
        self._is_informed = self._has_first_rank_left = self._is_store_lost = self._is_done = False
        self._has_printed_stack = self._is_store_silent = False
        self._here = peers.OwnPosition()
        self._is_leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="camshaft-failure-watch", daemon=True)
        self._looking = threading.Thread(target=self._keep_looking, name="camshaft-failure-look", daemon=True)
        # Rounds, not seconds: a pause of the whole job is no failure of the store.
        self._allowed_rounds = max(2, round(self._timeout / 2 / self._interval))
        self._num_unanswered = 0
        others = sorted({(rank + 1) % world_size, (rank - 1) % world_size} - {rank})
        self._peers = [peers.PeerProcess(other, self._timeout / 2, self._interval) for other in others]

    def start(self) -> None:
        """Start the threads."""
        self._store.set(f"process/{self._rank}", f"{peers.own_identity()}/{peers.print_stacks_on_signal() or 0}")
        self._store.set(peers.position_key(self._rank), peers.to_stored(self._here.look()))
        self._looking.start()
        self._thread.start()

    def note(self, error: BaseException) -> None:
        """Publish that this process failed; if another did before, add it to the error's notes. Only the first counts.

        If a collective failed as ranks are missing or gone, a note on the error gives every rank's position, the
        missing ranks print their stacks, and all ranks write their last collectives to files that the note names.
        """
        if self._own is not None or os.getpid() != self._process_id:
            return
        may_follow = may_follow_from_another(error)
        if may_follow:
            self._here.freeze(error)
        self._own, self._own_since = error_text(error), time.monotonic()
        first = self._publish(error, may_follow)
        self.failure = first
        if first.rank != self._rank:
            error.add_note(f"Rank {first.rank} failed first: {first.text}")
            if first.is_of_collective:
                dump_collectives(self._rank)
        self._write_error_file(error_text(error), "".join(traceback.format_exception(error)))

    def check(self, collective: str) -> None:
        """Raise `CollectiveError` if a rank has failed, as it would not join a collective."""
        if self._own is not None:
            cause, text = "this process", self._own
        elif self.failure is not None:
            cause, text = f"rank {self.failure.rank}", self.failure.text
        else:
            return
        raise CollectiveError(
            f"`{collective}` must be called while no process has failed, but got a call on rank {self._rank} after "
            f"{cause} failed: {text}. Handle that error first."
        )

    def leave(self) -> None:
        """Publish that this process ends, and stop. Rank 0, which may hold the store, waits until all ranks know it."""
        if os.getpid() != self._process_id:
            return
        self._is_leaving.set()
        if self.failure is not None:
            self._kill_silent_neighbours()
        try:
            if not self._is_store_lost:
                self._store.set(peers.position_key(self._rank), peers.to_stored(self._here.leave()))
                self._store.set(f"left/{self._rank}", "1")
                self._inform(self._store)
                if self._rank == 0:
                    _wait_until(lambda: self._has_everyone("num_informed"), 2 * self._interval + 2)
        except dist.DistError:
            self._is_store_lost = True  # the process that held it has ended
        self.stop()

    def stop(self) -> None:
        """Stop the threads, and wait until they have ended, unless the store does not answer."""
        self._is_leaving.set()
        # A thread that returns from torch during interpreter shutdown would abort the process.
        for thread in (self._thread, self._looking):
            thread.join(2 * self._interval + 3)

    def wait_until_all_failed(self) -> None:
        """Wait until every rank has failed by itself, so that all can join a new group. Collective.

        Raises:
            CollectiveError: If some have not within the timeout.
        """
        try:
            if not _wait_until(lambda: self._has_everyone("num_failed"), self._timeout):
                self.check("connect")
        except dist.DistError:
            self.check("connect")
            raise

    def _publish(self, error: BaseException, may_follow: bool) -> Failure:
        """Publish this process's failure, and return the first one, its own or another's."""
        own = Failure(self._rank, error_text(error))
        try:
            if not self._is_store_lost:
                self._store.add("num_failed", 1)
                positions: dict[int, peers.ProcessPosition] = {}
                if may_follow and not self._await_cause() and self._is_to_gather():
                    positions = self._positions(self._store)
                    missing = peers.missing_ranks(positions)
                    where = peers.describe_positions(positions, missing, self._interval)
                    where += "\n" + dump_collectives(self._rank)
                    own = Failure(self._rank, f"{own.text}\n{where}", missing=missing, is_of_collective=True)
                first: Failure = pickle.loads(self._store.compare_set("failure", "", peers.to_stored(own)))
                if positions and first == own:
                    error.add_note(where)
                    self._await_stacks([rank for rank in own.missing if not positions[rank].collective])
                return first
        except dist.DistError:
            self._is_store_lost = True
        return self.failure or (self._store_failure() if may_follow else own)

    def _await_cause(self) -> bool:
        """Wait for another rank to publish the cause of this one's failure. Returns whether one did."""
        self._store.set(peers.position_key(self._rank), peers.to_stored(self._here.look()))
        return _wait_until(lambda: self._store.check(["failure"]), 2 * self._interval + 0.5)

    def _is_to_gather(self) -> bool:
        """Return whether this process is to read the positions of all: the first that asks, or one that waits in vain.

        Otherwise each of many processes that time out together would read those of all others.
        """
        is_first = self._store.add("num_gathering", 1) == 1
        return is_first or not _wait_until(lambda: self._store.check(["failure"]), self._timeout / 4)

    def _has_everyone(self, counter: str) -> bool:
        """Return whether every process has counted itself."""
        return bool(self._store.add(counter, 0) >= self._world_size)

    def _positions(self, store: Store) -> dict[int, peers.ProcessPosition]:
        """Return the last published position of each process, by rank."""
        keys = [peers.position_key(rank) for rank in range(self._world_size)]
        has_multi_get = store.has_extended_api()  # type: ignore[attr-defined]
        if has_multi_get and store.check(keys):
            found = dict(enumerate(store.multi_get(keys)))
        else:  # some have not joined yet
            found = {rank: store.get(key) for rank, key in enumerate(keys) if store.check([key])}
        return {rank: pickle.loads(position) for rank, position in found.items()}

    def _await_stacks(self, missing: list[int]) -> None:
        """Wait for missing processes to print their stacks and to dump, and signal those that do not to print."""
        missing = [rank for rank in missing if not self._store.check([f"left/{rank}"])]
        keys = [f"stack/{rank}" for rank in missing]
        seconds = 2 * self._interval + min(_SECONDS_TO_DUMP, self._timeout / 4)
        _wait_until(lambda: self._store.check(keys), seconds)
        silent = [rank for rank in missing if not self._store.check([f"stack/{rank}"])]
        processes = [peers.PeerProcess(rank, self._timeout / 2, self._interval) for rank in silent]
        if any([process.print_stack(self._store) for process in processes]):
            time.sleep(_SECONDS_TO_PRINT)

    def _run(self) -> None:
        while not self._is_leaving.wait(self._interval) and not self._is_done:
            self._num_unanswered += 1
            if not self._is_store_lost and self._num_unanswered > self._allowed_rounds:
                self._is_store_lost = self._is_store_silent = True
            if self._is_store_lost:
                self._receive(self._store_failure())
                self._left_since = min(self._left_since, time.monotonic())
            self._end_if_due()

    def _keep_looking(self) -> None:
        while not (self._is_leaving.wait(self._interval) or self._is_store_lost or self._is_done):
            try:
                self._is_done = self._look(self._store_of_thread)
            except dist.DistError:
                self._is_store_lost = True
            self._num_unanswered = 0

    def _look(self, store: Store) -> bool:
        """Publish a sign of life and look for others'. Returns whether the watch is done."""
        store.set(peers.position_key(self._rank), peers.to_stored(self._here.look()))
        if store.check(["failure"]):
            self._receive(pickle.loads(store.get("failure")))
            assert self.failure is not None
            self._inform(store)
            if store.check([f"left/{self.failure.rank}"]):
                self._left_since = min(self._left_since, time.monotonic())
            # If all have failed, each handles its own error.
            return store.add("num_failed", 0) >= self._world_size
        if store.check(["left/0"]):
            # It ended without an error. It may have held the store, and there are no collectives without it anyway.
            self._has_first_rank_left = True
            self._inform(store)
            return True
        for peer in self._peers:
            reason = peer.check(store)
            if reason is not None:
                reason += "\n" + peers.describe_positions(self._positions(store), [], self._interval)
                reason = f"{reason}\n{nccl_dump(peer.rank, self._started)}".rstrip()
                peer.print_stack(store)
                # Received in the next round: another process may have published a failure first.
                store.compare_set("failure", "", peers.to_stored(Failure(peer.rank, reason)))
                store.set(f"left/{peer.rank}", "1")
        return False

    def _receive(self, failure: Failure) -> None:
        if self._first_since == float("inf"):
            self._first_since = time.monotonic()
            self.failure = self.failure or failure
            # Of the ranks that have not failed themselves, the first one to receive it prints it.
            if failure.rank != self._rank and (self._is_store_lost or self._store_of_thread.add("num_printed", 1) == 1):
                print_message(f"Rank {failure.rank} failed, which ends the run on every rank: {failure.text}")
            is_missing = self._rank in failure.missing and self._own is None
            if is_missing:
                self._has_printed_stack = True
                print_message(f"Rank {self._rank}, which the others wait for, is at:\n{peers.stack_of_run()}")
            if failure.is_of_collective and self._own is None:
                dump_collectives(self._rank)
            if is_missing:
                self._store_of_thread.set(f"stack/{self._rank}", "1")

    def _end_if_due(self) -> None:
        if self.failure is None:
            return
        now = time.monotonic()
        if self._own is not None:
            is_due = now > self._own_since + self._timeout
        else:
            grace = min(_LONGEST_GRACE_SECONDS, self._timeout / 4)
            is_due = now > self._left_since + grace or now > self._first_since + self._timeout / 2
        if is_due:
            text = f"Rank {self._rank} was ended, because rank {self.failure.rank} failed: {self.failure.text}"
            stack = peers.stack_of_run()
            print_message(text if self._has_printed_stack else f"{text}\nIt was at:\n{stack}")
            self._kill_silent_neighbours()
            self._write_error_file(text, stack)
            sys.stdout.flush()
            os._exit(_STATUS)

    def _kill_silent_neighbours(self) -> None:
        """Kill neighbours that cannot end themselves: stopped, or in C code that holds the interpreter."""
        for peer in self._peers:
            is_silent = peer.is_silent or (peer.rank == 0 and self._is_store_silent)
            if is_silent and peer.kill():
                print_message(f"Rank {peer.rank}, which gave no sign of life, was killed by rank {self._rank}.")

    def _write_error_file(self, text: str, stack: str) -> None:
        assert self.failure is not None
        # The agent reports the earliest of its processes' failures, in whole seconds.
        is_first = self.failure.rank == self._rank
        write_error_file(text, stack, self.failure.unix_seconds + (0 if is_first else 1))

    def _inform(self, store: Store) -> None:
        """Count this process, once, as one that rank 0 need not wait for when it ends."""
        if not self._is_informed:
            self._is_informed = True
            store.add("num_informed", 1)

    def _store_failure(self) -> Failure:
        """Return the failure that explains the loss of the store."""
        if has_agent_store():
            return Failure(0, "the launcher's agent, which holds the store of the job, is gone or cannot be reached.")
        if self._has_first_rank_left:
            return Failure(0, "it ended, without an error, before this process.")
        reason = "was stopped, hangs" if self._is_store_silent else "was killed (as when memory runs out), crashed"
        seen = {peer.rank: peer.position for peer in self._peers if peer.rank == 0}
        positions = {**{rank: one for rank, one in seen.items() if one is not None}, self._rank: self._here.look()}
        where = peers.describe_positions(positions, [], self._interval)
        return Failure(0, f"its process {reason}, or cannot be reached.\n{where}")


class CollectiveError(RuntimeError):
    """A call of a collective that other ranks would not join."""


@frozen
class Failure:
    """The cause of a run's end.

    Attributes:
        rank: The rank that failed.
        text: The error's type, message and notes; or a description of how the process was lost.
        unix_seconds: The time at which it became known.
        missing: The missing ranks, if the failure is a collective that waited for them.
        is_of_collective: Whether it is that of a collective, as ranks are missing or gone.
    """

    rank: int
    text: str
    unix_seconds: int = field(factory=lambda: int(time.time()))
    missing: list[int] = field(factory=list, hash=False)
    is_of_collective: bool = False


def _wait_until(is_true: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition is true, at most for some time. Return whether it is."""
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def error_text(error: BaseException) -> str:
    """Return an error's type, message and notes, without its traceback."""
    return "".join(traceback.format_exception_only(error)).strip()


def may_follow_from_another(error: BaseException) -> bool:
    """Return whether an error is one of the backend, which may be the effect of another rank's failure."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error).lower())


def write_error_file(text: str, traceback_text: str, unix_seconds: int) -> None:
    """Write this process's failure for the elastic agent, if there is one, which reports the earliest of all ranks.

    The format is that of `torch.distributed.elastic.multiprocessing.errors.ErrorHandler`, which writes exceptions only,
    with the time of the call.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        extra = {"py_callstack": traceback_text, "timestamp": str(unix_seconds)}
        Path(path).write_text(json.dumps({"message": {"message": text, "extraInfo": extra}}))


def print_message(text: str) -> None:
    """Print lines to stderr with the prefix "[camshaft]"."""
    # One call, so that the lines of several processes do not mix.
    sys.stderr.write("".join(f"[camshaft] {line}\n" for line in text.splitlines()))
    sys.stderr.flush()
