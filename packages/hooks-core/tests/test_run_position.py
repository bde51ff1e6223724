from __future__ import annotations

import sys
import threading
import traceback
from typing import Any

import pytest

from camshaft.hooks_core import Callback, resolve
from camshaft.hooks_core.processes import current_run, running, running_hook


def test_the_innermost_run_is_found_with_its_thread_and_only_while_it_lasts() -> None:
    assert current_run() is None
    epoch = 0
    with running(lambda: f"fit, epoch {epoch}"):
        epoch = 3
        assert current_run() == (threading.get_ident(), "fit, epoch 3")
        with pytest.raises(KeyError), running(lambda: "validate"):
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
