from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import clean_environment, run_ranks

from camshaft.strategies import ParallelStrategy
from camshaft.strategies.launch.environment import script_position

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python train.py --lr 1 -c x", "train.py"),
        ("python -u -W ignore train.py", "train.py"),
        ("python -Wignore -X dev -Xfrozen_modules=off train.py", "train.py"),
        ("python -uW ignore train.py", "train.py"),
        ("python --check-hash-based-pycs never train.py", "train.py"),
        ("python -m pkg.train -c x", "pkg.train"),
        ("python -um pkg.train", "pkg.train"),
        ("python -OOmpkg.train x", "-OOmpkg.train"),
        ("python -c 'import pkg' train.py", None),
        ("python -uc 'import pkg' train.py", None),
        ("python - train.py", None),
        ("python -i", None),
        ("python -m", None),
        ("python", None),
        ("", None),
    ],
)
def test_the_script_of_a_command_line_is_found_as_python_finds_it(command: str, script: str | None) -> None:
    arguments = shlex.split(command)
    position = script_position(arguments)
    assert (None if position is None else arguments[position]) == script


def test_a_test_cannot_be_run_once_for_each_process() -> None:
    message = r"`devices` must be 1 where no script or module .*, but got 2 .* in ParallelStrategy in .*torchrun"
    with pytest.raises(RuntimeError, match=message):
        ParallelStrategy(accelerator="cpu", devices=2)


@pytest.mark.parametrize("how", [["-c"], ["-i", "-"]])
def test_code_that_is_no_script_is_forked_in_a_shell_and_refused_elsewhere(how: list[str]) -> None:
    code = (
        "from camshaft.strategies import ParallelStrategy\n"
        "print(ParallelStrategy(accelerator='cpu', devices=2).start_method)\n"
    )
    is_argument = how == ["-c"]
    command = [sys.executable, *how, *([code] if is_argument else [])]
    done = subprocess.run(
        command, input="" if is_argument else code, env=clean_environment(), capture_output=True, text=True, timeout=240
    )
    if is_argument:
        assert "RuntimeError: `devices` must be 1 where no script or module" in done.stderr
        assert "in no script or module" in done.stderr and "fork it" in done.stderr
    else:
        assert done.stdout == "fork\n"


@pytest.mark.parametrize(
    ("started", "max_restarts", "message"),
    [
        ({}, -1, "`max_restarts` must be an int from 0, but got -1"),
        ({}, True, "`max_restarts` must be an int from 0, but got True"),
        ({"TORCHELASTIC_MAX_RESTARTS": "1"}, 2, "`max_restarts` must be 1, as for .*torchrun --max-restarts=2"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, 3, "`max_restarts` must be 0, as for the launcher .*, but got 3"),
    ],
)
def test_restarts_that_the_launcher_would_not_make_are_refused(
    monkeypatch: pytest.MonkeyPatch, started: dict[str, str], max_restarts: int, message: str
) -> None:
    for name, value in ({"RANK": "0", "WORLD_SIZE": "1"} | started if started else {}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        ParallelStrategy(accelerator="cpu", max_restarts=max_restarts)


RESTARTING = """
import os, signal, sys
from launching import report
from camshaft.strategies import ParallelStrategy, job_id, restart_count
os.chdir("/")  # a relative path of the script is wrong from here on
strategy = ParallelStrategy(accelerator="cpu", devices=2, max_restarts=2, timeout=60)
print(f"before {sys.argv[1:]}\\n", end="", flush=True)  # one write: torchrun's workers buffer nothing
strategy.connect()
report((strategy.global_rank, strategy.local_rank, strategy.world_size, restart_count(), job_id(), sys.argv[1:]))
strategy.barrier()
if restart_count() < 2 and strategy.global_rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
print(f"all {strategy.all_gather(strategy.global_rank)}\\n", end="", flush=True)
"""


@pytest.mark.parametrize("launcher", ["bare", "torchrun"])
def test_killed_processes_are_started_again_with_the_same_command_line_and_job(launcher: str) -> None:
    args, options = ["--lr", "1 2"], ["--max-restarts=2"]
    outcome = run_ranks(RESTARTING, 2, launcher=launcher, args=args, options=options).succeeded()  # type: ignore[arg-type]
    assert outcome.output.count("before ['--lr', '1 2']") == (7 if launcher == "bare" else 6)
    assert outcome.output.count("all [0, 1]") == 2
    jobs = {life[4] for lives in outcome.reports for life in lives}
    assert len(jobs) == 1
    for rank in (0, 1):
        assert outcome.reports[rank] == [(rank, rank, 2, restarts, *jobs, args) for restarts in range(3)]


MODULE = """
import os
from camshaft.strategies import ParallelStrategy
strategy = ParallelStrategy(accelerator="cpu", devices="2", timeout=60)
strategy.connect()
strategy.barrier()
# One call, so that the lines of both do not mix.
os.write(1, f"rank {strategy.global_rank} {__name__} {__package__}\\n".encode())
"""


def test_a_module_is_run_again_as_a_module(tmp_path: Path) -> None:
    package = tmp_path / "train_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(MODULE)
    command = [sys.executable, "-u", "-m", "train_package.train"]
    done = subprocess.run(
        command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=240, check=True
    )
    assert sorted(done.stdout.splitlines()) == ["rank 0 __main__ train_package", "rank 1 __main__ train_package"]


FOR_EVER = """
import os, sys, time
from pathlib import Path
from camshaft.strategies import ParallelStrategy
strategy = ParallelStrategy(accelerator="cpu", devices=2, timeout=60)
strategy.connect()
Path(sys.argv[1], f"{strategy.global_rank}.tmp").write_text(str(os.getpid()))
os.rename(Path(sys.argv[1], f"{strategy.global_rank}.tmp"), Path(sys.argv[1], str(strategy.global_rank)))
time.sleep(3600)
"""


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_the_one_that_started_them(tmp_path: Path, signal_number: signal.Signals) -> None:
    script = tmp_path / "script.py"
    script.write_text(FOR_EVER)
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    agent = subprocess.Popen([sys.executable, str(script), str(ranks)], env=clean_environment(), start_new_session=True)
    deadline = time.monotonic() + 240
    while not all((ranks / str(rank)).exists() for rank in (0, 1)):
        assert agent.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    workers = [int((ranks / str(rank)).read_text()) for rank in (0, 1)]
    agent.send_signal(signal_number)
    status = agent.wait(120)
    assert status == (-signal_number if signal_number == signal.SIGKILL else 128 + signal_number)
    while any(map(is_alive, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


FAILING_BEFORE = """
import os, sys
from camshaft.strategies import ParallelStrategy
strategy = ParallelStrategy(accelerator="cpu", devices=2, timeout=60)
strategy.connect()
strategy.barrier()
if strategy.global_rank == 1:
    sys.exit(7)
"""


def test_the_status_of_a_process_that_ended_badly_is_passed_on() -> None:
    outcome = run_ranks(FAILING_BEFORE, 2, launcher="bare")
    assert outcome.exit_codes == [7]
    assert outcome.output.count("[camshaft] The process of rank 1 (local rank 1) ended with status 7.") == 1
