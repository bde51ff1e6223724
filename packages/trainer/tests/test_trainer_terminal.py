"""On a terminal: an interrupted run gives the cursor back and ends with the error below the bars."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")
fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")

PROGRAM = """
import sys
from camshaft import callbacks
from camshaft.trainer import Trainer
from trainer_parts import Regression, loader

class Interrupted(Regression):
    def training_step(self, batch, batch_idx):
        if batch_idx == 2:
            raise KeyboardInterrupt
        return super().training_step(batch, batch_idx)

bar = getattr(callbacks, sys.argv[2])(refresh_rate_seconds=0)
trainer = Trainer(max_epochs=1, default_root_dir=sys.argv[1], callbacks=bar)
try:
    trainer.fit(Interrupted(), loader(), loader())
except KeyboardInterrupt:
    print("interrupted")
trainer.validate(Regression(), loader())
print("done")
"""


@pytest.mark.parametrize("bar", ["RichProgressBar", "TQDMProgressBar"])
def test_the_terminal_is_as_before_after_an_interrupt(tmp_path: Path, bar: str) -> None:
    pytest.importorskip({"RichProgressBar": "rich", "TQDMProgressBar": "tqdm"}[bar])
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))  # else it is 0 columns wide
    paths = [str(Path(__file__).parent), *sys.path]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), bar], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
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
        assert part.count(hidden) == part.count(shown), output
        if bar == "RichProgressBar":  # tqdm hides no cursor
            assert part.rindex(shown) > part.rindex(hidden)
    assert "Epoch 0" in during_fit and "Validate" in afterwards
    assert "val_loss" in afterwards and afterwards.rstrip().endswith("done")
