from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from subprocess import PIPE
from typing import Any

import pytest
from torch.distributed import HashStore

from camshaft.strategies.launch.peers import PeerProcess, ProcessPosition, own_identity, position_key

pytestmark = pytest.mark.processes

NEVER = 1e9


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    yield process
    process.kill()
    process.wait()


def identity_of(process: subprocess.Popen[Any]) -> str:
    return f"{own_identity().rpartition('/')[0]}/{process.pid}/0"


def ends(peer: PeerProcess, store: HashStore) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        reason = peer.check(store)
        if reason is not None:
            return reason
        time.sleep(0.01)
    raise AssertionError("the end went unnoticed")


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
def test_the_end_of_a_process_of_the_same_machine_is_seen_at_once_though_nobody_waited_for_it(
    sleeper: subprocess.Popen[bytes],
) -> None:
    store, peer = HashStore(), PeerProcess(3, NEVER, 1.0)
    assert peer.check(store) is None  # it has not yet said who it is
    store.set("process/3", identity_of(sleeper))
    assert [peer.check(store) for _ in range(5)] == [None] * 5
    sleeper.kill()
    assert ends(peer, store).startswith("its process ended unexpectedly: it was killed")


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
def test_a_process_that_was_gone_before_anybody_looked_for_it_is_missed(sleeper: subprocess.Popen[bytes]) -> None:
    store, peer = HashStore(), PeerProcess(3, NEVER, 1.0)
    store.set("process/3", identity_of(sleeper))
    sleeper.kill()
    sleeper.wait()
    assert ends(peer, store).startswith("its process ended unexpectedly: it was killed")


def test_a_process_that_said_that_it_leaves_is_not_missed(sleeper: subprocess.Popen[bytes]) -> None:
    store, peer = HashStore(), PeerProcess(0, 1.0, 1.0)
    store.set("process/0", identity_of(sleeper))
    assert peer.check(store) is None
    store.set("left/0", "1")
    sleeper.kill()
    sleeper.wait()
    assert [peer.check(store) for _ in range(5)] == [None] * 5


def test_a_process_elsewhere_is_missed_when_it_gave_no_sign_of_life_for_so_many_looks() -> None:
    store, peer = HashStore(), PeerProcess(1, limit_seconds=3.0, interval_seconds=1.0)
    store.set("process/1", f"another machine/{os.getpid()}/0")
    for epoch in range(5):
        position = ProcessPosition(f"fit, epoch {epoch}")
        store.set(position_key(1), pickle.dumps(position))
        assert [peer.check(store) for _ in range(3)] == [None] * 3
    assert not peer.is_silent and not peer.kill()
    assert peer.check(store) == "its process gave no sign of life for 3 s: it, or its machine, ended or hangs."
    assert peer.is_silent and peer.position == position


def test_processes_are_told_apart() -> None:
    place, _, number = own_identity().rpartition("/")
    assert number == str(os.getpid()) and place


IN_C = """
import re, sys
from camshaft.strategies.launch.peers import print_stacks_on_signal
print(print_stacks_on_signal(), flush=True)
def holds_the_interpreter():
    re.match("(a+)+$", "a" * 64 + "b")
holds_the_interpreter()
"""


@pytest.mark.skipif(not hasattr(signal, "pidfd_send_signal"), reason="needs Linux")
def test_a_process_within_c_code_that_holds_the_interpreter_prints_its_stack_and_can_be_killed() -> None:
    store, peer = HashStore(), PeerProcess(3, NEVER, 1.0)
    assert not peer.print_stack(store)  # it has not yet said who it is
    with subprocess.Popen([sys.executable, "-c", IN_C], stdout=PIPE, stderr=PIPE, text=True) as process:
        number = int(process.stdout.readline())  # type: ignore[union-attr]
        time.sleep(0.2)
        store.set("process/3", identity_of(process).rpartition("/")[0] + f"/{number}")
        assert peer.print_stack(store)
        lines = iter(process.stderr.readline, "")  # type: ignore[union-attr]
        assert any("in holds_the_interpreter" in line for line in lines)
        assert peer.kill()
    assert process.returncode == -signal.SIGKILL and not peer.kill()
