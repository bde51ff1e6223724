"""Launch of a machine's ranks by PyTorch's elastic agent, which runs in this process.

The agent runs this process's command line once for each rank, restarts all of them if one fails and restarts are left,
and forwards signals.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import uuid
from typing import NoReturn

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from camshaft.strategies.checks import require
from camshaft.strategies.launch.environment import command_line, num_cores, script_position
from camshaft.strategies.launch.failures import print_message


def launch(num_processes: int, max_restarts: int, where: str) -> NoReturn:
    """Run this process's command line in `num_processes` processes, wait for them, and exit.

    Args:
        num_processes: The number of processes.
        max_restarts: The maximum number of restarts of all processes after a failure.
        where: The caller, for errors.

    Raises:
        RuntimeError: If the command line cannot be run again.
        SystemExit: Always otherwise: with 0 if all processes succeeded; else with the status of the one that failed
            first, or 128 plus the number of the signal that ended it or this process.
    """
    command = _as_hydra_job(command_line(num_processes, where), where)
    # Otherwise each process would start a thread per core.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, num_cores() // num_processes)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=max_restarts,
        local_addr="localhost",
    )
    try:
        elastic_launch(config, command[0])(*command[1:])
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        # one that has written its error may take so long to end that the agent ends it
        has_error, was_ended = isinstance(failure.message, dict), failure.exitcode == -signal.SIGTERM
        exit_code = 1 if has_error and was_ended else failure.exitcode
        _report(rank, failure, exit_code)
        raise SystemExit(exit_code if exit_code > 0 else 128 - exit_code) from None
    except SignalException as error:
        raise SystemExit(128 + int(error.sigval)) from None
    raise SystemExit(0)


def _as_hydra_job(command: list[str], where: str) -> list[str]:
    """Return the command with which ranks of a job of Hydra write into this process's folder, not one of their time.

    They begin in the directory in which this process began, which a job may have left (`hydra.job.chdir`). In a sweep
    (`--multirun`) they run all of its jobs.

    Raises:
        RuntimeError: If a sweep chooses values as it goes, which ranks would choose each for itself, or runs its jobs
            elsewhere.
    """
    module = sys.modules.get("hydra.core.hydra_config")
    if module is None or not module.HydraConfig.initialized():
        return command
    config = module.HydraConfig.get()
    is_sweep = config.mode is not None and config.mode.name == "MULTIRUN"
    for part in ("sweeper", "launcher") if is_sweep else ():
        kind = str(config[part]._target_).rpartition(".")[2]
        rule, action = "basic, as each rank runs the sweep", "Keep it in one process: Trainer(strategy='ddp_fork')."
        require(kind.startswith("Basic"), f"hydra/{part}", rule, kind, where, action, RuntimeError)
    folder = os.path.join(config.runtime.cwd, config.sweep.dir) if is_sweep else config.runtime.output_dir
    quoted = folder.replace("'", r"\'")
    override = f"hydra.{'sweep' if is_sweep else 'run'}.dir='{quoted}'"
    os.chdir(config.runtime.cwd)
    # the parser takes overrides in one place only, and the last one of a name counts
    first = (script_position(command) or 0) + 1
    own = [idx for idx in range(first, len(command)) if re.match(r"~|[^-].*=", command[idx])]
    position = own[-1] + 1 if own else len(command)
    return [*command[:position], override, *command[position:]]


def _report(rank: int, failure: ProcessFailure, exit_code: int) -> None:
    """Print which rank failed first, and why; it has printed its own traceback, if it could."""
    # The message in an error file is a mapping, despite torch's annotation.
    message: object = failure.message
    status = f"by signal {failure.signal_name()}" if exit_code < 0 else f"with status {exit_code}"
    cause = f": {message['message']}" if isinstance(message, dict) else "."
    print_message(f"The process of rank {rank} (local rank {failure.local_rank}) ended {status}{cause}")
