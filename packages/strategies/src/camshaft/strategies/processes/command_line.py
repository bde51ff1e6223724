"""Whether, and how, this process's own command line can be run once for each of a machine's processes."""

from __future__ import annotations

import builtins
import multiprocessing
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from camshaft.hooks_core.messages import must_be
from camshaft.strategies.processes.process_environment import ProcessEnvironment


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
