"""Start a script in several processes that share the time that importing torch takes: they are forked after it.

forked_ranks.py NUM_PROCESSES PORT SCRIPT [ARGUMENT ...]

Each has the variables that say who it is and where the others are. If one fails, the others have some seconds to end by
themselves; then they are killed.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time

import torch._dynamo  # DistributedDataParallel imports it
import torch.distributed  # noqa: F401

SECONDS_TO_END = 30.0


def run_rank(rank: int, num_processes: int, port: str, script: str, arguments: list[str]) -> None:
    of_rank = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_processes, "LOCAL_WORLD_SIZE": num_processes}
    os.environ.update({name: str(value) for name, value in of_rank.items()} | {"MASTER_PORT": port})
    os.environ["MASTER_ADDR"] = "localhost"
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(script)
    runpy.run_path(script, run_name="__main__")


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


def main() -> None:
    number, port, script, *arguments = sys.argv[1:]
    processes: set[int] = set()
    for rank in range(int(number)):
        pid = os.fork()
        if pid == 0:
            run_rank(rank, int(number), port, script, arguments)
            return
        processes.add(pid)
    sys.exit(wait_for(processes))


if __name__ == "__main__":
    main()
