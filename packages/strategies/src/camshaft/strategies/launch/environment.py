"""This process's place in its job by the launcher's environment variables, and the command line that launches ranks."""

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

from camshaft.hooks_core.support.messages import must_be
from camshaft.strategies.checks import require

Source = Literal["initialised", "variables", "slurm", "alone"]
StartMethod = Literal["script", "fork"]

# SLURM numbers steps from 0; those that are not the user's, such as the shell of `salloc`, have the last numbers.
_FIRST_RESERVED_STEP = 0xFFFF_FFF0
_FIRST_PORT, _NUM_PORTS = 15000, 15000
_WHERE = "the environment"


@frozen
class ProcessEnvironment:
    """The place of a process in its job.

    Attributes:
        source: The source of the facts: an initialised process group, the variables of torchrun (or another launcher),
            those of SLURM, or no launcher ("alone").
        global_rank: The index of this process among all.
        world_size: The number of processes.
        local_rank: The index of this process on its machine; None if unknown.
        local_world_size: The number of processes on this machine; None if unknown.
        num_nodes: The number of machines; None if unknown.
        rendezvous: The URL for `torch.distributed.rendezvous`.
    """

    source: Source
    global_rank: int = 0
    world_size: int = 1
    local_rank: int | None = 0
    local_world_size: int | None = 1
    num_nodes: int | None = 1
    rendezvous: str = ""


def find_process_environment(variables: Mapping[str, str] | None = None) -> ProcessEnvironment:
    """Return the environment of this process: from an initialised group, `RANK` etc., or SLURM, in this order.

    Args:
        variables: The environment variables; this process's by default.

    Returns:
        The environment. Its source is "alone" without a launcher, and also in a SLURM step with one task, the script
        of a batch job and a shell within a job, where no other processes have been started.

    Raises:
        RuntimeError: If only one of `RANK` and `WORLD_SIZE` is set, or one of several processes has no address of
            rank 0 (`MASTER_ADDR` and `MASTER_PORT`).
        ValueError: If a variable is not a number, or out of range.
    """
    variables = os.environ if variables is None else variables
    if dist.is_available() and dist.is_initialized():
        return ProcessEnvironment("initialised", dist.get_rank(), dist.get_world_size(), *_local_facts(variables))
    if "RANK" in variables or "WORLD_SIZE" in variables:
        return _from_variables(variables)
    if _is_slurm_task(variables):
        return _from_slurm(variables)
    return ProcessEnvironment("alone")


def job_id() -> str:
    """Return the identifier of this job on this machine, which a restart by the elastic agent does not change.

    Returns:
        The agent's `TORCHELASTIC_RUN_ID`; without an agent, the machine's name and the parent's process id.
    """
    run_id = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return f"{socket.gethostname()}:{os.getppid()}" if run_id in ("", "none") else run_id


def first_host(node_list: str) -> str:
    """Return the first machine of a SLURM node list, such as `node[007-009,12],login1`."""
    return re.sub(r"\[(\w+)[^]]*]", r"\1", node_list).partition(",")[0]


def _from_variables(variables: Mapping[str, str]) -> ProcessEnvironment:
    rank, world_size = number_or_none(variables, "RANK"), number_or_none(variables, "WORLD_SIZE")
    if rank is None or world_size is None:
        missing, other = ("RANK", "WORLD_SIZE") if rank is None else ("WORLD_SIZE", "RANK")
        value, action = variables.get(missing), "Set both, as torchrun does, or neither."
        raise RuntimeError(must_be(missing, f"set where `{other}` is", value, _WHERE, action))
    rule = f"from 0 to `WORLD_SIZE` - 1 = {world_size - 1}"
    require(0 <= rank < world_size, "RANK", rule, rank, _WHERE, "Number the processes from 0.")
    rule, action = f"set where `WORLD_SIZE` is {world_size}", "Set it to the address of rank 0, or start with torchrun."
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        is_set = world_size == 1 or bool(variables.get(name))
        require(is_set, name, rule, variables.get(name), _WHERE, action, RuntimeError)
    return ProcessEnvironment("variables", rank, world_size, *_local_facts(variables), "env://")


def _is_slurm_task(variables: Mapping[str, str]) -> bool:
    """Return whether `srun` started this process as one of several, not as a terminal on a step's first task."""
    step = number_or_none(variables, "SLURM_STEP_ID")
    if step is None or step >= _FIRST_RESERVED_STEP or "SLURM_PTY_PORT" in variables:
        return False
    return "SLURM_PROCID" in variables and _num_slurm_tasks(variables) > 1


def _num_slurm_tasks(variables: Mapping[str, str]) -> int:
    of_step = number_or_none(variables, "SLURM_STEP_NUM_TASKS")
    return of_step or number_or_none(variables, "SLURM_NTASKS") or 1


def _from_slurm(variables: Mapping[str, str]) -> ProcessEnvironment:
    nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_NODELIST") or "localhost"
    host = variables.get("MASTER_ADDR") or first_host(nodes)
    # Steps of one job may run side by side on the same machine.
    job, step = number_or_none(variables, "SLURM_JOB_ID") or 0, number_or_none(variables, "SLURM_STEP_ID") or 0
    port = number_or_none(variables, "MASTER_PORT") or _FIRST_PORT + (job + 101 * step) % _NUM_PORTS
    rank = number_or_none(variables, "SLURM_PROCID") or 0
    return ProcessEnvironment(
        "slurm", rank, _num_slurm_tasks(variables), *_local_facts(variables), f"tcp://{host}:{port}"
    )


def _local_facts(variables: Mapping[str, str]) -> tuple[int | None, int | None, int | None]:
    """Return the local rank, the number of processes on this machine and the number of machines; None if unknown."""
    if "LOCAL_RANK" not in variables and "RANK" not in variables and _is_slurm_task(variables):
        node_idx = number_or_none(variables, "SLURM_NODEID") or 0
        num_local = _tasks_of_node(variables.get("SLURM_STEP_TASKS_PER_NODE", ""), node_idx)
        num_nodes = number_or_none(variables, "SLURM_STEP_NUM_NODES")
        return number_or_none(variables, "SLURM_LOCALID"), num_local, num_nodes
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
    local_rank, local_world_size, num_nodes = (number_or_none(variables, name) for name in names)
    return local_rank, local_world_size, num_nodes


def _tasks_of_node(tasks_per_node: str, node_idx: int) -> int | None:
    """Return the number of a node's tasks by a list such as `4(x2),3`; None if the list does not have the node."""
    counts: list[int] = []
    for count, _, times in re.findall(r"(\d+)(\(x(\d+)\))?", tasks_per_node):
        counts += [int(count)] * int(times or 1)
    return counts[node_idx] if node_idx < len(counts) else None


def number_or_none(variables: Mapping[str, str], name: str) -> int | None:
    """Return the number in an environment variable, None if it is not set; raise `ValueError` for other text."""
    value = variables.get(name)
    if not value:
        return None
    require(value.isdecimal(), name, "a number from 0", value, _WHERE, "Start the processes with torchrun or srun.")
    return int(value)


def check_int(name: str, value: object, minimum: int, where: str) -> None:
    """Raise `ValueError` unless an argument is an int of at least `minimum`, 0 or 1."""
    is_valid = isinstance(value, int) and not isinstance(value, bool) and value >= minimum
    require(is_valid, name, "a positive int" if minimum else "an int from 0", value, where)


def choose_start(
    environment: ProcessEnvironment, num_processes: int, max_restarts: int, wanted: StartMethod | None, where: str
) -> StartMethod | None:
    """Return how this process has to start the others; None if there are none, or another launcher has.

    Args:
        environment: The environment of this process.
        num_processes: The number of processes of the job.
        max_restarts: The maximum number of restarts.
        wanted: What was asked for; None forks where an interpreter is interactive, and runs a script again elsewhere.
        where: The caller, for errors.

    Raises:
        ValueError: If `max_restarts` is negative, or contradicts the launcher's or the start; or if `wanted` is no
            method of this system.
        RuntimeError: As `command_line`.
    """
    check_int("max_restarts", max_restarts, 0, where)
    methods = ["script", *(["fork"] if hasattr(os, "fork") else [])]
    require(wanted is None or wanted in methods, "start_method", f"None or one of {methods}", wanted, where)
    if environment.source == "alone":
        if num_processes == 1 and max_restarts == 0:
            return None
        if wanted == "fork" or (wanted is None and is_interactive() and "fork" in methods):
            action = "Put the training in a script, which can be run again."
            require(max_restarts == 0, "max_restarts", "0 where ranks are forks", max_restarts, where, action)
            return "fork"
        command_line(num_processes, where)
        return "script"
    of_agent = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    rule, is_same = f"{of_agent}, as for the launcher of this process, or left out", max_restarts in (0, of_agent)
    require(is_same, "max_restarts", rule, max_restarts, where, f"Start `torchrun --max-restarts={max_restarts}`.")
    return None


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_interactive() -> bool:
    """Return whether this process is a notebook's kernel, an IPython shell or an interactive shell of Python."""
    return _interactive_kind() is not None


def _interactive_kind() -> str | None:
    if hasattr(builtins, "__IPYTHON__"):
        return "a notebook or an IPython shell"
    return "an interactive shell" if hasattr(sys, "ps1") or sys.flags.interactive else None


def command_line(num_processes: int, where: str) -> list[str]:
    """Return the command that runs this process's script or module again, with the interpreter's options.

    Raises:
        RuntimeError: If this process runs no script or module, but a notebook, a shell, `-c` or a test.
    """
    main = sys.modules["__main__"]
    position = script_position(sys.orig_argv)
    reason = _unrepeatable_kind(main) or ("no script or module" if position is None else None)
    if position is None or reason is not None:
        rule = "1 where no script or module can be run once for each process"
        action = (
            f"Put it in a script, start that with `torchrun --nproc-per-node={num_processes}`, fork it "
            "(Trainer(strategy='ddp_fork'), or start_method='fork' of a strategy), or pass devices=1."
        )
        raise RuntimeError(must_be("devices", rule, num_processes, f"{where} in {reason}", action))
    arguments = list(sys.orig_argv)
    if main.__spec__ is None and getattr(main, "__file__", None):
        # The working directory may have changed since the start.
        arguments[position] = str(Path(str(main.__file__)).absolute())
    return [sys.executable, *arguments[1:]]


def script_position(arguments: Sequence[str]) -> int | None:
    """Return the index of the script in a command line of Python, or of the module after `-m`; None without either.

    Args:
        arguments: The command line, beginning with the interpreter; options are parsed as Python does.
    """
    position = 1
    while position < len(arguments):
        option = re.fullmatch(r"-(?:-.*|[^cmWX-]*(?:([cmWX])(.*))?)", arguments[position])
        if option is None:  # the script
            return position
        letter, value = option.groups()
        if letter == "c" or arguments[position] == "-":
            return None
        has_separate_value = value == "" or arguments[position] == "--check-hash-based-pycs"
        position += has_separate_value
        if letter == "m":
            return position if position < len(arguments) else None
        position += 1
    return None


def _unrepeatable_kind(main: ModuleType) -> str | None:
    """Return the kind of process whose command line cannot be run again; None if it can."""
    name = main.__spec__.name if main.__spec__ is not None else ""
    if (kind := _interactive_kind()) is not None:
        return kind
    if multiprocessing.parent_process() is not None:
        return "a process of `multiprocessing`"
    if name.partition(".")[0] == "pytest" or Path(getattr(main, "__file__", "")).name in ("pytest", "py.test"):
        return "a test of pytest"
    return None
