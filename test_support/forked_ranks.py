"""Start scripts in several processes that are forked after torch was imported, so that a test process imports it once.

forked_ranks.py SOCKET [FOLDER MODULE ...]

The modules, which may lie in the folder, are imported before; so is from then on what a first rank has imported of
some packages.
Each message on the socket, a file descriptor, brings three descriptors (see `launching.ForkedRanks`): a file with the
request, a file for the output, and a socket that is told the supervisor's process ID and, at the end, its exit status.
A supervisor is forked for each request, and forks the ranks. Each rank has the variables that say who it is and where
the others are, unless no port is given: then one process, a launcher or what one starts, has its own. If a rank fails,
the others have some seconds to end by themselves; then they are killed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time

import torch._dynamo  # DistributedDataParallel imports it
import torch.distributed  # noqa: F401

SECONDS_TO_END = 30.0
IMPORTED_AGAIN = ("camshaft.", "torch.distributed.", "lightning.", "accelerate.")  # which start no threads


def run_rank(rank: int, num_processes: int, port: str, script: str, arguments: list[str], imported: int) -> None:
    if port:
        of_rank = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_processes, "LOCAL_WORLD_SIZE": num_processes}
        os.environ.update({name: str(value) for name, value in of_rank.items()} | {"MASTER_PORT": port})
        os.environ["MASTER_ADDR"] = "localhost"
    before = set(sys.modules)
    try:
        if script == "-m":
            sys.argv = arguments
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [script, *arguments]
            sys.path[0] = os.path.dirname(script)
            runpy.run_path(script, run_name="__main__")
    finally:
        if rank == 0:
            os.write(imported, "".join(f"{name}\n" for name in sys.modules if name not in before).encode())


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
        message, descriptors, _, _ = socket.recv_fds(server, 16, 3)
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
    request, output, status = descriptors
    os.setsid()
    signal.signal(signal.SIGTERM, lambda *_: None)  # is for the ranks, which are waited for
    for stream in (1, 2):
        os.dup2(output, stream)
    with open(request, "rb") as file:
        wanted = json.load(file)
    os.chdir(wanted["directory"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.write(status, b"%16d" % os.getpid())
    number, port, script, *arguments = wanted["command"]
    processes: set[int] = set()
    for rank in range(int(number)):
        pid = os.fork()
        if pid == 0:
            os.close(output)
            os.close(status)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            run_rank(rank, int(number), port, script, arguments, imported)
            return
        processes.add(pid)
    os.write(status, b"%16d" % wait_for(processes))


if __name__ == "__main__":
    main()
