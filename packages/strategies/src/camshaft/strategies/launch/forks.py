"""Launch of ranks as forks of this process, where no script can be run again, as in a notebook."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, TypeVar

import torch
from attrs import define, field, frozen
from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]

from camshaft.hooks_core.support.processes import ipython_shell
from camshaft.strategies.launch.environment import num_cores
from camshaft.strategies.launch.failures import CollectiveError, may_follow_from_another
from camshaft.strategies.launch.process_group import leave_process_group

T = TypeVar("T")

_SECONDS_TO_END = 30.0
_HARD = 2  # `omp_pause_hard`: the threads end, and begin anew where they are needed


class _TracebackInRank(Exception):
    """The traceback of an error in its rank, as the cause of that error here."""


@frozen
class _Outcome:
    """Outcome of a rank: the value of its function, or an error and the traceback as text."""

    value: Any = None
    error: BaseException | None = None
    trace: str = ""


@define(eq=False)
class _Ranks:
    """The forks, by the connections that tell how they end; outcomes in the order in which they came."""

    processes: dict[Connection, BaseProcess] = field(factory=dict)
    outcomes: dict[BaseProcess, _Outcome] = field(factory=dict)

    def wait(self, deadline: float = float("inf")) -> None:
        """Wait until all have ended; at most until a deadline, or half a minute after a failure."""
        while self.processes:
            remaining = deadline - time.monotonic()
            ready = wait(list(self.processes), None if remaining == float("inf") else max(0.0, remaining))
            if not ready:
                return
            for connection in ready:
                assert isinstance(connection, Connection)
                process = self.processes[connection]
                try:
                    self.outcomes[process] = pickle.loads(connection.recv_bytes())
                except EOFError:
                    process.join()
                    del self.processes[connection]
                    ending = f"The process of {process.name} ended with status {process.exitcode}, and no outcome."
                    self.outcomes.setdefault(process, _Outcome(error=RuntimeError(ending)))
                if self.outcomes[process].error is not None:
                    deadline = min(deadline, time.monotonic() + _SECONDS_TO_END)

    def raise_first_error(self) -> None:
        """Raise the first error that did not follow from another's, if any; else the first one."""
        failed = [(one.error, one.trace) for one in self.outcomes.values() if one.error is not None]
        failed.sort(key=lambda one: isinstance(one[0], CollectiveError) or may_follow_from_another(one[0]))
        for error, trace in failed[:1]:
            raise error from (_TracebackInRank(f"\n{trace}") if trace else None)

    def end(self) -> None:
        """Kill those that have not ended."""
        for process in self.processes.values():
            process.kill()
            process.join()


def run_in_forks(num_processes: int, function: Callable[[], T]) -> T:
    """Call a function in forks of this process, which have the variables of ranks, and wait for all of them.

    An interrupt (SIGINT) interrupts each rank once. After it, or a rank's failure, ranks have half a minute to end.

    Args:
        num_processes: The number of ranks.
        function: The function. What it returns in rank 0 has to be picklable.

    Returns:
        What it returned in rank 0.

    Raises:
        RuntimeError: If a rank ended in another way than by an error, as by a signal.
        KeyboardInterrupt: If this process was interrupted.
        BaseException: The error of the rank that failed first; its cause holds the traceback there.
    """
    leave_process_group()  # one of this process alone, perhaps destroyed, whose threads forks lack
    gc.collect()
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        variables = {"MASTER_ADDR": "localhost", "MASTER_PORT": probe.getsockname()[1], "GROUP_WORLD_SIZE": 1}
    variables |= {"WORLD_SIZE": num_processes, "LOCAL_WORLD_SIZE": num_processes}
    num_threads = max(1, num_cores() // num_processes) if _end_openmp_threads() else 1
    context, ranks = multiprocessing.get_context("fork"), _Ranks()
    first: BaseProcess | None = None
    try:
        for rank in range(num_processes):
            ours, theirs = multiprocessing.Pipe(duplex=False)
            of_rank = {name: str(value) for name, value in {**variables, "RANK": rank, "LOCAL_RANK": rank}.items()}
            arguments = (of_rank, num_threads, function, theirs)
            process = context.Process(target=_run_rank, args=arguments, name=f"rank {rank}")
            for stream in (sys.stdout, sys.stderr):
                stream.flush()  # what is buffered would be written by each fork
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads, as a kernel has them
                process.start()
            theirs.close()  # a connection ends with its rank
            ranks.processes[ours] = process
            first = first or process
        with _interrupting(ranks):
            ranks.wait()
    finally:
        ranks.end()
    ranks.raise_first_error()
    assert first is not None
    value: T = ranks.outcomes[first].value
    return value


@contextmanager
def _interrupting(ranks: _Ranks) -> Iterator[None]:
    """Interrupt the ranks where this process is interrupted, and let them end."""
    try:
        yield
    except KeyboardInterrupt:
        for process in ranks.processes.values():
            if process.is_alive():
                os.kill(process.pid or 0, signal.SIGINT)
        ranks.wait(time.monotonic() + _SECONDS_TO_END)
        raise


def _run_rank(variables: dict[str, str], num_threads: int, function: Callable[[], Any], connection: Connection) -> None:
    """Run the function in a fork, and send what becomes of it."""
    _prctl_pr_set_pdeathsig(signal.SIGKILL)  # no rank outlives a kernel that is killed
    gc.freeze()  # to free a process group of the parent, whose threads are not here, would wait for them
    signal.signal(signal.SIGINT, _interrupt_once)
    os.environ.update(variables)
    torch.set_num_threads(num_threads)
    _display_in_notebook()
    try:
        value = function()
        message = pickle.dumps(_Outcome(value if variables["RANK"] == "0" else None))
    except BaseException as error:
        message = _as_message(error)
    connection.send_bytes(message)
    leave_process_group()


def _display_in_notebook() -> None:
    """Let a notebook show what this fork displays: ipykernel drops it until the fork has printed something."""
    session = getattr(getattr(ipython_shell(), "display_pub", None), "session", None)
    if session is not None:
        session.pid = os.getpid()


def _as_message(error: BaseException) -> bytes:
    trace = "".join(traceback.format_exception(error))
    try:
        message = pickle.dumps(_Outcome(error=error, trace=trace))
        pickle.loads(message)  # one whose constructor takes other arguments is pickled all the same
    except Exception:
        text = "".join(traceback.format_exception_only(error)).strip()
        message = pickle.dumps(_Outcome(error=RuntimeError(text), trace=trace))
    return message


def _interrupt_once(signum: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`; what follows it is not interrupted. A terminal signals all of its processes itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_openmp_threads() -> bool:
    """End the threads of GNU's OpenMP, which computations in a fork would wait for; return whether it could."""
    try:
        return bool(ctypes.CDLL(None).omp_pause_resource_all(_HARD) == 0)
    except (AttributeError, OSError, TypeError):  # another library, or none
        return False
