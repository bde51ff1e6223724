"""Which of a job's processes this one is, from what its launcher left in the environment."""

from __future__ import annotations

import builtins
import multiprocessing
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Literal

import torch.distributed as dist
from attrs import frozen

from camshaft.hooks_core.messages import must_be

Source = Literal["initialised", "variables", "slurm", "alone"]

# SLURM numbers steps from 0; what is no step of the user's, such as the shell of `salloc`, has one of the last numbers.
_FIRST_RESERVED_STEP = 0xFFFF_FFF0
_FIRST_PORT, _NUM_PORTS = 15000, 15000
_WHERE = "the environment"


@frozen
class ProcessEnvironment:
    """Which process of a job this is.

    Attributes:
        source: Who says so: a process group that was initialised already, the variables that torchrun (or anybody)
            sets, those of SLURM, or nobody ("alone").
        global_rank: Index of this process among all.
        world_size: Number of processes.
        local_rank: Index of this process on its machine; None if nobody says.
        local_world_size: Number of processes on this machine; None if nobody says.
        num_nodes: Number of machines; None if nobody says.
        rendezvous: URL at which the processes meet, as `torch.distributed.rendezvous` understands it.
    """

    source: Source
    global_rank: int = 0
    world_size: int = 1
    local_rank: int | None = 0
    local_world_size: int | None = 1
    num_nodes: int | None = 1
    rendezvous: str = ""


def find_process_environment(variables: Mapping[str, str] | None = None) -> ProcessEnvironment:
    """What is known about this process: from an initialised group, `RANK` and its like, or SLURM, in this order.

    Args:
        variables: The environment variables; this process's by default.

    Returns:
        What is known. A process that nobody started as one of several is "alone", and so are a step of SLURM with one
        task, the script of a batch job and a shell within a job: there nobody has started the other processes.

    Raises:
        RuntimeError: If `RANK` is set without `WORLD_SIZE`, or the other way round, or one of several processes is not
            told where the first one is (`MASTER_ADDR` and `MASTER_PORT`).
        ValueError: If one of the variables is not the number that it must be.
    """
    variables = os.environ if variables is None else variables
    if dist.is_available() and dist.is_initialized():
        return ProcessEnvironment(
            "initialised",
            dist.get_rank(),
            dist.get_world_size(),
            *_local_facts(variables),
        )
    if "RANK" in variables or "WORLD_SIZE" in variables:
        return _from_variables(variables)
    if _is_slurm_task(variables):
        return _from_slurm(variables)
    return ProcessEnvironment("alone")


def job_id() -> str:
    """What identifies this job on this machine, the same after a restart by the elastic agent.

    Returns:
        The agent's `TORCHELASTIC_RUN_ID`; without one, the machine's name and the parent process's number.
    """
    run_id = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return f"{socket.gethostname()}:{os.getppid()}" if run_id in ("", "none") else run_id


def restart_count() -> int:
    """How often the elastic agent has restarted this job's processes: 0 at first, and without an agent."""
    return _number_or_none(os.environ, "TORCHELASTIC_RESTART_COUNT") or 0


def first_host(node_list: str) -> str:
    """The first machine of a list as SLURM writes them, such as `node[007-009,12],login1`."""
    return re.sub(r"\[(\w+)[^]]*]", r"\1", node_list).partition(",")[0]


def _from_variables(variables: Mapping[str, str]) -> ProcessEnvironment:
    rank, world_size = _number_or_none(variables, "RANK"), _number_or_none(variables, "WORLD_SIZE")
    if rank is None or world_size is None:
        missing, other = ("RANK", "WORLD_SIZE") if rank is None else ("WORLD_SIZE", "RANK")
        rule = f"set where `{other}` is"
        action = "Set both, as torchrun does, or neither."
        raise RuntimeError(must_be(missing, rule, variables.get(missing), _WHERE, action))
    if not 0 <= rank < world_size:
        rule = f"from 0 to `WORLD_SIZE` - 1 = {world_size - 1}"
        raise ValueError(must_be("RANK", rule, rank, _WHERE, "Number the processes from 0."))
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if world_size > 1 and not variables.get(name):
            rule = f"set where `WORLD_SIZE` is {world_size}"
            action = "Set it to where the process with `RANK` 0 is reached, or start with torchrun."
            raise RuntimeError(must_be(name, rule, variables.get(name), _WHERE, action))
    return ProcessEnvironment("variables", rank, world_size, *_local_facts(variables), "env://")


def _is_slurm_task(variables: Mapping[str, str]) -> bool:
    """Whether `srun` started this process as one of several; a terminal on the first task of a step does not count."""
    step = _number_or_none(variables, "SLURM_STEP_ID")
    if step is None or step >= _FIRST_RESERVED_STEP or "SLURM_PTY_PORT" in variables:
        return False
    return "SLURM_PROCID" in variables and _num_slurm_tasks(variables) > 1


def _num_slurm_tasks(variables: Mapping[str, str]) -> int:
    of_step = _number_or_none(variables, "SLURM_STEP_NUM_TASKS")
    return of_step or _number_or_none(variables, "SLURM_NTASKS") or 1


def _from_slurm(variables: Mapping[str, str]) -> ProcessEnvironment:
    nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_NODELIST") or "localhost"
    host = variables.get("MASTER_ADDR") or first_host(nodes)
    # Steps of one job may run side by side on the same machine.
    job, step = _number_or_none(variables, "SLURM_JOB_ID") or 0, _number_or_none(variables, "SLURM_STEP_ID") or 0
    port = _number_or_none(variables, "MASTER_PORT") or _FIRST_PORT + (job + 101 * step) % _NUM_PORTS
    rank = _number_or_none(variables, "SLURM_PROCID") or 0
    return ProcessEnvironment(
        "slurm", rank, _num_slurm_tasks(variables), *_local_facts(variables), f"tcp://{host}:{port}"
    )


def _local_facts(variables: Mapping[str, str]) -> tuple[int | None, int | None, int | None]:
    """The local rank, how many processes this machine has, and how many machines there are; None what nobody says."""
    if "LOCAL_RANK" not in variables and "RANK" not in variables and _is_slurm_task(variables):
        node_idx = _number_or_none(variables, "SLURM_NODEID") or 0
        return (
            _number_or_none(variables, "SLURM_LOCALID"),
            _tasks_of_node(variables.get("SLURM_STEP_TASKS_PER_NODE", ""), node_idx),
            _number_or_none(variables, "SLURM_STEP_NUM_NODES"),
        )
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
    local_rank, local_world_size, num_nodes = (_number_or_none(variables, name) for name in names)
    return local_rank, local_world_size, num_nodes


def _tasks_of_node(tasks_per_node: str, node_idx: int) -> int | None:
    """How many tasks a node has, by a list such as `4(x2),3`; None if it does not say."""
    counts: list[int] = []
    for count, _, times in re.findall(r"(\d+)(\(x(\d+)\))?", tasks_per_node):
        counts += [int(count)] * int(times or 1)
    return counts[node_idx] if node_idx < len(counts) else None


def _number_or_none(variables: Mapping[str, str], name: str) -> int | None:
    value = variables.get(name)
    if not value:
        return None
    if not value.isdecimal():
        raise ValueError(must_be(name, "a number from 0", value, _WHERE, "Start the processes with torchrun or srun."))
    return int(value)


def check_launchable(environment: ProcessEnvironment, num_processes: int, max_restarts: int, where: str) -> bool:
    """Whether `connect` has to launch the processes, as nobody else did.

    Args:
        environment: Which process this is.
        num_processes: How many there are to be.
        max_restarts: How often they are to be restarted.
        where: Who asks, for messages.

    Raises:
        ValueError: If `max_restarts` is negative, or whoever started the processes will not restart them as often.
        RuntimeError: As `command_line`.
    """
    if isinstance(max_restarts, bool) or not isinstance(max_restarts, int) or max_restarts < 0:
        action = "Pass how often all processes may be started again."
        raise ValueError(must_be("max_restarts", "an int from 0", max_restarts, where, action))
    if environment.source == "alone":
        is_launcher = num_processes > 1 or max_restarts > 0
        if is_launcher:
            command_line(num_processes, where)
        return is_launcher
    of_agent = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    if max_restarts not in (0, of_agent):
        rule = f"{of_agent}, as often as whoever started the processes restarts them, or left out"
        action = f"Leave it out, or start with `torchrun --max-restarts={max_restarts}`."
        raise ValueError(must_be("max_restarts", rule, max_restarts, where, action))
    return False


def command_line(num_processes: int, where: str) -> list[str]:
    """What runs this process's script or module again: the interpreter, its options, the script and its arguments.

    Raises:
        RuntimeError: If this process runs no script or module, but a notebook, a shell, `-c` or a test.
    """
    main = sys.modules["__main__"]
    position = script_position(sys.orig_argv)
    reason = _why_not_again(main) or ("no script or module" if position is None else None)
    if position is None or reason is not None:
        rule = "1, or this a script or module that can be run once for each process"
        action = f"Put it in a script, start that with `torchrun --nproc-per-node={num_processes}`, or pass devices=1."
        raise RuntimeError(must_be("devices", rule, num_processes, f"{where} in {reason}", action))
    arguments = list(sys.orig_argv)
    if main.__spec__ is None and getattr(main, "__file__", None):
        # A relative path may not be right any more in the folder that is the working folder now.
        arguments[position] = str(Path(str(main.__file__)).absolute())
    return [sys.executable, *arguments[1:]]


def script_position(arguments: Sequence[str]) -> int | None:
    """Where in a command line of Python the script is, or the module after `-m`; None if it has neither.

    Args:
        arguments: The command line, beginning with the interpreter; options are read as Python reads them.
    """
    position = 1
    while position < len(arguments):
        argument = arguments[position]
        if not argument.startswith("-"):
            return position
        if argument == "-":
            return None
        position += 2 if argument == "--check-hash-based-pycs" else 1
        if argument.startswith("--"):
            continue
        for idx, letter in enumerate(argument[1:], 1):
            is_last = idx == len(argument) - 1
            if letter == "c":
                return None
            if letter == "m":  # the module is what follows, in this argument or in the next one
                module = position if is_last else position - 1
                return module if module < len(arguments) else None
            if letter in "WX":
                position += is_last
                break
    return None


def _why_not_again(main: ModuleType) -> str | None:
    """In what a process runs whose command line cannot be run again; None if it can."""
    name = main.__spec__.name if main.__spec__ is not None else ""
    if hasattr(builtins, "__IPYTHON__"):
        return "a notebook or an IPython shell"
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return "an interactive shell"
    if multiprocessing.parent_process() is not None:
        return "a process of `multiprocessing`"
    if name.partition(".")[0] == "pytest" or Path(getattr(main, "__file__", "")).name in ("pytest", "py.test"):
        return "a test of pytest"
    return None
