"""Start scripts in several processes that are forked after torch was imported, so that a test process imports it once.

forked_ranks.py SOCKET [FOLDER MODULE ...]

The modules, which may lie in the folder, are imported before; so is from then on what a first rank has imported of
some packages.
Each message on the socket, a file descriptor, brings four descriptors (see `launching.ForkedRanks`): a file with the
request, a socket that is told the supervisor's process ID and, at the end, its exit status, and files for stdout and
stderr.
A supervisor is forked for each request, and forks the ranks. Each rank has the variables that say who it is and where
the others are, unless no port is given: then one process, a launcher or what one starts, has its own. If a rank fails,
the others have some seconds to end by themselves; then they are killed.
What a launcher starts by an agent of PyTorch is forked, too, by a process that it has for that, and becomes its child.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

PR_SET_CHILD_SUBREAPER = 36  # of prctl(2)
SECONDS_TO_END = 30.0
# which start no threads
IMPORTED_AGAIN = ("camshaft.", "torch.distributed.", "lightning.", "accelerate.", "matplotlib.", "sklearn.", "wandb.")


def run_rank(rank: int, num_processes: int, port: str, script: str, arguments: list[str], imported: int) -> None:
    if port:
        of_rank = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_processes, "LOCAL_WORLD_SIZE": num_processes}
        os.environ.update({name: str(value) for name, value in of_rank.items()} | {"MASTER_PORT": port})
        os.environ["MASTER_ADDR"] = "localhost"
    else:
        script, *arguments = fork_workers(imported) or (script, *arguments)
    before = set(sys.modules)
    sys.orig_argv = [sys.executable, script, *arguments]
    try:
        if script == "-m":
            sys.argv = arguments
            sys.path[0] = os.getcwd()
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [script, *arguments]
            sys.path[0] = os.path.dirname(script)
            runpy.run_path(script, run_name="__main__")
    finally:
        if rank == 0 and os.environ.get("RANK", "0") == "0":
            os.write(imported, "".join(f"{name}\n" for name in sys.modules if name not in before).encode())


class ForkedWorker:
    """What an agent of PyTorch starts, and asks for like a `Popen`; the process `server` forks it."""

    def __init__(
        self, server: socket.socket, command: tuple[str, ...], environment: dict[str, str], *streams: Any
    ) -> None:
        self._command = command
        self._exit_code: int | None = None
        ours, theirs = socket.socketpair()
        with ours, theirs, tempfile.TemporaryFile() as file:
            request = {"command": command, "environment": environment, "directory": os.getcwd()}
            file.write(json.dumps(request).encode())
            file.seek(0)
            outputs = [standard if stream is None else stream.fileno() for standard, stream in enumerate(streams, 1)]
            socket.send_fds(server, [b"start"], [file.fileno(), theirs.fileno(), *outputs])
            self.pid = int(ours.recv(16))

    def poll(self) -> int | None:
        if self._exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._exit_code = os.waitstatus_to_exitcode(status) if pid else None
        return self._exit_code

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (exit_code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self._command, timeout)
            time.sleep(0.01)
        return exit_code


def fork_workers(imported: int) -> list[str] | None:
    """Let agents of PyTorch in this process have their workers forked from what it is now.

    They are children of it, as if it had started them.

    Returns:
        In a worker, the script and its arguments; None in this process.
    """
    launcher = os.getpid()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # adopts what its children leave behind
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()

        def start(self: SubprocessHandler, command: tuple[str, ...], environment: dict[str, str]) -> Any:
            if script_of(command) is None:
                return start_anew(self, command, environment)
            return ForkedWorker(ours, command, environment, self._stdout, self._stderr)

        start_anew = SubprocessHandler._popen
        SubprocessHandler._popen = start  # type: ignore[assignment,method-assign]
        return None
    ours.close()
    for number in (signal.SIGINT, signal.SIGTERM):  # are for the others of its group; it ends with the launcher
        signal.signal(number, signal.SIG_IGN)
    descriptors = next_request(theirs, imported)
    if not descriptors or os.fork():
        os._exit(0)
    while os.getppid() != launcher:
        time.sleep(0.001)
    wanted, status = begin_as(descriptors)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.write(status, b"%16d" % os.getpid())
    os.close(status)
    if "-u" in wanted["command"][1:2]:
        for name, stream in (("stdout", 1), ("stderr", 2)):
            setattr(sys, name, io.TextIOWrapper(io.FileIO(stream, "w", closefd=False), write_through=True))
    return script_of(wanted["command"])


def begin_as(descriptors: list[int]) -> tuple[dict[str, Any], int]:
    """Make this process what a request wants; return the request and the socket that is told of it."""
    request, status, *outputs = descriptors
    os.setsid()
    for stream, output in enumerate(outputs, 1):
        os.dup2(output, stream)
        os.close(output)
    with open(request, "rb") as file:
        wanted = json.load(file)
    os.chdir(wanted["directory"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [path for path in paths if path and path not in sys.path]
    return wanted, status


def script_of(command: Sequence[str]) -> list[str] | None:
    """Return the script, or -m and a module, and the arguments of a command; None unless it runs one in this Python."""
    python, *arguments = command
    position = 1 if arguments[:1] == ["-u"] else 0
    script = arguments[position : position + 1]
    if python != sys.executable or not script or (script[0].startswith("-") and script[0] != "-m"):
        return None
    return arguments[position:]


def import_again(imported: int, position: int) -> int:
    """Import what first ranks told since `position` that they had imported, and return the new position."""
    told = os.pread(imported, 1 << 20, position)
    for name in told.decode().split():
        # not compat, which acts on names of others
        if name.startswith(IMPORTED_AGAIN) and not name.startswith("camshaft.compat"):
            with contextlib.suppress(Exception):  # not to be had outside of that script
                importlib.import_module(name)
    if told:
        gc.freeze()  # collections in the forked processes would copy all of its pages
    return position + len(told)


def wait_for(processes: set[int]) -> int:
    """Wait for all processes to end and return the first exit status that is not 0."""
    exit_code = 0
    deadline = float("inf")
    while processes:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            processes.discard(pid)
            exit_code = exit_code or os.waitstatus_to_exitcode(status)
            deadline = time.monotonic() + SECONDS_TO_END if exit_code else deadline
        elif time.monotonic() > deadline:
            for process in processes:
                os.kill(process, signal.SIGKILL)
        else:
            time.sleep(0.01)
    return exit_code


def wait_for_ended(*_: object) -> None:
    """Wait for supervisors that have ended, so that their processor time counts; how they end they tell themselves."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def next_request(server: socket.socket, imported: int) -> list[int]:
    """Return the descriptors of a request, in a process that was forked for it; none in this one, at its end."""
    signal.signal(signal.SIGCHLD, wait_for_ended)
    position = 0
    while True:
        message, descriptors, _, _ = socket.recv_fds(server, 16, 4)
        if not message:
            return []
        position = import_again(imported, position)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            server.close()
            return descriptors
        for descriptor in descriptors:
            os.close(descriptor)


def main() -> None:
    sys.path[1:1] = sys.argv[2:3]
    for name in sys.argv[3:]:
        importlib.import_module(name)
    gc.freeze()
    imported = os.memfd_create("imported")
    descriptors = next_request(socket.socket(fileno=int(sys.argv[1])), imported)
    if not descriptors:
        return
    wanted, status = begin_as(descriptors)
    signal.signal(signal.SIGTERM, lambda *_: None)  # is for the ranks, which are waited for
    os.write(status, b"%16d" % os.getpid())
    number, port, script, *arguments = wanted["command"]
    processes: set[int] = set()
    for rank in range(int(number)):
        pid = os.fork()
        if pid == 0:
            os.close(status)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            run_rank(rank, int(number), port, script, arguments, imported)
            return
        processes.add(pid)
    os.write(status, b"%16d" % wait_for(processes))


if __name__ == "__main__":
    main()
