"""Jobs side by side: real processes, and what is said of each."""

from __future__ import annotations

import json
import sys
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from threading import Timer

import pytest

from gate import Gate, Job, print_end, print_table, was_skipped


def python(name: str, program: str, **environment: str | None) -> Job:
    return Job(name, (sys.executable, "-c", program), environment)


def test_outcomes_come_in_the_order_of_the_jobs_with_what_each_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [python("slow", "import time; time.sleep(0.5); print('done')"), python("wrong", "raise SystemExit(3)")]
    outcomes = Gate(tmp_path, tmp_path / "logs").run(jobs)
    assert [(outcome.job, outcome.result, outcome.has_failed) for outcome in outcomes] == [
        ("slow", "passed", False),
        ("wrong", "failed", True),
    ]
    assert outcomes[0].log.read_text() == "done\n"
    print_table(outcomes)
    printed = capsys.readouterr().out
    assert "===== slow: passed after" in printed
    assert [line.split()[:2] for line in printed.splitlines()[-2:]] == [["slow", "passed"], ["wrong", "failed"]]


def test_the_end_of_a_failure_is_printed_again_without_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = tmp_path / "test_wrong.py"
    test.write_text("import warnings\n\ndef test_wrong():\n    warnings.warn('aside')\n    assert 1 == 2\n")
    job = Job("wrong", (sys.executable, "-m", "pytest", "-q", str(test)))
    (outcome,) = Gate(tmp_path, tmp_path / "logs").run([job])
    assert "aside" in capsys.readouterr().out
    print_end(outcome, num_lines=4)
    printed = capsys.readouterr().out
    assert "FAILED" in printed and "aside" not in printed
    assert len(printed.splitlines()) == 6
    print_end(outcome)
    assert "assert 1 == 2" in capsys.readouterr().out


def test_the_table_says_how_long_the_processes_of_a_job_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = "import os\nwhile sum(os.times()[:2]) < 1.5: pass"
    starts = f"import subprocess, sys, time\nsubprocess.run([sys.executable, '-c', {busy!r}])"
    print_table(
        Gate(tmp_path, tmp_path / "logs").run([python("busy", starts), python("idle", "import time; time.sleep(1)")])
    )
    table = [line.split() for line in capsys.readouterr().out.splitlines()[-3:]]
    assert table[0] == ["job", "result", "seconds", "of", "processors"]
    assert [(row[0], int(row[3]) > 0) for row in table[1:]] == [("busy", True), ("idle", False)]


def test_a_job_may_succeed_with_another_status_than_0(tmp_path: Path) -> None:
    job = Job("no tests", (sys.executable, "-c", "raise SystemExit(5)"), success_codes=(0, 5))
    assert [outcome.result for outcome in Gate(tmp_path, tmp_path / "logs").run([job])] == ["passed"]


def test_a_job_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    program = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    (outcome,) = Gate(tmp_path, tmp_path / "logs", timeout_seconds=1.0).run([python("hangs", program)])
    assert outcome.result == "timed out"
    assert outcome.has_failed
    assert outcome.seconds < 60


def test_a_job_has_its_environment_and_lets_a_gate_of_its_own_run_one_job_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMOVED", "1")
    program = "import os; print(os.environ['ADDED'], 'REMOVED' in os.environ, os.environ['CAMSHAFT_GATE_LANES'])"
    (outcome,) = Gate(tmp_path, tmp_path / "logs").run([python("environment", program, ADDED="yes", REMOVED=None)])
    assert outcome.log.read_text() == "yes False 1\n"


def test_a_job_waits_for_what_it_needs_while_another_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gate.NUM_SIDE_BY_SIDE", 2)
    needed = Future[None]()

    def finish() -> None:
        (tmp_path / "needed").touch()
        needed.set_result(None)

    Timer(0.5, finish).start()
    shown = "from pathlib import Path; print(Path('needed').exists())"
    jobs = [replace(python("waits", shown), wait=needed.result), python("runs", shown)]
    waited, other = Gate(tmp_path, tmp_path / "logs").run(jobs)
    assert (waited.log.read_text(), other.log.read_text()) == ("True\n", "False\n")


def test_a_gate_ends_if_a_job_cannot_have_what_it_needs(tmp_path: Path) -> None:
    needed = Future[None]()
    needed.set_exception(RuntimeError("not to be had"))
    with pytest.raises(RuntimeError, match="not to be had"):
        Gate(tmp_path, tmp_path / "logs").run([replace(python("waits", "print()"), wait=needed.result)])


@pytest.mark.parametrize(
    ("results", "expected"), [(["skipped"], True), (["success"], False), (["skipped", "success"], False), ([], False)]
)
def test_a_session_is_skipped_if_the_report_of_nox_says_so(tmp_path: Path, results: list[str], expected: bool) -> None:
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"sessions": [{"result": result} for result in results]}))
    assert was_skipped(report) is expected
    assert not was_skipped(None)
    assert not was_skipped(tmp_path / "missing.json")


def test_a_job_of_a_session_hands_arguments_on(tmp_path: Path) -> None:
    job = Job.of_session(Path("noxfile.py"), tmp_path, "tests-loops", "-m", "processes")
    assert job.name == "tests-loops"
    assert job.command[-5:] == ("-s", "tests-loops", "--", "-m", "processes")
    assert job.report == tmp_path / "tests-loops.json"
