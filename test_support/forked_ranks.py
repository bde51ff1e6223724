"""Start scripts in several processes that are forked after torch was imported, so that a test process imports it once.

forked_ranks.py SOCKET [FOLDER MODULE ...]

The modules, which may lie in the folder, are imported before; so is from then on what a first rank has imported of
some packages.
Each message on the socket, a file descriptor, brings four or five (see `forked_children.ask`): a file with the request,
a socket that is told the supervisor's process ID and, at the end, its exit status, and files for stdin, stdout, stderr.
A supervisor is forked for each request, and forks the ranks. Each rank has the variables that say who it is and where
the others are, unless no port is given: then one process, a launcher or what one starts, has its own. If a rank fails,
the others have some seconds to end by themselves; then they are killed.
A request that names a parent is for a single process instead, which becomes its child. Python processes that a launcher
or such a child starts are forked, too, by a process that it has for that.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import sys
import time
import types
from typing import Any

import torch._dynamo  # DistributedDataParallel imports it
import torch.distributed  # noqa: F401
from forked_children import script_of, start_by

SECONDS_TO_END = 30.0
# which start no threads
IMPORTED_AGAIN = ("camshaft.", "torch.distributed.", "lightning.", "accelerate.", "matplotlib.", "sklearn.", "wandb.")


def run_rank(rank: int, num_processes: int, port: str, command: list[str], imported: int) -> None:
    if port:
        of_rank = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_processes, "LOCAL_WORLD_SIZE": num_processes}
        os.environ.update({name: str(value) for name, value in of_rank.items()} | {"MASTER_PORT": port})
        os.environ["MASTER_ADDR"] = "localhost"
        run_command(command, imported)
    else:
        run_command(fork_children(imported) or command, imported)


def run_command(command: list[str], imported: int) -> None:
    before = set(sys.modules)
    sys.orig_argv = [sys.executable, *command]
    try:
        if command[0] == "-m":
            sys.argv = command[1:]
            sys.path[0] = os.getcwd()
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        elif command[0] == "-c":
            sys.argv = ["-c", *command[2:]]
            sys.path[0] = ""
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(command[1], "<string>", "exec"), sys.modules["__main__"].__dict__)
        else:
            sys.argv = command
            script = os.path.abspath(command[0])
            sys.path[0] = os.path.dirname(script)
            runpy.run_path(script, run_name="__main__")
    finally:
        if os.environ.get("RANK", "0") == "0":
            os.write(imported, "".join(f"{name}\n" for name in sys.modules if name not in before).encode())


def fork_children(imported: int) -> list[str] | None:
    """Let Python processes that this one starts be forked from what it is now, as workers of an agent of PyTorch are.

    Returns:
        In such a child, what it runs; None in this process.
    """
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        start_by(ours)
        return None
    ours.close()
    for number in (signal.SIGINT, signal.SIGTERM):  # are for the others of its group; it ends with its parent
        signal.signal(number, signal.SIG_IGN)
    descriptors = next_request(theirs, imported)
    if not descriptors:
        os._exit(0)
    return begin_as_child(*begin_as(descriptors), imported)


def begin_as_child(wanted: dict[str, Any], status: int, imported: int) -> list[str]:
    """Leave this process for a child of the one that sent a request; return what it runs."""
    if os.fork():
        os._exit(0)
    while os.getppid() != wanted["parent"]:
        time.sleep(0.001)
    if wanted["has_session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.write(status, b"%16d" % os.getpid())
    os.close(status)
    if "-u" in wanted["command"][1:2]:
        for name, stream in (("stdout", 1), ("stderr", 2)):
            setattr(sys, name, io.TextIOWrapper(io.FileIO(stream, "w", closefd=False), write_through=True))
    command = script_of(wanted["command"])
    assert command is not None
    return command if "RANK" in os.environ else fork_children(imported) or command


def begin_as(descriptors: list[int]) -> tuple[dict[str, Any], int]:
    """Give this process what a request wants; return the request and the socket that is told of it."""
    request, status, *streams = descriptors
    for number, stream in enumerate(streams, 3 - len(streams)):  # stdin is not always among them
        os.dup2(stream, number)
        os.close(stream)
    with open(request, "rb") as file:
        wanted = json.load(file)
    os.chdir(wanted["directory"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [path for path in paths if path and path not in sys.path]
    return wanted, status


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
        message, descriptors, _, _ = socket.recv_fds(server, 16, 5)
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
        with contextlib.suppress(ChildProcessError):
            while os.wait():
                pass
        return
    wanted, status = begin_as(descriptors)
    if "parent" in wanted:
        run_command(begin_as_child(wanted, status, imported), imported)
        return
    os.setsid()
    signal.signal(signal.SIGTERM, lambda *_: None)  # is for the ranks, which are waited for
    os.write(status, b"%16d" % os.getpid())
    number, port, *command = wanted["command"]
    processes: set[int] = set()
    for rank in range(int(number)):
        pid = os.fork()
        if pid == 0:
            os.close(status)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            run_rank(rank, int(number), port, command, imported)
            return
        processes.add(pid)
    os.write(status, b"%16d" % wait_for(processes))


if __name__ == "__main__":
    main()
