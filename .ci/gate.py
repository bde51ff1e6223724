"""Runs jobs side by side and reports them: what `nox -s tests` and `nox -s full` do with the jobs they chose."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

# A job that runs a gate of its own is one of several already, and runs one of its jobs at a time.
LANES_VARIABLE = "CAMSHAFT_GATE_LANES"
# More than there are processors, since jobs also wait: for processes, files and the network. Ranks need memory.
NUM_SIDE_BY_SIDE = int(os.environ.get(LANES_VARIABLE) or min(5, 2 * (os.cpu_count() or 1)))
# Far above what any session takes: it only ends one that hangs.
JOB_TIMEOUT_SECONDS = 75 * 60.0


@dataclass(frozen=True)
class Job:
    """One command and its name; `environment` is set beside that of this process, None removes a variable.

    `report` is where the command, if it is nox, says whether its session was skipped. `wait` returns once the command
    can begin, and raises if it never can.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str | None] = field(default_factory=dict)
    report: Path | None = None
    success_codes: tuple[int, ...] = (0,)
    wait: Callable[[], None] | None = None

    @classmethod
    def of_session(cls, noxfile: Path, report_dir: Path, session: str, *arguments: str) -> Job:
        """Return the job that runs a session of `noxfile` with `arguments` behind `--`."""
        report = report_dir / f"{session}.json"
        command = (sys.executable, "-m", "nox", "-f", str(noxfile), "--report", str(report), "-s", session)
        return cls(session, (*command, *(("--", *arguments) if arguments else ())), report=report)


@dataclass(frozen=True)
class Outcome:
    job: str
    result: str
    seconds: float
    processor_seconds: float  # of all its processes that were waited for
    log: Path

    @property
    def has_failed(self) -> bool:
        return self.result not in ("passed", "skipped")


class Gate:
    """Runs each job in a process of its own, in `directory`, its output captured under `log_dir`.

    A job is the leader of a process group, so that stopping it stops whatever it started.
    """

    def __init__(self, directory: Path, log_dir: Path, timeout_seconds: float = JOB_TIMEOUT_SECONDS) -> None:
        self._directory = directory
        self._log_dir = log_dir
        self._timeout_seconds = timeout_seconds
        self._running: set[int] = set()

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Runs all `jobs`, prints each one's output at its end, and returns the outcomes in order."""
        self._log_dir.mkdir(parents=True, exist_ok=True)
        outcomes: dict[str, Outcome] = {}
        with ThreadPoolExecutor(NUM_SIDE_BY_SIDE) as pool:
            futures = [pool.submit(self._run_one, job) for job in jobs]
            try:
                for future in as_completed(futures):
                    outcome = future.result()
                    outcomes[outcome.job] = outcome
                    print_outcome(outcome)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for group in list(self._running):
                    stop_group(group)
                raise
        return [outcomes[job.name] for job in jobs]

    def _run_one(self, job: Job) -> Outcome:
        if job.wait is not None:
            job.wait()
        log = self._log_dir / f"{job.name}.log"
        if job.report is not None:
            job.report.unlink(missing_ok=True)
        of_all_jobs = {LANES_VARIABLE: "1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        settings = {**os.environ, **of_all_jobs, **job.environment}
        started = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                job.command,
                cwd=self._directory,
                env={name: value for name, value in settings.items() if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process.pid)
            has_expired = threading.Event()

            def expire() -> None:
                has_expired.set()
                stop_group(process.pid)

            timer = threading.Timer(self._timeout_seconds, expire)
            timer.start()
            try:
                _, status, usage = os.wait4(process.pid, 0)
            finally:
                timer.cancel()
                self._running.discard(process.pid)
        process.returncode = os.waitstatus_to_exitcode(status)
        result = "passed" if process.returncode in job.success_codes else "failed"
        if has_expired.is_set():
            result = "timed out"
        if result == "passed" and was_skipped(job.report):
            result = "skipped"
        seconds = time.monotonic() - started
        return Outcome(job.name, result, seconds, usage.ru_utime + usage.ru_stime, log)


def was_skipped(report: Path | None) -> bool:
    """Return whether nox's report tells of sessions that were all skipped: its exit status is 0 then, too."""
    if report is None or not report.exists():
        return False
    sessions = json.loads(report.read_text(encoding="utf-8"))["sessions"]
    return bool(sessions) and all(session["result"] == "skipped" for session in sessions)


def stop_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may have ended by itself in the meantime
        os.killpg(group, signal.SIGKILL)


def print_outcome(outcome: Outcome) -> None:
    print(f"\n===== {outcome.job}: {outcome.result} after {outcome.seconds:.0f} s =====", flush=True)
    print(outcome.log.read_text(encoding="utf-8", errors="replace"), end="", flush=True)


def print_end(outcome: Outcome, num_lines: int = 60) -> None:
    """Print the last lines of a job's output again, without pytest's warnings, which may be longer than all else."""
    text = outcome.log.read_text(encoding="utf-8", errors="replace")
    lines = re.sub(r"^=+ warnings summary .*?(?=^=+ )", "", text, flags=re.MULTILINE | re.DOTALL).splitlines()
    print(f"\n===== the end of {outcome.job}, which {outcome.result} =====", *lines[-num_lines:], sep="\n", flush=True)


def print_table(outcomes: Sequence[Outcome]) -> None:
    width = max(len("job"), *(len(outcome.job) for outcome in outcomes))
    print(f"\n{'job':{width}}  {'result':9}  seconds  of processors")
    for outcome in outcomes:
        print(f"{outcome.job:{width}}  {outcome.result:9}  {outcome.seconds:7.0f}  {outcome.processor_seconds:13.0f}")
    sys.stdout.flush()
