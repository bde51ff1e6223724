"""On a terminal: an interrupted run gives the cursor back and ends with the error below the bars."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")
pytest.importorskip("rich")

PROGRAM = """
import sys
from camshaft.callbacks import RichProgressBar
from camshaft.trainer import Trainer
from trainer_parts import Regression, loader

class Interrupted(Regression):
    def training_step(self, batch, batch_idx):
        if batch_idx == 2:
            raise KeyboardInterrupt
        return super().training_step(batch, batch_idx)

trainer = Trainer(max_epochs=1, default_root_dir=sys.argv[1], callbacks=RichProgressBar(refresh_rate_seconds=0))
try:
    trainer.fit(Interrupted(), loader(), loader())
except KeyboardInterrupt:
    print("interrupted")
trainer.validate(Regression(), loader())
print("done")
"""


def test_the_terminal_is_as_before_after_an_interrupt(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    paths = [str(Path(__file__).parent), *sys.path]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    written = b""
    try:
        while chunk := os.read(ours, 65536):
            written += chunk
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(ours)
    output = written.decode()

    assert process.wait(timeout=60) == 0, output
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    during_fit, _, afterwards = output.partition("interrupted")
    for part in (during_fit, afterwards):
        assert part.count(hidden) == part.count(shown) > 0, output
        assert part.rindex(shown) > part.rindex(hidden)
    assert "Epoch 0" in during_fit and "Validate" in afterwards
    assert "val_loss" in afterwards and afterwards.rstrip().endswith("done")
