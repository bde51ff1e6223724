from __future__ import annotations

import os
import subprocess
import sys
import threading
import traceback
from typing import Any

import pytest

from camshaft.hooks_core import Callback, resolve
from camshaft.hooks_core.support.processes import current_run, running_hook, track_run

SCRIPT = """
import os, sys, time
from camshaft.hooks_core.support import processes

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
from camshaft.hooks_core.support.processes import make_forks_safe

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


def test_the_innermost_run_is_found_with_its_thread_and_only_while_it_lasts() -> None:
    assert current_run() is None
    epoch = 0
    with track_run(lambda: f"fit, epoch {epoch}"):
        epoch = 3
        assert current_run() == (threading.get_ident(), "fit, epoch 3")
        with pytest.raises(KeyError), track_run(lambda: "validate"):
            assert current_run() == (threading.get_ident(), "validate")
            raise KeyError
        assert current_run() == (threading.get_ident(), "fit, epoch 3")
    assert current_run() is None


def test_the_hook_is_read_from_the_frames_of_its_call_the_innermost_first() -> None:
    found: list[str] = []

    class Looking(Callback):
        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            found.append(running_hook(frame for frame, _ in traceback.walk_stack(sys._getframe())))
            trainer()

        def on_validation_start(self, trainer: Any, module: Any) -> None:
            found.append(running_hook(frame for frame, _ in traceback.walk_stack(sys._getframe())))

    hooks = resolve(callbacks=[Looking()], trainer=lambda: hooks.on_validation_start())
    hooks.on_train_epoch_end()
    assert found == ["on_train_epoch_end", "on_validation_start"]
    assert running_hook([sys._getframe()]) == ""
