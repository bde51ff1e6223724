"""Modules whose classes the command `check` is tried on, here and in the tests of compat."""

from __future__ import annotations

from pathlib import Path

EXAMPLES = """
from camshaft.hooks_core import Callback, DataHooks, ModelHooks

class Good(ModelHooks):
    def __init__(self, size):
        raise AssertionError("must not be instantiated")
    def training_step(self, batch, batch_idx): ...
    class Inner(Callback): ...

class Bad(Callback):
    def on_fit_begin(self, trainer, module): ...
    def on_train_start(self, trainer, module, batch): ...

class Old:
    def training_step(self, batch, batch_nb, optimizer_i): ...
    def on_epoch_end(self): ...

class Mixed(ModelHooks):
    hook_era = "2.x"
    def on_epoch_end(self): ...
    def on_train_epoch_end(self): ...

class Impossible:
    hook_era = "7.0"

class Data(DataHooks):
    def train_dataloader(self): ...

value = 3
"""


def write_modules(folder: Path) -> None:
    """Write `some_hooks`, and `broken_hooks`, which cannot be imported."""
    (folder / "some_hooks.py").write_text(EXAMPLES)
    (folder / "broken_hooks.py").write_text("import a_module_that_is_not_there")
