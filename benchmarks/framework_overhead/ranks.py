"""The ranks of a benchmark: a script that starts several processes of itself and collects what they measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_FILE = "CAMSHAFT_BENCHMARK_RANK"


def is_rank() -> bool:
    """Return whether this process was started by `values_of_ranks`."""
    return _FILE in os.environ


def write_as_rank(values: Any) -> None:
    """Hand what this rank measured over to the process that started it, as JSON."""
    Path(f"{os.environ[_FILE]}.{os.environ['RANK']}").write_text(json.dumps(values))


def values_of_ranks(script: str, numbers: Sequence[int], num_steps: int) -> dict[str, list[Any]]:
    """Start a script in several processes on this machine, with `--steps`, once for each number of ranks.

    Returns:
        By number of ranks, what each rank has written.
    """
    values = {}
    for number in numbers:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "rank")
            launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={number}"]
            command = [sys.executable, *launch, script, "--steps", str(num_steps)]
            environment = os.environ | {_FILE: str(path), "OMP_NUM_THREADS": "1"}
            subprocess.run(command, env=environment, check=True, timeout=600)
            values[str(number)] = [json.loads(Path(f"{path}.{rank}").read_text()) for rank in range(number)]
    return values
