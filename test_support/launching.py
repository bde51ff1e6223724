"""Starting scripts in several real processes, as users start them, and collecting what each process found.

This file imports nothing but the standard library, so that scripts may import `report` from it at no cost; and the
simulated device, which they get so.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from forked_children import ask, start_by

Process: TypeAlias = "ForkedRanks | subprocess.Popen[bytes]"
Launcher = Literal["forked", "torchrun", "bare", "slurm"]

if "CAMSHAFT_SIMULATED_DEVICE" in os.environ:  # in the scripts of tests with `--simulated-device`
    import simulated_device  # noqa: F401

_FORKED_RANKS = Path(__file__).with_name("forked_ranks.py")
_REPORTS = "CAMSHAFT_TEST_REPORTS"
_OF_EARLIER_TESTS = ("PL_GLOBAL_SEED", "PL_SEED_WORKERS")  # set by `seed_everything`, Lightning's too
_OF_LAUNCHERS = ("SLURM_", "TORCHELASTIC_", "RANK", "LOCAL_", "WORLD_SIZE", "GROUP_", "ROLE_", "MASTER_", "PMI_")


@dataclass(frozen=True)
class Outcome:
    """What became of a start.

    Attributes:
        exit_code: 0 if all was well; else the first non-zero exit status (negative: ended by that signal).
        exit_codes: The status of every process that was started: one a rank for SLURM, else one.
        output: What all processes wrote to stdout and stderr, interleaved.
        reports: By rank: what its process passed to `report`, in order.
        seconds: How long it took.
    """

    exit_code: int
    exit_codes: list[int]
    output: str
    reports: list[list[Any]]
    seconds: float

    @property
    def named(self) -> list[dict[str, Any]]:
        """By rank: the values that its process reported under a name."""
        return [dict(values) for values in self.reports]

    def succeeded(self) -> Outcome:
        """This outcome, if all was well; otherwise an assertion fails and shows the output."""
        assert self.exit_code == 0, f"exit statuses {self.exit_codes} after {self.seconds:.0f} s:\n{self.output}"
        return self

    def failed(self) -> Outcome:
        """This outcome, if every process that was started ended non-zero; otherwise an assertion fails."""
        assert all(self.exit_codes), f"exit statuses {self.exit_codes} after {self.seconds:.0f} s:\n{self.output}"
        return self


def report(*values: Any) -> None:
    """In a script: hand the test a picklable value, or a name and a value; both are in `Outcome.reports` as passed."""
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
    with Path(os.environ[_REPORTS], rank).open("ab") as file:
        file.write(pickle.dumps(values[0] if len(values) == 1 else values))


def run_ranks(
    script_or_code: Path | str,
    num_processes: int,
    *,
    launcher: Launcher = "forked",
    timeout: float = 240.0,
    env: Mapping[str, str] | None = None,
    args: Sequence[str | Path] = (),
    options: Sequence[str] = (),
    disks: tuple[Path, Sequence[Path]] | None = None,
    imports: Sequence[str] = (),
) -> Outcome:
    """Run a script in several processes on this machine and wait for all of them.

    Args:
        script_or_code: A script's path, or Python code as a string that becomes a script.
        num_processes: How many; only passed to the script (as `NUM_PROCESSES`) where it starts them itself ("bare").
        launcher: "forked" is the cheapest: processes that are forked after torch was imported, see forked_ranks.py;
            "torchrun"; "bare" is `python script.py`; "slurm" is what `srun` does: one process a rank, with SLURM's
            variables and nobody who watches over them. They, and what an agent in them starts, are forked likewise,
            unless they have disks of their own.
        timeout: After so many seconds everything is killed and the test fails.
        env: Environment variables for the processes, beyond this process's without those of launchers.
        args: Command-line arguments of the script.
        options: Options of torchrun, for that launcher alone.
        disks: A path, and the folder that each process finds there on a machine of its own; see `on_machine`. For
            torchrun, which then has an agent on each, and SLURM.
        imports: Modules, also of the script's folder, that are imported before ranks are forked, so that many starts
            take little time each. They may start no threads.
    """
    with tempfile.TemporaryDirectory(prefix="camshaft-ranks-") as folder:
        script = script_or_code
        if not isinstance(script, Path):
            script = Path(folder, "script.py")
            script.write_text(str(script_or_code))
        reports = Path(folder, "reports")
        reports.mkdir()
        environment = (
            clean_environment() | {_REPORTS: str(reports), "NUM_PROCESSES": str(num_processes)} | dict(env or {})
        )
        command = [sys.executable, str(script), *map(str, args)]
        is_forked = disks is None
        if launcher == "forked":
            command[:1] = [str(num_processes), str(free_port())]
        elif launcher == "torchrun":
            where = ["--standalone", f"--nproc-per-node={num_processes}"]
            if disks is not None:
                endpoint = f"--rdzv-endpoint=machine-0:{free_port()}"
                where = [f"--nnodes={num_processes}", "--nproc-per-node=1", "--rdzv-backend=c10d", endpoint]
            command[1:1] = ["-m", "torch.distributed.run", *where, *options]
        environments = [environment]
        if is_forked and launcher != "forked":
            command[:1] = ["1", ""]
        if launcher == "slurm":
            slurm = slurm_environments(num_processes, num_nodes=1 if disks is None else num_processes)
            environments = [environment | variables for variables in slurm]
        commands = [command] * len(environments)
        if disks is not None:
            environments = environments * (num_processes // len(environments))
            commands = [on_machine(number, command, disks[0], disk) for number, disk in enumerate(disks[1])]
        started = time.monotonic()
        with Path(folder, "output").open("w+") as output:
            start = functools.partial(ForkedRanks, imports=imports) if is_forked else _start
            pairs = zip(commands, environments, strict=True)
            exit_codes = _wait([start(one, variables, output.fileno()) for one, variables in pairs], timeout)
            output.seek(0)
            text = output.read()
        seconds = time.monotonic() - started
        assert exit_codes is not None, f"still running after {timeout} s; killed. Its output:\n{text}"
        exit_code = next((code for code in exit_codes if code), 0)
        by_rank = [_read_reports(reports / str(rank)) for rank in range(num_processes)]
    return Outcome(exit_code, exit_codes, text, by_rank, seconds)


@contextlib.contextmanager
def forking_python() -> Iterator[None]:
    """Fork the Python processes that tests start meanwhile, as ranks are forked, rather than start them anew.

    A process that has other options than -m, -c and -u is started anew. It is for tests that ask what a program does,
    not for those that ask what it imports.
    """
    undo = start_by(_forking_process()[0])
    try:
        yield
    finally:
        undo()


def free_port() -> int:
    """A TCP port of localhost that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def on_machine(number: int, command: Sequence[str], place: Path, disk: Path) -> list[str]:
    """The command that runs another on a machine of its own: it has a name, and a folder is its disk at a path.

    The path must exist. All else is shared, the network too, where every machine has the address of this one.
    """
    names = "127.0.0.1 localhost " + " ".join(f"machine-{other}" for other in range(8))
    start = (
        'hostname "$0" && echo "$1" >"$2.hosts" && mount --bind "$2.hosts" /etc/hosts && mount --bind "$2" "$3" '
        '&& shift 3 && exec "$@"'
    )
    own_namespaces = ["unshare", "--mount", "--uts", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    return [*own_namespaces, "sh", "-c", start, f"machine-{number}", names, str(disk), str(place), *command]


@functools.cache
def why_no_machines() -> str | None:
    """The reason why processes cannot have machines of their own here; None if they can."""
    with tempfile.TemporaryDirectory() as folder:
        disk, place = Path(folder, "disk"), Path(folder, "place")
        disk.mkdir()
        place.mkdir()
        try:
            tried = subprocess.run(on_machine(0, ["true"], place, disk), capture_output=True, text=True)
        except OSError as error:
            return str(error)
        return tried.stderr.strip() or "unshare failed" if tried.returncode else None


def slurm_environments(num_processes: int, *, job_id: int | None = None, num_nodes: int = 1) -> list[dict[str, str]]:
    """What `srun --ntasks=<num_processes>` sets for each task, on one node or one for each, as far as anybody asks."""
    host = "localhost" if num_nodes == 1 else f"machine-[0-{num_nodes - 1}]"
    tasks_per_node = str(num_processes) if num_nodes == 1 else f"1(x{num_nodes})"
    # Nobody else's port: strategies derive theirs from the job's number.
    job = str(job_id if job_id is not None else free_port())
    shared = {
        "SLURM_JOB_ID": job,
        "SLURM_JOB_NAME": "train",
        "SLURM_JOB_NUM_NODES": str(num_nodes),
        "SLURM_NNODES": str(num_nodes),
        "SLURM_NTASKS": str(num_processes),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": host,
        "SLURM_STEP_NUM_TASKS": str(num_processes),
        "SLURM_STEP_NUM_NODES": str(num_nodes),
        "SLURM_STEP_TASKS_PER_NODE": tasks_per_node,
        "SLURM_NODELIST": host,
    }
    places = [("0", str(rank)) if num_nodes == 1 else (str(rank), "0") for rank in range(num_processes)]
    return [
        shared | {"SLURM_PROCID": str(rank), "SLURM_NODEID": node_idx, "SLURM_LOCALID": local_rank}
        for rank, (node_idx, local_rank) in enumerate(places)
    ]


def clean_environment() -> dict[str, str]:
    """This process's environment without what launchers and seeds set; scripts find the modules of this folder."""
    left_out = (*_OF_LAUNCHERS, *_OF_EARLIER_TESTS)
    own = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    own["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), own.get("PYTHONPATH")]))
    return own | {"OMP_NUM_THREADS": "1"}


class ForkedRanks:
    """Ranks of a script, forked by a process that has imported torch; to wait for and to end like a `Popen`.

    Args:
        command: The number of ranks, the port of the first one, the script, or -m and a module, and arguments. Without
            a port nothing says the ranks who they are.
        environment: The ranks' environment variables; those that Python reads at its start are read once, at the first.
        output: Descriptor of the file that stdout and stderr go to.
        imports: Modules that the process has imported, too.
    """

    def __init__(
        self, command: list[str], environment: dict[str, str], output: int, *, imports: Sequence[str] = ()
    ) -> None:
        self._command = command
        self._exit_code: int | None = None
        request = {"command": command, "environment": environment, "directory": os.getcwd()}
        server = _forking_process(*((str(Path(command[2]).parent), *imports) if imports else ()))[0]
        self._status = ask(server, request, [output, output])
        self.pid = int(self._status.recv(16))

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status of the first rank that failed, or 0."""
        if self._exit_code is None:
            self._status.settimeout(timeout)
            try:
                self._exit_code = int(self._status.recv(16) or -signal.SIGKILL)
            except TimeoutError:
                raise subprocess.TimeoutExpired(self._command, timeout or 0.0) from None
        return self._exit_code

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.001)
        return self._exit_code

    def terminate(self) -> None:
        os.killpg(self.pid, signal.SIGTERM)


@functools.cache
def _forking_process(*folder_and_imports: str) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Return the process that forks ranks and the socket that it serves; it ends with this process."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, str(_FORKED_RANKS), str(theirs.fileno()), *folder_and_imports]
    with theirs:
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "pass_fds": [theirs.fileno()]}
        process = subprocess.Popen(command, env=clean_environment(), **options)
    atexit.register(_end_forking_process, ours, process)
    return ours, process


def _end_forking_process(server: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Wait for it, since only then its processor time, and that of all ranks, counts for this process."""
    server.close()
    process.wait()


def _start(command: list[str], environment: dict[str, str], output: int) -> subprocess.Popen[bytes]:
    # A file rather than a pipe: a process that outlives its parent cannot keep the test waiting.
    return subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)


def _wait(processes: Sequence[Process], timeout: float) -> list[int] | None:
    """Return the exit statuses of processes, or None if the time was up and they were killed."""
    deadline = time.monotonic() + timeout
    try:
        return [process.wait(max(0.0, deadline - time.monotonic())) for process in processes]
    except subprocess.TimeoutExpired:
        return None
    finally:
        for process in processes:
            _end(process)


def _end(process: Process) -> None:
    if process.poll() is None:
        process.terminate()  # an agent then ends its workers, which have sessions of their own
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _read_reports(path: Path) -> list[Any]:
    values: list[Any] = []
    if path.exists():
        with path.open("rb") as file:
            while file.peek(1):
                values.append(pickle.load(file))
    return values
