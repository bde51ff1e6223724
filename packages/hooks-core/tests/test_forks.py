"""A process in which other threads communicate can be forked."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys, time
from camshaft.hooks_core import processes

registered = []
os.register_at_fork = lambda **functions: registered.append(functions)
processes.make_forks_safe()
processes.make_forks_safe()
assert len(registered) == (1 if sys.version_info < (3, 11, 10) else 0), registered
sys.version_info = (3, 12, 0)
processes.make_forks_safe.cache_clear()
processes.make_forks_safe()
assert len(registered) <= 1, "an interpreter that is mended needs nothing"
print("as it should be")
"""

FORKING = """
import os, threading, time
from camshaft.hooks_core.processes import make_forks_safe

make_forks_safe()
begun = time.perf_counter()
child = os.fork()
if child == 0:
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert time.perf_counter() - begun < 5
print("as it should be")
"""


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="nothing forks here")
@pytest.mark.parametrize("script", [SCRIPT, FORKING])
def test_forks_wait_for_other_threads_once_where_the_interpreter_needs_it(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "as it should be\n", done.stderr
