"""Plants one fault after the other in a copy of the tree, and shows that tests notice it.

python .ci/planted_faults.py [--list] [--jobs 2] [names ...]

integration_tests/planted_faults.toml holds the faults: small mistakes of a careless change. For each one its tests run
in the copy, and have to fail. What failed has to pass without the fault. The exit status is 1 if a fault is not
noticed, or if its text is no longer found exactly once in its file.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FAULTS = Path("integration_tests/planted_faults.toml")
KEYS = {"name", "file", "old", "new", "tests"}
MAX_JOBS = 2
LIMIT_SECONDS = 300.0
PYTEST_TESTS_FAILED = 1
QUICK = "not processes"


@dataclass(frozen=True)
class Fault:
    """A mistake to plant: `old`, which is in `file` exactly once, becomes `new`, and `tests` have to fail.

    Each of `tests` is a test file, with a `-k` expression behind it if not all of its tests are to run, and with `-m
    processes` if they start processes, which are left out otherwise.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def package(self) -> str:
        """Folder of the package that the fault is in."""
        return Path(self.file).parts[1]


@dataclass(frozen=True)
class Outcome:
    """What came of a fault: the tests that failed, and in words why others did not run."""

    fault: Fault
    failed: tuple[str, ...]
    seconds: float
    reason: str = ""


def read_faults(path: Path) -> list[Fault]:
    """Return the faults in a file. Raises ValueError for an entry with other keys, or with a name that another has."""
    faults: list[Fault] = []
    for number, entry in enumerate(tomllib.loads(path.read_text(encoding="utf-8"))["fault"], 1):
        if entry.keys() != KEYS:
            shown = entry.get("name", f"number {number}")
            raise ValueError(
                f"`fault` must have the keys {', '.join(sorted(KEYS))}, but {shown!r} has {sorted(entry)}."
            )
        if any(entry["name"] == fault.name for fault in faults):
            raise ValueError(f"`name` must be one fault's own, but {entry['name']!r} is there twice. Rename one.")
        faults.append(Fault(**{**entry, "tests": tuple(entry["tests"])}))
    return faults


def in_tree(faults: Iterable[Fault], root: Path) -> list[Fault]:
    """Return the faults of the packages that are under `root`: `without-compat` leaves one out."""
    return [fault for fault in faults if (root / "packages" / fault.package).is_dir()]


def stale(fault: Fault, root: Path) -> str | None:
    """Return why a fault no longer fits the tree under `root`, None if it does."""
    file = root / fault.file
    if not file.is_file():
        return f"{fault.file} does not exist"
    num_found = file.read_text(encoding="utf-8").count(fault.old)
    if num_found != 1:
        return f"`old` is in {fault.file} {num_found} times, not once"
    if fault.old == fault.new:
        return "`new` is the same as `old`"
    try:
        if file.suffix == ".py":
            compile(planted(fault, root), fault.file, "exec")
    except SyntaxError as error:
        return f"{fault.file} is no Python with it ({error})"
    if not fault.tests:
        return "no test is named"
    return next((reason for test in fault.tests if (reason := missing_in(test, root)) is not None), None)


def missing_in(test: str, root: Path) -> str | None:
    """Return what does not exist of a test file or of the names in its `-k` expression, None if all does."""
    file, *options = shlex.split(test)
    if not (root / file).is_file():
        return f"{file} does not exist"
    text = (root / file).read_text(encoding="utf-8")
    names = set(re.findall(r"\w+", " ".join(options[1:]))) - {"and", "or", "not"}
    absent = sorted(name for name in names if name not in text)
    return f"{', '.join(absent)} is not in {file}" if absent else None


def planted(fault: Fault, root: Path) -> str:
    """Return the text of the fault's file with the fault in it."""
    return (root / fault.file).read_text(encoding="utf-8").replace(fault.old, fault.new)


def choose(faults: Sequence[Fault], names: Sequence[str]) -> list[Fault]:
    """Return the faults whose names hold one of `names`, or all. Raises ValueError for a name without any."""
    for name in names:
        if not any(name in fault.name for fault in faults):
            raise ValueError(f"`names` must be parts of the names of faults, but no name holds {name!r}. See --list.")
    return [fault for fault in faults if not names or any(name in fault.name for name in names)]


class Copy:
    """A copy of the tree in which tests run, with one fault at a time.

    Args:
        root: The tree.
        folder: Where the copy goes.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
        for name in names:
            if name and (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)

    def try_fault(self, fault: Fault) -> Outcome:
        """Run the fault's tests with the fault planted, until one fails."""
        began = time.monotonic()
        original = (self.folder / fault.file).read_text(encoding="utf-8")
        self._write(fault.file, planted(fault, self.folder))
        failed: list[str] = []
        reasons: list[str] = []
        try:
            for test in fault.tests:
                of_test, reason = self._failing(shlex.split(test))
                failed += of_test
                reasons += [f"{test}: {reason}"] if reason else []
                if failed:
                    break
        finally:
            self._write(fault.file, original)
        return Outcome(fault, tuple(failed), time.monotonic() - began, "; ".join(reasons))

    def failing_without_fault(self, tests: Sequence[str]) -> list[str]:
        """Return those of `tests`, by their pytest names, that fail in the tree as it is."""
        failed, reason = self._failing([*tests, "--maxfail=1000", "-m", ""])
        return list(tests) if reason and not failed else failed

    def _write(self, file: str, text: str) -> None:
        path = self.folder / file
        path.write_text(text, encoding="utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()  # its time and size may be those of the text before

    def _failing(self, arguments: Sequence[str]) -> tuple[list[str], str]:
        """Run pytest. Return the tests that failed, and in words why nothing can be said if that is so."""
        cache = self.folder / ".faults_cache"
        shutil.rmtree(cache, ignore_errors=True)
        options = ["-x", "-q", "--tb=no", "-m", QUICK, "-o", f"cache_dir={cache}"]
        command = [sys.executable, "-m", "pytest", *options, *arguments]
        code = run_within_limit(command, self.folder, self._environment(), LIMIT_SECONDS)
        if code is None:
            return [], f"no end within {LIMIT_SECONDS:.0f} seconds"
        if code not in (0, PYTEST_TESTS_FAILED):
            return [], f"pytest ended with status {code}, so the tests did not run"
        record = cache / "v" / "cache" / "lastfailed"
        failed = json.loads(record.read_text()) if code == PYTEST_TESTS_FAILED and record.exists() else {}
        return list(failed), ""

    def _environment(self) -> dict[str, str]:
        sources = [str(path) for path in sorted(self.folder.glob("packages/*/src"))]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(sources), "OMP_NUM_THREADS": "1"}


def run_within_limit(
    command: Sequence[str], folder: Path, environment: dict[str, str], limit_seconds: float
) -> int | None:
    """Return the exit status of a command, None if it was ended, with all that it started, at its limit."""
    options: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    with subprocess.Popen(command, cwd=folder, env=environment, **options) as run:
        try:
            return run.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)


def try_all(faults: Sequence[Fault], copies: Sequence[Copy]) -> list[Outcome]:
    """Try faults, as many at a time as there are copies, and print each outcome."""
    free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def attempt(fault: Fault) -> Outcome:
        copy = free.get()
        try:
            outcome = copy.try_fault(fault)
        finally:
            free.put(copy)
        noticed = f"noticed by {outcome.failed[0]}" if outcome.failed else f"NOT NOTICED {outcome.reason}".rstrip()
        print(f"{fault.package}: {fault.name}: {noticed} ({outcome.seconds:.0f} s)", flush=True)
        return outcome

    with ThreadPoolExecutor(len(copies)) as executor:
        return list(executor.map(attempt, faults))


def failing_anyway(outcomes: Iterable[Outcome], copy: Copy) -> list[str]:
    """Return the tests that noticed a fault, but fail without it too: they show nothing."""
    by_package: dict[str, dict[str, None]] = {}
    for outcome in outcomes:
        by_package.setdefault(outcome.fault.package, {}).update(dict.fromkeys(outcome.failed))
    failed: list[str] = []
    for tests in by_package.values():
        if tests:
            failed += copy.failing_without_fault(list(tests))
    return failed


def report(outcomes: Sequence[Outcome], anyway: Sequence[str]) -> int:
    """Print the figures, and return the exit status."""
    for test in anyway:
        print(f"{test} fails without the fault too")
    noticed = [outcome for outcome in outcomes if set(outcome.failed) - set(anyway)]
    missed = [outcome.fault for outcome in outcomes if outcome not in noticed]
    for fault in missed:
        print(f"NOT NOTICED: {fault.package}: {fault.name}")
    print(f"{len(noticed)} faults noticed, {len(missed)} not noticed")
    return 1 if missed else 0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Plant faults in a copy of the tree, and show that tests notice them.")
    parser.add_argument("names", nargs="*", help="Parts of the names of faults; without any, all are tried.")
    parser.add_argument("--list", action="store_true", help="Print the faults, and run nothing.")
    parser.add_argument("--jobs", type=int, default=1, choices=range(1, MAX_JOBS + 1), help="How many at a time.")
    options = parser.parse_args(arguments)
    try:
        faults = choose(in_tree(read_faults(ROOT / FAULTS), ROOT), options.names)
    except ValueError as error:
        parser.error(str(error))
    outdated = {fault.name: reason for fault in faults if (reason := stale(fault, ROOT)) is not None}
    for name, reason in outdated.items():
        print(f"STALE: {name}: {reason}. Bring {FAULTS} up to date.")
    if options.list or outdated:
        print(*(f"{fault.package}: {fault.name}" for fault in faults), sep="\n")
        return 1 if outdated else 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="camshaft-faults-") as folder:
        copies = [Copy(ROOT, Path(folder, str(number))) for number in range(min(options.jobs, len(faults)))]
        outcomes = try_all(faults, copies)
        status = report(outcomes, failing_anyway(outcomes, copies[0]))
    print(f"{time.monotonic() - began:.0f} seconds in all")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
