"""Time from the start of a fresh process to its first training step.

Run as a module with the name of a framework, it prints the monotonic time at which the first step was entered
and exits.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn


def milliseconds_to_first_step(framework_name: str) -> float:
    """Start a Python process for one framework and return how long it took to enter the first training step.

    Raises:
        RuntimeError: if the process failed or never entered a step.
    """
    search_path = [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, search_path))}
    # Compiled modules must be kept, or a framework run from its sources would be compiled at each start.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", __name__, framework_name]
    started_ns = time.monotonic_ns()
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    entered = [line for line in child.stdout.splitlines() if line.startswith("entered ")]
    if child.returncode != 0 or len(entered) != 1:
        raise RuntimeError(f"The process for {framework_name} never entered its first step:\n{child.stderr}")
    # The monotonic clock counts from the start of the machine, so two processes can share it.
    return (int(entered[0].split()[1]) - started_ns) / 1e6


def _report_and_exit() -> NoReturn:
    entered_ns = time.monotonic_ns()
    print(f"entered {entered_ns}", flush=True)
    os._exit(0)


def _main() -> None:
    from .frameworks import load_framework
    from .workload import use_one_thread

    use_one_thread()
    load_framework(sys.argv[1]).enter_first_step(_report_and_exit)


if __name__ == "__main__":
    _main()
