"""Runs nox sessions side by side and reports them: what `nox -s tests` does with the sessions it chose."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

NUM_SIDE_BY_SIDE = 2
# Far above what any session takes: it only ends one that hangs.
JOB_TIMEOUT_SECONDS = 35 * 60.0


@dataclass(frozen=True)
class Outcome:
    session: str
    result: str
    seconds: float
    log: Path

    @property
    def passed(self) -> bool:
        return self.result == "passed"


class Gate:
    """Runs each session of `noxfile` in a process of its own, its output captured under `log_dir`.

    A job is the leader of a process group, so that stopping it stops whatever it started.
    """

    def __init__(self, noxfile: Path, log_dir: Path, timeout_seconds: float = JOB_TIMEOUT_SECONDS) -> None:
        self._noxfile = noxfile
        self._log_dir = log_dir
        self._timeout_seconds = timeout_seconds
        self._running: set[int] = set()

    def run(self, sessions: Sequence[str]) -> list[Outcome]:
        """Runs all `sessions`, prints each one's output at its end, and returns the outcomes in order."""
        self._log_dir.mkdir(parents=True, exist_ok=True)
        outcomes: dict[str, Outcome] = {}
        with ThreadPoolExecutor(NUM_SIDE_BY_SIDE) as pool:
            futures = [pool.submit(self._run_one, session) for session in sessions]
            try:
                for future in as_completed(futures):
                    outcome = future.result()
                    outcomes[outcome.session] = outcome
                    print_outcome(outcome)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for group in list(self._running):
                    stop_group(group)
                raise
        return [outcomes[session] for session in sessions]

    def _run_one(self, session: str) -> Outcome:
        log = self._log_dir / f"{session}.log"
        command = [sys.executable, "-m", "nox", "-f", str(self._noxfile), "-s", session]
        started = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self._noxfile.parent,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process.pid)
            try:
                result = "passed" if process.wait(self._timeout_seconds) == 0 else "failed"
            except subprocess.TimeoutExpired:
                stop_group(process.pid)
                process.wait()
                result = "timed out"
            finally:
                self._running.discard(process.pid)
        return Outcome(session, result, time.monotonic() - started, log)


def stop_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may have ended by itself in the meantime
        os.killpg(group, signal.SIGKILL)


def print_outcome(outcome: Outcome) -> None:
    print(f"\n===== {outcome.session}: {outcome.result} after {outcome.seconds:.0f} s =====", flush=True)
    print(outcome.log.read_text(encoding="utf-8", errors="replace"), end="", flush=True)


def print_table(outcomes: Sequence[Outcome]) -> None:
    width = max(len("session"), *(len(outcome.session) for outcome in outcomes))
    print(f"\n{'session':{width}}  {'result':9}  seconds")
    for outcome in outcomes:
        print(f"{outcome.session:{width}}  {outcome.result:9}  {outcome.seconds:7.0f}")
    sys.stdout.flush()
