"""The states of processes: the life of neighbours, and the position of each process in its run."""

from __future__ import annotations

import faulthandler
import os
import pickle
import select
import signal
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist
from attrs import evolve, field, frozen
from torch.distributed import Store  # type: ignore[attr-defined]

from camshaft.hooks_core.support.processes import current_run, running_hook

_STDERR = 2
_NUM_NAMED = 8
_NOTABLE_SECONDS = 1.0
_COLLECTIVES = ("broadcast", "all_gather", "reduce", "barrier")
_WAITING = (
    "torch.distributed.",
    "torch.autograd.graph",
    "torch.nn.parallel.",
    "camshaft.strategies.ddp",
    "camshaft.strategies.launch.collectives",
    "camshaft.strategies.parallel",
    "camshaft.strategies.sharding.",
)
"""The modules of the innermost Python frame of a thread that waits for other ranks, or computes in torch's engine."""

_WRITING = "torch.distributed.checkpoint."
_NAMES = {
    "torch.autograd.": "backward",
    "torch.nn.parallel.": "DistributedDataParallel.forward",
    "torch.distributed.fsdp.": "fully_shard",
}
_ACTIVITIES = {
    ("camshaft.strategies.checkpoints.writer", "save"): "saving a checkpoint",
    ("camshaft.strategies.checkpoints.writer", "load"): "reading a checkpoint",
    ("camshaft.strategies.checkpoints.writer", "wait"): "waiting for a checkpoint to be written",
    ("torch.utils.data.dataloader", "__next__"): "loading a batch",
    ("torchdata.stateful_dataloader.stateful_dataloader", "__next__"): "loading a batch",
}


class PeerProcess:
    """Another process of the job: watched directly on the same machine, by its signs of life on another.

    Args:
        rank: The rank of the process.
        limit_seconds: The time without a sign of life after which it counts as lost.
        interval_seconds: The interval between calls of `check`.

    Attributes:
        rank: The rank of the process.
        is_silent: Whether it has given no sign of life for that time.
    """

    def __init__(self, rank: int, limit_seconds: float, interval_seconds: float) -> None:
        self.rank = rank
        self._limit_seconds = limit_seconds
        # Calls, not seconds: a pause of the whole job is no failure of a process.
        self._allowed_checks = max(2, round(limit_seconds / interval_seconds))
        self._num_silent_checks = 0
        self._heartbeat = b""
        self._handle: int | None = None
        self._is_known = self._is_gone = False
        self._stack_signal = 0
        self.is_silent = False

    @property
    def position(self) -> ProcessPosition | None:
        """The position that it had published at the last check; None if it had published none."""
        return pickle.loads(self._heartbeat) if self._heartbeat else None

    def print_stack(self, store: Store) -> bool:
        """Send the signal at which the process prints its stacks, also from C code. Returns whether it was sent.

        It works for processes on this machine only; a stopped one prints them when it continues.
        """
        is_known = self._is_known or self._identify(store)
        return is_known and self._stack_signal != 0 and self._send(self._stack_signal)

    def kill(self) -> bool:
        """Kill the process, if it is on this machine. Returns whether it was killed."""
        return self._send(signal.SIGKILL)

    def check(self, store: Store) -> str | None:
        """Return why the process is lost; None if it lives, ended without an error, or has not joined yet."""
        if not self._is_known and not self._identify(store):
            return None
        if store.check([f"left/{self.rank}"]):
            return None
        if self._is_gone or (self._handle is not None and _has_ended(self._handle)):
            if store.check([f"left/{self.rank}"]):  # published in between
                return None
            return "its process ended unexpectedly: it was killed (as when out of memory), crashed or called os._exit."
        return self._check_heartbeat(store)

    def _identify(self, store: Store) -> bool:
        key = f"process/{self.rank}"
        self._is_known = store.check([key])
        if self._is_known:
            place, number, stack_signal = store.get(key).decode().rsplit("/", 2)
            self._stack_signal = int(stack_signal)
            if place == own_identity().rpartition("/")[0] and hasattr(os, "pidfd_open"):
                try:
                    self._handle = os.pidfd_open(int(number))
                except ProcessLookupError:
                    self._is_gone = True  # it ended before this process looked for it
                except OSError:
                    pass
        return self._is_known

    def _check_heartbeat(self, store: Store) -> str | None:
        key = position_key(self.rank)
        heartbeat = store.get(key) if store.check([key]) else b""
        if heartbeat != self._heartbeat:
            self._heartbeat, self._num_silent_checks = heartbeat, 0
            return None
        self._num_silent_checks += 1
        if self._num_silent_checks < self._allowed_checks:
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
    """Return the key under which a process publishes its position, which is also its sign of life."""
    return f"position/{rank}"


def to_stored(value: object) -> Any:
    """Return an object as bytes for a store, which takes them although torch's annotations name `str` alone."""
    return pickle.dumps(value)


def print_stacks_on_signal() -> int | None:
    """Register a signal at which this process prints the stacks of all threads to stderr.

    It works without the interpreter, which C code may hold.

    Returns:
        The number of the signal; None if none is free.
    """
    # The last real-time signals, which programs rarely use.
    last = getattr(signal, "SIGRTMAX", None) if hasattr(signal, "pidfd_send_signal") else None
    candidates = [] if last is None else [last - offset for offset in range(2, 8)]
    number = next((one for one in candidates if signal.getsignal(one) is signal.SIG_DFL), None)
    if number is not None:
        faulthandler.register(number, file=_STDERR, all_threads=True, chain=False)
    return number


def own_identity() -> str:
    """Return the identity of this process: machine, process namespace and process id."""
    parts = []
    for name in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        path = Path(name)
        try:
            parts.append(os.readlink(path) if path.is_symlink() else path.read_text().strip())
        except OSError:
            parts.append("")
    # Without both, no other process takes this one for one of its own machine.
    place = "/".join(parts) if all(parts) else f"unknown-{os.getpid()}"
    return f"{place}/{os.getpid()}"


def _has_ended(handle: int) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


@frozen
class ProcessPosition:
    """The position of a process in its run.

    Attributes:
        place: The verb, stage, epoch and batch; empty outside of a run.
        hook: The running hook; empty if there is none.
        activity: Another named activity, such as saving a checkpoint; empty if there is none.
        collective: The collective in which it waits for other ranks; empty if it does not wait.
        num_collectives: The number of collectives that it has entered in the default group, by torch's own count.
        line: The innermost line of code outside of torch and this toolkit.
        since: The time since which it has been there, in Unix seconds.
        seen: The time of its last sign of life, in Unix seconds.
        has_left: Whether its script has ended.
    """

    place: str = ""
    hook: str = ""
    activity: str = ""
    collective: str = ""
    num_collectives: int = 0
    line: str = ""
    since: float = field(factory=time.time, eq=False)
    seen: float = field(factory=time.time, eq=False)
    has_left: bool = False

    @property
    def text(self) -> str:
        """The stage, epoch, batch, hook and collective, as far as they are known."""
        hook, collective = self.hook and f"hook `{self.hook}`", self.collective and f"collective `{self.collective}`"
        parts = filter(None, [self.place or "outside of a run", hook, self.activity, collective])
        return "its script has ended" if self.has_left else ", ".join(parts)

    def describe(self, now: float, silent_after: float) -> str:
        """Return the whole position in one line.

        Args:
            now: The time, in Unix seconds.
            silent_after: The seconds without a sign of life after which the line mentions it.
        """
        silent = now - self.seen
        line = f" (at {self.line})" if self.line and not self.has_left else ""
        silence = f"; no sign of life for {silent:.0f} s" if silent > silent_after and not self.has_left else ""
        return f"{self.text}, since {max(0.0, now - self.since):.0f} s{line}{silence}"


class OwnPosition:
    """The position of this process, observed from any thread."""

    def __init__(self) -> None:
        self._last = ProcessPosition()
        self._final: ProcessPosition | None = None

    def look(self) -> ProcessPosition:
        """Return the current position, and since when it has been the same."""
        if self._final is None:
            run = current_run()
            place, thread_id = ("", None) if run is None else (run[1], run[0])
            self._last = self._compared(position_of(frames_of(thread_id), place))
        return evolve(self._final or self._last, seen=time.time())

    def freeze(self, error: BaseException) -> None:
        """Keep the position at which an error was raised.

        Args:
            error: An error that other ranks may have caused, such as the timeout of a collective.
        """
        run = current_run()
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1]
        position = self._compared(position_of(frames, "" if run is None else run[1]))
        # Without a name, user code waits for a collective of torch.
        self._final = evolve(position, collective=position.collective or "wait")

    def leave(self) -> ProcessPosition:
        """Return the position of a process whose script has ended."""
        self._final = ProcessPosition(num_collectives=_num_collectives(), has_left=True)
        return self._final

    def _compared(self, position: ProcessPosition) -> ProcessPosition:
        """Return a position with the time since which it has been the same apart from the line."""
        is_same = evolve(position, line="") == evolve(self._last, line="")
        return evolve(position, since=self._last.since) if is_same else position


def position_of(frames: list[FrameType], place: str) -> ProcessPosition:
    """Return the position of a thread, as of now.

    Args:
        frames: The frames of the thread, innermost first.
        place: The verb, stage, epoch and batch of its run.
    """
    activities = (_ACTIVITIES.get((module, frame.f_code.co_name), "") for frame, module in _modules(frames))
    activity = next(filter(None, activities), "")
    hook, collective = running_hook(frames), _collective(frames)
    return ProcessPosition(place, hook, activity, collective, _num_collectives(), _line(frames))


def frames_of(thread_id: int | None) -> list[FrameType]:
    """Return a thread's frames, innermost first; the main thread's by default."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0 if thread_id is None else thread_id)
    return [one for one, _ in traceback.walk_stack(frame)] if frame is not None else []


def stack_of_run() -> str:
    """Return the stack of the run's thread, or else the main thread, innermost line last."""
    run = current_run()
    frames = frames_of(None if run is None else run[0])
    return "".join(traceback.format_stack(frames[0])) if frames else ""


def missing_ranks(positions: Mapping[int, ProcessPosition]) -> list[int]:
    """Return the ranks that do not wait in a collective; if all wait, those that have entered fewer than others.

    Args:
        positions: The known positions by rank.
    """
    absent = [rank for rank, position in positions.items() if not position.collective]
    if absent or not positions:
        return absent
    most = max(position.num_collectives for position in positions.values())
    return [rank for rank, position in positions.items() if position.num_collectives < most]


def describe_positions(positions: Mapping[int, ProcessPosition], missing: list[int], interval_seconds: float) -> str:
    """Return a text with the missing ranks, and the positions of these and all other ranks.

    Args:
        positions: The positions by rank.
        missing: The ranks that the others wait for, if known.
        interval_seconds: The interval at which a process publishes its position.
    """
    ranks = f"{_ranks(missing).capitalize()} "
    if any(not positions[rank].collective for rank in missing):
        verb = "is" if len(missing) == 1 else "are"
        lines = [f"{ranks}{verb} missing in a collective that others wait in:"]
    elif missing:
        verb = "has" if len(missing) == 1 else "have"
        lines = [f"{ranks}{verb} entered fewer collectives than others; every rank must call the same ones:"]
    elif all(one.collective for one in positions.values()) and len({one.text for one in positions.values()}) > 1:
        lines = ["Every rank waits, but not in the same collective; every rank must call the same ones:"]
    else:
        lines = ["The ranks were last seen here:"]
    alike = defaultdict(list)
    for rank, position in positions.items():
        alike[position.text, position.num_collectives, rank in missing].append(rank)
    now, silent_after = time.time(), 3 * interval_seconds + _NOTABLE_SECONDS
    for (_, num_collectives, _), together in sorted(alike.items(), key=lambda entry: (not entry[0][2], entry[1])):
        oldest = min((positions[rank] for rank in together), key=lambda position: position.since)
        where = oldest.describe(now, silent_after)
        lines.append(f"{_ranks(together)}: {where}; {num_collectives} collectives entered")
    return "\n".join(lines)


def _num_collectives() -> int:
    group = dist.group.WORLD
    if group is None:
        return 0
    try:
        return int(group._get_sequence_number_for_group())  # type: ignore[attr-defined]
    except RuntimeError:  # not every backend counts
        return 0


def _ranks(ranks: list[int]) -> str:
    more = f" and {len(ranks) - _NUM_NAMED} more" if len(ranks) > _NUM_NAMED else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:_NUM_NAMED]))}{more}"


def _modules(frames: list[FrameType]) -> Iterator[tuple[FrameType, str]]:
    return ((frame, str(frame.f_globals.get("__name__", ""))) for frame in frames)


def _collective(frames: list[FrameType]) -> str:
    """Return the name of the collective of the innermost frame: the strategy's, or else torch's outermost function."""
    name = ""
    for frame, module in _modules(frames):
        function = frame.f_code.co_name
        if not name and (not module.startswith(_WAITING) or module.startswith(_WRITING)):
            return ""
        if module == "camshaft.strategies.parallel" and function in _COLLECTIVES:
            return function
        for prefix, collective in _NAMES.items():
            if module.startswith(prefix):
                return collective
        if not name or (module.startswith("torch.distributed.") and function != "wrapper"):
            name = function
        elif not module.startswith(("torch.", "contextlib", "camshaft.strategies.")):
            break
    return name


def _line(frames: list[FrameType]) -> str:
    for frame, module in _modules(frames):
        if not module.startswith(("torch.", "camshaft.")) and not frame.f_code.co_filename.startswith("<"):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"
    return ""
