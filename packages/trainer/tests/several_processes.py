"""Starting scripts in several real processes, as users start them, and collecting what each process found."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

_REPORTS = "CAMSHAFT_TEST_REPORTS"
_OF_LAUNCHERS = ("SLURM_", "TORCHELASTIC_", "RANK", "LOCAL_", "WORLD_SIZE", "GROUP_", "ROLE_", "MASTER_")


@attrs.frozen
class Outcome:
    """What became of a start: the launcher's exit status, what all wrote, and what each rank reported, by name."""

    exit_code: int
    output: str
    reports: list[dict[str, Any]]

    def succeeded(self) -> Outcome:
        assert self.exit_code == 0, f"exit status {self.exit_code}:\n{self.output}"
        return self


def report(name: str, value: Any) -> None:
    """In a script: hand something that can be pickled to the test."""
    with Path(os.environ[_REPORTS], os.environ.get("RANK", "0")).open("ab") as file:
        file.write(pickle.dumps((name, value)))


def run_script(
    script: str,
    folder: Path,
    *,
    num_processes: int = 2,
    launcher: str = "torchrun",
    args: Sequence[str] = (),
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 300.0,
) -> Outcome:
    """Run a script of this folder in several processes and wait for all of them.

    Args:
        script: Its name; it gets `folder` as its first argument.
        folder: Where it may write.
        num_processes: How many.
        launcher: "torchrun", or "bare" for `python script.py`, which starts them itself.
        args: Further arguments of the script.
        options: Options of torchrun.
        env: Further environment variables.
        timeout: After so many seconds everything is killed and the test fails.
    """
    here = Path(__file__).parent
    reports = folder / "reports"
    reports.mkdir(parents=True, exist_ok=True)
    own = {name: value for name, value in os.environ.items() if not name.startswith(_OF_LAUNCHERS)}
    own["PYTHONPATH"] = os.pathsep.join(filter(None, [str(here), own.get("PYTHONPATH")]))
    own |= {"OMP_NUM_THREADS": "1", _REPORTS: str(reports), **(env or {})}
    command = [sys.executable, str(here / script), str(folder), *args]
    if launcher == "torchrun":
        elastic = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}"]
        command[1:1] = [*elastic, *options]
    with (folder / "output").open("w+") as output:
        process = subprocess.Popen(command, env=own, stdout=output, stderr=output, start_new_session=True)
        try:
            exit_code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.terminate()
            time.sleep(5)
            os.killpg(process.pid, signal.SIGKILL)
            exit_code = process.wait()
        output.seek(0)
        text = output.read()
    return Outcome(exit_code, text, [_read(reports / str(rank)) for rank in range(num_processes)])


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if path.exists():
        with path.open("rb") as file:
            while file.peek(1):
                name, value = pickle.load(file)
                values[name] = value
    return values
