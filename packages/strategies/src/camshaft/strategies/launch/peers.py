"""Whether another process of the job lives: at once on the same machine, by its signs of life elsewhere."""

from __future__ import annotations

import faulthandler
import json
import os
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

import torch.distributed as dist
from attrs import asdict, evolve, field, frozen
from torch.distributed import Store  # type: ignore[attr-defined]

from camshaft.hooks_core.processes import current_run, running_hook

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


_NUM_NAMED = 8
_NOTABLE_SECONDS = 1.0
_COLLECTIVES = ("broadcast", "all_gather", "reduce", "barrier")
_WAITING = (
    "torch.distributed.",
    "torch.autograd.graph",
    "torch.nn.parallel.",
    "camshaft.strategies.launch.collectives",
    "camshaft.strategies.ddp.",
    "camshaft.strategies.fsdp.",
)
"""Where the innermost Python frame is of a thread that waits for other processes, or computes in torch's engine."""

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


@frozen
class ProcessPosition:
    """Where a process stands.

    Attributes:
        place: The verb, stage, epoch and batch; empty outside of a run.
        hook: The hook that runs; empty if none does.
        activity: What else is being done that has a name; empty if nothing is.
        collective: What it waits in for other processes; empty if it waits in nothing of the kind.
        num_collectives: How many collectives it has entered in the default group, by torch's own count.
        line: The innermost line of code outside of torch and this toolkit.
        since: When it came there, in Unix seconds.
        seen: When it was last known to be there, in Unix seconds.
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

    def to_json(self) -> str:
        """This position as the store keeps it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, stored: str | bytes) -> ProcessPosition:
        """A position that the store kept."""
        return cls(**json.loads(stored))

    @property
    def text(self) -> str:
        """Stage, epoch, batch, hook and collective, as far as there are such."""
        parts = [self.place or "outside of a run"]
        parts += [f"hook `{self.hook}`"] if self.hook else []
        parts += [self.activity] if self.activity else []
        parts += [f"collective `{self.collective}`"] if self.collective else []
        return "its script has ended" if self.has_left else ", ".join(parts)

    def describe(self, now: float, silent_after: float) -> str:
        """Return all that is known, in one line.

        Args:
            now: The time, in Unix seconds.
            silent_after: After how many seconds without a sign of life that is to be said.
        """
        silent = now - self.seen
        line = f" (at {self.line})" if self.line and not self.has_left else ""
        silence = f"; no sign of life for {silent:.0f} s" if silent > silent_after and not self.has_left else ""
        return f"{self.text}, since {max(0.0, now - self.since):.0f} s{line}{silence}"


class OwnPosition:
    """Where this process stands, looked at now and then by whatever thread asks."""

    def __init__(self) -> None:
        self._last = ProcessPosition()
        self._final: ProcessPosition | None = None

    def look(self) -> ProcessPosition:
        """Return where the process stands, and since when it has been seen there."""
        if self._final is None:
            run = current_run()
            place, thread_id = ("", None) if run is None else (run[1], run[0])
            self._last = self._compared(position_of(frames_of(thread_id), place))
        return evolve(self._final or self._last, seen=time.time())

    def stay(self, error: BaseException) -> None:
        """Stand where an error was raised from now on.

        Args:
            error: One that other processes caused, such as that of a collective which waited too long.
        """
        run = current_run()
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1]
        position = self._compared(position_of(frames, "" if run is None else run[1]))
        # Without a name it is one of torch that somebody waits for by himself.
        self._final = evolve(position, collective=position.collective or "wait")

    def leave(self) -> ProcessPosition:
        """Return the position of a process whose script has ended."""
        self._final = ProcessPosition(num_collectives=_num_collectives(), has_left=True)
        return self._final

    def _compared(self, position: ProcessPosition) -> ProcessPosition:
        """A position, with the time since when it has been the same apart from the line."""
        is_same = evolve(position, line="") == evolve(self._last, line="")
        return evolve(position, since=self._last.since) if is_same else position


def position_of(frames: list[FrameType], place: str) -> ProcessPosition:
    """Return the position of a thread that came somewhere right now.

    Args:
        frames: The thread's, innermost first.
        place: Where its run is.
    """
    return ProcessPosition(
        place=place,
        hook=running_hook(frames),
        activity=_activity(frames),
        collective=_collective(frames),
        num_collectives=_num_collectives(),
        line=_line(frames),
    )


def frames_of(thread_id: int | None) -> list[FrameType]:
    """Return a thread's frames, innermost first; the main thread's by default."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0 if thread_id is None else thread_id)
    return [one for one, _ in traceback.walk_stack(frame)] if frame is not None else []


def stack_of_run() -> str:
    """Where the thread of the run, or else the main thread, is; innermost line last."""
    run = current_run()
    frames = frames_of(None if run is None else run[0])
    return "".join(traceback.format_stack(frames[0])) if frames else ""


def missing_ranks(positions: Mapping[int, ProcessPosition]) -> list[int]:
    """Return the ranks that the others wait for: those that wait in no collective, or else are behind the others.

    Args:
        positions: By rank; those of some ranks may be unknown.
    """
    absent = [rank for rank, position in positions.items() if not position.collective]
    if absent or not positions:
        return absent
    most = max(position.num_collectives for position in positions.values())
    return [rank for rank, position in positions.items() if position.num_collectives < most]


def describe_positions(positions: Mapping[int, ProcessPosition], missing: list[int], interval_seconds: float) -> str:
    """Say which ranks are missing, where they stand, and where the others do.

    Args:
        positions: By rank.
        missing: The ranks that the others wait for, as far as they are known.
        interval_seconds: How often a process tells its position.
    """
    ranks = f"{_ranks(missing).capitalize()} "
    if any(not positions[rank].collective for rank in missing):
        verb = "is" if len(missing) == 1 else "are"
        lines = [f"{ranks}{verb} missing in a collective that others wait in:"]
    elif missing:
        verb = "has" if len(missing) == 1 else "have"
        lines = [f"{ranks}{verb} entered fewer collectives than others; every rank must call the same ones:"]
    elif (
        all(position.collective for position in positions.values())
        and len({one.text for one in positions.values()}) > 1
    ):
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


def _activity(frames: list[FrameType]) -> str:
    found = (_ACTIVITIES.get((module, frame.f_code.co_name), "") for frame, module in _modules(frames))
    return next(filter(None, found), "")


def _collective(frames: list[FrameType]) -> str:
    """The name of the collective that the innermost frame is in: the strategy's, or else torch's outermost function."""
    name = ""
    for frame, module in _modules(frames):
        function = frame.f_code.co_name
        if not name and (not module.startswith(_WAITING) or module.startswith(_WRITING)):
            return ""
        if module == "camshaft.strategies.parallel" and function in _COLLECTIVES:
            return function
        for prefix, what in _NAMES.items():
            if module.startswith(prefix):
                return what
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
